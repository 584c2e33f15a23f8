"""Measures the load that open pages put on the controller: ``python -m benchmarks.pages [--pages 200] [--seconds 20] [--publish]``.

A real bus and a real controller; 8 nodes of 4 devices each measured once a second, tasks that come and go four times a second; then so many
streams are opened as browsers open them, read to the end of every message, and the controller's own processor time is taken from the
kernel (/proc/<pid>/stat), beside the same seconds without any page. ``--publish`` writes docs/web-benchmark.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bus_schemas.events import TaskStateChanged, TaskSubmitted
from bus_schemas.subjects import telemetry_subject
from bus_schemas.telemetry import RunningSession, Telemetry, encode_telemetry
from services.kit.bus import Bus, connect
from tests.support.plane import GIB, Controller, Plane, registered

__all__ = ["Cost", "measure"]

_NODES, _GPUS = 8, 4
_TASKS_PER_S = 4
_PAGES = ("dashboard", "nodes", "tasks", "node.n0")
_REPORT = Path(__file__).parents[1] / "docs" / "web-benchmark.md"
_SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of ``pages`` open streams over ``seconds``: processor time of the controller as a share of one core, messages and bytes that each
    page got a second."""

    pages: int
    seconds: float
    cpu_percent: float
    messages_per_s: float
    bytes_per_s: float


class Readers:
    """Open streams, and what has come over them."""

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("http://").rpartition(":")
        self._port = int(port)
        self._tasks: list[asyncio.Task[None]] = []
        self.messages = 0
        self.bytes = 0

    async def open(self, topics: Iterable[str]) -> None:
        self._tasks += [asyncio.create_task(self._read(topic)) for topic in topics]
        await asyncio.sleep(_SETTLE_S)  # every stream has had its first, whole message
        for task in self._tasks:
            if task.done():
                task.result()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, topic: str) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 22)
        try:
            writer.write(f"GET /live/{topic} HTTP/1.1\r\nHost: {self._host}\r\nAccept: text/event-stream\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                raise RuntimeError(f"/live/{topic}: {head.decode()}")
            while data := await reader.read(1 << 16):
                self.bytes += len(data)
                self.messages += data.count(b"event: patch")
            raise RuntimeError(f"/live/{topic} ended")
        finally:
            writer.close()


async def live_changes(bus: Bus, stop: asyncio.Event) -> None:
    """What a cluster at work tells: measurements of every device each second, tasks that start and end."""
    number = 0
    due = time.monotonic()
    while not stop.is_set():
        number += 1
        sends: list[Any] = [
            bus.publish_acked(telemetry_subject(f"n{node}", gpu), _telemetry(f"n{node}", gpu, number))
            for node in range(_NODES)
            for gpu in range(_GPUS)
        ]
        for index in range(_TASKS_PER_S):
            task = f"t{number}-{index}"
            at_ns = time.time_ns()
            sends.append(bus.publish_events("task", task, [TaskSubmitted(at_ns, task, f"tenant{index}", index, GIB, title=f"task {task}")]))
            if number > 1:
                before = f"t{number - 1}-{index}"
                sends.append(bus.publish_events("task", before, [TaskStateChanged(at_ns, before, "failed", "as the benchmark wills")]))
        await asyncio.gather(*sends)
        due += 1.0
        await asyncio.sleep(max(0.0, due - time.monotonic()))


def _telemetry(node: str, gpu: int, number: int) -> bytes:
    """Every figure changes every second: the worst for those who show it."""
    running = tuple(
        RunningSession(
            f"s-{node}-{gpu}-{at}", "", at % 5, GIB + number, f"tenant{at}", f"session {at}", core_ns=number % 997 * 10**6, state="running"
        )
        for at in range(3)
    )
    seen = Telemetry(
        time.time_ns(), node, 1, gpu, 1000, (number * 7 + gpu) % 100, (number * 3 + gpu) % 60, 80 * GIB, (number % 60 + gpu) * GIB,
        40 * GIB, number % 5 * GIB, running, 8, number % 3 * GIB,
    )  # fmt: skip
    return encode_telemetry(seen)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _cost(controller: Controller, pages: int, topics: Iterable[str], seconds: float) -> Cost:
    assert controller.process is not None
    readers = Readers(controller.url)
    await readers.open(topics)
    before_cpu, before_s = _cpu_s(controller.process.pid), time.monotonic()
    before_messages, before_bytes = readers.messages, readers.bytes
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - before_s
    cpu_s = _cpu_s(controller.process.pid) - before_cpu
    count = max(1, pages) * took_s
    out = Cost(pages, took_s, 100 * cpu_s / took_s, (readers.messages - before_messages) / count, (readers.bytes - before_bytes) / count)
    await readers.close()
    return out


def measure(pages: int, seconds: float) -> dict[str, Cost]:
    """By what was open: ``none``, ``dashboard`` (all the same page), ``mixed`` (four kinds of pages)."""
    with Plane() as plane:
        for node in range(_NODES):
            plane.publish("node", f"n{node}", registered(f"n{node}", gib=[80] * _GPUS))

        async def body() -> dict[str, Cost]:
            bus = await connect(plane.nats.url, name="changes")
            stop = asyncio.Event()
            changes = asyncio.create_task(live_changes(bus, stop))
            await asyncio.sleep(_SETTLE_S)
            try:
                return {
                    "none": await _cost(plane.controller, 0, (), seconds),
                    "dashboard": await _cost(plane.controller, pages, ["dashboard"] * pages, seconds),
                    "mixed": await _cost(plane.controller, pages, [_PAGES[at % len(_PAGES)] for at in range(pages)], seconds),
                }
            finally:
                stop.set()
                await changes
                await bus.close()

        return asyncio.run(body())


def report(costs: dict[str, Cost]) -> str:
    lines = ["| open | pages | controller, % of one core | of that for pages | messages a page and second | KB a page and second |"]
    lines.append("|---|---|---|---|---|---|")
    for name, cost in costs.items():
        more = cost.cpu_percent - costs["none"].cpu_percent
        figures = f"{cost.cpu_percent:.1f} | {more:.1f} | {cost.messages_per_s:.2f} | {cost.bytes_per_s / 1e3:.1f}"
        lines.append(f"| {name} | {cost.pages} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What open pages cost the controller.")
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--publish", action="store_true", help="write docs/web-benchmark.md")
    options = parser.parse_args()
    text = report(measure(options.pages, options.seconds))
    print(text)
    if options.publish:
        _REPORT.write_text(f"# Cost of open web pages\n\n`python -m benchmarks.pages --publish`\n\n{text}\n")


if __name__ == "__main__":
    main()
