"""A controller over a log of ten million events, and a copy of that log.

    python -m benchmarks.long_log [--events 10000000] [--rounds 3]

*Ready*: from the start of a controller to its ready line, with 100,000 tasks in the log; the rest are usage records of nodes. *Backup* and
*restore*: of the bus while it runs, into another one. Prints; the figures are in docs/how-to/retention.md and back-up.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.many_tasks import facts
from bus_schemas.events import UsageRecorded, encode_events
from bus_schemas.subjects import EVENTS_STREAM, event_subject
from services.kit.bus import connect
from services.kit.nats_server import NatsServer
from services.up.backup import load, read_manifest, save
from tests.support.plane import Controller

_TASKS: Final = 100_000
_NODES: Final = 20
_A_MESSAGE: Final = 100
_SECOND_NS: Final = 10**9


def usage(message: int) -> list[UsageRecorded]:
    node, first = message % _NODES, message // _NODES * _A_MESSAGE + 1
    return [
        UsageRecorded(
            f"node{node}", 1, 0, serial, f"s{serial % 9973:06d}", f"tenant{serial % 40}", f"t{serial % _TASKS:06d}", 2,
            serial * _SECOND_NS, (serial + 1) * _SECOND_NS, _SECOND_NS // 2, 1 << 30, 1000, 10,
        )
        for serial in range(first, first + _A_MESSAGE)
    ]  # fmt: skip


async def _fill(url: str, events: int) -> None:
    """Facts of tasks on a subject each, one a message, among usage records of which a message holds a hundred."""
    bus = await connect(url, name="benchmark")
    try:
        await bus.ensure_streams()
        records = (events - 3 * _TASKS) // _A_MESSAGE
        message = 0
        for number, about in enumerate(itertools.chain.from_iterable(facts(_TASKS))):
            due = records * (number + 1) // (3 * _TASKS)
            writes = [bus.publish_acked(event_subject("task", about.task), encode_events([about]))]  # type: ignore[union-attr]  # all are about tasks
            writes += [bus.publish_acked(event_subject("usage", f"node{n % _NODES}"), encode_events(usage(n))) for n in range(message, due)]
            message = due
            await asyncio.gather(*writes)
    finally:
        await bus.close()


async def _copy(url: str, other: str, folder: Path) -> tuple[float, float, int]:
    """Seconds to save and to load, and the bytes of the copy."""
    bus, second = await connect(url, name="benchmark"), await connect(other, name="benchmark")
    try:
        began_s = time.monotonic()
        manifest = await save(bus, folder)
        saved_s = time.monotonic()
        await load(second, folder, await asyncio.to_thread(read_manifest, folder))
        end_s = time.monotonic()
        last = await bus.last_position(EVENTS_STREAM)
        assert last == await second.last_position(EVENTS_STREAM)
        for position in range(1, last, last // 1000):
            assert await bus.message(EVENTS_STREAM, seq=position) == await second.message(EVENTS_STREAM, seq=position)
        return saved_s - began_s, end_s - saved_s, sum(stream.nbytes for stream in manifest.streams.values())
    finally:
        await bus.close()
        await second.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_log", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nats, other = NatsServer(folder / "nats", sync_always=False), NatsServer(folder / "other", sync_always=False)
        nats.start()
        other.start()
        began_s = time.monotonic()
        asyncio.run(_fill(nats.url, options.events))
        print(f"{options.events:,} events written in {time.monotonic() - began_s:.0f} s", flush=True)
        for _ in range(options.rounds):
            controller = Controller(nats.url, folder)
            began_s = time.monotonic()
            controller.start()
            print(f"controller ready after {time.monotonic() - began_s:.1f} s", flush=True)
            assert controller.get("/api/v1/tasks?limit=1")["total"] == _TASKS
            controller.stop()
        saved_s, loaded_s, nbytes = asyncio.run(_copy(nats.url, other.url, folder / "copy"))
        print(f"backup {saved_s:.1f} s, restore {loaded_s:.1f} s, {nbytes / 1e6:.0f} MB")
        nats.stop()
        other.stop()


if __name__ == "__main__":
    main()
