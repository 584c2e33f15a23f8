"""Run the kernel benchmarks and write docs/kernel-benchmarks.md; ends with code 1 when a bar is missed.

usage: python -m benchmarks.kernels [--report FILE]
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.kernels.cases import CASES, CUDA, OPENCL, Case
from benchmarks.kernels.measure import Compared, compared
from jit.kernels.launch import CHECKED, KernelLaunch, KernelOptions
from tests.support.kernel_devices import HostKernels
from wis.frontends.ptx import import_ptx
from wooly.kernels.build import Built, build_cuda
from wooly.kernels.nvrtc import compile_to_ptx

_DOC: Final = Path(__file__).parents[2] / "docs" / "kernel-benchmarks.md"
_THREADS: Final = 2
_FUEL: Final = 1 << 50
_OPTIONS: Final = ("--fmad=false",)
_PAIRS: Final = {
    "checks": (CHECKED, KernelOptions(check=False)),
    "metering": (KernelOptions(fuel=False), KernelOptions(meter=False, fuel=False)),
    "fuel": (CHECKED, KernelOptions(fuel=False)),
}
"""Options with and without."""
_BARS: Final = {"checks": 1.06, "metering": 1.03, "fuel": 1.05, "slices": 1.05, "numpy": 1.2, "pocl": 1.0, "warm": 1.0, "import": 20.0}

Row = tuple[str, str, float, float]
"""What, the figure as text, its value, the bar."""


class _OpenCL:
    """The hand-written kernels on PoCL with the same arguments."""

    def __init__(self) -> None:
        import pyopencl

        self.cl: Any = pyopencl
        (platform_,) = [p for p in pyopencl.get_platforms() if "Portable" in p.name][:1]
        self.context: Any = pyopencl.Context(platform_.get_devices())
        self.queue: Any = pyopencl.CommandQueue(self.context)
        self.program: Any = pyopencl.Program(self.context, OPENCL).build()
        self.name = f"{platform_.name} {platform_.version}"

    def prepared(self, case: Case, args: Sequence[Any]) -> tuple[Callable[[], None], Callable[[], Any]]:
        """(run once, read the result)."""
        flags = self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.COPY_HOST_PTR
        given = [self.cl.Buffer(self.context, flags, hostbuf=x) if isinstance(x, np.ndarray) else x for x in args]
        kernel = self.cl.Kernel(self.program, case.name)
        dims = 2 if case.block[1] > 1 or case.grid[1] > 1 else 1
        shape = tuple(g * b for g, b in zip(case.grid, case.block, strict=True))[:dims]

        def run() -> None:
            kernel(self.queue, shape, case.block[:dims], *given)
            self.queue.finish()

        def read() -> Any:
            result = np.empty_like(args[case.out])
            self.cl.enqueue_copy(self.queue, result, given[case.out])
            self.queue.finish()
            return result

        return run, read


class _Host:
    """Our back end."""

    def __init__(self, built: Built, folder: Path) -> None:
        self.built, self.device = built, HostKernels(folder, _THREADS)

    def prepared(self, case: Case, args: Sequence[Any], options: KernelOptions | None = None, *, sliced: bool = True) -> Callable[[], None]:
        """Run once."""
        entry = self.built.entry(case.name)
        verified = self.built.verified(entry)
        params: list[Any] = [0] * len(verified.kernel.params)
        for argument, value in zip(entry.arguments, args, strict=True):
            params[argument.param] = value.reshape(-1).view(np.uint8) if isinstance(value, np.ndarray) else int(value)
        kernel = self.device.prepare(verified, case.block, options=options or CHECKED)
        launch = KernelLaunch(case.grid, case.block, fuel=_FUEL)
        runner = self.device.runner

        def run() -> None:
            before, runner.slice_ns = runner.slice_ns, runner.slice_ns if sliced else 0
            outcome = self.device.run(kernel, launch, params)
            runner.slice_ns = before
            assert outcome.trap is None and not outcome.out_of_fuel

        return run


def _same(case: Case, ours: Any, theirs: Any) -> None:
    """Sums in another order differ by rounding; everything else is equal."""
    scale = float(np.max(np.abs(theirs))) or 1.0
    assert np.allclose(ours, theirs, rtol=0, atol=1e-4 * scale), case.name


def measure() -> tuple[list[Row], list[str]]:
    """All figures, and lines of detail."""
    built, opencl = build_cuda(CUDA, _OPTIONS), _OpenCL()
    rows: list[Row] = []
    detail: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        host = _Host(built, Path(folder))
        costs: dict[str, list[float]] = {}
        for case in CASES:
            args = case.args()
            mine = host.prepared(case, args)
            theirs, read = opencl.prepared(case, args)
            mine()
            theirs()
            _same(case, args[case.out], read())
            beside = compared(mine, theirs)
            if case.numpy is None and not case.also:
                rows.append(_row(f"{case.name} / PoCL", beside, _BARS["pocl"]))
            elif case.numpy is not None:
                rows.append(_row(f"{case.name} / NumPy", compared(mine, partial(case.numpy, args)), _BARS["numpy"]))
            cells = [case.title, f"{beside.ours_ms:.3f}", f"{beside.other_ms:.3f}"]
            for what, (on, off) in _PAIRS.items():
                ratio = compared(host.prepared(case, args, on), host.prepared(case, args, off), 1.0).ratio
                if not case.also:
                    costs.setdefault(what, []).append(ratio)
                cells.append(f"{ratio:.3f}")
            ratio = compared(mine, host.prepared(case, args, sliced=False), 1.0).ratio
            if not case.also:
                costs.setdefault("slices", []).append(ratio)
            detail.append(f"| {' | '.join([*cells, f'{ratio:.3f}'])} |")
        for what, ratios in costs.items():
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            rows.append((f"{what} on / off, geometric mean", f"{mean:.3f}", mean, _BARS[what]))
        host.device.close()
        warm = _warm(folder)
    rows.append(("warm start of a cached kernel, slowest, ms", f"{warm:.2f}", warm, _BARS["warm"]))
    imported = _import_ms()
    rows.append(("import of PTX to WIS, ms for 200 instructions", f"{imported:.1f}", imported, _BARS["import"]))
    return rows, detail


def _row(what: str, result: Compared, bar: float) -> Row:
    return what, f"{result.ours_ms:.3f} ms / {result.other_ms:.3f} ms = {result.ratio:.3f}", result.ratio, bar


def _warm(folder: str) -> float:
    """Of processes that find everything compiled, the fastest one's slowest kernel after its first: that one also wakes the disk."""
    best = math.inf
    for _ in range(5):
        found = subprocess.run([sys.executable, "-m", "benchmarks.kernels.warm", folder], capture_output=True, text=True, check=True)
        best = min(best, max(float(line.split()[1]) for line in found.stdout.splitlines()))
    return best


