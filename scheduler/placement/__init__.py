"""Which node and device a task gets: the cluster as a fold over the log (view, state, columns), whether a task may run there (feasible,
survey), how good it is there and the choice with its reasons (decide), the order of the queue and why a task waits (order, queue,
remedies), what the log or the nodes still lack (reconcile), and which move makes room (defragment). Pure.

May live here: decisions about nodes and devices. May not: appending facts, sending commands (services.controller).
"""

from scheduler.placement.decide import PARTS, SCORE_MAX, WEIGHTS, Decision, decide, explain
from scheduler.placement.feasible import Capacity, capacity
from scheduler.placement.order import effective_priority, queue_order
from scheduler.placement.queue import QueueMemory, expired_waiting, queue_decisions, queue_due_ns, worth_telling
from scheduler.placement.reconcile import (
    Clock,
    Heard,
    Liveness,
    LivenessConfig,
    load_observed,
    overdue_tasks,
    sessions_to_end,
    sessions_to_reprioritise,
)
from scheduler.placement.remedies import Remedy, Waiting, why_waiting
from scheduler.placement.view import ClusterView, GroupView, Measured, NodeView, Reservation, SessionView, TaskView

__all__ = [
    "ClusterView", "NodeView", "TaskView", "SessionView", "GroupView", "Reservation", "Capacity", "capacity", "Measured", "Decision",
    "decide", "explain", "PARTS", "WEIGHTS", "SCORE_MAX", "effective_priority", "queue_order", "queue_decisions",
    "QueueMemory", "worth_telling", "expired_waiting", "queue_due_ns", "Waiting", "Remedy", "why_waiting", "load_observed",
    "sessions_to_end", "sessions_to_reprioritise", "Liveness", "LivenessConfig", "Heard", "Clock", "overdue_tasks",
]  # fmt: skip
