"""The parts of the SLA benchmark that can be wrong unnoticed: arrivals, quantiles, recordings that go on for ever."""

from __future__ import annotations

import pytest

from benchmarks.sla.arrivals import BURST_MEAN, bursts
from benchmarks.sla.measure import count, quantile_ns
from benchmarks.sla.recording import Endless, Recording, Sent, load, save
from scheduler.dispatch import Launch, LaunchFinished, LaunchStopped, Preempt, Record, Tick


def flush(handles: list[int], frees: list[int], uploads: list[tuple[int, bytes]]) -> Sent:
    return Sent(b"p" * 32, b"d" * 32, (), tuple(handles), (), tuple(uploads), ((handles[-1], 0, 4),), tuple(frees), True, b"answer")


def script(steps: int) -> Recording:
    """Buffer 1 lasts; every step uploads one, makes one, and gives up those of the step before."""
    recording = Recording("p0_test", {b"p" * 32: b"program", b"d" * 32: b"dims"}, [flush([1], [], [])], [])
    before: list[int] = []
    for at in range(steps):
        new = [10 + 2 * at, 11 + 2 * at]
        recording.steps.append([flush([1, *new], before, [(new[0], b"x")])])
        before = new
    return recording


def test_arrivals_have_their_rate_and_come_in_bursts() -> None:
    times = bursts(20_000, 100.0, seed=1)
    assert times == sorted(times) == bursts(20_000, 100.0, seed=1)
    assert 20_000 / (times[-1] / 1e9) == pytest.approx(100.0, rel=0.05)
    assert 20_000 / len(set(times)) == pytest.approx(BURST_MEAN, rel=0.05)


@pytest.mark.parametrize(("percent", "wanted"), [(50, 50), (99, 99), (100, 100), (1, 1)])
def test_quantiles_are_nearest_rank(percent: int, wanted: int) -> None:
    assert quantile_ns(list(range(100, 0, -1)), percent) == wanted


def test_a_recording_goes_on_as_the_script_would(tmp_path) -> None:  # type: ignore[no-untyped-def]  # pytest's
    save(tmp_path / "r", script(6))
    endless = Endless(load(tmp_path / "r"))
    longer = script(20)
    for at in range(20):
        ours, theirs = endless.step(at)[0], longer.steps[at][0]
        assert (ours.handles, ours.frees, ours.uploads, ours.reads) == (theirs.handles, theirs.frees, theirs.uploads, theirs.reads)


def test_a_script_that_has_no_stride_is_refused() -> None:
    recording = script(6)
    recording.steps[-1][0].frees = (1,)
    with pytest.raises(ValueError, match="stride"):
        Endless(recording)


def test_counts_are_of_the_span_and_stops_of_slices_that_ran() -> None:
    records = [
        Record(Tick(0), (Launch("a", 1), Launch("b", 1))),
        Record(Tick(10), (Preempt("a", 1), Preempt("b", 1))),
        Record(LaunchStopped(30, "a", 1, 5, 25), (Launch("a", 1, 0, 1),)),
        Record(LaunchStopped(40, "b", 1, 0, 0), ()),
        Record(LaunchFinished(90, "a", 1, 7, wall_ns=7), ()),
    ]
    counts = count(records, 10, 100)
    assert (counts.batches, counts.slices, counts.preemptions) == (1, 1, 2)
    assert (counts.core_ns, counts.stop_ns) == ({"a": 12, "b": 0}, (20,))
