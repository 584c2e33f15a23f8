"""The dispatcher and its journal under arbitrary input: nothing but StimulusError, and nothing lost but the torn end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.dispatch import (
    POLICY_NAMES,
    PRIORITIES,
    BatchArrived,
    ConfigChanged,
    Dispatch,
    DispatchConfig,
    Journal,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    MemoryReady,
    SessionClosed,
    SessionOpened,
    Stimulus,
    Tick,
    chain,
    decode_journal,
    explain,
    restore,
    snapshot,
)
from scheduler.dispatch.decisions import RULES, Launch
from scheduler.errors import StimulusError
from tests.support.replayed import replay

times = st.integers(0, 50)
sessions = st.sampled_from("abc")
seqs = st.integers(-1, 5)
stimuli: st.SearchStrategy[Stimulus] = st.one_of(
    st.builds(
        SessionOpened,
        times,
        sessions,
        st.integers(0, 2),
        st.integers(-1, 5),
        seqs,
        st.just(b""),
        st.integers(0, 3),
        st.sampled_from((0, 0, 50)),
        st.sampled_from((0, 0, 500)),
    ),
    st.builds(SessionClosed, times, sessions, seqs),
    st.builds(BatchArrived, times, sessions, st.integers(0, 2), seqs, st.integers(-1, 9), st.binary(max_size=3)),
    st.builds(LaunchFinished, times, sessions, seqs, st.integers(-1, 9), st.integers(0, 2), st.integers(-1, 9)),
    st.builds(LaunchStopped, times, sessions, seqs, st.integers(-1, 9), st.integers(-1, 9)),
    st.builds(LaunchReturned, times, sessions, seqs, st.booleans(), st.booleans()),
    st.builds(MemoryReady, times, sessions),
    st.builds(
        lambda at, high, low, policy, aging, reserve: ConfigChanged(
            at,
            DispatchConfig(
                high,
                min(low, high),
                2,
                10,
                policy,
                5,
                5,
                slice_min_ns=1,
                stop_ns=1,
                aging_ns=aging,
                reserve_percent=reserve,
                pace_burst_ns=3,
            ),
        ),
        times,
        st.integers(1, 3),
        st.integers(1, 3),
        st.sampled_from(POLICY_NAMES),
        st.sampled_from((0, 3)),
        st.sampled_from((0, 30)),
    ),
    st.builds(Tick, times, st.booleans()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(stimuli, max_size=60))
def test_any_stimulus_is_taken_or_refused_whole(given_stimuli: list[Stimulus]) -> None:
    """What raises leaves no trace: the journal of what was taken replays to the same digest and state."""
    dispatch, journal, taken = Dispatch(), Journal(), list[Stimulus]()
    launched: set[tuple[str, int]] = set()
    for stimulus in sorted(given_stimuli, key=lambda stimulus: stimulus.at_ns):
        try:
            decisions = dispatch.on(stimulus)
        except StimulusError:
            continue
        journal.add(stimulus, decisions)
        taken.append(stimulus)
        launched |= {(decision.session, decision.seq) for decision in decisions if isinstance(decision, Launch)}
        data = snapshot(dispatch.state)
        assert snapshot(restore(data)) == data
        assert all(explain(dispatch.state, name).rule in RULES for name in "abc")
    again, journal_again = replay(taken)
    assert journal_again.digest == journal.digest
    assert again.state == dispatch.state
    assert not taken or dispatch.state.in_flight <= 3 * PRIORITIES
    arrived = {(stimulus.session, stimulus.seq) for stimulus in taken if isinstance(stimulus, BatchArrived)}
    assert launched <= arrived


@settings(max_examples=100, deadline=None)
@given(st.lists(stimuli, min_size=1, max_size=10), st.data())
def test_a_cut_journal_is_a_prefix(given_stimuli: list[Stimulus], data: st.DataObject) -> None:
    journal = Journal()
    frames = [journal.add(stimulus, []) for stimulus in given_stimuli]
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    records, used = decode_journal(whole[:cut])
    assert [record.stimulus for record in records] == given_stimuli[: len(records)]
    assert used == sum(map(len, frames[: len(records)])) <= cut
    assert len(records) == len(frames) or cut < used + len(frames[len(records)])


ends = st.lists(st.sampled_from(("finish", "stop", "preempted", "back", "memory")), max_size=40)


@settings(max_examples=200, deadline=None)
@given(ends, st.integers(1, 3))
def test_the_digest_does_not_depend_on_how_batches_are_cut(cuts: list[str], depth: int) -> None:
    """Six batches of two sessions of different priority; launches end in any way a few times, then as they should: each batch has run once,
    in order, and the digests are those of batches that were not stopped."""
    dispatch = Dispatch()
    dispatch.on(ConfigChanged(0, DispatchConfig(depth, 1)))
    ran: dict[str, list[int]] = {"a": [], "b": []}
    digests = dict.fromkeys(ran, b"")
    for name, priority in (("a", 1), ("b", 0)):
        dispatch.on(SessionOpened(0, name, 1, priority))
        for seq in range(3):
            dispatch.on(BatchArrived(0, name, 1, seq, 1, name.encode()))
            digests[name] = chain(digests[name], seq, name.encode())
    left = iter(cuts)
    begun: dict[str, int] = {}
    while dispatch.state.flights:
        flight = dispatch.state.flights[0]
        name, seq = flight.session, flight.seq
        end = next(left, "finish")
        if begun.get(name, seq) != seq or seq != (ran[name][-1] + 1 if ran[name] else 0):
            dispatch.on(LaunchReturned(0, name, seq, False))  # behind a batch that is not over
        elif end == "memory" and name not in begun:
            dispatch.on(LaunchReturned(0, name, seq, False, True))
            dispatch.on(MemoryReady(0, name))
        elif end in ("back", "preempted"):
            dispatch.on(LaunchStopped(0, name, seq, 0, 0))
        elif end == "stop":
            begun[name] = seq
            dispatch.on(LaunchStopped(0, name, seq, 5, 5))
        else:
            begun.pop(name, None)
            ran[name].append(seq)
            dispatch.on(LaunchFinished(0, name, seq, 5, wall_ns=5))
    assert ran == {"a": [0, 1, 2], "b": [0, 1, 2]}
    assert {name: dispatch.state.sessions[name].chain for name in ran} == digests
