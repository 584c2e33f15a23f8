"""What an earlier revision recorded is decided again to the same digest, and read to the same values (tests/golden/recorded)."""

from __future__ import annotations

import importlib
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus_schemas.events import NodeLost, NodeRegistered, SessionOpenedFact, TaskPlaced, TaskRefused, UsageRecorded, decode_events
from scheduler import dispatch
from scheduler.placement import ClusterView, decide
from scheduler.vram import journal as vram_journal
from services.server.facts import FactLog
from services.server.intake import read_batch
from tests.golden.recorded.__main__ import FOLDER
from tests.support.replayed import replay, verify, verify_vram

MESSAGES: dict[str, Any] = json.loads((FOLDER / "messages.json").read_text())


def recording(name: str) -> Any:
    return msgspec.msgpack.decode(zlib.decompress((FOLDER / f"{name}.bin").read_bytes()))


def decisive(state: dispatch.DispatchState) -> bytes:
    """The state without the stories of its sessions, which are for messages only: earlier snapshots have none."""
    for session in state.sessions.values():
        session.story.clear()
    return dispatch.snapshot(state)


@pytest.mark.parametrize("seed", range(16))
def test_the_dispatcher_decides_the_same(seed: int) -> None:
    """From an empty state, and from each snapshot of the earlier revision; the replayed state is the one that each snapshot holds."""
    frames, digest, snapshots = recording("dispatch")[seed]
    records, used = dispatch.decode_journal(frames)
    assert used == len(frames)
    assert replay([record.stimulus for record in records])[1].digest == digest
    end = decisive(verify(records).state)
    for at, snapshot in snapshots:
        assert decisive(verify(records[:at]).state) == decisive(dispatch.restore(snapshot))
        assert decisive(verify(records[at:], snapshot=snapshot).state) == end


@pytest.mark.parametrize("seed", range(12))
def test_the_memory_core_decides_the_same(seed: int) -> None:
    frames, digest, snapshots = recording("vram")[seed]
    records, used = vram_journal.decode_journal(frames)
    assert used == len(frames)
    end = verify_vram(records).state
    journal = vram_journal.Journal()
    for record in records:
        journal.add(record.stimulus, record.decisions)
    assert journal.digest == digest
    for at, snapshot in snapshots:
        assert verify_vram(records[at:], snapshot).state == end


@pytest.mark.parametrize("seed", range(40))
def test_placement_decides_the_same(seed: int) -> None:
    log, tasks = recording("placement")[seed]
    view = ClusterView()
    for position, data in enumerate(log, start=1):
        (event,) = decode_events(data)
        if isinstance(event, TaskPlaced | TaskRefused):
            assert decide(view, view.tasks[event.task].submitted, event.at_ns).event() == event
        view.apply(position, event)
    assert {name: [task.state, task.reason, task.placed.node if task.placed else ""] for name, task in view.tasks.items()} == tasks


@pytest.mark.parametrize("lane", ["dispatch", "vram"])
def test_the_journals_of_a_real_node_are_decided_the_same(lane: str) -> None:
    segments = recording("node")["lanes"][lane]
    assert segments
    for snapshot, frames, digest in segments:
        if lane == "dispatch":
            records, _ = dispatch.decode_journal(frames)
            verify(records, snapshot=snapshot)
            journal = dispatch.Journal()
        else:
            records, _ = vram_journal.decode_journal(frames)
            verify_vram(records, snapshot)
            journal = vram_journal.Journal()
        for record in records:
            journal.add(record.stimulus, record.decisions)
        assert journal.digest == digest


def test_the_facts_of_a_real_node_are_taken_up(tmp_path: Path) -> None:
    """A node that starts on the journal of an earlier revision continues in the next epoch, from the balances at the journal's end."""
    path = tmp_path / "facts.journal"
    path.write_bytes(recording("node")["facts"])
    log = FactLog(path, "n")
    assert log.epoch == 3
    assert {account.task for account in log.progress[0].accounts} == {""} and log.progress[0].accounted_ns > 0
    events = [event for data in recording("node")["events"] for event in decode_events(data)]
    kinds = [type(event) for event in events]
    assert (kinds.count(NodeRegistered), kinds.count(SessionOpenedFact), kinds.count(NodeLost)) == (2, 9, 0)
    assert sum(event.launches for event in events if isinstance(event, UsageRecorded)) > 0


def test_the_batches_of_a_real_client_are_accepted() -> None:
    batches = recording("node")["batches"]
    assert len(batches) > 30
    for data in batches:
        name = msgspec.msgpack.decode(zlib.decompress(data) if data[:1] == b"\x78" else data)[1]
        batch, _ = read_batch(data, name)
        assert batch.seq > 0


def same(now: Any, before: Any) -> bool:
    """Whether a value is what it was; a struct, which is an array here, may have further fields that are not set."""
    if isinstance(before, list):
        more = now[len(before) :]
        return len(now) >= len(before) and all(map(same, now, before)) and all(field is None for field in more)
    if isinstance(before, dict):
        return all(name in now and same(now[name], value) for name, value in before.items())
    return bool(now == before)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_still_means_the_same(name: str) -> None:
    """Its bytes are read to the same fields, and the value of today is written to bytes that hold those first."""
    module, kind = name.split(".")
    struct = getattr(importlib.import_module(f"bus_schemas.{module}"), kind)
    value = msgspec.msgpack.decode(bytes.fromhex(MESSAGES[name]["bytes"]), type=struct)
    have = json.loads(msgspec.json.encode(msgspec.structs.asdict(value)))
    for field, expected in MESSAGES[name]["fields"].items():
        assert same(have[field], expected), field
    before, now = (msgspec.msgpack.decode(data) for data in (bytes.fromhex(MESSAGES[name]["bytes"]), msgspec.msgpack.encode(value)))
    assert same(now[: len(before)] if isinstance(before, list) else now, before)
