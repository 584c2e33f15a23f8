"""Faults of the emitter, planted one at a time, which the sample of the execution that runs in ``make test`` has to notice.

A fault is a change of a module's text, made while it is imported in a process of its own: no file changes.
``python -m pytest -p tests.conformance.cuda.faults`` with ``PLANTED_FAULT`` set to a number plants that one.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

__all__ = ["FAULTS", "Caught", "Fault", "caught"]

_ROOT: Final = Path(__file__).parents[3]
_TESTS: Final = "tests/unit/test_accel/test_cuda_execution.py"


@dataclass(frozen=True, slots=True)
class Fault:
    """``old`` in ``file`` (which holds it so often as ``times`` says) becomes ``new``."""

    file: str
    what: str
    old: str
    new: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Caught:
    """``test``: the first that failed; empty when all passed."""

    fault: Fault
    test: str


_C: Final = "jit/kernels/cfamily/"
FAULTS: Final = (
    Fault(_C + "language.py", "the least of two traps is the greatest: `atomicMin` is `atomicMax`",
          "atomicMin((u64 *)(p), v)", "atomicMax((u64 *)(p), v)"),
    Fault(_C + "language.py", "signed high products are unsigned", "__mul64hi(a, b)", "__umul64hi(a, b)"),
    Fault(_C + "language.py", "leading zeros of 64 bits are those of 32", "__clzll((s64)(x))", "__clz((s32)(x))"),
    Fault(_C + "language.py", "bits of 64 are counted in 32", "__popcll(x)", "__popc((u32)(x))"),
    Fault(_C + "language.py", "a barrier is one of a warp", "#define BARRIER __syncthreads()", "#define BARRIER __syncwarp()"),
    Fault(_C + "language.py", "shuffles go down", "__shfl_sync(mask, v, lane)", "__shfl_down_sync(mask, v, lane)"),
    Fault(_C + "language.py", "ballots are those of the other lanes", "__ballot_sync(mask, p)", "__ballot_sync(mask, !(p))"),
    Fault(_C + "language.py", "exchange is addition", "atomicExch((u32 *)(p), v)", "atomicAdd((u32 *)(p), v)"),
    Fault(_C + "memory.py", "wide accesses may begin before the end: `length - (size - 1)` is `length`",
          "{place.length} - {size - 1})", "{place.length})"),
    Fault(_C + "memory.py", "wide accesses by address, the same: `n - size + 1` is `n`", "n{i} - size + 1 : 0", "n{i} : 0"),
    Fault(_C + "memory.py", "the same in memory of known size", "int(place.length) - size + 1)}u", "int(place.length))}u"),
    Fault(_C + "memory.py", "one element more is inside", '{index} < {count}"', '{index} <= {count}"'),
    Fault(_C + "memory.py", "half of the alignment is enough", "(o & {size - 1}) == 0", "(o & {size // 2 - 1}) == 0"),
    Fault(_C + "warp.py", "the last lane of a shuffle is out of range", '"j <= most"', '"j < most"'),
    Fault(_C + "warp.py", "shuffles up go down", 'f"{lane} - by"', 'f"{lane} + by"'),
    Fault(_C + "warp.py", "the least of a warp is the greatest",
          '"<" if function is Atomic.MIN else ">"', '">" if function is Atomic.MIN else "<"'),
    Fault(_C + "values.py", "signed comparisons are unsigned",
          '(f"({signed(source)}){v}" for v in x) if', '(f"({REGISTER[source]}){v}" for v in x) if'),
    Fault(_C + "values.py", "signed minima are unsigned",
          "({s}){a} {'<' if name[1] == 'i' else '>'} ({s}){b}", "{a} {'<' if name[1] == 'i' else '>'} {b}"),
    Fault(_C + "values.py", "arithmetic shifts are logical", "(({s}){a} >> (", "({a} >> ("),
    Fault(_C + "values.py", "sign extension is zero extension", "({to})({signed(target)})({signed(source)}){x}", "({to}){x}"),
    Fault(_C + "values.py", "saturation begins one too high", 'ldexp(1.0, target.bits - is_signed)', 'ldexp(1.0, target.bits)'),
    Fault(_C + "helpers.py", "atomic maxima are minima", '"max": "o > v ? o : v"', '"max": "o < v ? o : v"'),
    Fault(_C + "helpers.py", "an atomic increment wraps one late", "o >= v ? 0 : o + 1", "o > v ? 0 : o + 1"),
    Fault(_C + "thread_form.py", "the thread of a trap is in the wrong bits",
          "cta << 29 | (u64)t << 19 | tr", "cta << 29 | (u64)t << 20 | tr"),
    Fault(_C + "thread_form.py", "instructions beyond 65,535 are counted in the wrong place", "((u64)fin[1] << 16)", "((u64)fin[1] << 15)"),
    Fault(_C + "frame.py", "the length of a region is its offset", "n{i} = w[{at + 1}]", "n{i} = w[{at}]"),
    Fault(_C + "frame.py", "the row of a block in the grid is its column", "cy = (u32)cta / gx % gy", "cy = (u32)cta % gy"),
    Fault(_C + "block_schedule.py", "a barrier never waits for the last thread", '"at[k] == alive"', '"at[k] + 1 >= alive"'),
    Fault("jit/cuda.py", "a read does not wait for the stream",
          "        if nbytes:\n            self.finish()\n", "        if nbytes:\n"),
    Fault("jit/cuda.py", "the last block is not launched", "(count, 1, 1)", "(max(1, count - 1), 1, 1)"),
    Fault("jit/cuda.py", "the row of the table is forgotten", "table.address, at, state", "table.address, 0, state"),
    Fault("jit/cuda.py", "no operand of a product is transposed",
          "blas.CUBLAS_OP_T if transposed else blas.CUBLAS_OP_N", "blas.CUBLAS_OP_N"),
    Fault("jit/cuda.py", "a product begins at the first matrix of its batch", "at + offset * dtype.itemsize", "at"),
    Fault("jit/kernels/lower.py", "sums of a tile meet one column further", 'a.same("mul", half, self.across)', 'half'),
    Fault("jit/cuda.py", "new memory is not set to zero", "        self.zero(buffer, 0, size)\n", ""),
    Fault("jit/cuda.py", "products and sums are contracted", '"--fmad=false"', '"--fmad=true"'),
)  # fmt: skip


class _Planter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module with other text."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._name = fault.file.removesuffix(".py").replace("/", ".")

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, origin=str(_ROOT / self._fault.file)) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        text, fault = (_ROOT / self._fault.file).read_text(), self._fault
        assert text.count(fault.old) == fault.times, f"{fault.file} holds {fault.old!r} {text.count(fault.old)} times"
        exec(compile(text.replace(fault.old, fault.new), str(_ROOT / fault.file), "exec"), module.__dict__)


def caught(fault: Fault) -> Caught:
    """Run the sample with the fault until a test fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "tests.conformance.cuda.faults", _TESTS]
    done = subprocess.run(
        command, cwd=_ROOT, env={**os.environ, "PLANTED_FAULT": str(FAULTS.index(fault))}, capture_output=True, text=True, check=False
    )
    first = re.search(r"^FAILED \S+?::(.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return Caught(fault, first[1] if first else "")


if "PLANTED_FAULT" in os.environ:
    sys.meta_path.insert(0, _Planter(FAULTS[int(os.environ["PLANTED_FAULT"])]))
