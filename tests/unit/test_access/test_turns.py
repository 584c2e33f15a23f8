"""Turns of requests: a party with many of them delays another one by few."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from services.kit.access.turns import AT_ONCE_MAX, Turns, aside


class Service:
    """Requests as a service works on them: each takes some steps of the event loop. ``order``: their names as they begin."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.at_once: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[str] = []

    async def request(self, party: str, name: str = "") -> None:
        async with self.turns.of(party):
            self.at_once[party] += 1
            self.most[party] = max(self.most[party], self.at_once[party])
            self.order.append(name or party)
            for _ in range(5):
                await asyncio.sleep(0)
            self.at_once[party] -= 1


async def together(*requests: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(*requests)


def test_a_party_with_many_requests_delays_another_by_few() -> None:
    service = Service()
    asyncio.run(together(*(service.request("many") for _ in range(200)), service.request("one")))
    assert service.order.index("one") <= AT_ONCE_MAX
    assert service.most == {"many": AT_ONCE_MAX, "one": 1}


def test_requests_of_a_party_keep_their_order() -> None:
    service = Service()
    asyncio.run(together(*(service.request("a", str(number)) for number in range(50))))
    assert service.order == [str(number) for number in range(50)]


def test_a_request_that_waits_aside_or_answers_has_no_turn() -> None:
    service, happened = Service(), asyncio.Event()

    async def waits() -> None:
        async with service.turns.of("a"), aside():
            await happened.wait()

    async def answers() -> None:
        async with service.turns.of("a") as turn:
            turn.give()
            await happened.wait()

    async def body() -> None:
        waiting = [asyncio.create_task(one()) for one in (waits, answers) for _ in range(AT_ONCE_MAX)]
        await together(*(service.request("a") for _ in range(20)))
        assert not any(task.done() for task in waiting)
        happened.set()
        await asyncio.gather(*waiting)

    asyncio.run(body())
    assert service.most["a"] == AT_ONCE_MAX, "what was given up is there again, once"


def test_a_request_that_fails_or_is_cancelled_gives_its_turn() -> None:
    service = Service()

    async def fails() -> None:
        async with service.turns.of("a"), aside():
            raise ValueError

    async def body() -> None:
        failed = await asyncio.gather(*(fails() for _ in range(20)), return_exceptions=True)
        assert all(isinstance(one, ValueError) for one in failed)
        cut = [asyncio.create_task(service.request("a")) for _ in range(20)]
        await asyncio.sleep(0)
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)
        await together(*(service.request("a") for _ in range(20)))

    asyncio.run(body())
    assert service.order[-1] == "a"
