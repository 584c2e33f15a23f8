"""torch.cuda.memory's history: events with the script's lines, live buffers, and nothing once it has ended."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    torch.cuda.memory._record_memory_history(enabled=None)


def snapshot() -> Any:
    return torch.cuda.memory._snapshot()


def actions() -> list[tuple[str, int]]:
    return [(event["action"], event["size"]) for event in snapshot()["device_traces"][0]]


def test_events_have_the_lines_of_the_script() -> None:
    torch.cuda.memory._record_memory_history(clear_history=True)
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]  # CPython has frames
    x = torch.ones(1000, device="cuda")
    kept = x + 1
    del x
    assert actions() == [("alloc", 4000), ("alloc", 4000), ("free_requested", 4000), ("free_completed", 4000)]
    first, second, _, freed = snapshot()["device_traces"][0]
    innermost = first["frames"][0]
    assert (innermost["filename"], innermost["line"], innermost["name"]) == (__file__, line, "test_events_have_the_lines_of_the_script")
    assert second["frames"][0]["line"] == line + 1 and freed["frames"][0]["line"] == line + 2
    assert (first["addr"], second["addr"], freed["addr"]) == (freed["addr"], kept.data_ptr(), first["addr"])
    assert first["time_us"] <= freed["time_us"]


def test_live_buffers_are_segments_of_one_block() -> None:
    torch.cuda.memory._record_memory_history(enabled="state", clear_history=True)
    small, large, gone = (torch.ones(n, device="cuda") for n in (10, 1 << 20, 30))
    del gone
    found = snapshot()
    assert [(s["total_size"], s["segment_type"], len(s["blocks"])) for s in found["segments"]] == [(40, "small", 1), (4 << 20, "large", 1)]
    assert found["device_traces"] == [[]] and all(s["blocks"][0]["frames"] for s in found["segments"])
    assert {small.data_ptr(), large.data_ptr()} == {s["address"] for s in found["segments"]}


def test_it_is_bounded_filtered_and_ends() -> None:
    record = torch.cuda.memory._record_memory_history
    record(max_entries=2, context=None, clear_history=True)
    assert torch._C._cuda_isHistoryEnabled()
    kept = [torch.ones(n, device="cuda") for n in (1, 2, 3)]
    assert actions() == [("alloc", 8), ("alloc", 12)] and not snapshot()["device_traces"][0][0]["frames"]
    record(skip_actions=["free_requested"], clear_history=True)
    kept.clear()
    torch.ones(5, device="cuda")
    assert actions() == [("alloc", 20), ("free_completed", 20)]
    record(enabled=None)
    torch.ones(6, device="cuda")
    assert len(actions()) == 2 and not torch._C._cuda_isHistoryEnabled()
    for wrong in ({"enabled": "some"}, {"context": "some"}):
        with pytest.raises(RuntimeError, match="expected"):
            record(**wrong)


def test_torchs_own_tools_read_it(tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history(True)
    kept = torch.ones(1 << 20, device="cuda")
    torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    found = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert "4.0MiB" in _memory_viz.segsum(found)
    assert "a = seg_0[0:4.0MiB]" in _memory_viz.trace(found) and kept.numel()
    assert found["segments"][0]["frames"][0]["name"] == "test_torchs_own_tools_read_it"
