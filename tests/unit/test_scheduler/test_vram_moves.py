"""Memory that moves while batches wait for it: which batch gets it, which waits on, what is refused, and the journal of it all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler.errors import JournalError, StimulusError
from scheduler.vram import (
    AllocationRequested,
    Allow,
    Await,
    DeviceConfigured,
    Expected,
    Freed,
    Holds,
    MemoryReady,
    PriorityChanged,
    Refuse,
    SessionClosed,
    SessionOpened,
    Stimulus,
    SwapFailed,
    SwapIn,
    SwapLost,
    SwapOut,
    SwappedIn,
    SwappedOut,
    Tick,
    Vram,
    VramState,
    check_quota,
)
from scheduler.vram.journal import Record, decode_journal, decode_state, encode_state
from scheduler.vram.quota import device_full
from scheduler.vram.state import SessionMemory
from tests.support.replayed import ReplayMismatch, replay_vram, verify_vram
from tests.unit.test_scheduler.memory_device import IDLE, Device, leaving

MIB = 1 << 20


def memory(device: Device, session: str) -> SessionMemory:
    return device.vram.state.sessions[session]


# -- a batch that waits ------------------------------------------------------------------------------------------------------------------


def test_what_a_session_gave_up_for_its_own_batch_is_kept_for_it() -> None:
    """90 are held, 60 of them named by the batch, which asks for 30 more: 10 are free, and 20 of the session's own leave."""
    device = Device()
    device.holding("a", 90)
    device.open("b")
    assert device.ask("a", 30, pinned=60) == [SwapOut("a", 20, "a"), Await("a", 1000)]
    assert device.out("a", 20) == [MemoryReady("a")]
    assert device.ask("b", 10) == [Await("b", 1000)], "nothing is free"
    assert device.ask("a", 30, pinned=60) == [Allow("a", 30)]


def test_a_batch_for_which_enough_came_free_waits_for_the_end_of_its_own_move() -> None:
    device = Device()
    device.holding("a", 60)
    device.holding("b", 40)
    assert device.ask("a", 30, pinned=30) == [SwapOut("a", 30, "a"), Await("a", 1000)]
    assert device.tell(SessionClosed(0, "b")) == []
    assert device.ask("a", 30, pinned=30) == [Await("a", 1000)], "it asks too early"
    assert device.tell(SwappedOut(2, "a", 30)) == [MemoryReady("a")]
    assert (memory(device, "a").grant, memory(device, "a").swapped, device.vram.state.free_bytes) == (30, 30, 40)


def test_a_session_that_is_swapped_out_twice_has_both_parts_to_bring_back() -> None:
    device = Device()
    device.holding("a", 100)
    device.open("z")
    device.at = 200
    for nbytes in (30, 20):
        assert device.ask("z", nbytes) == [SwapOut("a", nbytes, "z"), Await("z", device.at + 1000)]
        device.out("a", nbytes)
        device.ask("z", nbytes)
        device.over("z", memory(device, "z").held)
        device.at += 1
    assert (memory(device, "a").held, memory(device, "a").swapped, device.vram.state.swapped_bytes) == (50, 50, 50)
    assert memory(device, "a").logical == 100


def test_memory_that_leaves_for_a_batch_is_not_taken_by_an_equal_one() -> None:
    device = leaving()
    assert device.ask("c", 10) == [Await("c", 1200)]
    assert memory(device, "a").leaving_for == "b"
    device.open("p", 1)
    assert device.ask("p", 25) == [Await("p", 1200)]
    assert memory(device, "a").leaving_for == "p", "a higher priority takes it"


@pytest.mark.parametrize("nbytes", [11, 15, 20])
def test_memory_that_leaves_for_the_reserve_is_taken_by_a_batch(nbytes: int) -> None:
    """Nothing more is swapped out for it."""
    device = Device(reserve=20)
    device.holding("a", 50)
    device.at = 200
    device.open("b")
    device.open("c")
    assert device.ask("b", 40) == [Allow("b", 40), SwapOut("a", 10)]
    assert device.ask("c", nbytes) == [Await("c", 1200)]
    assert (memory(device, "a").leaving_for, memory(device, "c").grant) == ("c", 10)
    assert device.out("a", 10) == [MemoryReady("c")]
    assert device.ask("c", nbytes)[0] == Allow("c", nbytes)


