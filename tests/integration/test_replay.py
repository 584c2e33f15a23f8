"""Journals of real nodes run again: every decision equal, what was changed is found, and the sessions that made others wait are named."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from bus_schemas import subjects
from bus_schemas.journal import JournalPart, decode_part, encode_part
from services.kit.bus import Bus
from services.replay.source import history
from tests.support.command import Wooly, command_in
from tests.support.node import Node, Program, increment, until
from wooly.errors import RefusedError
from wooly.link import Flush
from wooly.session import Session


@pytest.fixture
def wooly(tmp_path: Path) -> Wooly:
    return command_in(tmp_path)


def parts(node: Node) -> list[JournalPart]:
    """Everything on the stream."""

    async def read(bus: Bus) -> list[JournalPart]:
        return [decode_part(data) async for data in history(bus, subjects.JOURNAL_STREAM, subjects.JOURNAL_ALL)]

    return node.run(read)


def rewrite(node: Node, change: Callable[[JournalPart], JournalPart | None]) -> None:
    """The stream again, with every part as ``change`` gives it (None: left out)."""
    given = parts(node)

    async def write(bus: Bus) -> None:
        await bus.js_api(f"STREAM.PURGE.{subjects.JOURNAL_STREAM}")
        for part in map(change, given):
            if part is not None:
                await bus.publish_acked(subjects.journal_subject(part.node, part.gpu, part.lane), encode_part(part))

    node.run(write)


SIZE = 200_000


def load(session: Session, program: Program, batches: int, wait_each: bool = False) -> None:
    """Batches on one buffer of SIZE numbers; the client looks at each, or at the last."""
    session.submit(Flush(allocs=[(1, 8 * SIZE)]))
    for _ in range(batches):
        ticket = session.submit(program.flush([1], reads=[(1, 0, 8)]))
        if wait_each:
            session.wait(ticket)
    if not wait_each:
        session.wait(ticket)


def opened(node: Node, **keys: object) -> Session | None:
    """A session, or None while the device is being started again."""
    with contextlib.suppress(RefusedError):
        return node.open(**keys)
    return None


def side_by_side(*work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(one) for one in work]:
            done.result()


def replayed(wooly: Wooly, node: Node, *arguments: str) -> tuple[int, dict[str, object]]:
    done = wooly("replay", "--json", *arguments, WOOLY_NATS_URL=node.nats.url)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_busy_life_with_kills_and_a_restart_is_reproduced_and_changes_are_found(node: Node, wooly: Wooly) -> None:
    program = increment(SIZE)
    tenants = [node.open(prio=prio, weight=weight, required_vram_mb=64) for prio, weight in ((0, 100), (2, 100), (2, 300), (4, 100))]
    side_by_side(*(lambda s=session, n=number: load(s, program, 20, n == 0) for number, session in enumerate(tenants)))
    bad = node.open()
    bad.submit(increment().flush([5]))
    for session in tenants[:2]:
        session.close()
    (pid,) = node.executor_pids()
    os.kill(pid, signal.SIGKILL)
    until(lambda: (pids := node.executor_pids()) and pids != [pid] and not node.stats().sessions, "a new executor")
    later = until(lambda: opened(node, prio=1), "the new executor to take a session")
    load(later, program, 5)
    later.close()
    # The journal goes out about once a second; what a killed server had not published is lost.
    until(lambda: len({part.segment for part in parts(node) if part.lane == "dispatch"}) == 2, "the second segment on the stream")
    node.kill_server()
    node.start_server()
    again = node.open(prio=3)
    load(again, program, 5, wait_each=True)
    again.close()
    node.stop_server()

    code, document = replayed(wooly, node)
    lines = document["segments"]
    assert code == 0 and document["equal"], lines
    dispatched = [line for line in lines if line["lane"] == "dispatch"]
    assert len(dispatched) >= 3, "a segment for each start of the core"
    assert {line["lane"] for line in lines} == {"dispatch", "vram"}
    assert not any(line["gap"] for line in lines)
    # Batches that are not waited for may share a decision, the more of them the slower the node is.
    assert sum(line["decisions"] for line in dispatched) >= 20 + 5, "one for each batch that is waited for, at least"
    table = wooly("replay", "--node", "test-node", WOOLY_NATS_URL=node.nats.url)
    assert table.returncode == 0 and f"{len(lines)} segments" in table.stdout and "no difference" in table.stdout

    # A window in the middle; one before everything.
    begin, end = min(line["begin_ns"] for line in lines), max(line["end_ns"] for line in lines)
    _, some = replayed(wooly, node, "--from", str((begin + end) / 2e9))
    assert 0 < len(some["segments"]) <= len(lines)
    early = wooly("replay", "--to", str(begin / 1e9 - 1), WOOLY_NATS_URL=node.nats.url)
    assert early.returncode == 2 and "no journal" in early.stderr

    # The same from the node's files.
    files = sorted((node.folder / "server" / "dispatch").glob("*.journal"))
    local = wooly("replay", "--json", *(f"--file={path}" for path in files))
    assert local.returncode == 0, local.stdout
    # The server's death may have cost the file its last records, never the ones before.
    assert {line["digest"] for line in json.loads(local.stdout)["segments"]} & {line["digest"] for line in dispatched}

    # Tampered: one byte of one part.
    target = next(part for part in parts(node) if part.lane == "dispatch" and part.records > 3)
    broken = bytearray(target.frames)
    broken[-5] ^= 1
    rewrite(node, lambda part: msgspec.structs.replace(part, frames=bytes(broken)) if part == target else part)
    code, document = replayed(wooly, node)
    (found,) = [line for line in document["segments"] if not line["equal"]]
    assert code == 1 and (found["segment"], found["lane"]) == (target.segment, "dispatch") and found["difference"]

    # The beginning of that segment is missing: it is reported, and the others still count.
    rewrite(node, lambda part: None if (part.segment, part.lane, part.first) == (target.segment, "dispatch", 0) else part)
    code, document = replayed(wooly, node)
    gaps = [line for line in document["segments"] if line["gap"]]
    assert [line["segment"] for line in gaps] == [target.segment] or not gaps
    assert len([line for line in document["segments"] if line["equal"] and line["records"]]) >= len(lines) - 1


def test_why_names_the_neighbour_and_the_rule(node: Node, wooly: Wooly) -> None:
    program = increment(2_000_000)
    high, low = node.open(prio=0), node.open(prio=3)
    for session in (high, low):
        session.wait(session.submit(Flush(allocs=[(1, 16_000_000)])))
    side_by_side(lambda: _repeat(high, program), lambda: _repeat(low, program))
    for session in (high, low):
        session.close()
    node.stop_server()
    done = wooly("why", low.info.session, "--json", WOOLY_NATS_URL=node.nats.url)
    assert done.returncode == 0, done.stderr
    story = json.loads(done.stdout)
    assert story["finished"] == story["batches"] > 20
    first = story["by_other"][0]
    assert (first["session"], first["priority"]) == (high.info.session, 0)
    assert "higher_priority" in first["rules"] or "low_budget" in first["rules"]
    waited = sum(line["ns"] for line in story["by_rule"])
    assert waited == story["waited_ns"] == sum(line["ns"] for line in story["by_other"])
    shown = wooly("why", low.info.session, WOOLY_NATS_URL=node.nats.url).stdout
    assert "a task of a higher priority had work" in shown and "by what ran" in shown
    missing = wooly("why", "unknown", WOOLY_NATS_URL=node.nats.url)
    assert missing.returncode == 2 and "no task or session 'unknown'" in missing.stderr


def _repeat(session: Session, program: Program) -> None:
    replies = [session.submit(program.flush([1])) for _ in range(30)]
    session.wait(replies[-1])


def test_what_if_predicts_the_recorded_run_under_its_own_policy(node: Node, wooly: Wooly) -> None:
    program = increment(500_000)
    tenants = [node.open(prio=prio) for prio in (0, 3)]
    for session in tenants:
        session.wait(session.submit(Flush(allocs=[(1, 4_000_000)])))
    side_by_side(*(lambda s=session: _repeat(s, program) for session in tenants))
    for session in tenants:
        session.close()
    node.stop_server()
    done = wooly("replay", "--policy", "fifo", "--json", WOOLY_NATS_URL=node.nats.url)
    assert done.returncode == 0, done.stderr
    (device,) = json.loads(done.stdout)["devices"]
    for line in device["sessions"]:
        assert line["recorded"]["finished"] == line["modelled"]["finished"] == line["predicted"]["finished"] >= 30
        assert line["recorded"]["core_ns"] == line["modelled"]["core_ns"] == line["predicted"]["core_ns"]
    shown = wooly("replay", "--policy", "fifo", WOOLY_NATS_URL=node.nats.url).stdout
    assert "recorded under strict, predicted under fifo" in shown
