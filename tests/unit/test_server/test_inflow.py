"""Messages on their way to their sessions: small ones at once, large ones off the event loop, in turns, on a budget, in order."""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections.abc import Awaitable, Callable

import pytest

from bus_schemas.batch import LIMITS, Batch, encode_batch, pack_message
from bus_schemas.quotas import Excess
from scheduler.quotas import answer
from scheduler.turns import TurnsConfig
from services.server import inflow
from services.server.inflow import BUDGET, Arrived, Inflow, Message

RATE = 500
"""Messages a second."""


class Bench:
    """``arrived``: (session, seq, whether the event loop's thread read it)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, budget: TurnsConfig) -> None:
        self.arrived: list[tuple[str, int, bool]] = []
        self.faults: list[str] = []
        self._threads: dict[tuple[str, bytes], bool] = {}
        self._came = asyncio.Event()
        self.inflow = Inflow(lambda principal, session: session[0], self._take, budget)
        self._position = 0
        self._on_loop = True
        read = inflow.read
        loop_thread = threading.get_ident()

        def noted(data: bytes, session: str, small: bool) -> Arrived:
            self._on_loop = threading.get_ident() == loop_thread
            return read(data, session, small)

        monkeypatch.setattr(inflow, "read", noted)

    def put(self, session: str, data: bytes) -> str:
        """The quota that drops it; else empty."""
        self._position += 1
        refused = self.inflow.put(Message(self._position, "p", session, data))
        return "" if refused is None else refused.quota

    def excess(self, tenant: str) -> Excess | None:
        """The answer to what waits."""
        delayed = self.inflow.delayed(tenant, time.monotonic_ns())
        return None if delayed is None else answer(delayed)

    def _take(self, message: Message, arrived: Arrived) -> None:
        self.arrived.append((message.session, arrived.batch.seq if arrived.batch is not None else 0, self._on_loop))
        self._came.set()

    async def until(self, count: int) -> list[tuple[str, int, bool]]:
        async with asyncio.timeout(60):
            while len(self.arrived) < count:
                self._came.clear()
                await self._came.wait()
        return self.arrived


def with_bench(monkeypatch: pytest.MonkeyPatch, body: Callable[[Bench], Awaitable[None]], budget: TurnsConfig = BUDGET) -> None:
    async def run() -> None:
        bench = Bench(monkeypatch, budget)
        try:
            await body(bench)
        finally:
            await bench.inflow.stop()

    asyncio.run(run())


def small(session: str, seq: int) -> bytes:
    return pack_message(encode_batch(Batch(session, 1, seq, frees=tuple(range(1000)))))


def large(session: str, seq: int, nbytes: int = 1 << 20) -> bytes:
    return zlib.compress(encode_batch(Batch(session, 1, seq, program=bytes(32), dims=bytes(32), program_body=bytes(nbytes))))


def test_a_small_batch_is_read_at_once_and_a_large_one_by_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(bench: Bench) -> None:
        bench.put("a", small("a", 1))
        assert bench.arrived == [("a", 1, True)] and bench.inflow.oldest_position() is None
        bench.put("a", large("a", 2))
        bench.put("b", small("b", 1))
        assert bench.arrived[1:] == [("b", 1, True)], "the large one holds up no other session"
        assert bench.inflow.oldest_position() == 2
        assert (await bench.until(3))[2] == ("a", 2, False)

    with_bench(monkeypatch, body)


def test_a_session_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(bench: Bench) -> None:
        for seq in range(1, 9):
            bench.put("a", large("a", seq) if seq % 3 == 1 else small("a", seq))
        assert [seq for _, seq, _ in await bench.until(8)] == list(range(1, 9))
        bench.put("a", small("a", 9))
        assert bench.arrived[-1] == ("a", 9, True), "nothing waits any more"

    with_bench(monkeypatch, body)


@pytest.mark.parametrize("body", [small, large], ids=["on the loop", "in the thread"])
def test_a_failure_in_one_message_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch, body: Callable[[str, int], bytes]) -> None:
    read_batch = inflow.read_batch

    def failing(data: bytes, session: str) -> object:
        if session == "bad":
            raise ZeroDivisionError
        return read_batch(data, session)

    monkeypatch.setattr(inflow, "read_batch", failing)

    async def run(bench: Bench) -> None:
        bench.put("bad", body("bad", 1))
        bench.put("a", large("a", 1))
        bench.put("b", small("b", 1))
        assert {session: seq for session, seq, _ in await bench.until(3)} == {"bad": 0, "a": 1, "b": 1}
        assert bench.inflow.oldest_position() is None

    with_bench(monkeypatch, run)


def test_a_flood_of_one_tenant_costs_the_others_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 KB each on the bus, 8 MiB each to inflate: on the budget of their tenant, and beside those of another."""

    async def body(bench: Bench) -> None:
        flood = large("a1", 1, LIMITS.batch_bytes_max - 1000)
        assert len(flood) < 16 << 10
        for _ in range(20):
            bench.put("a1", flood)
        bench.put("b", large("b", 1))
        bench.put("b", small("b", 2))
        bench.put("c", small("c", 1))
        assert bench.arrived == [("c", 1, True)]
        order = [session for session, _, _ in await bench.until(5)]
        assert "b" in order[1:4] and order.count("a1") <= 3
        allowed = BUDGET.rate.burst // LIMITS.batch_bytes_max + 1
        await bench.until(3 + allowed)
        assert not bench.put("d", small("d", 1)) and bench.arrived[-1] == ("d", 1, True)

    with_bench(monkeypatch, body)


def test_small_ones_are_on_the_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 KB inflated each, of nothing but elements: those beyond the budget wait, while other tenants' are read at once."""

    async def body(bench: Bench) -> None:
        flood = pack_message(encode_batch(Batch("a", 1, 1, frees=(0,) * 40_000)))
        for _ in range(40):
            bench.put("a", flood)
        at_once = len(bench.arrived)
        assert at_once <= BUDGET.rate.burst // (40_000 * 64) + 2
        bench.put("b", small("b", 1))
        assert bench.arrived[-1] == ("b", 1, True)

    with_bench(monkeypatch, body)


def test_the_number_of_messages_has_a_budget_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are: those beyond it wait, and the quota is named until there is budget again."""

    async def body(bench: Bench) -> None:
        tiny = pack_message(encode_batch(Batch("a", 1, 1)))
        dropped = [bench.put("a", tiny) for _ in range(RATE * 4 + BUDGET.lane_items_max + RATE)]
        assert set(dropped) == {"", "messages"} and len(bench.arrived) < RATE * 5
        excess = bench.excess("a")
        assert excess is not None and (excess.quota, excess.limit) == ("messages", RATE * 4) and excess.used >= RATE * 3
        assert 0 < excess.retry_after_ms <= 1 + 1000 * (BUDGET.lane_items_max + 1) // RATE
        assert bench.inflow.quotas(time.monotonic_ns(), bench.inflow.tenants())["messages"][0] > 0
        assert not bench.put("b", small("b", 1)) and bench.arrived[-1] == ("b", 1, True), "other tenants are not affected"
        assert bench.excess("b") is None
        await bench.until(dropped.count("") + 1)

    with_bench(monkeypatch, body, inflow.inflow_budget(RATE))


def test_what_a_session_may_have_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(bench: Bench) -> None:
        message = large("a", 1)
        taken = [bench.put("a", message) for _ in range(BUDGET.lane_items_max + 10)]
        assert taken.count("decoded_bytes") in (9, 10) and not bench.put("b", large("b", 1)), "one is being read"
        assert ("b", 1, False) in await bench.until(4)

    with_bench(monkeypatch, body)
