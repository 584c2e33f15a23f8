"""Comparing a backend with the definition on random instructions: ``python -m tests.property.fuzz_backends --seconds N [--backend host]``.

Every round makes one valid instruction of any op, with random layouts, types and operand bytes, and runs it on the backend and on the
definition. What the specification calls exact must agree bit by bit (NaN with any NaN), the rest within its tolerance; so must the
traps, and nothing may be written outside of the outputs. ``--chains`` makes programs of several exact instructions that feed each other
instead, which is what planning and fusion are tested by. A failure prints its seed and the program; the same seed repeats it.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from typing import Any

import numpy as np

from jit.backends import create_engine
from jit.engine import Engine
from tests.support.wis_programs import LIMITS, buffers_for, random_program
from wis.dtypes import DType
from wis.kernel.ops import NAMED
from wis.ops import OPS, Kind, Op
from wis.program import BoundInstr, BufferKind, Operand
from wis.reference import run
from wis.text import print_program
from wis.verify import Verified, verify

Array = np.ndarray[Any, Any]
_ROUNDED = {Kind.MATMUL, Kind.CONV, Kind.COARSE, Kind.RANDOM}
_ROUNDED_NAMES = NAMED | {"avg_pool", "avg_pool_dx", "recip", "iota", "mod", "fmod", "floor_div"}
_SEE_SIGNS_OF_NAN = {"sign_bit", "copysign"}
_TOLERANCE = {DType.F16: 4e-3, DType.BF16: 3e-2, DType.F32: 2e-5, DType.F64: 1e-11, DType.C64: 1e-4, DType.C128: 1e-10}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--backend", default="host")
    arguments.add_argument("--ops", default="", help="comma-separated names; default all")
    arguments.add_argument("--chains", action="store_true")
    arguments.add_argument("--seed", type=int, default=None)
    options = arguments.parse_args()
    ops = [op for op in OPS if (op.name in options.ops.split(",") if options.ops else op.kind is not Kind.LAUNCH)]
    if options.chains:
        ops = [op for op in ops if op.kind not in _ROUNDED and op.name not in _ROUNDED_NAMES | _SEE_SIGNS_OF_NAN]
    engine = create_engine(options.backend, cache_dir=None, threads=1, vram_bytes=1 << 30)
    try:
        _loop(engine, ops, options)
    finally:
        engine.close()


def _loop(engine: Engine, ops: list[Op], options: argparse.Namespace) -> None:
    failed: Counter[str] = Counter()
    first = current = options.seed if options.seed is not None else time.time_ns() % (1 << 40)
    end = time.monotonic() + options.seconds
    while current == first or (options.seed is None and time.monotonic() < end):
        name, complaint = one_round(engine, ops, current, 6 if options.chains else 1)
        if complaint:
            failed[name] += 1
            if failed[name] <= 2:  # enough to look at
                print(f"seed {current}: {complaint}\n")
        current += 1
    print(f"{current - first} rounds from seed {first}; disagreements: {dict(failed) or 'none'}")
    if failed:
        raise SystemExit(1)


def one_round(engine: Engine, ops: list[Op], seed: int, length: int = 1) -> tuple[str, str]:
    """(ops, what disagrees or "")."""
    rng = random.Random(seed)
    picks = iter([length])  # the generator's first question

    def pick(low: int, high: int) -> int:
        return next(picks, None) or rng.randint(low, high)

    program, dims, scalars = random_program(pick, ops)
    verified = verify(program, dims, LIMITS)
    names = ",".join(dict.fromkeys(instr.op.name for instr in verified.bound.code))
    start = buffers_for(verified, seed % (1 << 32))
    if length == 1:
        start = [_fill(verified, number, buffer, seed) for number, buffer in enumerate(start)]
    want = [None if b is None else b.copy() for b in start]
    trapped = bool(run(verified, scalars, want))
    try:
        got, engine_trapped = _on_engine(engine, verified, scalars, start)
    except Exception as error:  # whatever a backend raises on a valid program is the finding
        return names, f"raised {type(error).__name__}: {error}\n{print_program(program, dims)}"
    complaint = _compare(verified, want, got)
    if not complaint and trapped != engine_trapped:
        complaint = f"trap is {engine_trapped}, expected {trapped}"
    return names, f"{complaint}\n{print_program(program, dims)}scalars {scalars}" if complaint else ""


def _fill(verified: Verified, number: int, buffer: Array | None, seed: int) -> Array | None:
    """Plain numbers where sums of wild ones would only measure cancellation; else the bytes as they are."""
    instr = verified.bound.code[0]
    if buffer is None or instr.op.kind not in _ROUNDED | {Kind.POOL, Kind.SCAN, Kind.REDUCE} or not buffer.any():
        return buffer
    operands = [x for x in (*instr.outs, *instr.ins) if isinstance(x, Operand) and x.buffer == number]
    dtype = operands[0].dtype
    if not (dtype.is_float or dtype.is_complex):
        return buffer
    n = len(buffer) // dtype.itemsize
    values = np.abs(np.random.default_rng(seed).standard_normal(n)) + 0.1
    result = buffer.copy()
    result[: n * dtype.itemsize] = values.astype(dtype.numpy).view(np.uint8)
    return result


def _on_engine(engine: Engine, verified: Verified, scalars: Any, start: list[Array | None]) -> tuple[list[Array | None], bool]:
    space = engine.open_space()
    try:
        kinds = verified.bound.program.buffers
        keys = [number for number, kind in enumerate(kinds) if kind != BufferKind.TEMP]
        for number in keys:
            buffer = start[number]
            if kinds[number] == BufferKind.EXTERNAL and buffer is not None:
                space.alloc(number, len(buffer))
                space.write(number, 0, buffer.tobytes())
        trap = space.run(engine.prepare(verified), scalars, keys).trap
        got: list[Array | None] = [None] * len(kinds)
        for number in keys:
            got[number] = np.frombuffer(bytes(space.read(number, 0, verified.bound.nbytes[number])), np.uint8)
        return got, trap is not None
    finally:
        space.close()


def _compare(verified: Verified, want: list[Array | None], got: list[Array | None]) -> str:
    outs = {out.buffer: out.dtype for instr in verified.bound.code for out in instr.outs}
    instr = verified.bound.code[-1]
    for number, (a, b) in enumerate(zip(want, got, strict=True)):
        if a is None or b is None or number not in outs:
            if a is not None and b is not None and a.tobytes() != b.tobytes():
                return f"buffer {number}, which is only read, changed"
            continue
        dtype = outs[number]
        n = len(a) // dtype.itemsize * dtype.itemsize
        if dtype.is_float or dtype.is_complex:
            complaint = _compare_numbers(instr, dtype, a[:n].view(dtype.numpy), b[:n].view(dtype.numpy))
        elif dtype is DType.BOOL:  # a moved true may keep its byte
            complaint = "" if ((a != 0) == (b != 0)).all() else f"{b != 0}, expected {a != 0}"
        else:
            complaint = "" if a.tobytes() == b.tobytes() else f"{b[:n].view(dtype.numpy)}, expected {a[:n].view(dtype.numpy)}"
        if complaint:
            return f"buffer {number}: {complaint}"
    return ""


def _compare_numbers(instr: BoundInstr, dtype: DType, want: Array, got: Array) -> str:
    rounded = instr.op.kind in _ROUNDED or instr.op.name in _ROUNDED_NAMES or dtype.is_complex
    tolerance = _TOLERANCE[dtype] if rounded else 0.0
    wide: Any = np.complex128 if dtype.is_complex else np.float64
    with np.errstate(all="ignore"):
        a, b = want.astype(wide), got.astype(wide)
        tiny = 1e-290 if dtype is DType.F64 else float(np.finfo(np.float32).tiny)
        scale = np.nanmax(np.abs(a), initial=0, where=np.isfinite(a)) if instr.op.kind in _ROUNDED else 0  # sums cancel
        near = np.abs(a - b) <= tolerance * np.maximum(np.abs(a), max(tiny, scale))
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | near
        if dtype.is_complex:  # infinities and NaN of complex arithmetic differ between the usual algorithms
            same |= ~np.isfinite(a) | ~np.isfinite(b)
    if same.all():
        return ""
    at = np.flatnonzero(~same)[:5]
    return f"elements {at.tolist()}: {got[at]}, expected {want[at]}"


if __name__ == "__main__":
    main()
