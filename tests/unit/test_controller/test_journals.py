"""Journals that are run again: tenants take turns, and none with many questions keeps others from asking."""

from __future__ import annotations

import asyncio

from services.controller.errors import Busy
from services.controller.journals import Journals, Life
from services.controller.presenters import Json


class Recorded(Journals):
    """Takes some steps of the event loop for each instead of a process. ``order``: the tenants, as they came to their turn."""

    def __init__(self) -> None:
        super().__init__("")
        self.order: list[str] = []

    async def _run(self, life: Life, now_ns: int) -> Json:
        self.order.append(life.tenant)
        for _ in range(5):
            await asyncio.sleep(0)
        return {}


def life(tenant: str, number: int) -> Life:
    return Life(f"{tenant}-{number}", tenant, ("session",), (("node", 0),), 1, 0)


def test_a_tenant_waits_for_one_journal_of_each_other_tenant() -> None:
    hostile = [f"hostile{number}" for number in range(8)]

    async def body() -> list[str]:
        journals = Recorded()
        asked = [asyncio.create_task(journals.of(life(tenant, number))) for number in range(4) for tenant in hostile]
        await asyncio.sleep(0)
        asked.append(asyncio.create_task(journals.of(life("best", 0))))
        await asyncio.gather(*asked)
        return journals.order

    order = asyncio.run(body())
    assert order.index("best") <= len(hostile)
    assert all(order.count(tenant) == 4 for tenant in hostile)


def test_a_tenant_with_four_questions_is_asked_to_come_again() -> None:
    async def body() -> None:
        journals = Recorded()
        asked = [asyncio.create_task(journals.of(life("many", number))) for number in range(5)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(one, Busy) for one in found] == [False] * 4 + [True]
        assert await journals.of(life("many", 10)) == {}

    asyncio.run(body())
