"""The state machine of a session: every legal step is taken, no other one is, and an illegal step reports the steps so far."""

from __future__ import annotations

import msgspec
import pytest

from scheduler.dispatch import FAULT, BatchArrived, Dispatch, LaunchFinished, SessionClosed, SessionOpened, Stimulus, restore, snapshot
from scheduler.dispatch.state import TRANSITIONS, Phase, SessionState
from scheduler.errors import IllegalTransition

OPEN, CLOSING, FAULTED, ENDING, RELEASED = Phase


def open_with_two_launches() -> list[Stimulus]:
    return [SessionOpened(1, "a", 1, 2), BatchArrived(2, "a", 1, 0, 1, b"x"), BatchArrived(3, "a", 1, 1, 1, b"y")]


def life(stimuli: list[Stimulus]) -> tuple[Dispatch, SessionState]:
    """The session "a" after them; also when it has left the state."""
    dispatch = Dispatch()
    dispatch.on(stimuli[0])
    session = dispatch.state.sessions["a"]
    for stimulus in stimuli[1:]:
        dispatch.on(stimulus)
    return dispatch, session


@pytest.mark.parametrize(
    ("then", "phases"),
    [
        ([SessionClosed(4, "a", 1)], [OPEN, CLOSING]),
        ([SessionClosed(4, "a", 1), SessionClosed(5, "a", 0)], [OPEN, CLOSING]),
        ([SessionClosed(4, "a", 1), LaunchFinished(5, "a", 0, 1), LaunchFinished(6, "a", 1, 1)], [OPEN, CLOSING, RELEASED]),
        ([SessionClosed(4, "a", 1), LaunchFinished(5, "a", 0, 1, FAULT)], [OPEN, CLOSING, ENDING]),
        ([SessionClosed(4, "a", 1), LaunchFinished(5, "a", 0, 1, FAULT), LaunchFinished(6, "a", 1, 1)], [OPEN, CLOSING, ENDING, RELEASED]),
        ([LaunchFinished(4, "a", 0, 1, FAULT)], [OPEN, FAULTED]),
        ([LaunchFinished(4, "a", 0, 1, FAULT), LaunchFinished(5, "a", 1, 1, FAULT)], [OPEN, FAULTED]),
        ([LaunchFinished(4, "a", 0, 1, FAULT), SessionClosed(5, "a")], [OPEN, FAULTED, ENDING]),
        ([LaunchFinished(4, "a", 0, 1, FAULT), SessionClosed(5, "a"), LaunchFinished(6, "a", 1, 1)], [OPEN, FAULTED, ENDING, RELEASED]),
    ],
)
def test_a_session_takes_these_steps(then: list[Stimulus], phases: list[Phase]) -> None:
    dispatch, session = life(open_with_two_launches() + then)
    assert [OPEN, *(to for _, _, to in session.story)] == phases
    assert session.phase is phases[-1]
    assert ("a" in dispatch.state.sessions) == (phases[-1] is not RELEASED)
    assert sum(dispatch.state.open_by_priority) == (phases[-1] in (OPEN, CLOSING))
    if phases[-1] is not RELEASED:
        restored = restore(snapshot(dispatch.state)).sessions["a"]
        assert (restored.phase, restored.story) == (session.phase, session.story)


@pytest.mark.parametrize("before", Phase)
@pytest.mark.parametrize("to", Phase)
def test_a_step_that_is_not_in_the_table_tells_the_story(before: Phase, to: Phase) -> None:
    dispatch, session = life(open_with_two_launches())
    session.phase, session.story = before, [(7, OPEN, before)]
    if (before, to) in TRANSITIONS:
        dispatch._transition(session, to)
        assert session.story == [(7, OPEN, before), (3, before, to)]
        return
    with pytest.raises(IllegalTransition, match=f"session a: no step leads from {before} to {to}; .*: at 7 from open to {before}$"):
        dispatch._transition(session, to)
    assert (session.phase, session.story) == (before, [(7, OPEN, before)])


@pytest.mark.parametrize(
    ("faulted", "last_seq", "phase"), [(False, None, OPEN), (False, 3, CLOSING), (True, None, FAULTED), (True, 3, ENDING)]
)
def test_a_snapshot_of_version_1_gives_the_phase_by_its_flags(faulted: bool, last_seq: int | None, phase: Phase) -> None:
    dispatch, _ = life([SessionOpened(1, "a", 1, 2)])
    old = msgspec.msgpack.decode(snapshot(dispatch.state))
    old["version"] = 1
    old["sessions"][0] |= {"faulted": faulted, "last_seq": last_seq}
    del old["sessions"][0]["phase"], old["sessions"][0]["story"]
    session = restore(msgspec.msgpack.encode(old)).sessions["a"]
    assert (session.phase, session.story, session.faulted) == (phase, [], faulted)
