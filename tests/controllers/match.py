"""One round: two controllers, many clients at once, kill -9 of one when a drawn number of them has an answer; then the audit of the log,
room for those that wait, and the killed one again, which must give the same answers as the one that stayed.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

from bus_schemas.events import Event
from services.kit.bus import connect
from tests.controllers.audit import Findings, audit
from tests.controllers.clients import bodies, submit_all
from tests.support.plane import Controller, Plane, wait_until

__all__ = ["Outcome", "play"]

_PAGES = ("/api/v1/nodes", "/api/v1/tasks?limit=1000", "/api/v1/placements?limit=1000", "/api/v1/groups", "/api/v1/config")


@dataclass(frozen=True, slots=True)
class Outcome:
    """``killed_after``: answers given when the controller was killed. ``findings``: of the log at the end."""

    seed: int
    killed_after: int
    placed_before_room: int
    findings: Findings


def play(seed: int, folder: Path, *, tasks: int = 500) -> Outcome:
    """Raises what goes wrong; what does not hold is in the findings."""
    draw = random.Random(seed)
    with Plane(folder, CONTROLLER_START_LEASE_MS="3600000") as plane:
        (folder / "second").mkdir(parents=True)
        second = Controller(plane.nats.url, folder / "second", **plane.environment)
        second.start()
        try:
            for number in range(8):
                gib = [draw.choice((8, 16, 24)) for _ in range(draw.choice((1, 2, 4)))]
                plane.register(f"n{number}", gib=gib, groups=("special",) if number % 4 == 3 else ())
            pair = [plane.controller, second]
            victim = draw.choice(pair)
            kill_at = draw.randrange(tasks // 10, tasks // 2)
            killed: list[int] = []

            def on_answer(count: int) -> None:
                if count >= kill_at and not killed:
                    killed.append(count)
                    victim.kill()

            told = asyncio.run(submit_all([one.url for one in pair], bodies(draw, tasks), on_answer))
            stays = second if victim is plane.controller else plane.controller
            wait_until(lambda: not [item for item in stays.get("/api/v1/tasks?state=queued&limit=1000")["items"] if _undecided(item)], 60)
            before = audit(_log(plane), told)
            plane.register("room-a", gib=[80] * 16)
            plane.register("room-b", gib=[80] * 16, groups=("special",))
            wait_until(lambda: all(item["node"] for item in stays.get("/api/v1/tasks?state=queued&limit=1000")["items"]), 120)
            findings = audit(_log(plane), told)
            findings.faults[:0] = [f"before there was room: {fault}" for fault in before.faults]
            victim.start()
            for page in _PAGES:
                wait_until(lambda page=page: victim.ask("GET", page).body == stays.ask("GET", page).body, 30)  # type: ignore[misc]  # bound now
            return Outcome(seed, killed[0], len(before.placed), findings)
        finally:
            if second.process is not None:
                second.stop()


def _undecided(item: dict[str, object]) -> bool:
    return item["placement"] is None


def _log(plane: Plane) -> list[tuple[int, list[Event]]]:
    async def read() -> list[tuple[int, list[Event]]]:
        bus = await connect(plane.nats.url, name="auditor")
        replay = bus.replay()
        try:
            end = await replay.history_end()
            messages: list[tuple[int, list[Event]]] = []
            async for position, events in replay:
                messages.append((position, events))
                if position >= end:
                    break
            return messages
        finally:
            await replay.close()
            await bus.close()

    return asyncio.run(read())
