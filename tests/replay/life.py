"""Runs a real node under a mix of tenants, and replays its journal from the bus."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bus_schemas import subjects
from bus_schemas.journal import DISPATCH, VRAM, JournalPart, decode_part
from scheduler import dispatch, vram
from scheduler.vram.journal import decode_journal as decode_vram
from services.kit.bus import Bus
from services.replay.answers import answer
from services.replay.question import Question
from services.replay.source import history
from tests.replay.mixes import Mix, Tenant
from tests.support.journals import segments
from tests.support.node import Node, Program, increment, until
from tests.support.stack import ROOT
from wooly.errors import QuotaExceeded, RefusedError, WoolyError
from wooly.link import Flush
from wooly.session import Session

__all__ = ["Lived", "live"]

_VANISHING: Final = """
import sys
from tests.support.node import increment
from wooly.config import Config
from wooly.link import Flush
from wooly.session import open_session
session = open_session(Config(nats_urls=(sys.argv[1],), prio=2))
session.wait(session.submit(Flush(allocs=[(1, 80_000)])))
print(session.info.session, flush=True)
while True:
    session.wait(session.submit(increment(10_000).flush([1])))
"""


@dataclass(frozen=True, slots=True)
class Lived:
    """``document``: of ``wooly replay``. ``counts``: of decisions by name, over all lanes."""

    document: dict[str, Any]
    counts: Counter[str]

    @property
    def segments(self) -> list[dict[str, Any]]:
        return list(self.document["segments"])


def live(mix: Mix, folder: Path) -> Lived:
    """Live it on a node in ``folder``."""
    with Node(folder, **mix.environment) as node:
        with _vanishing(node, mix.vanishing):
            _round(node, mix.rounds[0])
            until(lambda: all(segments(node, lane) for lane in (DISPATCH, VRAM)), "the bus has something of both journals")
        _trouble(node, mix.trouble)
        _round(node, mix.rounds[1])
        node.stop_server()
        return node.run(_again)


def _round(node: Node, tenants: tuple[Tenant, ...]) -> None:
    """All of them beside each other, to the end of the last."""
    sessions = [until(lambda t=tenant: _opened(node, t), "a session") for tenant in tenants]
    with ThreadPoolExecutor(len(tenants)) as pool:
        for done in [pool.submit(_work, session, tenant) for session, tenant in zip(sessions, tenants, strict=True)]:
            with contextlib.suppress(QuotaExceeded):  # a crowded device may refuse; that is a decision, too
                done.result()


def _opened(node: Node, tenant: Tenant) -> Session | None:
    """None while the device is being started again."""
    with contextlib.suppress(RefusedError):
        return node.open(**tenant.keys)
    return None


def _work(session: Session, tenant: Tenant) -> None:
    program: Program = increment(tenant.size)
    session.wait(session.submit(Flush(allocs=[(1, 8 * tenant.size)])))
    for number in range(tenant.batches):
        ticket = session.submit(program.flush([1]))
        if tenant.waits or number + 1 == tenant.batches:
            session.wait(ticket)
    if tenant.faulty:
        with contextlib.suppress(WoolyError):
            session.wait(session.submit(program.flush([7])))
    session.close()


@contextlib.contextmanager
def _vanishing(node: Node, wanted: bool) -> Any:
    """A client process that works beside the others and is killed at the end."""
    if not wanted:
        yield
        return
    environment = {**node.environment(), "PYTHONPATH": str(ROOT)}
    client = subprocess.Popen([sys.executable, "-c", _VANISHING, node.nats.url], env=environment, stdout=subprocess.PIPE)
    assert client.stdout is not None
    try:
        client.stdout.readline()
        yield
    finally:
        client.kill()
        client.wait()
        client.stdout.close()


def _trouble(node: Node, what: str) -> None:
    if what == "executor killed":
        (pid,) = node.executor_pids()
        os.kill(pid, signal.SIGKILL)
        until(lambda: (pids := node.executor_pids()) and pids != [pid], "another executor")
    elif what == "server killed":
        node.kill_server()
        node.start_server()
    elif what == "server restarted":
        node.stop_server()
        node.start_server()


async def _again(bus: Bus) -> Lived:
    document = await answer(bus, Question("check"))
    counts: Counter[str] = Counter()
    async for data in history(bus, subjects.JOURNAL_STREAM, subjects.JOURNAL_ALL):
        part = decode_part(data)
        if part.lane in (DISPATCH, VRAM):  # the lane of programs has no decisions
            counts.update(type(decision).__name__ for decision in _decisions(part))
    return Lived(document, counts)


def _decisions(part: JournalPart) -> list[dispatch.Decision | vram.Decision]:
    if part.lane == DISPATCH:
        return [decision for record in dispatch.decode_journal(part.frames)[0] for decision in record.decisions]
    return [decision for record in decode_vram(part.frames)[0] for decision in record.decisions]
