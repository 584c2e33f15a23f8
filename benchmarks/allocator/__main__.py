"""Measures a device's allocator: waste over a long series of allocations, cost of a call beside the previous allocator, cost of moving and
swapping.

``python -m benchmarks.allocator [--operations N] [--publish]``: prints the tables; ``--publish`` puts them into docs/memory.md.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from benchmarks.allocator.before import Before
from jit.backends import create_engine
from jit.engine import Engine
from jit.memory import Arena, Capacity, SpaceMemory
from jit.memory.arena import Moved
from tests.support.churn import churn
from tests.support.sections import write_section
from tests.support.stack import ROOT

_DOCUMENT: Final = ROOT / "docs" / "memory.md"
_ROUNDS: Final = 7
MIB, GIB = 1 << 20, 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--publish", action="store_true")
    asked = parser.parse_args()
    parts = [*_lives(asked.operations), *_calls(), *_moving(), *_swapping()]
    text = "\n".join(parts)
    print(text)
    if asked.publish:
        write_section(_DOCUMENT, "allocator", text + "\n")


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""


def _lives(operations: int) -> Iterator[str]:
    """Waste over a long series. Operations are counted, so the figures are the same on every machine, but for the time."""
    yield "Random operations, 8 spaces, sizes log-uniform from 256 B to 256 MiB, 70 to 90 % of the device live:\n"
    rows: list[list[object]] = []
    for capacity in (8 * GIB, 80 * GIB):
        for account in churn(capacity, operations, max(operations // 10, 1)):
            if account.operations * 10 // operations in (1, 2, 5, 10):
                rows += [[
                    f"{capacity // GIB} GiB", f"{account.operations:,}", f"{100 * account.overhead:.2f} %", f"{100 * account.worst:.2f} %",
                    account.failed, account.compactions, f"{100 * account.moved_bytes / account.asked_bytes:.2f} %",
                    f"{account.us_per_operation:.1f}",
                ]]  # fmt: skip
    heads = (
        "device",
        "operations",
        "overhead",
        "worst so far",
        "refused though free",
        "compactions",
        "bytes moved / allocated",
        "µs a call",
    )
    yield from _table(heads, rows)


# --- calls
def _pairs(make: Callable[[], Any], sizes: Sequence[int], zero: bool) -> float:
    """µs of an allocation and its free, the sizes in turn: what a loop without much else does."""
    space = make()
    rounds = max(1, 20_000 // len(sizes))
    begin = 0.0
    for number in range(rounds + 1):
        if number == 1:
            begin = time.process_time()
        for nbytes in sizes:
            space.alloc(1, nbytes, zero=zero)
            space.free(1)
    return (time.process_time() - begin) / rounds / len(sizes) * 1e6


def _steps(make: Callable[[], Any], sizes: Sequence[int], zero: bool) -> float:
    """The same when all are live before the first is freed: a training step."""
    space = make()
    rounds = max(1, 20_000 // len(sizes))
    begin = 0.0
    for number in range(rounds + 1):
        if number == 1:
            begin = time.process_time()
        for key, nbytes in enumerate(sizes):
            space.alloc(key, nbytes, zero=zero)
        for key in range(len(sizes)):
            space.free(key)
    return (time.process_time() - begin) / rounds / len(sizes) * 1e6


def _first(make: Callable[[], Any], sizes: Sequence[int], zero: bool) -> float:
    """µs of an allocation that nothing was kept for, every page touched, its share of the space's end included."""
    space = make()
    begin = time.process_time()
    for key, nbytes in enumerate(sizes):
        space.alloc(key, nbytes, zero=zero).data[::4096] = 1
    space.clear()
    return (time.process_time() - begin) / len(sizes) * 1e6


def _sizes(count: int, low: int, high: int) -> list[int]:
    rng = random.Random(2)
    return [int(math.exp(rng.uniform(math.log(low), math.log(high)))) for _ in range(count)]


