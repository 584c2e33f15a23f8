"""The timeline of a task: every nanosecond of its batches is in one slot and one condition, however long the record was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from scheduler.vram.state import SessionMemory, VramState
from services.replay.answers import answer
from services.replay.question import parse
from services.replay.why import Grid, MemoryUse
from tests.support.dispatch_load import preempted_journal

MS = 1_000_000


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return preempted_journal(tmp_path)


def document_of(journal: Path, *more: str) -> dict[str, Any]:
    return asyncio.run(answer(None, parse(["why", "low", "--file", str(journal), *more])))


@pytest.mark.parametrize("slots", [1, 7, 720])
def test_the_slots_add_up_to_the_waits_and_the_runs(journal: Path, slots: int) -> None:
    document = document_of(journal, "--slots", str(slots), "--to", "0.8")
    (lane,) = document["timeline"]["lanes"]
    assert {len(lane[name]) for name in ("run_ns", "queue_ns", "preempted_ns", "memory_ns", "batches", "resident_bytes")} == {slots}
    assert sum(lane["run_ns"]) == 600 * MS and sum(lane["batches"]) == 20
    assert sum(lane["queue_ns"]) + sum(lane["preempted_ns"]) == document["waited_ns"] == 120 * MS
    assert sum(lane["preempted_ns"]) > sum(lane["queue_ns"]), "most of its waits follow a stop"
    slot_ns = document["timeline"]["slot_ns"]
    columns = zip(lane["run_ns"], lane["queue_ns"], lane["preempted_ns"], lane["memory_ns"], strict=True)
    assert all(sum(column) <= slot_ns for column in columns)


def test_a_part_of_the_time(journal: Path) -> None:
    document = document_of(journal, "--slots", "10", "--from", "0.1", "--to", "0.2")
    (lane,) = document["timeline"]["lanes"]
    shown = document["timeline"]
    assert (shown["from_ns"], shown["to_ns"], shown["slot_ns"]) == (100 * MS, 200 * MS, 10 * MS)
    assert sum(lane["run_ns"]) + sum(lane["queue_ns"]) + sum(lane["preempted_ns"]) <= 100 * MS


def test_a_journal_that_takes_too_long_is_answered_as_far_as_it_was_read(journal: Path) -> None:
    whole, cut = document_of(journal), document_of(journal, "--limit-s", "0.000001")
    assert whole["complete"] and not cut["complete"]
    assert cut["batches"] < whole["batches"]


def test_memory_is_the_most_of_each_slot() -> None:
    use = MemoryUse(Grid(1_000, 2_000, 10), {"s"})

    def at(at_ns: int, held: int | None, swapped: int = 0) -> None:
        sessions = {} if held is None else {"s": SessionMemory("s", 0, 0, True, 0, 0, held=held, swapped=swapped)}
        use.take(at_ns, VramState(sessions=sessions))

    at(900, 5)
    at(1_150, 7)
    at(1_180, 3)
    at(1_420, 0, 3)
    at(1_610, 2, 0)
    at(1_730, None)
    rows = use.rows("s")
    assert rows["resident_bytes"] == [5, 7, 3, 3, 3, 0, 2, 2, None, None]
    assert rows["swapped_bytes"] == [0, 0, 0, 0, 3, 3, 3, 0, None, None]
    assert use.rows("another")["resident_bytes"] == [None] * 10
