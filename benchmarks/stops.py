"""Measures how soon a run stops at the request of another process, what stopping and continuing cost, and whether results stay the same.

``python -m benchmarks.stops [--backend NAME] [--stops N]``: programs of several kinds run to their end again and again while a second
process writes the stop word at random moments; every run's results are compared with those of an uncut one. Exit code 1 when one differed.
"""

from __future__ import annotations

import argparse
import mmap
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from jit.backends import create_engine
from jit.engine import Engine, Stop
from tests.support.builder import Builder
from wis.dtypes import DType
from wis.program import BufferKind
from wis.verify import Verified, verify

F: Final = DType.F32
_WORD, _ARMED, _WRITTEN, _QUIT, _SPAN = range(5)
"""Words of the page that both processes map: the stop word, the serial that runs, when the stop was requested, the end, and how long to
wait at most (ns)."""


def _page(path: str) -> Any:
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 4096)


def teller(path: str) -> None:
    """The second process: tells every serial to stop, after a random time."""
    words = np.frombuffer(_page(path), np.uint64)
    rng, told = random.Random(1), 0
    while not words[_QUIT]:
        serial = int(words[_ARMED])
        if serial == told:
            time.sleep(20e-6)  # not to take a core from the run
            continue
        time.sleep(rng.randint(0, int(words[_SPAN])) / 1e9)  # the random moment that this is about
        words[_WRITTEN] = time.monotonic_ns()
        words[_WORD] = told = serial


def elementwise() -> Builder:
    """Forty steps over a million elements, not fused into one by sums between them."""
    b = Builder()
    x = b.external(F, (1024, 1024))
    for _ in range(20):
        row = b.temp(F, (1024, 1))
        b.emit("sum", row, [x])
        b.emit("fma", x, [x, b.const(0.5, F), b.const(0.25, F)])
    return b


def products() -> Builder:
    b = Builder()
    x, w = b.external(F, (512, 512)), b.external(F, (512, 512))
    for _ in range(12):
        y = b.temp(F, (512, 512))
        b.emit("matmul", y, [x, w])
        b.emit("mul", x, [y, b.const(1 / 512, F)])
    return b


def sorting() -> Builder:
    b = Builder()
    x = b.external(F, (2048, 256))
    for _ in range(4):
        b.emit("sort", [b.temp(F, (2048, 256)), b.created(DType.I64, (2048, 256))], [x], (1, 0))
        b.emit("neg", x, [x])
    return b


def small_steps() -> Builder:
    """Three hundred steps that one thread does alone."""
    b = Builder()
    x = b.external(F, (64, 64))
    for _ in range(150):
        y = b.temp(F, (64, 64))
        b.emit("matmul", y, [x, x])
        b.emit("mul", x, [y, b.const(1 / 64, F)])
    return b


PROGRAMS: Final[dict[str, Callable[[], Builder]]] = {
    "elementwise": elementwise, "products": products, "sorting": sorting, "small steps": small_steps,
}  # fmt: skip


@dataclass
class Program:
    """A program ready to run, and how its buffers begin."""

    verified: Verified
    scalars: list[Any]
    start: dict[int, bytes]

    @property
    def keys(self) -> list[int]:
        return [n for n, kind in enumerate(self.verified.bound.program.buffers) if kind != BufferKind.TEMP]

    def space(self, engine: Engine) -> Any:
        space = engine.open_space()
        for key, data in self.start.items():
            space.alloc(key, len(data))
            space.write(key, 0, data)
        return space

    def found(self, space: Any) -> list[bytes]:
        return [bytes(space.read(key, 0, space.size(key))) for key in self.keys]


def ready(make: Callable[[], Builder]) -> Program:
    program, dims, scalars = make().finish()
    verified = verify(program, dims)
    draw = np.random.default_rng(1)
    external = [n for n, kind in enumerate(program.buffers) if kind == BufferKind.EXTERNAL]
    start = {n: draw.standard_normal(verified.bound.nbytes[n] // 4, np.float32).tobytes() for n in external}
    return Program(verified, list(scalars), start)


@dataclass
class Stops:
    """``delays_ns``: from the word being written to the run's end; ``runs`` to their end, ``wrong`` of which had other results;
    ``whole_ns``: an uncut run, the fastest; ``again_ns``: a ``go`` with a stop request at its beginning, the fastest."""

    delays_ns: list[int]
    runs: int
    wrong: int
    whole_ns: int
    again_ns: int


def measure(engine: Engine, program: Program, words: Any, stops: int) -> Stops:
    prepared, address = engine.prepare(program.verified), int(words.ctypes.data)
    uncut = [_whole(engine, program, prepared) for _ in range(5)]
    want, whole_ns = uncut[0][0], min(ns for _, ns in uncut)
    words[_SPAN] = max(whole_ns // 2, 50_000)
    found = Stops([], 0, 0, whole_ns, _again(engine, program, prepared))
    while len(found.delays_ns) < stops:
        space = program.space(engine)
        run = space.begin(prepared, program.scalars, program.keys)
        while not run.over:
            serial = int(words[_ARMED]) + 1
            words[_ARMED] = serial
            launch = run.go(stop=Stop(address + 8 * _WORD, serial))
            while words[_WORD] < serial:  # the run ended first
                time.sleep(20e-6)  # not to take a core from the other process
            if launch.stopped:
                found.delays_ns.append(launch.end_ns - int(words[_WRITTEN]))
        found.runs += 1
        found.wrong += program.found(space) != want
        space.close()
    return found


def _whole(engine: Engine, program: Program, prepared: Any) -> tuple[list[bytes], int]:
    space = program.space(engine)
    launch = space.run(prepared, program.scalars, program.keys)
    found = program.found(space)
    space.close()
    return found, launch.end_ns - launch.start_ns


def _again(engine: Engine, program: Program, prepared: Any) -> int:
    """What stopping and going on costs by itself."""
    space = program.space(engine)
    run = space.begin(prepared, program.scalars, program.keys)
    always = np.ones(1, np.uint64)
    best = 1 << 60
    for _ in range(200):
        before = time.perf_counter_ns()
        run.go(stop=Stop(int(always.ctypes.data), 1))
        best = min(best, time.perf_counter_ns() - before)
    run.drop()
    space.close()
    return best


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stops", description=__doc__)
    parser.add_argument("--backend", default="host")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--stops", type=int, default=1000, help="a program")
    parser.add_argument("--teller", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.teller:
        teller(options.teller)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page"
        path.write_bytes(bytes(4096))
        words = np.frombuffer(_page(str(path)), np.uint64)
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.stops", "--teller", str(path)])
        engine = create_engine(options.backend, cache_dir=None, threads=options.threads, vram_bytes=1 << 30)
        try:
            wrong = 0
            print("| program | uncut | stops | runs | delay, median | 99 % | longest | stop and go |\n|---|---|---|---|---|---|---|---|")
            for name, make in PROGRAMS.items():
                s = measure(engine, ready(make), words, options.stops)
                wrong += s.wrong
                median, most, longest = (np.percentile(s.delays_ns, p) / 1000 for p in (50, 99, 100))
                delays = f"{median:.0f} us | {most:.0f} us | {longest:.0f} us"
                print(
                    f"| {name} | {s.whole_ns / 1e6:.2f} ms | {len(s.delays_ns)} | {s.runs} | {delays} | {s.again_ns / 1000:.1f} us |",
                    flush=True,
                )
            print(f"runs with other results than uncut ones: {wrong}")
        finally:
            words[_QUIT] = 1
            process.wait(10)
            engine.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
