"""``make crowd``: hundreds of hostile tenants on one node for minutes, beside some that compute.

usage: python -m tests.adversarial.stack.crowd [--tenants N] [--seconds S] [--seed N] [--publish]

Every hostile tenant has a member's key and makes attacks of this folder, drawn at random, one after another; as many attack at once as
``--at-once`` says. The well-behaved ones compute, each step compared bit by bit. None of their sessions may end, the node is never lost,
and memory and disk of every service stay within bounds that are measured here. Exit status 1: something of this does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import nats.errors
import psutil

from tests.adversarial.stack import bus_attacks, device_attacks, web_attacks
from tests.adversarial.stack.field import Attacker, Victim
from tests.support.sections import write_section
from tests.support.secure import SecureStack
from tests.support.stack import ROOT
from tests.support.world import World

ATTACKS: Final = bus_attacks.ATTACKS | device_attacks.ATTACKS | web_attacks.ATTACKS
_WELL_BEHAVED: Final = 3
_PAUSE_S: Final = 0.2
"""Between two steps of a tenant that computes: it trains, and does not only wait for the node."""
_LOOK_S: Final = 3.0
"""Between two looks at the services."""
_MEMORY_BYTES_MAX: Final = 4 << 30
"""Of one process. A node may keep 8 GiB of staged bytes, at most a quarter of the machine's memory."""
_DISK_BYTES_MAX: Final = 6 << 30
"""Of the whole stack: the streams have bounds of their own, the largest of 4 GiB."""


@dataclass
class Watched:
    """What was seen. ``memory_bytes``: the most that a process held, by name; ``lost``: how often the node was not ready."""

    attacks: Counter[str] = field(default_factory=Counter)
    learnt: list[str] = field(default_factory=list)
    harm: list[str] = field(default_factory=list)
    memory_bytes: Counter[str] = field(default_factory=Counter)
    disk_bytes: int = 0
    looks: int = 0
    lost: int = 0
    steps: int = 0

    @property
    def wrong(self) -> list[str]:
        """What does not hold."""
        held = [f"{name} held {nbytes >> 20} MiB" for name, nbytes in self.memory_bytes.items() if nbytes > _MEMORY_BYTES_MAX]
        disk = [f"the stack's folder held {self.disk_bytes >> 20} MiB"] if self.disk_bytes > _DISK_BYTES_MAX else []
        lost = [f"the node was not ready {self.lost} times of {self.looks}"] if self.lost else []
        return [*self.harm, *self.learnt, *held, *disk, *lost]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial.stack.crowd", description=__doc__)
    parser.add_argument("--tenants", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--at-once", type=int, default=24, help="tenants that attack at the same time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--publish", action="store_true", help="write the result to docs/security.md")
    return parser.parse_args(argv)


def _compute(victim: Victim, until_s: float, watched: Watched) -> None:
    """Steps and now and then a new program, until the time is over."""
    try:
        while time.monotonic() < until_s:
            victim.step()
            if victim.steps % 50 == 0:
                victim.new_program()
            time.sleep(_PAUSE_S)
    except Exception as error:  # whatever ends a session of a tenant that did nothing wrong
        watched.harm.append(f"a well-behaved session, after {victim.steps} steps: {error!r}")


def _look(stack: SecureStack, root: psutil.Process, until_s: float, watched: Watched) -> None:
    """Every few seconds: the node's state, and what the services hold."""
    node = str(stack.addresses["node"])
    while time.monotonic() < until_s:
        watched.looks += 1
        try:
            watched.lost += stack.ask("GET", f"/api/v1/nodes/{node}")["state"] != "ready"
        except OSError as error:
            watched.harm.append(f"the controller does not answer: {error!r}")
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                name = process.cmdline()[-1] if process.name().startswith("python") else process.name()
                watched.memory_bytes[name] = max(watched.memory_bytes[name], process.memory_info().rss)
        watched.disk_bytes = max(watched.disk_bytes, sum(_sizes(stack.folder)))
        time.sleep(_LOOK_S)


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            yield path.stat().st_blocks * 512 if path.is_file() else 0


async def _attack(world: World, victim: Victim, keys: dict[str, str], until_s: float, draw: random.Random, watched: Watched) -> None:
    """One after another, each by another tenant."""
    while time.monotonic() < until_s:
        tenant = draw.choice(list(keys))
        name = draw.choice(list(ATTACKS))
        try:
            async with asyncio.timeout(60), Attacker.enter(world, victim, keys[tenant], tenant) as attacker:
                await ATTACKS[name](attacker)
            watched.attacks[name] += 1
        except AssertionError as error:
            if "victim" in str(error):
                watched.learnt.append(f"{name}: {str(error)[:300]}")
        except (nats.errors.Error, OSError, TimeoutError):
            watched.attacks["cut off"] += 1
        except Exception as error:  # the attacker's own affair: its session was ended, its answers were no answers
            watched.attacks[f"ended by {type(error).__name__}"] += 1


async def _attacks(world: World, victim: Victim, keys: dict[str, str], arguments: argparse.Namespace, watched: Watched) -> None:
    until_s = time.monotonic() + arguments.seconds
    draws = [random.Random(f"{arguments.seed} {number}") for number in range(arguments.at_once)]
    await asyncio.gather(*(_attack(world, victim, keys, until_s, draw, watched) for draw in draws))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    watched = Watched()
    with tempfile.TemporaryDirectory() as folder, SecureStack(Path(folder), WOOLY_DATA_HOST="127.0.0.1") as stack:
        world = World(stack)
        keys = {}
        for number in range(arguments.tenants):
            tenant = f"hostile{number}"
            stack.tenant(tenant)
            keys[tenant] = stack.key(role="member", tenant=tenant)
        time.sleep(3)  # connections that begin within two seconds after a change of their tenant may be ended, once
        victims = [Victim(world) for _ in range(_WELL_BEHAVED)]
        until_s = time.monotonic() + arguments.seconds
        threads = [threading.Thread(target=_compute, args=(victim, until_s, watched)) for victim in victims]
        threads.append(threading.Thread(target=_look, args=(stack, psutil.Process(stack.process.pid), until_s, watched)))
        for thread in threads:
            thread.start()
        asyncio.run(_attacks(world, victims[0], keys, arguments, watched))
        for thread in threads:
            thread.join()
        for victim in victims:
            with contextlib.suppress(Exception):
                victim.step()
                watched.steps += victim.steps
                victim.close()
    text = _text(arguments, watched)
    print(text)
    if arguments.publish:
        write_section(ROOT / "docs" / "security.md", "crowd", text + "\n")
    return bool(watched.wrong)


def _text(arguments: argparse.Namespace, watched: Watched) -> str:
    """The result, for docs/security.md."""
    made = sum(watched.attacks.values())
    name, held = max(watched.memory_bytes.items(), key=lambda item: item[1])
    wrong = "; ".join(watched.wrong[:10]) or "none"
    return (
        f"Last run of `make crowd`: {arguments.tenants} hostile tenants, {arguments.at_once} at once, {arguments.seconds:.0f} s: {made} "
        f"attacks ({watched.attacks['cut off']} of them cut off). {_WELL_BEHAVED} well-behaved sessions made {watched.steps} steps with "
        f"the expected bits. The node was ready at {watched.looks - watched.lost} of {watched.looks} looks. Most memory: {held >> 20} MiB "
        f"(`{name}`); most disk: {watched.disk_bytes >> 20} MiB. What did not hold: {wrong}."
    )


if __name__ == "__main__":
    sys.exit(main())