def test_a_batch_is_served_from_what_a_later_one_had_to_give_up() -> None:
    """p needs 12 and 10 are free, of which it takes none. q, later, gets them and waits for 10 more; only 3 come, so q gives up."""
    device = Device()
    device.holding("v", 90)
    device.open("p")
    device.open("q")
    assert device.ask("p", 12) == [Await("p", 1000)]
    device.at = IDLE
    assert device.ask("q", 20) == [SwapOut("v", 10, "q"), Await("q", 1000 + IDLE)]
    assert device.tell(SwapFailed(IDLE, "v", 3)) == [MemoryReady("p")]
    assert (memory(device, "p").grant, memory(device, "q").grant, device.vram.state.free_bytes) == (12, 0, 1)


def test_a_session_with_memory_set_aside_is_no_victim_of_an_equal_one() -> None:
    """It is about to run. What it holds cannot be swapped out before it has."""
    device = Device()
    device.holding("a", 50)
    device.holding("x", 50)
    device.at = IDLE
    assert device.ask("x", 10) == [SwapOut("a", 10, "x"), Await("x", 1000 + IDLE)]
    assert device.out("a", 10) == [MemoryReady("x")]
    device.tell(Holds(IDLE, "a", 40, 10, over=True))
    device.open("z")
    assert device.ask("z", 20) == [Await("z", 1000 + IDLE)], "a has just been used, x is about to run"
    assert (memory(device, "x").grant, memory(device, "x").leaving) == (10, 0)


def test_a_waiting_session_that_gives_memory_to_another_asks_again_when_it_has_left() -> None:
    """What its own batch needs is more by then: "v" waits for 20 and gives 30 to "z", when 50 come free."""
    device = Device()
    device.holding("v", 50)
    device.at = IDLE
    device.holding("w", 50)
    device.open("z")
    assert device.ask("v", 20, pinned=50) == [Await("v", 1000 + IDLE)]
    assert device.ask("z", 30) == [SwapOut("v", 30, "z"), Await("z", 1000 + IDLE)]
    assert device.tell(SessionClosed(IDLE, "w")) == [MemoryReady("z")]
    assert device.out("v", 30) == [MemoryReady("v")]
    assert device.ask("v", 20, back=30) == [SwapIn("v", 30), Await("v", 1000 + IDLE)]


def test_what_is_set_aside_is_no_longer_missing_when_a_swap_failed() -> None:
    device = Device()
    device.holding("a", 50)
    device.at = 1
    device.holding("b", 45)
    device.at = 200
    device.open("z")
    assert device.ask("z", 15) == [SwapOut("a", 10, "z"), Await("z", 1200)]
    assert device.tell(SwapFailed(200, "a")) == [SwapOut("b", 10, "z")]


def test_a_batch_that_needs_a_single_unit_waits_for_it() -> None:
    device = Device()
    device.holding("a", 100)
    device.open("z")
    assert device.ask("z", 1) == [Await("z", 1000)]
    assert device.tell(Freed(1, "a", 0)) == []
    assert device.tell(Freed(2, "a", 1)) == [MemoryReady("z")]


def test_what_comes_back_is_not_needed_again_when_another_batch_went_first() -> None:
    """Its memory is back, and 5 new bytes are set aside; a P0 batch takes these. Afterwards it needs only them."""
    device = Device()
    device.holding("a", 60)
    device.at = 200
    device.open("z")
    device.open("p", 0)
    assert device.ask("z", 60) == [SwapOut("a", 20, "z"), Await("z", 1200)]
    device.out("a", 20)
    device.ask("z", 60)
    device.over("z", 20)
    assert device.ask("a", 15, back=20) == [SwapIn("a", 20), Await("a", 1200)]
    assert device.tell(SwappedIn(210, "a", 20)) == [MemoryReady("a")]
    assert (memory(device, "a").held, memory(device, "a").grant, device.vram.state.free_bytes) == (60, 15, 5)
    device.at = 210
    assert device.ask("p", 20) == [Allow("p", 20)]
    assert device.over("p", 0) == [MemoryReady("a")]
    assert (memory(device, "a").grant, device.vram.state.free_bytes) == (15, 5)


def test_a_batch_that_asks_while_its_memory_comes_back_ahead_of_it_waits_for_it() -> None:
    device = Device()
    device.holding("a", 50)
    device.at = 200
    device.open("b")
    assert device.ask("b", 60) == [SwapOut("a", 10, "b"), Await("b", 1200)]
    device.out("a", 10)
    device.ask("b", 60)
    device.over("b", 20)
    assert device.tell(Expected(210, "a", 10)) == [SwapIn("a", 10)]
    device.at = 210
    assert device.ask("a", 5, back=10) == [Await("a", 1210)]
    assert device.tell(SwappedIn(220, "a", 10)) == [MemoryReady("a")]
    device.at = 220
    assert device.ask("a", 5) == [Allow("a", 5)]


