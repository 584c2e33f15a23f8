"""Measures memory on real nodes: one base model under three tenants, tenants with three times a device's memory, and the speed of swapping.

``python -m benchmarks.memory`` writes its figures into docs/memory.md, between two marks; the rest there is written by hand. Everything
that is claimed is counted (bytes) or compared (digests) in this run; only GB/s is time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from blake3 import blake3

from benchmarks.sla.stand import hasten_node
from bus_schemas.journal import VRAM, JournalPart, decode_part
from bus_schemas.subjects import JOURNAL_STREAM
from bus_schemas.telemetry import Telemetry, decode_telemetry
from scheduler.vram import SwapIn, SwapOut, SwappedIn, SwappedOut
from scheduler.vram.journal import Record, decode_journal
from services.kit.bus import Bus
from tests.support.builder import Builder
from tests.support.node import Node, Program, until
from tests.support.sections import write_section
from tests.support.stack import ROOT
from wis.dtypes import DType
from wooly.link import Flush
from wooly.session import Session

__all__ = ["dedup", "main", "overcommit", "swap_speed"]

MIB: Final = 1 << 20
BASE_MIB: Final = (64, 48, 32, 24, 16, 8)
PRIVATE_MIB: Final = 16
DOCUMENT: Final = ROOT / "docs" / "memory.md"

OVER_DEVICE_MIB: Final = 256
OVER_TENANT_MIB: Final = 192
OVER_BUFFER_MIB: Final = 16
OVER_TENANTS: Final = 4
"""4 x 192 MiB on 256 MiB: three times the device."""
OVER_ROUNDS: Final = 3

SPEED_MIB: Final = 512
SPEED_BUFFERS: Final = 16
SPEED_ROUNDS: Final = 4


def dedup() -> list[str]:
    """Three tenants that trust each other load one base; then one of them trains it."""
    rng = np.random.default_rng(7)
    base = [memoryview(rng.integers(0, 256, mib * MIB, np.uint8)) for mib in BASE_MIB]
    total = sum(BASE_MIB) * MIB
    with tempfile.TemporaryDirectory() as folder, _node(folder, 2048, WOOLY_DEDUP_TRUST="a,b,c") as node:
        sent, seconds, sessions = {}, {}, {}
        for name in ("a", "b", "c"):
            session = sessions[name] = node.open(tenant=name, weights_dedup=True)
            began, before = time.monotonic(), session.wire_bytes
            for at, tensor in enumerate(base):
                session.wait(session.submit(Flush(uploads=[(1 + at, tensor)])))
            sent[name], seconds[name] = session.wire_bytes - before, time.monotonic() - began
            session.wait(session.submit(Flush(allocs=[(1000, PRIVATE_MIB * MIB)])))
        used = _until_telemetry(node, lambda t: t.vram_used_bytes > 0 and len(t.running) == 3)
        digests = {name: _digest(session, base) for name, session in sessions.items()}
        for at, tensor in enumerate(base):
            sessions["a"].submit(_add(tensor.nbytes).flush([1 + at]))
        trained = {name: _digest(session, base) for name, session in sessions.items()}
        plain = 3 * (total + PRIVATE_MIB * MIB)
        expected = total + 3 * PRIVATE_MIB * MIB
        _must(used == expected, f"{used} bytes on the device, one base and three private parts are {expected}")
        _must(max(sent["b"], sent["c"]) <= sent["a"] // 100, "a second upload is at most 1 % of the first")
        _must(len(set(digests.values())) == 1, "all read the base")
        _must(trained["b"] == trained["c"] == digests["b"] != trained["a"], "who trains changes nothing for the others")
    return [
        "### Three tenants, one base model",
        "",
        f"A base of {total >> 20} MiB ({100 * total // (total + PRIVATE_MIB * MIB)} % of each one's memory), {PRIVATE_MIB} MiB of its own.",
        "",
        "| | bytes |",
        "|---|---|",
        f"| on the device | {used:,} |",
        f"| the same without sharing | {plain:,} |",
        f"| sent by the first tenant | {sent['a']:,} (in {seconds['a']:.2f} s) |",
        f"| by the second and third | {sent['b']:,} and {sent['c']:,} (in {seconds['b']:.2f} and {seconds['c']:.2f} s) |",
        "",
        "Then the first tenant adds 1 to every element of the base; the digests of what the other two read stay as they were.",
        "",
    ]


def overcommit() -> list[str]:
    """Tenants whose memory is three times the device's take turns; each result equals that of the same work alone."""
    with tempfile.TemporaryDirectory() as folder, _node(folder, 2048) as alone:
        wanted = [_work(alone.open(tenant=f"t{number}"), number) for number in range(OVER_TENANTS)]
    settings = {
        "WOOLY_SWAP_IDLE_MS": "50",
        "WOOLY_SWAP_HOST_MB": "512",
        "WOOLY_SWAP_DISK_MB": "4096",
        "WOOLY_VRAM_RESERVE_MB": "0",
        "WOOLY_VRAM_OVERCOMMIT_PERCENT": "400",
    }
    with tempfile.TemporaryDirectory() as folder, _node(folder, OVER_DEVICE_MIB, **settings, WOOLY_SWAP_DIR=f"{folder}/swap") as node:
        sessions = [node.open(tenant=f"t{number}", required_vram_mb=OVER_TENANT_MIB + 8) for number in range(OVER_TENANTS)]
        began = time.monotonic()
        digests = [b""] * OVER_TENANTS
        for round_ in range(OVER_ROUNDS):
            for number, session in enumerate(sessions):
                digests[number] = _work(session, number, begin=round_ == 0)
        seconds = time.monotonic() - began
        for session in sessions:
            session.close()
        records = until(lambda: _vram_journal(node, OVER_TENANTS), "the memory core's journal is on the bus")
    _must(digests == wanted, "every tenant's bytes equal those of the same work alone")
    out, back = _moves(records)
    total = OVER_TENANTS * OVER_TENANT_MIB
    _must(len(out) > 0 and len(back) > 0, "nothing was swapped: this shows nothing")
    return [
        "### Three times the device's memory",
        "",
        f"{OVER_TENANTS} tenants of {OVER_TENANT_MIB} MiB each ({total} MiB) on a device of {OVER_DEVICE_MIB} MiB, {OVER_ROUNDS} rounds in "
        f"turn, {seconds:.1f} s; host swap 512 MiB, the rest on disk. The digests of all their bytes equal those of the same work alone.",
        "",
        "| move | times | MiB | median GB/s | slowest | fastest |",
        "|---|---|---|---|---|---|",
        _speed("swap out", out),
        _speed("restore", back),
        "",
    ]


