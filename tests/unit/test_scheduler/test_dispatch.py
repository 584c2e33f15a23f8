"""The dispatcher as a story: stimuli on the left, decisions on the right. Times are omitted where they do not matter (one tick a line)."""

from __future__ import annotations

import pytest

from scheduler.dispatch import (
    FAULT,
    BatchArrived,
    ConfigChanged,
    Dispatch,
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
from scheduler.dispatch.decisions import Drop, Launch, Park, Preempt, Refuse, Release
from scheduler.errors import StimulusError


def stimulus(at_ns: int, text: str) -> Stimulus:
    """``open a P2 from 3 | close a 4 | batch a 5 [bytes] | done a 5 | fault a 5 | stop a 5 [core wall] | resend a 5 | back a 5 |
    await a 5 | memory a | depth 2 1 | tick``; ``a@9`` stands for session a in epoch 9."""
    verb, *words = text.split()
    if verb == "tick":
        return Tick(at_ns)
    if verb == "depth":
        return ConfigChanged(at_ns, DispatchConfig(int(words[0]), int(words[1]), 3, 100))
    name, _, epoch = words[0].partition("@")
    match verb:
        case "open":
            return SessionOpened(at_ns, name, int(epoch or 1), int(words[1][1:]), int(words[3]) if len(words) > 2 else 0)
        case "close":
            return SessionClosed(at_ns, name, int(words[1]))
        case "batch":
            return BatchArrived(at_ns, name, int(epoch or 1), int(words[1]), int(words[2]) if len(words) > 2 else 10, words[1].encode())
        case "done":
            return LaunchFinished(at_ns, name, int(words[1]), 7)
        case "fault":
            return LaunchFinished(at_ns, name, int(words[1]), 7, FAULT)
        case "stop":
            core_ns, wall_ns = (int(words[2]), int(words[3])) if len(words) > 2 else (7, 7)
            return LaunchStopped(at_ns, name, int(words[1]), core_ns, wall_ns)
        case "resend" | "back" | "await":
            return LaunchReturned(at_ns, name, int(words[1]), verb == "resend", verb == "await")
        case "memory":
            return MemoryReady(at_ns, name)
    raise AssertionError(text)


def decisions(dispatch: Dispatch, given: Stimulus) -> str:
    words: list[str] = []
    for decision in dispatch.on(given):
        match decision:
            case Launch(name, seq):
                words.append(f"run {name} {seq}")
            case Preempt(name, seq):
                words.append(f"stop {name} {seq}")
            case Park(name, seq):
                words.append(f"park {name} {seq}")
            case Drop(name, seq, reason) | Refuse(name, seq, reason):
                words.append(f"{type(decision).__name__.lower()} {name} {seq} {reason}")
            case Release(name):
                words.append(f"release {name}")
    return ", ".join(words)


def check(story: str, *, depth: str = "depth 1 1") -> Dispatch:
    """Lines ``stimulus -> decisions``; nothing after the arrow: none."""
    dispatch = Dispatch()
    dispatch.on(stimulus(0, depth))
    for at_ns, line in enumerate((line for line in story.strip().splitlines() if line.strip()), start=1):
        given, _, expected = line.partition("->")
        assert decisions(dispatch, stimulus(at_ns, given.strip())) == expected.strip(), line.strip()
    return dispatch


def test_batches_of_a_session_run_once_and_in_order() -> None:
    """A reconnect sends old batches again and lets newer ones overtake."""
    check("""
        open a P0        ->
        batch a 1        -> park a 1
        batch a 0        -> run a 0
        batch a 0        -> drop a 0 already_run
        batch a 1        -> drop a 1 already_waiting
        done a 0         -> run a 1
        batch a 2        ->
        done a 1         -> run a 2
    """)


def test_strict_priority_stops_what_is_lower() -> None:
    """The higher launch leaves in the same step: it does not wait to hear that the lower one stopped."""
    check("""
        open low P4      ->
        open mid P2      ->
        open top P0      ->
        batch low 0      -> run low 0
        batch low 1      ->
        batch mid 0      -> stop low 0, run mid 0
        batch top 0      -> stop mid 0, run top 0
        batch top 1      ->
        stop low 0       ->
        stop mid 0       ->
        done top 0       -> run top 1
        done top 1       -> run mid 0
        done mid 0       -> run low 0
        done low 0       -> run low 1
    """)


def test_a_launch_is_stopped_once() -> None:
    check(
        """
        open low P4      ->
        open top P0      ->
        batch low 0      -> run low 0
        batch top 0      -> stop low 0, run top 0
        batch top 1      -> run top 1
        stop low 0       ->
        done top 0       -> run low 0
        batch top 2      -> stop low 0, run top 2
        done top 1       ->
        done top 2       ->
        done low 0       ->
    """,
        depth="depth 2 1",
    )


def test_a_batch_in_slices_is_one_launch_of_the_digest() -> None:
    """Stopped in the middle, before it began, behind another of its session: it is the head again, and the digest is that of one run."""
    cut = check(
        """
        open a P1        ->
        batch a 0        -> run a 0
        batch a 1        -> run a 1
        open top P0      ->
        batch top 0      -> stop a 0, stop a 1, run top 0
        stop a 0         ->
        back a 1         -> run a 0
        batch top 1      -> stop a 0, run top 1
        stop a 0 0 0     ->
        done top 0       -> run a 0
        done top 1       ->
        stop a 0         -> run a 0
        done a 0         -> run a 1
        done a 1         ->
    """,
        depth="depth 2 2",
    )
    straight = check("open a P1 ->\n batch a 0 -> run a 0\n batch a 1 ->\n done a 0 -> run a 1\n done a 1 ->\n")
    assert cut.state.sessions["a"].chain == straight.state.sessions["a"].chain
    session = cut.state.sessions["a"]
    assert (session.launches, session.slices, session.core_ns, session.waits) == (2, 4, 28, 2)


def test_a_session_without_memory_waits_until_it_may_have_it() -> None:
    """Others go on; what came behind the launch that lacked memory keeps its place."""
    check(
        """
        open a P0        ->
        open b P1        ->
        batch a 0        -> run a 0
        batch a 1        -> run a 1
        await a 0        ->
        back a 1         ->
        batch b 0        -> run b 0
        batch a 2        ->
        memory b         ->
        memory a         -> stop b 0, run a 0, run a 1
        stop b 0         ->
        done a 0         -> run a 2
        memory closed    ->
    """,
        depth="depth 2 1",
    )


def test_low_work_has_one_place_beside_a_higher_priority() -> None:
    """Alone a background session uses all places; beside P0 it has the one that the configuration allows it."""
    check(
        """
        open low P3      ->
        batch low 0      -> run low 0
        batch low 1      -> run low 1
        batch low 2      -> run low 2
        batch low 3      ->
        batch low 4      ->
        open top P0      ->
        done low 0       -> run low 3
        done low 1       ->
        done low 2       ->
        done low 3       -> run low 4
        done low 4       ->
    """,
        depth="depth 3 1",
    )


def test_bounds_on_waiting_batches_never_refuse_the_next_one() -> None:
    check("""
        open a P0           ->
        batch a 3           -> park a 3
        batch a 2           -> park a 2
        batch a 1           -> park a 1
        batch a 4           -> refuse a 4 parked_batches_full
        batch a 0 100       -> run a 0
        batch b 0           -> refuse b 0 session_unknown
    """)
    check("""
        open a P0           ->
        batch a 2 90        -> park a 2
        batch a 1 11        -> refuse a 1 parked_bytes_full
        batch a 0 5000      -> run a 0
    """)


def test_a_fault_ends_only_its_session() -> None:
    check(
        """
        open a P0           ->
        open b P0           ->
        batch a 0           -> run a 0
        batch a 1           -> run a 1
        batch a 2           ->
        batch b 0           -> stop a 0, stop a 1, run b 0
        fault a 0           -> drop a 2 session_over
        batch a 3           -> refuse a 3 session_faulted
        back a 1            -> drop a 1 session_over
        close a -1          -> release a
        done b 0            ->
        batch a 3           -> refuse a 3 session_unknown
    """,
        depth="depth 2 1",
    )


def test_a_faulted_session_releases_the_low_bound() -> None:
    check(
        """
        open top P0         ->
        open low P1         ->
        batch top 0         -> run top 0
        batch low 0         -> run low 0
        batch low 1         ->
        fault top 0         -> run low 1
    """,
        depth="depth 2 1",
    )


def test_closing_runs_up_to_the_last_batch() -> None:
    check("""
        open a P0           ->
        batch a 0           -> run a 0
        batch a 2           -> park a 2
        close a 1           -> drop a 2 after_last
        batch a 2           -> refuse a 2 session_closing
        done a 0            ->
        batch a 1           -> run a 1
        close a 1           ->
        done a 1            -> release a
        close a 1           ->
        open a P0           ->
    """)
    check("""
        open a P0           ->
        batch a 0           -> run a 0
        batch a 1           ->
        batch a 2           ->
        close a 1           -> drop a 2 after_last
        close a 5           ->
        done a 0            -> run a 1
        done a 1            -> release a
    """)


def test_closing_at_once_waits_only_for_what_is_in_flight() -> None:
    check("""
        open a P0           ->
        batch a 0           -> run a 0
        batch a 1           ->
        close a -1          -> drop a 1 after_last
        done a 0            -> release a
    """)


def test_a_launch_that_lacks_a_body_is_sent_again_and_keeps_its_place() -> None:
    """The executor has forgotten a program: 0 comes back for the session to resend, 1 comes back because it was behind 0."""
    story = check(
        """
        open a P0           ->
        batch a 0           -> run a 0
        batch a 1           -> run a 1
        batch a 2           ->
        resend a 0          ->
        batch a 1           -> drop a 1 already_waiting
        batch a 0           -> run a 0
        back a 1            -> run a 1
        done a 0            -> run a 2
        done a 1            ->
        done a 2            ->
    """,
        depth="depth 2 1",
    )
    straight = check(
        """
        open a P0           ->
        batch a 0           -> run a 0
        batch a 1           -> run a 1
        batch a 2           ->
        done a 0            -> run a 2
    """,
        depth="depth 2 1",
    )
    assert story.state.sessions["a"].chain == straight.state.sessions["a"].chain


def test_epochs_and_bad_numbers() -> None:
    check("""
        open a@2 P0         ->
        batch a@1 0         -> drop a 0 epoch_stale
        batch a@3 0         -> refuse a 0 epoch_unknown
        batch a@2 -1        -> refuse a -1 seq_invalid
        batch a@2 0 -5      -> refuse a 0 seq_invalid
        open a@2 P0         -> refuse a -1 session_exists
        open b P5           -> refuse b -1 priority_invalid
        open c P0 from -1   -> refuse c -1 seq_invalid
        open d P0 from 7    ->
        batch d 6           -> drop d 6 already_run
        batch d 7           -> run d 7
    """)


@pytest.mark.parametrize(
    "impossible",
    [
        Tick(1),
        LaunchFinished(9, "a", 1, 0),
        LaunchFinished(9, "z", 0, 0),
        LaunchReturned(9, "a", 2, True),
        LaunchFinished(9, "a", 0, -1),
        LaunchStopped(9, "a", 1, 0, 0),
        LaunchStopped(9, "a", 0, 1, -1),
        LaunchFinished(9, "a", 0, 1, 2),
    ],
)
def test_an_impossible_stimulus_changes_nothing(impossible: Stimulus) -> None:
    """The shell's bug must not corrupt the state it would be diagnosed from."""
    story = "open a P0 ->\n batch a 0 -> run a 0\n batch a 1 ->\n"
    dispatch, untouched = check(story), check(story)
    with pytest.raises(StimulusError):
        dispatch.on(impossible)
    assert dispatch.state == untouched.state


def test_launches_of_a_session_finish_in_order() -> None:
    dispatch = check("open a P0 ->\n batch a 0 -> run a 0\n batch a 1 -> run a 1\n", depth="depth 2 1")
    with pytest.raises(StimulusError, match="in order"):
        dispatch.on(LaunchFinished(9, "a", 1, 1))


def test_utilization_and_starvation_are_exact() -> None:
    """10 ns idle, 10 busy alone, 10 busy with one waiting, 10 busy alone, 10 idle."""
    dispatch = Dispatch()
    day: list[Stimulus] = [
        SessionOpened(0, "a", 1, 0),
        BatchArrived(10, "a", 1, 0, 1),
        BatchArrived(20, "a", 1, 1, 1),
        LaunchFinished(30, "a", 0, 1),
        LaunchFinished(40, "a", 1, 1),
        Tick(50),
    ]
    for given in day:
        dispatch.on(given)
    occupancy = dispatch.state.occupancy
    assert (occupancy.at_ns, occupancy.busy_ns, occupancy.fed_ns) == (50, 30, 10)