def test_a_failed_swap_is_tried_again_as_soon_as_there_is_room_where_memory_goes() -> None:
    """The swap of v fails at 100 and would be tried again at 150; at 120 memory of another session comes back."""
    device = Device()
    device.holding("v", 50)
    device.holding("w", 40)
    device.tell(Holds(0, "w", 30, 10))
    device.at = IDLE
    device.open("z")
    device.tell(Holds(IDLE, "w", 30, 10))
    assert device.ask("z", 30) == [SwapOut("v", 10, "z"), Await("z", 1000 + IDLE)]
    assert device.tell(SwapFailed(IDLE, "v")) == []
    assert memory(device, "v").barred_until_ns == IDLE + 50
    assert device.tell(Holds(120, "w", 30, 9)) == [SwapOut("v", 10, "z")]


@pytest.mark.parametrize(("nbytes", "waits"), [(100, True), (101, False)])
def test_a_batch_waits_for_as_much_as_others_may_give_and_no_more(nbytes: int, waits: bool) -> None:
    device = Device()
    device.holding("a", 100)
    device.open("z")
    assert [type(decision) for decision in device.ask("z", nbytes)] == [Await if waits else Refuse]


@pytest.mark.parametrize(("swap", "nbytes", "waits"), [(20, 20, True), (20, 21, False), (0, 1, False)])
def test_a_batch_waits_for_no_more_than_may_be_swapped_out(swap: int, nbytes: int, waits: bool) -> None:
    device = Device(swap=swap)
    device.holding("a", 100)
    device.open("z")
    assert [type(decision) for decision in device.ask("z", nbytes)] == [Await if waits else Refuse]
    assert device.tell(Tick(IDLE)) == ([SwapOut("a", nbytes, "z")] if waits else [])


def test_memory_on_its_way_out_takes_room_where_it_goes() -> None:
    device = Device(swap=30)
    device.holding("a", 50)
    device.holding("b", 50)
    device.at = IDLE
    device.open("y")
    device.open("z")
    assert device.ask("y", 20) == [SwapOut("a", 20, "y"), Await("y", 1000 + IDLE)]
    assert device.vram.state.swap_room_bytes == 10
    assert device.ask("z", 20) == [Await("z", 1000 + IDLE)]
    assert device.out("a", 20) == [MemoryReady("y"), MemoryReady("z")], "z would wait in vain now"
    assert [type(decision) for decision in device.ask("z", 20)] == [Refuse]
    assert (device.vram.state.swap_room_bytes, device.vram.state.leaving_bytes) == (10, 0)


def test_a_refused_batch_leaves_nothing_behind_and_its_session_has_patience_again() -> None:
    device = Device()
    device.holding("a", 100)
    device.open("z", wait=40)
    device.ask("z", 10)
    device.at = 40
    assert device.tell(Tick(40)) == [MemoryReady("z")]
    assert [(type(decision), decision.session) for decision in device.ask("z", 10)] == [(Refuse, "z")]
    assert (device.vram.state.waiting, memory(device, "z").waiter, device.vram.next_wakeup_ns) == ([], None, None)
    device.at = 50
    assert device.ask("z", 10) == [Await("z", 90)]


def test_another_priority_moves_a_waiting_batch_in_the_order_of_service() -> None:
    device = Device()
    device.holding("a", 100)
    device.open("y")
    device.open("z")
    assert [device.ask(name, 60) for name in ("y", "z")] == [[Await("y", 1000)], [Await("z", 1000)]]
    assert device.vram.state.waiting == ["y", "z"]
    assert device.tell(PriorityChanged(1, "z", 2)) == []
    assert device.vram.state.waiting == ["z", "y"]
    assert device.tell(PriorityChanged(1, "y", 0)) == device.tell(PriorityChanged(1, "y", 4)) == []
    assert (memory(device, "y").priority, device.vram.state.waiting) == (4, ["z", "y"])
    assert device.tell(SessionClosed(2, "a")) == [MemoryReady("z")]


@pytest.mark.parametrize("priority", [-1, 5])
def test_a_priority_outside_of_the_range_changes_nothing(priority: int) -> None:
    device = Device()
    device.open("a", 2)
    with pytest.raises(StimulusError, match="priorities are 0 to 4"):
        device.tell(PriorityChanged(1, "a", priority))
    assert memory(device, "a").priority == 2
    with pytest.raises(StimulusError, match="it is not open"):
        device.tell(PriorityChanged(1, "b", 1))


