"""Properties of a whole run, each checked from its steps alone."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from scheduler.dispatch import (
    BatchArrived,
    Dispatch,
    DispatchConfig,
    Journal,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    SessionOpened,
    decode_journal,
    explain,
    restore,
    snapshot,
    totals,
)
from scheduler.dispatch import decisions as why
from scheduler.dispatch.decisions import DROP_REASONS, REFUSE_REASONS, Drop, Launch, Park, Refuse, Release
from tests.simulation.dispatch.workload import Step
from tests.support.replayed import replay, verify

__all__ = [
    "check_bounds", "check_explained", "check_fairness", "check_journal", "check_occupancy", "check_reasons_are_named", "check_restored",
]  # fmt: skip


_RESOLUTION: Final = Fraction(1, 10_000)
"""Shares are counted in such parts of a core-nanosecond over the weight; a slice is counted to less than one part."""


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
    """Busy and fed time, counted again step by step from what was launched, waited and finished; who had to wait behind whom likewise. A
    session that awaits memory or its pace is not ready."""
    busy_ns = fed_ns = last_ns = 0
    flying: list[str] = []
    ready: set[str] = set()
    behind_ns: dict[str, int] = {}
    shadow = Dispatch()
    for stimulus, decisions in steps:
        passed_ns = stimulus.at_ns - last_ns
        busy_ns += passed_ns if flying else 0
        fed_ns += passed_ns if flying and len(flying) + len(ready) > 1 else 0
        for name in ready.union(flying):
            behind_ns[name] = behind_ns.get(name, 0) + (passed_ns if flying and flying[0] != name else 0)
        last_ns = stimulus.at_ns
        shadow.on(stimulus)
        if isinstance(stimulus, LaunchFinished | LaunchReturned | LaunchStopped):
            flying.remove(stimulus.session)
        for decision in decisions:
            if isinstance(decision, Launch):
                flying.append(decision.session)
            elif isinstance(decision, Release):
                behind_ns.pop(decision.session, None)
        ready = {name for name in shadow.state.sessions if _more(shadow, name)}
        for name in shadow.state.sessions:
            assert totals(shadow.state, name).behind_ns == behind_ns.get(name, 0), name
    occupancy = dispatch.state.occupancy
    assert (occupancy.busy_ns, occupancy.fed_ns, occupancy.at_ns) == (busy_ns, fed_ns, last_ns)


def _more(dispatch: Dispatch, name: str) -> bool:
    """Has the session a batch that may be launched now? By its batches, what holds it and what it has in flight; the place that the core
    gave it among those that wait must say the same."""
    session = dispatch.state.sessions[name]
    held = session.awaits_memory or session.faulted or session.paced_until_ns > 0
    own = [flight for flight in dispatch.state.flights if flight.session == name]
    launchable = session.next_seq in session.waiting and not held and all(flight.whole and not flight.preempted for flight in own)
    assert launchable == (session.entry is not None), name
    return launchable


def check_restored(steps: list[Step], every: int = 29) -> None:
    """From any point on, a dispatcher restored from a snapshot decides as the one it was taken from, and equals it."""
    twin, whole = Dispatch(), Dispatch()
    for number, (stimulus, decisions) in enumerate(steps):
        assert whole.on(stimulus) == decisions
        assert twin.on(stimulus) == decisions, f"step {number}: {stimulus!r}"
        if number % every == 0:
            data = snapshot(whole.state)
            assert snapshot(twin.state) == data, f"step {number}"
            twin = Dispatch(restore(data))
            assert snapshot(twin.state) == data


def check_explained(steps: list[Step]) -> None:
    """After every step every session's wait has a named rule, and those ahead are there."""
    dispatch = Dispatch()
    nobody = {why.RUNNING, why.PACED, why.AWAITS_MEMORY, why.PARKED, why.IDLE, why.FAULTED, why.STOPPING}
    for stimulus, _ in steps:
        dispatch.on(stimulus)
        state = dispatch.state
        for name, session in state.sessions.items():
            reason = explain(state, name)
            assert reason.rule in why.RULES
            assert set(reason.ahead) <= state.sessions.keys()
            assert reason.ahead or reason.rule in nobody, f"{stimulus!r}: {name} waits for {reason.rule}, but for whom?"
            assert (reason.until_ns > state.now_ns) == (reason.rule == why.PACED)
            assert bool(session.launched) == (reason.rule in (why.RUNNING, why.QUEUED, why.STOPPING))


