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
from tests.adversarial.stack import bus_attacks, node_attacks, web_attacks
from tests.adversarial.stack.field import Attacker, Victim
from tests.support.node import until
from tests.support.secure import SecureStack
from tests.support.world import World

pytestmark = pytest.mark.slow
ATTACKS = bus_attacks.ATTACKS | web_attacks.ATTACKS | node_attacks.ATTACKS
STEPS_AFTER = 5


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with SecureStack(tmp_path_factory.mktemp("attacked"), WOOLY_DATA_HOST="127.0.0.1") as stack:
        world, made_s = World(stack), time.monotonic()
        # A connection that begins within two seconds after a change of its tenant may be ended, once (services/controller/bus_guard.py).
        until(lambda: time.monotonic() > made_s + 2.5, "connections that stay")
        yield world


@pytest.fixture(scope="module")
def victim(world: World) -> Iterator[Victim]:
    victim = Victim(world)
    yield victim
    victim.close()


@pytest.mark.parametrize("name", ATTACKS)
def test_the_victim_is_not_harmed(name: str, world: World, victim: Victim) -> None:
    async def body() -> None:
        async with Attacker.enter(world, victim) as attacker:
            await ATTACKS[name](attacker)

    with ThreadPoolExecutor(1) as thread:
        attacking = thread.submit(asyncio.run, body())
        while not attacking.done():
            victim.step()
        attacking.result()
    for _ in range(STEPS_AFTER):
        victim.step()
    victim.new_program()
    assert world.stack.ask("GET", f"/api/v1/nodes/{world.n1}")["state"] == "ready"


def test_the_victims_bill_is_what_its_sessions_used(world: World, victim: Victim) -> None:
    victim.close()
    (closed,) = until(lambda: [fact for fact in world.facts(victim.name) if isinstance(fact, SessionClosedFact)], "the victim's end")

    def billed() -> int:
        rows = world.stack.ask("GET", "/api/v1/billing/credits?by=tenant", service="billing")["items"]
        return sum(row["core_ns"] for row in rows if row["key"] == "best")

    until(lambda: billed() == closed.core_ns, "the bill")
    checked = world.stack.ask("GET", "/api/v1/billing/verify", service="billing")
    assert all("n2" in finding for finding in checked["findings"]), checked["findings"]
