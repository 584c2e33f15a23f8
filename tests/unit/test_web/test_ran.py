"""The band of a task's time, as it is drawn: every condition is seen, no share leaves its column, and the table has the same figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from services.controller.web.charts import device_timeline
from services.controller.web.formats import short_time

MS = 1_000_000
ROWS = ("run_ns", "queue_ns", "preempted_ns", "memory_ns", "batches", "resident_bytes", "shared_bytes", "swapped_bytes")


def lane(**rows: Sequence[int | None]) -> dict[str, Any]:
    size = len(next(iter(rows.values())))
    empty: dict[str, Any] = {name: [None if name.endswith("bytes") else 0] * size for name in ROWS}
    return {"node": "n1", "node_name": "atlas", "gpu": 0, "session": "s1", **empty, **rows}


def timeline(*lanes: dict[str, Any]) -> dict[str, Any]:
    size = len(lanes[0]["run_ns"])
    begin = 1_800_000_000 * 10**9
    return {"from_ns": begin, "to_ns": begin + size * 100 * MS, "slot_ns": 100 * MS, "lanes": list(lanes), "lanes_total": len(lanes)}


def waits(**more: Any) -> dict[str, Any]:
    sums = {"complete": True, "batches": 3, "latency_ns": 400 * MS, "waited_ns": 100 * MS, "waited": 1, "preempted": 0}
    return {**sums, "by_rule": [], "by_other": [], "longest": [], "programs": [], "memory": {"moves": [], "waits": []}, **more}


def test_neighbours_that_look_the_same_are_one_column_and_idle_time_is_none() -> None:
    (band,) = device_timeline(timeline(lane(run_ns=[100 * MS, 100 * MS, 0, 0, 50 * MS], queue_ns=[0, 0, 0, 0, 25 * MS])), waits(), 0).bands
    assert [(column.x, column.width) for column in band.columns] == [(0, 2), (4, 1)]
    assert band.columns[0].parts == (("run", 0.0, 100.0),)
    assert band.columns[1].parts == (("run", 50.0, 50.0), ("queue", 25.0, 25.0))
    assert "running 50 %, in the queue 25 %" in band.columns[1].title
    assert band.summary == "running 250 ms, in the queue 25 ms"


@pytest.mark.parametrize("parts", [(1, 0, 0, 0), (99 * MS, 1, 1, 1), (25 * MS, 25 * MS, 25 * MS, 25 * MS)])
def test_the_least_is_seen_and_nothing_sticks_out(parts: tuple[int, ...]) -> None:
    names = ("run_ns", "queue_ns", "preempted_ns", "memory_ns")
    (band,) = device_timeline(timeline(lane(**{name: [value] for name, value in zip(names, parts, strict=True)})), waits(), 0).bands
    (column,) = band.columns
    assert len(column.parts) == sum(value > 0 for value in parts)
    assert all(height >= 5 and 0 <= y <= 100 - height + 0.2 for _, y, height in column.parts)


def test_memory_that_is_elsewhere_shows_where_nothing_ran() -> None:
    rows = lane(run_ns=[100 * MS, 0, 0], resident_bytes=[400, 100, None], swapped_bytes=[0, 300, None])
    (band,) = device_timeline(timeline(rows), waits(), 800).bands
    assert [column.parts[0][0] for column in band.columns] == ["run", "swapped"]
    assert band.peak_bytes == 400
    areas = dict(band.memory)
    assert set(areas) == {"resident", "out"}, "of what it never held there is no area"
    assert areas["resident"] == "M0,100.0V50.0h1V100.0zM1,100.0V87.5h1V100.0z", "as high as what it asked for"
    assert areas["out"] == "M1,87.5V50.0h1V87.5z"


def test_the_table_adds_up() -> None:
    (band,) = device_timeline(timeline(lane(run_ns=[10 * MS] * 100, batches=[1] * 100, resident_bytes=[1 << 20] * 100)), waits(), 0).bands
    head, rows = band.table
    assert head[:2] == ["From (UTC)", "Running"] and len(rows) <= 24
    assert sum(int(row[6]) for row in rows) == 100
    assert sum(float(re.sub("[^0-9.]", "", row[1])) for row in rows) == 1000
    assert {row[7] for row in rows} == {"1 MiB"}


def test_nothing_is_known() -> None:
    ran = device_timeline({"from_ns": 1, "to_ns": 2, "slot_ns": 1, "lanes": [], "lanes_total": 0}, waits(latency_ns=0, waited_ns=0), 0)
    assert ran.bands == () and ran.waited_percent == 0 and ran.run_ns == 0


@pytest.mark.parametrize(
    ("ns", "text"), [(0, "0 ms"), (900, "1 µs"), (60_000, "0.1 ms"), (3_440_000, "3.4 ms"), (12 * MS, "12 ms"), (2 * 10**9, "2 s")]
)
def test_short_times(ns: int, text: str) -> None:
    assert short_time(ns) == text
