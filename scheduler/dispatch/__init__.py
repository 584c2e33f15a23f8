"""What one device runs next, as a pure function of its journal.

    dispatch = Dispatch(DispatchState(config=DispatchConfig(in_flight_max=2)))
    for decision in dispatch.on(BatchArrived(at_ns, session, epoch, seq, nbytes, content)): ...

``journal`` turns (stimulus, decisions) into bytes and replays them; ``occupancy`` holds exact utilization and starvation;
``order`` is the policy. See core for the rules.
"""

from scheduler.dispatch.core import Dispatch, chain
from scheduler.dispatch.decisions import Decision, Drop, Launch, Park, Preempt, Refuse, Release
from scheduler.dispatch.journal import Journal, Record, decode_journal, replay, verify
from scheduler.dispatch.occupancy import Occupancy, percent
from scheduler.dispatch.state import DispatchState
from scheduler.dispatch.stimuli import (
    FAULT,
    OK,
    PRIORITIES,
    WEIGHT_DEFAULT,
    BatchArrived,
    ConfigChanged,
    DispatchConfig,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    MemoryReady,
    SessionClosed,
    SessionOpened,
    Stimulus,
    Tick,
)

__all__ = [
    "Dispatch", "DispatchState", "DispatchConfig", "chain", "Occupancy", "percent", "PRIORITIES", "OK", "FAULT",
    "Stimulus", "SessionOpened", "SessionClosed", "BatchArrived", "LaunchFinished", "LaunchStopped", "LaunchReturned", "MemoryReady",
    "ConfigChanged", "Tick", "WEIGHT_DEFAULT",
    "Decision", "Launch", "Preempt", "Park", "Drop", "Refuse", "Release",
    "Journal", "Record", "decode_journal", "replay", "verify",
]  # fmt: skip