def _import_ms() -> float:
    """Of 200 instructions, by what all kernels take together."""
    ptx = compile_to_ptx(CUDA, _OPTIONS, ()).text
    instructions = sum(line.strip().endswith(";") and not line.strip().startswith(".") for line in ptx.splitlines())
    times = []
    for _ in range(9):
        start = time.perf_counter()
        import_ptx(ptx, "kernels.cu")
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[len(times) // 2] * 200 / instructions


def page(rows: Sequence[Row], detail: Sequence[str]) -> str:
    """The record."""
    lines = [
        "# Kernel benchmarks on the host back end",
        "",
        f"Written by `python -m benchmarks.kernels` ({platform.machine()}, {os.cpu_count()} cores, {_THREADS} threads).",
        "Both sides of a ratio are measured in turn in one process; medians.",
        "",
        "| what | measured | bar | |",
        "|---|---|---|---|",
        *(f"| {what} | {text} | {bar:g} | {'holds' if value <= bar else 'MISSED'} |" for what, text, value, bar in rows),
        "",
        "| kernel | host ms | PoCL ms | checks on/off | metering | fuel | slices |",
        "|---|---|---|---|---|---|---|",
        *detail,
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--report", default=str(_DOC))
    options = arguments.parse_args()
    rows, detail = measure()
    text = page(rows, detail)
    Path(options.report).write_text(text)
    print(text)
    raise SystemExit(1 if any(value > bar for _, _, value, bar in rows) else 0)


if __name__ == "__main__":
    main()
