"""The virtual executor, against times worked out by hand."""

from __future__ import annotations

from scheduler.dispatch import FAULT, OK, Launch, LaunchFinished, LaunchReturned, LaunchStopped
from scheduler.model import Arrival, DeviceCosts, percentile
from scheduler.model.simulate import VirtualDevice

COSTS = DeviceCosts(launch_ns=10, report_ns=5, slice_ns=2, stop_ns=4, over_ns=1)


def work(wall_ns: int = 100, core_ns: int = 200, **more: int) -> Arrival:
    return Arrival("a", 0, wall_ns, core_ns, overhead_ns=3, **more)


def test_a_launch_into_an_idle_device_takes_the_way_there_and_back() -> None:
    device = VirtualDevice(COSTS)
    device.execute(1000, Launch("a", 0), work(), 0)
    assert device.end_ns == 1113
    assert device.end() == LaunchFinished(1118, "a", 0, 200, OK, 100)
    assert device.end_ns is None


def test_the_way_is_hidden_behind_another_launch() -> None:
    device = VirtualDevice(COSTS)
    device.execute(1000, Launch("a", 0), work(), 0)
    device.execute(1000, Launch("b", 0), work(50, 50), 0)
    device.execute(1112, Launch("c", 0), work(50, 50), 0)
    device.end()
    assert device.end_ns == 1113 + 3 + 50
    device.end()
    assert device.end_ns == 1113 + 53 + 53, "handed over long before its turn"


def test_a_limit_cuts_and_the_parts_add_up() -> None:
    device = VirtualDevice(COSTS)
    seen = []
    for number in range(3):
        device.execute(1000, Launch("a", 0, 40, number), work(100, 101), 0)
        seen.append(device.end())
    assert seen == [
        LaunchStopped(1010 + 3 + 41 + 5, "a", 0, 41, 41),
        LaunchStopped(1054 + 2 + 41 + 5, "a", 0, 41, 41),
        LaunchFinished(1097 + 2 + 18 + 5, "a", 0, 19, OK, 18),
    ]


def test_a_batch_that_cannot_be_cut_runs_on() -> None:
    device = VirtualDevice(COSTS)
    device.execute(1000, Launch("a", 0, 40), work(100, grain_ns=100), 0)
    assert isinstance(device.end(), LaunchFinished)


def test_a_preempted_launch_stops_and_what_has_not_begun_comes_back() -> None:
    device = VirtualDevice(COSTS)
    device.execute(1000, Launch("low", 0), work(), 3)
    device.execute(1000, Launch("low", 1), work(), 3)
    device.preempt(1050, "low", 1)
    device.execute(1050, Launch("high", 0), work(), 0)
    assert device.end_ns == 1054
    assert device.end() == LaunchStopped(1059, "low", 0, 82, 41)
    assert device.end() == LaunchReturned(1059, "low", 1, False), "behind an unfinished one of its session"
    assert device.end() == LaunchFinished(1060 + 3 + 100 + 5, "high", 0, 200, OK, 100)
    device.execute(1200, Launch("low", 0, 0, 1), work(), 3)
    assert device.end() == LaunchFinished(1210 + 2 + 59 + 5, "low", 0, 118, OK, 59)


def test_one_preempted_before_its_turn_has_taken_no_time() -> None:
    device = VirtualDevice(COSTS)
    device.execute(1000, Launch("a", 0), work(), 0)
    device.execute(1000, Launch("low", 0), work(), 3)
    device.preempt(1020, "low", 0)
    device.end()
    assert device.end() == LaunchStopped(1118, "low", 0, 0, 0)


def test_an_end_that_is_nearer_than_the_stop_is_an_end() -> None:
    device = VirtualDevice(COSTS)
    device.execute(1000, Launch("low", 0), work(), 3)
    device.preempt(1111, "low", 0)
    assert isinstance(device.end(), LaunchFinished)


def test_behind_a_fault_nothing_of_the_session_runs() -> None:
    device = VirtualDevice(COSTS)
    device.execute(1000, Launch("a", 0), work(outcome=FAULT), 0)
    device.execute(1000, Launch("a", 1), work(), 0)
    assert device.end() == LaunchFinished(1118, "a", 0, 200, FAULT, 100)
    assert device.end() == LaunchReturned(1118, "a", 1, False)


def test_percentiles_are_nearest_rank() -> None:
    assert [percentile(range(1, 101), p) for p in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([7], 99) == 7
    assert percentile([], 99) == 0
    assert percentile([3, 1, 2], 50) == 2
