"""Which node and device a task gets: the cluster as a fold over the log (view), may it run there (feasible), how good is it there (rank),
the choice with its reasons (decide), and who is still there (liveness). Pure."""

from scheduler.placement.capacity import Capacity, capacity
from scheduler.placement.decide import Decision, Measured, check_recorded, decide, measured_of
from scheduler.placement.liveness import Clock, Heard, Liveness, LivenessConfig, overdue_tasks
from scheduler.placement.rank import SCORE_MAX, WEIGHTS, Parts
from scheduler.placement.view import ClusterView, NodeView, SessionView, TaskView

__all__ = [
    "ClusterView", "NodeView", "TaskView", "SessionView", "Capacity", "capacity", "Measured", "Decision", "decide", "measured_of",
    "check_recorded", "Parts", "WEIGHTS", "SCORE_MAX", "Liveness", "LivenessConfig", "Heard", "Clock", "overdue_tasks",
]  # fmt: skip