def _calls() -> Iterator[str]:
    machine = f"processor time, {platform.machine()}, {os.cpu_count()} cores"
    yield f"A call, beside the allocator before, in turn, median of {_ROUNDS} ({machine}); a space after the other on one device:\n"
    cases: list[tuple[str, Callable[..., float], list[int], bool]] = [
        ("pair, 4 KiB", _pairs, [4096], False),
        ("pair, 4 KiB, zeroed", _pairs, [4096], True),
        ("pair, 256 B to 1 MiB", _pairs, _sizes(200, 256, MIB), False),
        ("step of 200, 256 B to 1 MiB", _steps, _sizes(200, 256, MIB), False),
        ("first touch, 256 B to 1 MiB", _first, _sizes(200, 256, MIB), True),
        ("first touch, 1 to 64 MiB", _first, _sizes(40, MIB, 64 * MIB), True),
    ]
    rows = []
    for name, measure, sizes, zero in cases:
        times: tuple[list[float], list[float]] = ([], [])
        device = Capacity(4 * GIB)
        for _ in range(_ROUNDS):
            times[0].append(measure(lambda: Before(4 * GIB), sizes, zero))
            times[1].append(measure(lambda device=device: SpaceMemory(device), sizes, zero))
        before, now = (statistics.median(x) for x in times)
        rows.append([name, f"{before:.2f}", f"{now:.2f}", f"{statistics.median(n / b for b, n in zip(*times, strict=True)):.2f}"])
    yield from _table(("allocation and free", "before, µs", "now, µs", "ratio"), rows)


# --- moving and swapping
def _moving() -> Iterator[str]:
    yield "Making room in a full device of 1 GiB whose every second block was freed (half of it is free, in pieces of this size):\n"
    rows = []
    for piece in (MIB, 8 * MIB, 64 * MIB):
        capacity = Capacity(GIB)
        space = SpaceMemory(capacity)
        count = GIB // piece
        for key in range(count):
            space.alloc(key, piece).data[::4096] = 1
        for key in range(0, count, 2):
            space.free(key)
        SpaceMemory(capacity).alloc(0, 64 * MIB + 4 * piece)
        moved = _moved(capacity)
        rows.append([f"{piece // MIB} MiB", f"{64 + 4 * piece // MIB} MiB", f"{moved.nbytes // MIB} MiB", f"{moved.ns / 1e6:.1f}"])
    yield from _table(("pieces", "asked", "moved", "ms"), rows)


def _moved(capacity: Capacity) -> Moved:
    arena = capacity.placed
    assert isinstance(arena, Arena)
    return arena.moved


def _swapping() -> Iterator[str]:
    yield "A buffer of 256 MiB to host memory and back (`read`, copy, `park`, `unpark`, `write`), best of 3, processor time:\n"
    rows = []
    for backend in ("host", "opencl"):
        engine = create_engine(backend, cache_dir=None, threads=1, vram_bytes=GIB)
        out_s, back_s = _swapped(engine, 256 * MIB)
        rows.append([backend, f"{256 * MIB / out_s / 1e9:.1f}", f"{256 * MIB / back_s / 1e9:.1f}"])
        engine.close()
    yield from _table(("back end", "out, GB/s", "back, GB/s"), rows)


def _swapped(engine: Engine, nbytes: int) -> tuple[float, float]:
    space = engine.open_space()
    space.alloc(1, nbytes)
    space.write(1, 0, np.arange(nbytes // 8).tobytes())
    kept = np.zeros(nbytes, np.uint8)
    kept[::4096] = 1
    out, back = [], []
    for _ in range(3):
        begin = time.process_time()
        np.copyto(kept, np.frombuffer(space.read(1, 0, nbytes), np.uint8))
        space.park(1)
        middle = time.process_time()
        space.unpark(1)
        space.write(1, 0, kept.data)
        back.append(time.process_time() - middle)
        out.append(middle - begin)
    assert np.array_equal(np.frombuffer(space.read(1, 0, nbytes), np.int64), np.arange(nbytes // 8))
    return min(out), min(back)


if __name__ == "__main__":
    main()
