"""Who gives up memory for whom: small devices, a few sessions, what the core must decide. Times in ms, memory in units."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from scheduler.errors import StimulusError
from scheduler.vram import (
    AllocationRequested,
    Allow,
    Await,
    Decision,
    Expected,
    Holds,
    MemoryReady,
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
    coldest,
    hottest,
)
from scheduler.vram.victims import reachable_bytes
from tests.unit.test_scheduler.memory_device import IDLE, Device, leaving


@dataclass(frozen=True)
class Case:
    """``holders``: (name, priority, bytes, idle since ms ago, may be swapped); ``asks``: of priority, for how much. ``swaps``: who goes,
    how much; None: refused; empty: it waits."""

    name: str
    holders: tuple[tuple[str, int, int, int, bool], ...]
    asks: tuple[int, int]
    swaps: tuple[tuple[str, int], ...] | None


CASES = [
    Case("no session is idle: it waits", (("a", 3, 100, 99, True),), (3, 10), ()),
    Case("only what is needed", (("a", 3, 90, 100, True),), (3, 30), (("a", 20),)),
    Case("the longest idle first", (("a", 3, 50, 100, True), ("b", 3, 50, 200, True)), (3, 10), (("b", 10),)),
    Case("the lower priority first", (("a", 4, 50, 100, True), ("b", 3, 50, 200, True)), (3, 10), (("a", 10),)),
    Case("then the next", (("a", 3, 50, 100, True), ("b", 3, 50, 200, True)), (3, 60), (("b", 50), ("a", 10))),
    Case("noswap stays", (("a", 3, 50, 300, False), ("b", 3, 50, 200, True)), (3, 50), (("b", 50),)),
    Case("noswap cannot be waited for", (("a", 3, 50, 300, False), ("b", 3, 50, 200, True)), (3, 51), None),
    Case("P0 is no victim of others, nor waited for", (("a", 0, 100, 500, True),), (1, 10), None),
    Case("P0 is a victim of P0", (("a", 0, 100, 500, True),), (0, 10), (("a", 10),)),
    Case("P0 after all others", (("a", 0, 50, 500, True), ("b", 1, 50, 100, True)), (0, 50), (("b", 50),)),
    Case("P0 when the others are not enough", (("a", 0, 50, 500, True), ("b", 1, 50, 100, True)), (0, 60), (("b", 50), ("a", 10))),
    Case("P0 when the others are not idle", (("a", 0, 50, 500, True), ("b", 1, 50, 10, True)), (0, 40), (("a", 40),)),
    Case("all or nothing: one idle is not enough", (("a", 3, 50, 500, True), ("b", 3, 50, 10, True)), (3, 60), ()),
    Case("more than the device", (("a", 3, 50, 500, True),), (3, 101), None),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_victims(case: Case) -> None:
    device = Device()
    for name, priority, nbytes, since, swap in sorted(case.holders, key=lambda holder: -holder[3]):
        device.at = 1000 - since
        device.holding(name, nbytes, priority, swap=swap)
    device.at = 1000
    device.open("z", case.asks[0])
    decisions = device.ask("z", case.asks[1])
    if case.swaps is None:
        assert [type(d) for d in decisions] == [Refuse]
    else:
        assert decisions == [*(SwapOut(name, nbytes, "z") for name, nbytes in case.swaps), Await("z", 2000)]


def test_one_just_swapped_is_not_chosen_while_another_has_not_been() -> None:
    device = Device()
    for name in "abc":
        device.holding(name, 30)
    device.open("z")
    device.at = 200
    chosen = []
    for _ in range(6):
        (out, _) = device.ask("z", 20)
        assert isinstance(out, SwapOut)
        chosen.append(out.session)
        device.out(out.session, out.nbytes)
        assert Allow("z", 20) in device.ask("z", 20)
        device.over("z", 0)
        device.vram.state.sessions[out.session].swapped = 0
        device.tell(Holds(device.at, out.session, 30, over=False))
    assert chosen == ["a", "b", "c", "a", "b", "c"]


def test_what_is_free_and_what_leaves_is_set_aside_for_who_waits() -> None:
    device = leaving()
    assert device.ask("c", 10)[-1] == Await("c", 1200), "the 20 that were free are b's now"
    assert device.out("a", 30) == [MemoryReady("b"), SwapOut("a", 10, "c")]
    assert device.ask("b", 50) == [Allow("b", 50)]
    assert device.vram.state.used_bytes == 100


def test_a_higher_priority_takes_what_is_set_aside_for_a_lower_one() -> None:
    device = Device()
    device.holding("a", 80)
    device.open("b", 4)
    device.open("p", 0)
    device.at = 200
    device.ask("b", 50)
    device.out("a", 30)
    assert device.ask("p", 40) == [Allow("p", 40)]
    assert device.ask("b", 50)[-1] == Await("b", 1200), "its patience counts from when it asked first"
    assert device.over("p", 0) == [MemoryReady("b")]


def test_a_failed_swap_leads_to_the_next_victim_then_to_waiting() -> None:
    device = Device()
    device.holding("a", 50)
    device.at = 1
    device.holding("b", 50)
    device.open("z")
    device.at = 200
    assert device.ask("z", 10) == [SwapOut("a", 10, "z"), Await("z", 1200)]
    assert device.tell(SwapFailed(200, "a")) == [SwapOut("b", 10, "z")]
    assert device.tell(SwapFailed(210, "b", 4)) == []
    assert device.vram.next_wakeup_ns == 250
    assert device.tell(Tick(250)) == [SwapOut("a", 6, "z")]


def test_patience_ends_at_its_time() -> None:
    device = Device()
    device.holding("a", 100)
    device.open("z", wait=40)
    assert device.ask("z", 10) == [Await("z", 40)]
    assert device.vram.next_wakeup_ns == 40
    device.at = 40
    assert device.tell(Tick(40)) == [MemoryReady("z")]
    (refused,) = device.ask("z", 10)
    assert isinstance(refused, Refuse) and "after waiting" in refused.verdict.text


def test_a_session_wakes_when_another_becomes_idle() -> None:
    device = Device()
    device.holding("a", 100)
    device.open("z")
    device.ask("z", 10)
    assert device.vram.next_wakeup_ns == IDLE
    assert device.tell(Tick(IDLE)) == [SwapOut("a", 10, "z")]


def test_its_own_cold_memory_is_given_up_before_waiting() -> None:
    device = Device()
    device.holding("a", 100)
    assert device.ask("a", 30, pinned=60) == [SwapOut("a", 30, "a"), Await("a", 1000)]
    assert device.out("a", 32) == [MemoryReady("a")]
    assert device.ask("a", 30, pinned=60) == [Allow("a", 30)]
    device.over("a")
    (refused,) = device.ask("a", 10, back=32, pinned=90)
    assert isinstance(refused, Refuse)


def test_memory_comes_back_before_the_batch_that_names_it() -> None:
    device = Device()
    device.holding("a", 80)
    device.at = 200
    device.holding("b", 20)
    device.open("z")
    device.ask("z", 60)
    device.out("a", 60)
    device.ask("z", 60)
    device.over("z", 30)
    assert device.ask("a", 5, back=20) == [SwapIn("a", 20), Await("a", 1200)]
    assert device.tell(SwappedIn(210, "a", 20)) == [MemoryReady("a")]
    assert device.vram.state.used_bytes == 20 + 20 + 20 + 30 + 5
    device.at = 210
    assert device.ask("a", 5) == [Allow("a", 5)]


def test_expected_memory_comes_back_beside_the_reserve_only() -> None:
    device = Device(reserve=20)
    device.holding("a", 50)
    device.at = 200
    device.open("b")
    assert device.ask("b", 40) == [Allow("b", 40), SwapOut("a", 10)]
    device.out("a", 50)  # one buffer
    device.over("b", 70)
    assert device.tell(Expected(210, "a", 50)) == [SwapIn("a", 10)]
    assert device.tell(SwappedIn(220, "a", 10)) == []
    assert device.tell(Expected(230, "a", 40)) == []


def test_lost_memory_stays_booked_until_its_session_closes() -> None:
    device = Device()
    device.holding("a", 100)
    device.open("z")
    device.at = 200
    device.ask("z", 60)
    device.out("a", 60)
    device.ask("z", 60)
    device.over("z", 0)
    device.ask("a", 0, back=60)
    assert device.tell(SwapLost(210, "a", 25)) == [MemoryReady("a")]
    assert (device.vram.state.used_bytes, device.vram.state.swapped_bytes) == (65, 35)
    device.tell(SessionClosed(220, "a"))
    assert (device.vram.state.used_bytes, device.vram.state.swapped_bytes) == (0, 0)


def test_shared_blocks_count_once_for_the_device_and_in_full_for_quotas() -> None:
    device = Device()
    for name in "ab":
        device.open(name, quota=60)
    device.ask("a", 50)
    device.tell(Holds(0, "a", 0, 0, 50, 50))
    assert device.tell(AllocationRequested(0, "b", 10, attached_bytes=50)) == [Allow("b", 10)]
    device.tell(Holds(0, "b", 10, 0, 50, 50))
    assert device.vram.state.used_bytes == 60
    (refused,) = device.ask("b", 1)
    assert isinstance(refused, Refuse) and refused.verdict.reason == "quota_exceeded"
    copied = device.tell(AllocationRequested(0, "b", 0, copied_bytes=40))
    assert copied == [Allow("b", 40)], "a private copy of what is shared takes memory, not quota"


@pytest.mark.parametrize(
    ("stimulus", "wrong"),
    [
        (SwappedOut(0, "a", 1), "0 bytes are leaving"),
        (SwappedIn(0, "a", 1), "0 bytes were coming"),
        (Holds(0, "x", 0), "it is not open"),
        (SessionOpened(0, "a", 0), "it is open"),
        (AllocationRequested(0, "a", -1), "bytes are not negative"),
    ],
)
def test_what_cannot_have_happened(stimulus: Stimulus, wrong: str) -> None:
    device = Device()
    device.open("a")
    with pytest.raises(StimulusError, match=wrong):
        device.tell(stimulus)


@pytest.mark.parametrize(
    ("buffers", "want", "chosen"),
    [
        ([(1, 10, 5), (2, 10, 1), (3, 10, 9)], 10, [2]),
        ([(1, 10, 5), (2, 10, 1), (3, 10, 9)], 11, [2, 1]),
        ([(1, 4, 1), (2, 100, 2), (3, 10, 3)], 50, [2]),  # the small cold one turns out not to be needed
        ([(1, 0, 1), (2, 8, 2)], 1, [2]),
        ([(1, 5, 1)], 100, [1]),
        ([], 1, []),
        ([(1, 5, 1)], 0, []),
    ],
)
def test_the_coldest_go(buffers: list[tuple[int, int, int]], want: int, chosen: list[int]) -> None:
    assert coldest(buffers, want) == chosen


def test_the_hottest_come_back_as_far_as_there_is_room() -> None:
    assert hottest([(1, 10, 5), (2, 30, 9), (3, 10, 7), (4, 1, 1)], 21) == [3, 1, 4]


def test_a_batch_that_waited_gets_its_new_bytes_and_those_that_come_back() -> None:
    """It asked for 5 new bytes and 10 swapped-out ones, which all of the device had no room for; then the holder closes."""
    device = Device()
    device.holding("a", 100)
    device.open("z")
    assert device.ask("z", 5, back=10) == [Await("z", 1000)]
    device.at = 1
    assert device.tell(SessionClosed(1, "a")) == [SwapIn("z", 10)]
    z = device.vram.state.sessions["z"]
    assert (z.grant, z.coming, device.vram.state.free_bytes) == (5, 10, 85)
    assert device.tell(SwappedIn(1, "z", 10)) == [MemoryReady("z")]
    assert (z.grant, z.coming, z.held, device.vram.state.free_bytes) == (5, 0, 10, 85)
    assert device.ask("z", 5) == [Allow("z", 5)]
    assert (z.grant, z.held, device.vram.state.free_bytes) == (0, 15, 85)


def test_a_core_goes_on_from_the_state_it_is_given() -> None:
    device = Device()
    device.holding("a", 60)
    assert Vram(device.vram.state).state.sessions["a"].held == 60


@pytest.mark.parametrize(("swap", "swaps"), [(True, [SwapOut("a", 30, "a")]), (False, [])])
def test_what_its_batch_does_not_name_is_given_up_by_the_session_itself_if_it_may_be_swapped(swap: bool, swaps: list[Decision]) -> None:
    """100 units, 70 of them its own, of which 20 are named by the batch that asks for 60 more."""
    device = Device()
    device.holding("a", 70, swap=swap)
    decisions = device.ask("a", 60, pinned=20)
    assert [decision for decision in decisions if isinstance(decision, SwapOut)] == swaps
    assert any(isinstance(decision, Refuse) for decision in decisions) != swap


def test_a_reserve_is_never_filled_with_memory_of_the_session_that_used_it() -> None:
    """It has just been granted what its batch needs: nothing of it is cold."""
    device = Device(reserve=40)
    device.open("a")
    decisions = device.ask("a", 90)
    assert Allow("a", 90) in decisions and not any(isinstance(decision, SwapOut) for decision in decisions)


@pytest.mark.parametrize(("swap", "nbytes"), [(True, 100), (False, 70)])
def test_what_a_session_could_get_counts_its_own_memory_only_if_it_may_be_swapped(swap: bool, nbytes: int) -> None:
    device = Device()
    device.holding("a", 30, swap=swap)
    assert reachable_bytes(device.vram.state, device.vram.state.sessions["a"], 30) == nbytes
