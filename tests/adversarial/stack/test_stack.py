"""Every attack of ``tests/adversarial/stack`` on a secure stack, beside a victim of another tenant that computes.

During an attack and after it the victim makes its steps, each with the expected bits; programs of it that no session has sent before are
compiled; the node is never lost; and in the end the victim's tenant is billed for what its sessions used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bus_schemas.events import SessionClosedFact
from scheduler.model.waits import Waits
from services.kit.bus import Bus
from services.replay.lanes import DISPATCH, steps
from services.replay.question import Question
from services.replay.source import segments_of_bus
from tests.adversarial.stack import bus_attacks, cost_attacks, device_attacks, node_attacks, web_attacks
from tests.adversarial.stack.field import Attacker, Victim
from tests.support.node import until
from tests.support.secure import SecureStack
from tests.support.world import World

pytestmark = pytest.mark.slow
GROUPS = {
    "bus": bus_attacks.ATTACKS,
    "device": device_attacks.ATTACKS,
    "web": web_attacks.ATTACKS,
    "node": node_attacks.ATTACKS,
    "cost": cost_attacks.ATTACKS,
}
"""By the tenant that makes them: what one must wait for after its attacks, the next one does not."""
ATTACKS = {name: attack for attacks in GROUPS.values() for name, attack in attacks.items()}
LONG = {"models of nothing", "long programs that are new in every batch"}
"""Half a minute and more each: left to ``make attacks``."""
KEYS: dict[str, str] = {}
STEPS = 5


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with SecureStack(tmp_path_factory.mktemp("attacked"), WOOLY_DATA_HOST="127.0.0.1") as stack:
        world = World(stack)
        for tenant in GROUPS:
            stack.tenant(tenant)
            KEYS[tenant] = stack.key(role="member", tenant=tenant)
        made_s = time.monotonic()
        # A connection that begins within two seconds after a change of its tenant may be ended, once (services/controller/bus_guard.py).
        until(lambda: time.monotonic() > made_s + 2.5, "connections that stay")
        yield world


@pytest.fixture(scope="module")
def victim(world: World) -> Iterator[Victim]:
    victim = Victim(world)
    yield victim
    victim.close()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.soak) if name in LONG else name for name in ATTACKS])
def test_the_victim_is_not_harmed(name: str, world: World, victim: Victim) -> None:
    async def body() -> None:
        tenant = next(tenant for tenant, attacks in GROUPS.items() if name in attacks)
        async with Attacker.enter(world, victim, KEYS[tenant], tenant) as attacker:
            await ATTACKS[name](attacker)

    with ThreadPoolExecutor(1) as thread:
        attacking = thread.submit(asyncio.run, body())
        for _ in range(STEPS):
            victim.step()
        if not attacking.done():
            victim.new_program()
        while not attacking.done():
            victim.step()
        attacking.result()
    for _ in range(STEPS):
        victim.step()
    victim.new_program()
    assert world.stack.ask("GET", f"/api/v1/nodes/{world.n1}")["state"] == "ready"


def test_the_victim_ran_when_its_turn_came(world: World, victim: Victim) -> None:
    """Of a hundred of its batches, ninety-nine ran at once, as they do alone: not one slice of another tenant came between. None waited for
    more than the slices of one turn."""

    async def others(bus: Bus) -> list[int]:
        """By finished batch: how many launches of others ran while it waited for its own."""
        waits = Waits({victim.name}, lambda state, session: "")
        async for segment in segments_of_bus(bus, Question("why", node=world.n1)):
            if segment.lane == DISPATCH:
                for core, step in steps(segment):
                    waits.resume(core.state) if step is None else waits.take(*step)
        return sorted(
            len({id(stretch.by) for stretch in batch.waits if stretch.other not in ("", victim.name)})
            for batch in waits.stories
            if batch.end_ns >= 0
        )

    def whole() -> list[int]:
        counts = world.log(others)
        return counts if len(counts) >= victim.steps else []

    counts = until(whole, "the whole journal")
    assert counts[len(counts) * 99 // 100] == 0, (len(counts), counts[-50:])
    assert counts[-1] <= 2, counts[-50:]


def test_the_victims_bill_is_what_its_sessions_used(world: World, victim: Victim) -> None:
    victim.close()
    (closed,) = until(lambda: [fact for fact in world.facts(victim.name) if isinstance(fact, SessionClosedFact)], "the victim's end")

    def billed() -> int:
        rows = world.stack.ask("GET", "/api/v1/billing/credits?by=tenant", service="billing")["items"]
        return sum(row["core_ns"] for row in rows if row["key"] == "best")

    until(lambda: billed() == closed.core_ns + closed.compile_ns, "the bill")
    checked = world.stack.ask("GET", "/api/v1/billing/verify", service="billing")
    assert all("n2" in finding for finding in checked["findings"]), checked["findings"]
