"""Properties of a whole run, each checked from its steps alone."""

from __future__ import annotations

from scheduler.dispatch import (
    BatchArrived,
    Dispatch,
    DispatchConfig,
    Journal,
    LaunchFinished,
    LaunchReturned,
    decode_journal,
    replay,
    verify,
)
from scheduler.dispatch.decisions import DROP_REASONS, REFUSE_REASONS, Drop, Launch, Park, Refuse
from tests.simulation.dispatch.workload import Step

__all__ = ["check_journal", "check_occupancy", "check_reasons_are_named"]


def check_journal(steps: list[Step]) -> bytes:
    """Written, read back and replayed, the journal is the same; its digest."""
    journal = Journal()
    data = b"".join(journal.add(stimulus, decisions) for stimulus, decisions in steps)
    records, used = decode_journal(data)
    assert used == len(data)
    assert [(record.stimulus, list(record.decisions)) for record in records] == steps
    verify(records)
    _, again = replay([record.stimulus for record in records])
    assert again.digest == journal.digest
    return journal.digest


def check_occupancy(steps: list[Step], dispatch: Dispatch) -> None:
    """Busy and fed time, counted again step by step from what was launched, waited and finished."""
    busy_ns = fed_ns = last_ns = 0
    flying = 0
    ready: dict[str, bool] = {}
    shadow = Dispatch()
    for stimulus, decisions in steps:
        passed_ns = stimulus.at_ns - last_ns
        waiting = sum(ready.values())
        busy_ns += passed_ns if flying else 0
        fed_ns += passed_ns if flying and flying + waiting > 1 else 0
        last_ns = stimulus.at_ns
        shadow.on(stimulus)
        flying += sum(isinstance(decision, Launch) for decision in decisions)
        flying -= isinstance(stimulus, LaunchFinished | LaunchReturned)
        ready = {name: session.next_seq in session.waiting for name, session in shadow.state.sessions.items()}
    occupancy = dispatch.state.occupancy
    assert (occupancy.busy_ns, occupancy.fed_ns, occupancy.at_ns) == (busy_ns, fed_ns, last_ns)


def check_reasons_are_named(steps: list[Step]) -> None:
    """No refusal or drop without a name of the published lists; parked is only what arrived."""
    for stimulus, decisions in steps:
        for decision in decisions:
            if isinstance(decision, Drop):
                assert decision.reason in DROP_REASONS
            elif isinstance(decision, Refuse):
                assert decision.reason in REFUSE_REASONS
            elif isinstance(decision, Park):
                assert isinstance(stimulus, BatchArrived)


def check_bounds(dispatch: Dispatch, config: DispatchConfig) -> None:
    """Whatever was sent, what waits is bounded: by count, but for the one batch a session waits for."""
    for session in dispatch.state.sessions.values():
        assert len(session.waiting) <= max(config.parked_batches_max, 64) + 1
        assert session.waiting_bytes == sum(batch.nbytes for batch in session.waiting.values())
