"""The books of a device, from executor to executor and from server to server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from bus_schemas.terms import TaskTerms
from services.server.accounting import Accounting, boot_id
from services.server.allowance import Allowances
from services.server.facts import FactLog, Progress
from services.server.meter import Account
from services.server.protocol import PROTOCOL, Attached, HeldSession
from services.server.sessions import SessionRecord, encode_record

GIB = 1 << 30
RECORD = SessionRecord(session="s", terms=TaskTerms(tenant="lab", task="t", priority=0), epoch=1)


def taken_over(folder: Path, before: Progress, attached: Attached, check: Callable[[FactLog, Accounting], None]) -> None:
    """A server that died left ``before``; the next one attaches to this executor."""

    async def body() -> None:
        left = FactLog(folder / "facts", "node")
        left.note(before, lambda: None)
        await left.close()
        facts = FactLog(folder / "facts", "node")
        books = Accounting("node", 0, facts, lambda: ("", 0), Allowances(time.time_ns, time.monotonic_ns))
        books.attach(attached, {held.session: RECORD for held in attached.held})
        check(facts, books)
        await facts.close()

    asyncio.run(body())


def test_an_executor_with_the_pid_of_one_before_is_another(tmp_path: Path) -> None:
    """In a container every start gives the same pids. None of what the new one reports is in the books yet."""

    def check(facts: FactLog, books: Accounting) -> None:
        books.note(lambda report: None)
        assert facts.progress[0].report == 0

    before = Progress(0, boot_id(), 1, 7, 5_000, ())
    taken_over(tmp_path, before, Attached(PROTOCOL, 7, "device", "reference", 1, GIB, ()), check)


def test_a_session_is_charged_for_what_the_executor_holds_of_it_now(tmp_path: Path) -> None:
    """It was swapped out between two launches while there was no server to hear of it."""

    def check(facts: FactLog, books: Accounting) -> None:
        assert books.meter is not None
        books.settle(in_flight=False)
        assert books.meter.accounts["s"].resident_bytes == GIB

    before = Progress(0, boot_id(), time.monotonic_ns(), 7, 5, (Account("s", "lab", "t", 0, resident_bytes=2 * GIB),))
    held = HeldSession("s", encode_record(RECORD), 3, b"", GIB, False)
    taken_over(tmp_path, before, Attached(PROTOCOL, 7, "device", "reference", 1, 4 * GIB, (), (held,)), check)