@pytest.mark.parametrize(("nbytes", "dropped", "possible"), [(30, 20, True), (30, 21, False), (50, 0, True), (51, 0, False)])
def test_no_more_leaves_than_a_session_holds(nbytes: int, dropped: int, possible: bool) -> None:
    device = Device()
    device.holding("a", 50)
    device.at = IDLE
    device.open("z")
    device.ask("z", 80)
    stimulus = SwappedOut(IDLE, "a", nbytes, dropped)
    if possible:
        device.tell(stimulus)
        assert (memory(device, "a").held, memory(device, "a").swapped) == (0, nbytes)
    else:
        with pytest.raises(StimulusError, match="30 bytes are leaving, it holds 50 bytes"):
            device.tell(stimulus)


def test_what_a_session_holds_is_not_reported_while_its_memory_moves() -> None:
    device = Device()
    device.holding("a", 50)
    device.at = IDLE
    device.open("z")
    device.ask("z", 80)
    with pytest.raises(StimulusError, match="its memory is moving"):
        device.tell(Holds(IDLE, "a", 50))
    device.out("a", 30)
    device.tell(Holds(IDLE, "a", 20, 25))
    assert (device.vram.state.swapped_bytes, device.vram.state.used_bytes) == (25, 100)
    device.tell(Holds(IDLE, "a", 20, 10))
    assert device.vram.state.swapped_bytes == 10


def test_a_session_that_closes_while_its_memory_moves_takes_it_off_all_sums() -> None:
    device = Device()
    device.holding("a", 50)
    device.holding("b", 50)
    device.at = IDLE
    device.open("z")
    assert device.ask("z", 30) == [SwapOut("a", 30, "z"), Await("z", 1000 + IDLE)]
    assert device.vram.state.leaving_bytes == 30
    assert device.tell(SessionClosed(IDLE, "a")) == [MemoryReady("z")]
    state = device.vram.state
    assert (state.leaving_bytes, state.swapped_bytes, state.used_bytes, state.free_bytes) == (0, 0, 80, 20)


def test_a_batch_that_counts_on_all_that_others_hold_waits_on() -> None:
    device = Device()
    device.holding("a", 100)
    device.open("z")
    assert device.ask("z", 100) == [Await("z", 1000)]
    assert device.tell(Tick(IDLE - 1)) == []
    assert device.tell(Tick(IDLE)) == [SwapOut("a", 100, "z")]


@pytest.mark.parametrize("field", ["nbytes", "back_bytes", "pinned_bytes", "attached_bytes", "copied_bytes"])
def test_bytes_asked_for_are_not_negative(field: str) -> None:
    device = Device()
    device.open("a")
    asked: dict[str, Any] = {"nbytes": 0, field: -1}
    with pytest.raises(StimulusError, match="bytes are not negative"):
        device.tell(AllocationRequested(0, "a", **asked))


# -- refusals ------------------------------------------------------------------------------------------------------------------------------


def test_the_refusal_of_an_unknown_session_says_what_is_free() -> None:
    (refused,) = Device().ask("a", 7)
    assert isinstance(refused, Refuse)
    verdict = refused.verdict
    assert (verdict.reason, verdict.quota_bytes, verdict.use_bytes, verdict.request_bytes, verdict.free_bytes) == (
        "session_unknown",
        0,
        0,
        7,
        100,
    )
    assert verdict.text == "session a is not open on this device"