def _bound(costs_ns: Sequence[int], weights: Sequence[int], in_flight: int, leads_ns: Sequence[int]) -> Fraction:
    """The most by which what two sessions are served over their weights may differ (docs/scheduling.md), in exact numbers.

    A session runs ahead by its lead and by the slices in flight, and behind by as many and the one that is decided on: for each of both
    ``2 in_flight + 1`` of its largest slices.
    """
    return sum(
        (Fraction(lead, weight) + (2 * in_flight + 1) * (Fraction(cost, weight) + _RESOLUTION))
        for cost, weight, lead in zip(costs_ns, weights, leads_ns, strict=True)
    ) + Fraction(0)


def check_fairness(steps: list[Step], dispatch: Dispatch) -> int:
    """What any two sessions of a level are served while both take part in its shares differs by no more than the proved bound; how many
    pairs were looked at. Served: the measured cost of slices, of one without a limit only what fell into time with others. ``dispatch``: a
    new one of the kind that took the steps. The bound and what is served are counted here, in fractions, without the core's functions."""
    served: dict[str, Fraction] = {}
    largest: dict[str, int] = {}
    slices = 0
    since: dict[tuple[str, str], tuple[Fraction, Fraction, int]] = {}
    depth = 1
    pairs = 0
    for stimulus, _ in steps:
        state = dispatch.state
        cost_ns = 0
        if isinstance(stimulus, LaunchFinished | LaunchStopped):
            cost_ns = stimulus.core_ns
            flight = next(f for f in state.flights if (f.session, f.seq) == (stimulus.session, stimulus.seq))
            if not flight.limit_ns:
                together_ns = stimulus.at_ns - flight.contended_ns if flight.contended_ns >= 0 else 0
                cost_ns = cost_ns * min(together_ns, stimulus.wall_ns) // stimulus.wall_ns if stimulus.wall_ns else 0
            session = state.sessions[stimulus.session]
            served[session.session] = served.get(session.session, Fraction(0)) + Fraction(cost_ns, session.weight)
            slices += 1
            largest[session.session] = max(largest.get(session.session, 0), cost_ns)
        if isinstance(stimulus, SessionOpened) and stimulus.session not in state.sessions:
            served[stimulus.session], largest[stimulus.session] = Fraction(0), 0
        dispatch.on(stimulus)
        depth = max(depth, state.config.in_flight_max)
        for flight in state.flights:
            largest[flight.session] = max(largest.get(flight.session, 0), flight.estimate_ns)
        active = [session for session in state.sessions.values() if session.active]
        now = {(a.session, b.session): (a, b) for a in active for b in active if a.session < b.session and a.priority == b.priority}
        for pair in [pair for pair in since if pair not in now]:
            del since[pair]
        for pair, (a, b) in now.items():
            at = (served.get(a.session, Fraction(0)), served.get(b.session, Fraction(0)), slices)
            begin = since.setdefault(pair, at)
            pairs += 1
            leads_ns = (state.config.deadline_lead_ns if a.sla_ns else 0, state.config.deadline_lead_ns if b.sla_ns else 0)
            costs_ns = (largest.get(a.session, 0), largest.get(b.session, 0))
            bound = _bound(costs_ns, (a.weight, b.weight), depth, leads_ns) + (at[2] - begin[2]) * _RESOLUTION
            apart = abs((at[0] - begin[0]) - (at[1] - begin[1]))
            assert apart <= bound, f"{stimulus!r}: {pair} are {float(apart)} core-ns over weight apart, the bound is {float(bound)}"
    return pairs


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
