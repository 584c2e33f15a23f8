"""Running one program on the reference and on the host backend, and comparing every buffer that outlives it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jit.backends import create_engine
from jit.engine import Engine, Launch
from jit.errors import Interrupted
from tests.support.builder import Builder
from wis.dtypes import DType
from wis.program import BufferKind, Operand
from wis.verify import verify

Array = npt.NDArray[Any]

VRAM = 1 << 30


@pytest.fixture(scope="session")
def object_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("objects")


@pytest.fixture(scope="session")
def host(object_folder: Path) -> Iterator[Engine]:
    engine = create_engine("host", cache_dir=object_folder, threads=2, vram_bytes=VRAM)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def host_alone(object_folder: Path) -> Iterator[Engine]:
    """The same backend with one thread."""
    engine = create_engine("host", cache_dir=object_folder, threads=1, vram_bytes=VRAM)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def defining() -> Engine:
    return create_engine("reference", cache_dir=None, threads=1, vram_bytes=VRAM)


def run(engine: Engine, b: Builder, inputs: dict[int, Array]) -> tuple[dict[int, bytes], Launch]:
    """Run what was built; ``inputs`` by buffer. Returns the bytes of every EXTERNAL and CREATED buffer afterwards."""
    program, dims, scalars = b.finish()
    verified = verify(program, dims)
    space = engine.open_space()
    keys = [n for n, kind in enumerate(program.buffers) if kind != BufferKind.TEMP]
    for n in keys:
        if program.buffers[n] == BufferKind.EXTERNAL:
            space.alloc(n, verified.bound.nbytes[n])
            if n in inputs:
                space.write(n, 0, np.ascontiguousarray(inputs[n]).tobytes()[: verified.bound.nbytes[n]])
    launch = space.run(engine.prepare(verified), scalars, keys)
    result = {n: bytes(space.read(n, 0, verified.bound.nbytes[n])) for n in keys}
    space.close()
    return result, launch


def ulps(got: Array, want: Array, *, signed_zeros: bool = False) -> Array:
    """Distance in units of the last place of the wanted value's type; NaN equals NaN, and 0 equals -0 unless ``signed_zeros``."""
    wide_got, wide_want = got.astype(np.float64), want.astype(np.float64)
    kind = np.dtype(np.float32) if want.dtype.itemsize < 4 else want.dtype
    with np.errstate(all="ignore"):
        unit = np.spacing(np.abs(want.astype(kind))).astype(np.float64)
        if want.dtype.itemsize == 2:
            unit = np.maximum(
                unit * (2.0**13 if want.dtype == np.float16 else 2.0**16), 2.0**-24 if want.dtype == np.float16 else 2.0**-133
            )
        off = np.abs(wide_got - wide_want) / unit
    same = (wide_got == wide_want) | (np.isnan(wide_got) & np.isnan(wide_want))
    if signed_zeros:
        other_sign = (wide_got == 0) & (wide_want == 0) & (np.signbit(wide_got) != np.signbit(wide_want))
        same, off = same & ~other_sign, np.where(other_sign, np.inf, off)
    return np.where(same, 0.0, np.where(np.isfinite(off), off, np.inf))


Check = Callable[..., Launch]


@pytest.fixture(scope="session")
def check(host: Engine, defining: Engine) -> Check:
    """``check(b, inputs, {operand: ulps allowed})``: operands not named must agree bit by bit (but for the payload of a NaN)."""
    return checker(host, defining)


def checker(engine: Engine, defining: Engine) -> Check:
    """That function, for any engine."""

    def f(b: Builder, inputs: dict[int, Array], tolerant: Sequence[tuple[Operand, float]] = ()) -> Launch:
        want, expected = run(defining, b, inputs)
        got, launch = run(engine, b, inputs)
        assert launch.instructions == expected.instructions
        assert (launch.trap is None) == (expected.trap is None)
        allowed = {operand.buffer: (operand.dtype, most) for operand, most in tolerant}
        for n, wanted in want.items():
            if wanted == got[n]:
                continue
            dtype, most = allowed.get(n, (_dtype_of(b, n), 0.0))
            a, w = (np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype.numpy) for raw in (got[n], wanted))
            if dtype.is_complex:
                part = np.float32 if dtype is DType.C64 else np.float64
                a, w = a.view(part), w.view(part)
            if dtype.is_float or dtype.is_complex:
                off = ulps(a, w, signed_zeros=True)
                worst = int(np.argmax(off))
                assert off[worst] <= most, f"buffer {n} ({dtype.text}) element {worst}: {a[worst]!r} for {w[worst]!r}, {off[worst]:.3g} ulp"
            else:
                wrong = np.flatnonzero(a != w)
                assert not wrong.size, f"buffer {n} ({dtype.text}) element {wrong[0]}: {a[wrong[0]]!r} for {w[wrong[0]]!r}"
        return launch

    return f


def _dtype_of(b: Builder, buffer: int) -> DType:
    """The element type under which a buffer is written."""
    for instr in b.bound().code:
        for out in instr.outs:
            if out.buffer == buffer:
                return out.dtype
    raise AssertionError(f"buffer {buffer} changed although nothing writes it")


def interrupted(engine: Engine, work: Callable[[], object]) -> BaseException | None:
    """What ``work`` raises while the engine interrupts it until it ends."""
    outcome: list[BaseException | None] = [None]

    def run() -> None:
        try:
            work()
        except Interrupted as stopped:
            outcome[0] = stopped

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        engine.interrupt()
        thread.join(0.001)
    return outcome[0]
