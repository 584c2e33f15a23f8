"""How long pages take with 100,000 tasks in the log: a real bus, a real controller, medians over HTTP; for docs/web.md.

python -m benchmarks.many_tasks [--tasks 100000] [--rounds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Iterator

import httpx

from bus_schemas.events import Event, TaskPlaced, TaskStateChanged, TaskSubmitted
from services.kit.bus import connect
from tests.support.plane import GIB, Plane, wait_until

__all__ = ["main"]

_NODES = 20
_PAGES = (
    ("as it opens", "/tasks"),
    ("page 1,000", "/tasks?page=1000"),
    ("one filter", "/tasks?state=failed"),
    ("two filters", "/tasks?state=completed&priority=2"),
    ("search", "/tasks?q=llama+42"),
    ("search nothing has", "/tasks?q=nobody-has-this"),
    ("sorted by VRAM", "/tasks?sort=-vram"),
    ("200 rows, sorted by title", "/tasks?sort=title&per_page=200"),
    ("a row opened", "/tasks?open=t000000&q=t000000"),
    ("one task", "/tasks/t000000"),
    ("REST, 50 tasks", "/api/v1/tasks?limit=50"),
    ("dashboard", "/"),
    ("nodes", "/nodes"),
)


def facts(count: int) -> Iterator[list[Event]]:
    """Messages of a hundred events or so: tasks of every state but few that live, as in a log that has grown."""
    dice = random.Random(1)
    for start in range(0, count, 40):
        events: list[Event] = []
        for number in range(start, min(start + 40, count)):
            name, at_ns = f"t{number:06d}", (1_700_000_000 + number) * 10**9
            title, tenant = f"{dice.choice(('llama', 'resnet', 'whisper'))} {number % 97}", f"tenant{number % 40}"
            events.append(TaskSubmitted(at_ns, name, tenant, number % 5, (1 + number % 12) * GIB, title=title))
            events.append(TaskPlaced(at_ns, name, f"node{number % _NODES}", (0,), (), (), 1))
            events.append(TaskStateChanged(at_ns, name, "failed" if number % 20 == 0 else "completed", ""))
        yield events


async def _fill(url: str, count: int) -> None:
    bus = await connect(url, name="benchmark")
    try:
        for number, events in enumerate(facts(count)):
            await bus.publish_events("task", f"bulk{number}", events)
    finally:
        await bus.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_tasks", description="Pages with many tasks in the log.")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with Plane() as plane, httpx.Client(base_url=plane.controller.url, timeout=120, headers={"accept": "text/html"}) as client:
        for number in range(_NODES):
            plane.register(f"node{number}", gib=(80,) * 8)
        started = time.perf_counter()
        asyncio.run(_fill(plane.nats.url, options.tasks))
        wait_until(lambda: f"of {options.tasks:,} tasks" in client.get("/tasks").text, 300)
        print(f"{options.tasks:,} tasks in the log; filled and shown after {time.perf_counter() - started:.1f} s")
        print("| page | median, ms | slowest of the rounds, ms | KB |\n|---|---:|---:|---:|")
        for label, path in _PAGES:
            times = []
            for _ in range(options.rounds):
                begun = time.perf_counter()
                answer = client.get(path)
                times.append((time.perf_counter() - begun) * 1e3)
                assert answer.status_code == 200, (path, answer.status_code)
            print(f"| {label} | {statistics.median(times):.0f} | {max(times):.0f} | {len(answer.content) / 1e3:.0f} |")


if __name__ == "__main__":
    main()
