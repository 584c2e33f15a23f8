"""What of the measurements becomes a fact, in a cluster of more devices than one fact may name."""

from __future__ import annotations

from bus_schemas.events import DeviceFact, NodeRegistered
from scheduler.placement import ClusterView, Measured
from services.controller.reconciler import LoadReporter

SECOND = 10**9
GIB = 1 << 30
NODES, GPUS = 513, 8
DEVICES = [(f"n{number:03}", gpu) for number in range(NODES) for gpu in range(GPUS)]


def cluster() -> ClusterView:
    view = ClusterView()
    for position, name in enumerate(sorted({name for name, _ in DEVICES}), start=1):
        devices = tuple(DeviceFact(gpu, "gpu", "host", 8, GIB) for gpu in range(GPUS))
        view.apply(position, NodeRegistered(1, name, name, "", 1, devices))
    return view


def reported(reporter: LoadReporter, view: ClusterView, heard: dict[tuple[str, int], Measured], second: int) -> set[tuple[str, int]]:
    """The devices of the fact that is due, which is put into the log."""
    fact = reporter.due(view, heard, second * SECOND)
    if fact is None:
        return set()
    assert list(fact.devices) == sorted(fact.devices)
    view.apply(view.position + 1, fact)
    return {(name, gpu) for name, gpu, *_ in fact.devices}


def test_what_does_not_matter_hides_nothing() -> None:
    view, reporter = cluster(), LoadReporter()
    reported(reporter, view, dict.fromkeys(DEVICES, Measured(50)), 10)
    reported(reporter, view, dict.fromkeys(DEVICES, Measured(50)), 11)
    assert set(view.load) == set(DEVICES)
    heard = dict.fromkeys(DEVICES, Measured(51)) | {DEVICES[-1]: Measured(90)}
    assert reported(reporter, view, heard, 20) == {DEVICES[-1]}


def test_all_have_their_turn() -> None:
    """Every device changes all the time, more than one fact takes: each is reported every other second."""
    view, reporter = cluster(), LoadReporter()
    for second in range(10, 20, 2):
        busy = Measured(second * 5)
        first = reported(reporter, view, dict.fromkeys(DEVICES, busy), second)
        rest = reported(reporter, view, dict.fromkeys(DEVICES, busy), second + 1)
        assert (len(first), first | rest) == (4000, set(DEVICES))


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    view, reporter = cluster(), LoadReporter()
    assert reported(reporter, view, {DEVICES[0]: Measured(50)}, 3_600) == {DEVICES[0]}
    assert reported(reporter, view, {DEVICES[0]: Measured(90)}, 10) == {DEVICES[0]}
