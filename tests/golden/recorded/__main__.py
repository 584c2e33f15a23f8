"""``python -m tests.golden.recorded``: write the recordings that do not exist yet."""

from __future__ import annotations

import importlib
import json
import random
import tempfile
import typing
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from bus_schemas import subjects
from bus_schemas.events import encode_events
from bus_schemas.journal import DISPATCH, VRAM
from scheduler import dispatch, vram
from scheduler.vram.journal import Journal as VramJournal
from scheduler.vram.journal import encode_state
from services.kit.bus import Bus
from services.replay.source import history
from tests.replay.mixes import Tenant
from tests.simulation.dispatch.workload import run
from tests.simulation.vram.world import World
from tests.support.journals import segments
from tests.support.node import Node, increment, until
from tests.support.placement_histories import busy, live
from wooly.link import Flush

FOLDER: Final = Path(__file__).parent
MODULES: Final = ("access", "allowance", "batch", "dataport", "journal", "runs", "session", "statement", "telemetry")


def main() -> None:
    for name, make in (("dispatch", _dispatch), ("vram", _vram), ("placement", _placement), ("node", _node)):
        path = FOLDER / f"{name}.bin"
        if not path.exists():
            path.write_bytes(zlib.compress(msgspec.msgpack.encode(make()), 9))
    path = FOLDER / "messages.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**dict(_messages()), **known}, indent=1) + "\n")


def _dispatch() -> list[Any]:
    """[frames, digest, [[records before it, snapshot], ...]] of each seed."""
    out = []
    for seed in range(16):
        core, journal = dispatch.Dispatch(), dispatch.Journal()
        frames, snapshots = [], []
        for stimulus, decisions in run(seed, core, 300):
            frames.append(journal.add(stimulus, decisions))
            if len(frames) % 149 == 0:
                snapshots.append([len(frames), dispatch.snapshot(core.state)])
        snapshots.append([len(frames), dispatch.snapshot(core.state)])
        out.append([b"".join(frames), journal.digest, snapshots])
    return out


def _vram() -> list[Any]:
    """The same of the memory core."""
    out = []
    for seed in range(12):
        core, journal = vram.Vram(), VramJournal()
        World(seed, core, partial(_note, journal, core, frames := [], snapshots := [])).run()
        out.append([b"".join(frames), journal.digest, snapshots[:3]])
    return out


def _note(
    journal: VramJournal, core: vram.Vram, frames: list[bytes], snapshots: list[Any], stimulus: Any, decisions: Any, _: World
) -> None:
    frames.append(journal.add(stimulus, decisions))
    if len(frames) % 97 == 0:
        snapshots.append([len(frames), encode_state(core.state)])


def _placement() -> list[Any]:
    """[[events of a position, ...], {task: [state, reason, node]}] of each seed."""
    out = []
    for seed in range(40):
        view, log = live(busy(seed), honest=True)
        tasks = {name: [task.state, task.reason, task.placed.node if task.placed else ""] for name, task in view.tasks.items()}
        out.append([[encode_events([event]) for event in log], tasks])
    return out


def _node() -> dict[str, Any]:
    """What a node leaves on its disk and on the bus."""
    with tempfile.TemporaryDirectory() as folder, Node(Path(folder), WOOLY_SCHED_QUANTUM_MS="2") as node:
        _work(node)
        until(lambda: all(segments(node, lane) for lane in (DISPATCH, VRAM)), "both journals on the bus")
        node.kill_server()
        node.start_server()
        _work(node)
        name = node.info().node
        node.kill_server()
        facts = (Path(folder) / "server" / "facts.journal").read_bytes()
        lanes = {lane: [[part.snapshot, part.frames, part.digest] for part in segments(node, lane)] for lane in (DISPATCH, VRAM)}

        async def batches(bus: Bus) -> list[bytes]:
            return [data async for data in history(bus, subjects.batch_stream(name), ">")]

        events = [encode_events([event]) for event in node.events()]
        return {"facts": facts, "lanes": lanes, "events": events, "batches": node.run(batches)}


def _work(node: Node) -> None:
    draw = random.Random(7)
    sessions = [node.open(prio=priority) for priority in (0, 2, 2)]
    for session in sessions:
        tenant = Tenant({}, draw.randint(4, 9), 20_000, waits=False, faulty=False)
        program = increment(tenant.size)
        session.wait(session.submit(Flush(allocs=[(1, 8 * tenant.size)])))
        for _ in range(tenant.batches):
            ticket = session.submit(program.flush([1]))
        session.wait(ticket)


def _messages() -> Iterator[tuple[str, Any]]:
    for module in MODULES:
        for name, kind in vars(importlib.import_module(f"bus_schemas.{module}")).items():
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == f"bus_schemas.{module}":
                value = _made(kind)
                fields = json.loads(msgspec.json.encode(msgspec.structs.asdict(value)))
                yield f"{module}.{name}", {"bytes": msgspec.msgpack.encode(value).hex(), "fields": fields}


def _made(kind: Any) -> Any:
    """A message of this kind whose fields differ from their defaults."""
    hints = typing.get_type_hints(kind)
    return kind(**{field: _example(hints[field], at) for at, field in enumerate(kind.__struct_fields__)})


def _example(kind: Any, number: int) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    simple: dict[Any, Callable[[], Any]] = {
        int: lambda: 100 + number, float: lambda: number + 0.5, str: lambda: f"text{number}", bool: lambda: True,
        bytes: lambda: b"bytes%d" % number, msgspec.Raw: lambda: msgspec.Raw(b"\x01"), Any: lambda: number,
    }  # fmt: skip
    if kind in simple:
        return simple[kind]()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _made(kind)
    if origin is tuple and arguments[-1] is Ellipsis:
        return (_example(arguments[0], number), _example(arguments[0], number + 50))
    if origin is tuple:
        return tuple(_example(one, number + at) for at, one in enumerate(arguments))
    if origin is dict:
        return {_example(arguments[0], number): _example(arguments[1], number)}
    if origin is list:
        return [_example(arguments[0], number)]
    return _example(arguments[0], number)  # a union: its first member; Annotated: what it annotates


if __name__ == "__main__":
    main()
