"""The dispatcher and its journal under arbitrary input: nothing but StimulusError, and nothing lost but the torn end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.dispatch import (
    BatchArrived,
    ConfigChanged,
    Dispatch,
    DispatchConfig,
    Journal,
    LaunchFinished,
    LaunchReturned,
    SessionClosed,
    SessionOpened,
    Stimulus,
    Tick,
    decode_journal,
    replay,
)
from scheduler.dispatch.decisions import Launch
from scheduler.errors import StimulusError
from scheduler.vram import AllocationRequested, Allow, DeviceConfigured, Freed, Vram, check_quota
from scheduler.vram import SessionClosed as VramClosed
from scheduler.vram import SessionOpened as VramOpened
from scheduler.vram import Stimulus as VramStimulus

times = st.integers(0, 50)
sessions = st.sampled_from("abc")
seqs = st.integers(-1, 5)
stimuli: st.SearchStrategy[Stimulus] = st.one_of(
    st.builds(SessionOpened, times, sessions, st.integers(0, 2), st.integers(-1, 5), seqs),
    st.builds(SessionClosed, times, sessions, seqs),
    st.builds(BatchArrived, times, sessions, st.integers(0, 2), seqs, st.integers(-1, 9), st.binary(max_size=3)),
    st.builds(LaunchFinished, times, sessions, seqs, st.integers(-1, 9), st.integers(0, 2)),
    st.builds(LaunchReturned, times, sessions, seqs, st.booleans()),
    st.builds(
        lambda at, high, low: ConfigChanged(at, DispatchConfig(high, min(low, high), 2, 10)), times, st.integers(1, 3), st.integers(1, 3)
    ),
    st.builds(Tick, times),
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
    again, journal_again = replay(taken)
    assert journal_again.digest == journal.digest
    assert again.state == dispatch.state
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


vram_stimuli: st.SearchStrategy[VramStimulus] = st.one_of(
    st.builds(VramOpened, st.just(1), sessions, st.integers(0, 30), st.just(0)),
    st.builds(VramClosed, st.just(1), sessions),
    st.builds(AllocationRequested, st.just(1), sessions, st.integers(0, 20)),
    st.builds(Freed, st.just(1), sessions, st.integers(0, 20)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(vram_stimuli, max_size=60))
def test_memory_held_never_passes_quota_or_device(given_stimuli: list[VramStimulus]) -> None:
    vram = Vram()
    vram.on(DeviceConfigured(0, 50, 5))
    for stimulus in given_stimuli:
        try:
            decisions = vram.on(stimulus)
        except StimulusError:
            continue
        held = vram.state.held
        assert vram.state.held_bytes == sum(held.values()) <= 45
        for decision in decisions:
            quota = vram.state.quota.get(decision.session, 0)
            if isinstance(decision, Allow):
                assert quota == 0 or held[decision.session] <= quota


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_a_quota_refusal_is_exactly_one_that_would_not_fit(quota: int, use: int, request: int, free: int) -> None:
    allowed = not check_quota(quota, use, request, free).reason
    assert allowed == ((quota == 0 or use + request <= quota) and request <= free)
