"""The dispatcher of one device, as a pure function of its journal.

    dispatch = Dispatch(DispatchState(config=DispatchConfig(in_flight_max=2)))
    for decision in dispatch.on(BatchArrived(at_ns, session, epoch, seq, nbytes, content)): ...

``snapshot`` turns (stimulus, decisions) and the state into bytes and replays them; ``state`` holds exact utilization and starvation;
``order`` is the policy. See core for the rules.

May live here: decisions about launches. May not: executing them (services.server).
"""

from scheduler.dispatch.core import Dispatch, chain
from scheduler.dispatch.decisions import Decision, Drop, Launch, Park, Preempt, Refuse, Release
from scheduler.dispatch.explain import Reason, explain
from scheduler.dispatch.fair import fairness_bound
from scheduler.dispatch.snapshot import Journal, Record, decode_journal, restore, snapshot
from scheduler.dispatch.state import DispatchState, Occupancy, percent
from scheduler.dispatch.stimuli import (
    FAULT,
    FIFO,
    OK,
    PACE_FULL,
    POLICY_NAMES,
    PRIORITIES,
    STRICT,
    TIMESLICE,
    WEIGHT_DEFAULT,
    WEIGHT_MAX,
    BatchArrived,
    ConfigChanged,
    DispatchConfig,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    MemoryReady,
    OverheadMeasured,
    PriorityChanged,
    SessionClosed,
    SessionOpened,
    Stimulus,
    Tick,
)
from scheduler.dispatch.totals import Totals, standing, totals

__all__ = [
    "Dispatch", "DispatchState", "DispatchConfig", "chain", "Occupancy", "percent", "PRIORITIES", "OK", "FAULT",
    "Stimulus", "SessionOpened", "SessionClosed", "BatchArrived", "LaunchFinished", "LaunchStopped", "LaunchReturned", "MemoryReady",
    "ConfigChanged", "PriorityChanged", "OverheadMeasured", "Tick", "WEIGHT_DEFAULT", "WEIGHT_MAX", "PACE_FULL",
    "STRICT", "FIFO", "TIMESLICE", "POLICY_NAMES",
    "Totals", "totals", "standing", "fairness_bound", "Reason", "explain", "snapshot", "restore",
    "Decision", "Launch", "Preempt", "Park", "Drop", "Refuse", "Release",
    "Journal", "Record", "decode_journal",
]  # fmt: skip