def swap_speed() -> list[str]:
    """One tenant's 512 MiB leave for another's, and come back, a few times; nothing else runs on the node."""
    settings = {
        "WOOLY_SWAP_IDLE_MS": "50",
        "WOOLY_SWAP_HOST_MB": "4096",
        "WOOLY_VRAM_RESERVE_MB": "0",
        "WOOLY_VRAM_OVERCOMMIT_PERCENT": "400",
    }
    with tempfile.TemporaryDirectory() as folder, _node(folder, 640, **settings) as node:
        hasten_node(node)
        sessions = [node.open(tenant=name, required_vram_mb=SPEED_MIB + 8) for name in ("first", "second")]
        programs = [_touch(SPEED_MIB * MIB // SPEED_BUFFERS) for _ in sessions]
        handles = list(range(1, 1 + SPEED_BUFFERS))
        for _ in range(SPEED_ROUNDS):
            for session, program in zip(sessions, programs, strict=True):
                fresh = [(handle, SPEED_MIB * MIB // SPEED_BUFFERS) for handle in handles] if session.batches == 0 else []
                session.wait(session.submit(program.flush(handles, allocs=fresh)))
        for session in sessions:
            session.close()
        records = until(lambda: _vram_journal(node, len(sessions)), "the memory core's journal is on the bus")
    out, back = _moves(records)
    _must(len(out) > 0 and len(back) > 0, "nothing was swapped: this shows nothing")
    return [
        "### How fast",
        "",
        f"Two tenants of {SPEED_MIB} MiB each take turns on a device of 640 MiB, {SPEED_ROUNDS} rounds, host swap; each batch names all of",
        "its tenant's memory. From the decision to its end, the wait for the launching thread included.",
        "",
        "| move | times | MiB | median GB/s | slowest | fastest |",
        "|---|---|---|---|---|---|",
        _speed("swap out", out),
        _speed("restore", back),
        "",
    ]


# -- parts -------------------------------------------------------------------------------------------------------------------------------


def _node(folder: str, vram_mib: int, **more: str) -> Node:
    return Node(Path(folder), WOOLY_BACKEND="host", WOOLY_DEVICE_VRAM_MB=str(vram_mib), **more)


def _add(nbytes: int) -> Program:
    """x += 1 over all of a buffer, in place."""
    builder = Builder()
    x = builder.external(DType.F32, (nbytes // 4,))
    builder.emit("add", x, (x, builder.const(1.0, DType.F32)))
    return Program(builder)


def _touch(nbytes: int) -> Program:
    """x += 1 over many buffers: all of them must be on the device."""
    builder = Builder()
    for _ in range(SPEED_BUFFERS):
        x = builder.external(DType.F32, (nbytes // 4,))
        builder.emit("add", x, (x, builder.const(1.0, DType.F32)))
    return Program(builder)


def _work(session: Session, number: int, begin: bool = True) -> bytes:
    """A round of one tenant: (at first) buffers with bytes of its own, then every buffer is added to and read. Alone all rounds at once."""
    handles = range(1, 1 + OVER_TENANT_MIB // OVER_BUFFER_MIB)
    if begin:
        for handle in handles:
            data = np.random.default_rng(100 * number + handle).standard_normal(OVER_BUFFER_MIB * MIB // 4).astype(np.float32)
            session.wait(session.submit(Flush(uploads=[(handle, memoryview(data.view(np.uint8)))])))
    rounds = 1 if not begin or session.info.node is None or session.info.quota_bytes else OVER_ROUNDS
    digest = b""
    for _ in range(rounds):
        hasher = blake3()
        for handle in handles:
            ticket = session.submit(_add(OVER_BUFFER_MIB * MIB).flush([handle], reads=[(handle, 0, OVER_BUFFER_MIB * MIB)]))
            hasher.update(bytes(session.wait(ticket)[0]))
        digest = hasher.digest()
    return digest


def _digest(session: Session, base: list[memoryview]) -> bytes:
    hasher = blake3()
    for at, tensor in enumerate(base):
        hasher.update(bytes(session.wait(session.submit(Flush(reads=[(1 + at, 0, tensor.nbytes)])))[0]))
    return hasher.digest()


def _until_telemetry(node: Node, wanted: Any) -> int:
    """Bytes used on the device by the first telemetry that satisfies ``wanted`` twice in a row with one figure."""

    async def read(bus: Bus) -> int:
        import asyncio

        seen: asyncio.Queue[Telemetry] = asyncio.Queue()

        async def hear(subject: str, data: bytes) -> None:
            seen.put_nowait(decode_telemetry(data))

        await bus.subscribe("wooly.telemetry.>", hear)
        last = -1
        while True:
            telemetry = await asyncio.wait_for(seen.get(), 20)
            if wanted(telemetry):
                if telemetry.vram_used_bytes == last:
                    return last
                last = telemetry.vram_used_bytes

    return node.run(read)


def _vram_journal(node: Node, sessions: int) -> list[Record]:
    """The memory core's records on the bus, once all sessions are closed in them."""

    async def read(bus: Bus) -> list[Record]:
        end = await bus.last_position(JOURNAL_STREAM)
        records: list[Record] = []
        position = 0
        while position < end:
            position += 1
            answer = await bus.js_api(f"STREAM.MSG.GET.{JOURNAL_STREAM}", {"seq": position})
            part: JournalPart = decode_part(_payload(answer))
            if part.lane == VRAM:
                records += decode_journal(part.frames)[0]
        closed = sum(type(record.stimulus).__name__ == "SessionClosed" for record in records)
        return records if closed >= sessions else []

    return node.run(read)


def _payload(answer: dict[str, Any]) -> bytes:
    import base64

    return base64.b64decode(answer["message"]["data"])


def _moves(records: list[Record]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(bytes, ns) of every swap out and every restore, from its decision to its end. Moves of one direction run one after another."""
    out: list[tuple[int, int]] = []
    back: list[tuple[int, int]] = []
    asked: dict[tuple[type, str], int] = {}
    last_ns = 0
    for record in records:
        stimulus = record.stimulus
        kind = {SwappedOut: SwapOut, SwappedIn: SwapIn}.get(type(stimulus))
        if kind is not None and isinstance(stimulus, SwappedOut | SwappedIn) and (kind, stimulus.session) in asked:
            began_ns = max(asked.pop((kind, stimulus.session)), last_ns)
            (out if kind is SwapOut else back).append((stimulus.nbytes, stimulus.at_ns - began_ns))
            last_ns = stimulus.at_ns
        for decision in record.decisions:
            if isinstance(decision, SwapOut | SwapIn):
                asked[type(decision), decision.session] = stimulus.at_ns
    return [move for move in out if move[0]], [move for move in back if move[0]]


def _speed(name: str, moves: list[tuple[int, int]]) -> str:
    speeds = sorted(nbytes / max(1, ns) for nbytes, ns in moves)
    total = sum(nbytes for nbytes, _ in moves) >> 20
    return f"| {name} | {len(moves)} | {total} | {speeds[len(speeds) // 2]:.2f} | {speeds[0]:.2f} | {speeds[-1]:.2f} |"


def _must(holds: bool, text: str) -> None:
    if not holds:
        raise SystemExit(f"it does not hold: {text}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="print, and leave docs/memory.md as it is")
    options = parser.parse_args()
    text = "\n".join([*dedup(), *overcommit(), *swap_speed()])
    print(text)
    if not options.dry:
        write_section(DOCUMENT, "figures", f"\n{text}\n")


if __name__ == "__main__":
    main()