def test_sizes_in_refusals_are_rounded_to_hundredths_of_a_mib() -> None:
    text = device_full(0, 3 * MIB + MIB // 200 + 1, 12_345_678, -5, 61 * 10**9).text
    assert text == (
        "out of memory: the request for 11.77 MiB does not fit the device, of which 0.00 MiB is free after waiting 61 s for what "
        "other tasks hold; this task holds 3.01 MiB; free tensors or ask for another device"
    )
    assert "(quota 2.00 MiB)" in device_full(2 * MIB, 0, 1, 0).text
    assert "after waiting" not in device_full(0, 0, 1, 0).text


@pytest.mark.parametrize(("quota", "use", "asked"), [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_a_verdict_on_negative_bytes_is_an_error(quota: int, use: int, asked: int) -> None:
    with pytest.raises(ValueError, match="not negative"):
        check_quota(quota, use, asked, 0)


# -- journal and state ---------------------------------------------------------------------------------------------------------------------


STORY: list[Stimulus] = [
    DeviceConfigured(0, 100, 0, 1000, IDLE, 50),
    SessionOpened(0, "a", 0, 90, 3),
    SessionOpened(0, "z", 0, 0, 3, True, 1000),
    AllocationRequested(IDLE, "z", 30),
    SwappedOut(IDLE + 1, "a", 20),
    AllocationRequested(IDLE + 2, "z", 30),
    Freed(IDLE + 3, "z", 10),
    Holds(IDLE + 4, "z", 20),
    AllocationRequested(IDLE + 5, "a", 0, 10),
    SwappedIn(IDLE + 6, "a", 10),
    PriorityChanged(IDLE + 7, "a", 1),
    SwapLost(IDLE + 8, "a", 0),
    SessionClosed(IDLE + 9, "a"),
    Tick(IDLE + 10),
]


def test_a_journal_of_the_memory_core_reads_back_and_replays() -> None:
    core = Vram()
    written, journal = replay_vram(STORY)
    records = [Record(stimulus, tuple(core.on(stimulus))) for stimulus in STORY]
    assert [record.decisions for record in records[3:6]] == [
        (SwapOut("a", 20, "z"), Await("z", 1000 + IDLE)), (MemoryReady("z"),), (Allow("z", 30),),
    ]  # fmt: skip
    frames = b"".join(type(journal)().add(record.stimulus, record.decisions) for record in records)
    read, used = decode_journal(frames)
    assert (read, used, journal.records) == (records, len(frames), len(STORY))
    assert encode_state(verify_vram(read).state) == encode_state(written.state) == encode_state(core.state)
    assert replay_vram(STORY)[1].digest == journal.digest
    records[4] = Record(records[4].stimulus, ())
    with pytest.raises(ReplayMismatch, match="record 4"):
        verify_vram(records)


def test_a_core_restored_from_a_snapshot_goes_on_alike() -> None:
    for cut in range(1, len(STORY)):
        core, _ = replay_vram(STORY[:cut])
        data = encode_state(core.state)
        assert encode_state(decode_state(data)) == data
        records = [Record(stimulus, tuple(core.on(stimulus))) for stimulus in STORY[cut:]]
        assert encode_state(verify_vram(records, data).state) == encode_state(core.state)
        assert encode_state(replay_vram(STORY[cut:], data)[0].state) == encode_state(core.state)


def test_what_is_no_snapshot_of_a_memory_core_is_refused() -> None:
    assert encode_state(decode_state(b"")) == encode_state(VramState())
    with pytest.raises(JournalError, match="no snapshot of a memory core"):
        decode_state(b"x" + encode_state(VramState()))


def test_stimuli_of_older_journals_are_read() -> None:
    """As they were before the fields that came later. Sessions are idle after five minutes, and a failed swap is tried again after 10 s."""
    raw = msgspec.msgpack.Encoder()
    for old, new in [
        (["device_configured.v1", 1, 100], DeviceConfigured(1, 100, 0, 0, 300 * 10**9, 10 * 10**9)),
        (["session_opened.v1", 1, "a", 5], SessionOpened(1, "a", 5, 0, 0, True, 0)),
        (["session_closed.v1", 1, "a"], SessionClosed(1, "a", 0)),
        (["allocation_requested.v2", 1, "a", 5], AllocationRequested(1, "a", 5, 0, 0, 0, 0)),
        (["holds.v1", 1, "a", 5], Holds(1, "a", 5, 0, 0, 0, True)),
        (["swapped_out.v1", 1, "a", 5], SwappedOut(1, "a", 5, 0)),
        (["swap_failed.v1", 1, "a"], SwapFailed(1, "a", 0, 0)),
        (["swap_lost.v1", 1, "a"], SwapLost(1, "a", 0)),
    ]:
        assert msgspec.msgpack.decode(raw.encode([old, []]), type=Record) == Record(new, ())  # type: ignore[arg-type]  # one of the stimuli


def test_a_new_core_and_a_new_session_hold_nothing() -> None:
    assert msgspec.to_builtins(VramState()) == [0, 0, 0, 0, 300 * 10**9, 10 * 10**9, 0, 0, 0, 0, 0, 0, {}, []]
    opened = SessionMemory("a", 1, 2, True, 3, 4)
    assert msgspec.to_builtins(opened) == ["a", 1, 2, True, 3, 4, 0, 0, 0, 0, 0, 0, "", False, 0, 0, None]
