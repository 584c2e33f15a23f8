"""Loads and stores at the edges of every kind of memory: inside, beyond by a byte, misaligned, by lanes that go together or apart.

Each is one access of one kernel, compared with the definition: bytes, and which thread traps how.
"""

from __future__ import annotations

import atexit
import itertools
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from jit.kernels.launch import CHECKED, Dim3, KernelOptions, KernelOutcome
from tests.support.compiled_c import CompiledC
from tests.support.kernel_devices import KernelDevice, PreparedKernel
from tests.unit.test_simt.running import agree, kernel
from wis.kernel.model import TrapKind
from wis.kernel.verify import VerifiedKernel

THREADS = 32
REGISTERS = {
    "bool": "pred", "i8": "i32", "u8": "i32", "i16": "i32", "u16": "i32", "i32": "i32", "u32": "i64", "i64": "i64", "f16": "f16",
    "bf16": "bf16", "f32": "f32", "f64": "f64",
}  # fmt: skip
BYTES = {"bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "f32": 4, "i64": 8, "f64": 8}
KEPT = {"pred": "bool", "i32": "i32", "i64": "i64", "f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64"}
"""Element type that a register is stored as, whole."""

OFFSETS = {
    "same": "r0 = param(p3)",
    "steps": "r1 = special(tid.x) / r0 = zext r1 / r2 = param(p4) / r0 = mul r0, r2 / r2 = param(p3) / r0 = add r0, r2",
    "known steps": "r1 = special(tid.x) / r0 = zext r1 / r2 = const({step}) / r0 = mul r0, r2 / r2 = const({first}) / r0 = add r0, r2",
    "widened": "r1 = special(tid.x) / r3 = param(p5) / r1 = mul r1, r3 / r3 = param(p6) / r1 = add r1, r3 / r0 = {extend} r1",
    "looked up": "r1 = special(tid.x) / r0 = zext r1 / r1 = ld(p1 i32) r0 / r0 = sext r1 / r2 = param(p3) / r0 = add r0, r2",
    "signed looked up": "r1 = special(tid.x) / r0 = zext r1 / r1 = ld(p1 i32) r0 / r3 = param(p6) / r1 = add r1, r3 / r0 = sext r1",
    "narrow same": "r1 = param(p6)",
    "narrow steps": "r1 = special(tid.x) / r3 = param(p5) / r1 = mul r1, r3 / r3 = param(p6) / r1 = add r1, r3",
    "narrow known steps": "r1 = special(tid.x) / r3 = const({step}) / r1 = mul r1, r3 / r3 = const({narrow}) / r1 = add r1, r3",
    "narrow looked up": "r1 = special(tid.x) / r0 = zext r1 / r1 = ld(p1 i32) r0 / r3 = param(p6) / r1 = add r1, r3",
}
"""How lanes come to their byte offset, in r0 (i64) or r1 (i32, unsigned): p3 and p6 are where the first is, p4 and p5 the step, p1 is a
table; what is known is a constant."""

WAYS = [
    *itertools.product(("load", "store"), OFFSETS, ["host"]),
    *(("load", offsets, "c") for offsets in ("looked up", "narrow looked up")),
    *(("store", offsets, "c") for offsets in ("looked up", "narrow looked up")),
]
"""What is done, how lanes come to their place, and where: on the host back end, or in C (which knows one way)."""

FILL = "r1 = special(tid.x) / r3 = const(4) / r1 = mul r1, r3 / r3 = const(-2139062144) / r3 = add r3, r1 / store({space} i32) r1, r3"


def access(
    space: str,
    what: str,
    dtype: str,
    *,
    count: int = 1,
    displacement: int = 0,
    offsets: str = "steps",
    first: int = 0,
    step: int = 0,
    nbytes: int = 128,
    extend: str = "zext",
    order: int = 1,
    device: str = "host",
) -> KernelOutcome:
    """Run one ``what`` (load, store; by element instead of by byte: ld, st) of ``count`` elements by 32 threads, thread i at
    ``first + i * step + displacement``, in ``nbytes`` bytes of ``space`` (p0, s0, local, or arena: the address of s0). ``order`` -1: looked
    up from the last to the first."""
    kind = REGISTERS[dtype]
    where = "r1" if offsets.startswith("narrow") else "r0"
    values = [f"r{4 + i}" for i in range(count)]
    place = f"{space} {dtype}{f'x{count}' if count > 1 else ''}{f' {displacement:+}' if displacement else ''}"
    narrow = int(np.array(first, np.int64).astype(np.int32))
    lines = OFFSETS[offsets].format(extend=extend, first=first, narrow=narrow, step=step)
    if space == "arena":
        lines += " / r2 = addr(s0) / r0 = add r0, r2"
    constant = {"pred": "1", "f16": "-17000", "bf16": "-17000"}.get(kind, "-12345")
    if what in ("load", "ld"):
        act = f"{', '.join(values)} = {what}({place}) {where}"
    else:
        act = " / ".join(f"{value} = const({constant})" for value in values) + f" / {what}({place}) {where}, {', '.join(values)}"
    # Whatever was loaded, or is in the memory after the store, into p2: at 64 bytes a thread.
    keep = "r1 = special(tid.x) / r0 = zext r1 / r2 = const(64) / r0 = mul r0, r2"
    if what in ("load", "ld"):
        keep += "".join(f" / store(p2 {KEPT[kind]} +{16 * i}) r0, {value}" for i, value in enumerate(values))
    elif space != "p0":
        read = "s0" if space == "arena" else space
        keep += f" / r3 = const(4) / r1 = mul r1, r3 / r3 = load({read} i32) r1 / store(p2 i32) r0, r3"
    fill = FILL.format(space="s0" if space == "arena" else space) if space != "p0" else "r1 = const(0)"
    local = f"local {nbytes}\n" if space == "local" else ""
    shared = f"shared u8[{nbytes}]\n" if space in ("s0", "arena") else ""
    text = "\n".join((
        "kernel 2 access\nmath strict\nthreads 32\nparam buf u8 rw\nparam buf i32 r\nparam buf u8 w",
        "param i64\nparam i64\nparam i32\nparam i32",
        f"{shared}{local}regs i64 i32 i64 i32 {' '.join([kind] * count)}",
        f"block 0 / {fill} / sync 1, 0 / block 1 / {lines} / {act} / sync 2, 0 / block 2 / {keep} / ret".replace(" / ", "\n"),
    ))  # fmt: skip
    data = np.arange(131, 131 + nbytes, dtype=np.uint8) if dtype != "bool" else (np.arange(nbytes) % 3).astype(np.uint8)
    table = np.array([i * step for i in range(THREADS)][::order], np.int32).view(np.uint8)
    params = [data, table, np.zeros(64 * THREADS, np.uint8), first, step, step, narrow]
    return agree(kernel(text), (1, 1, 1), (THREADS, 1, 1), params, device=in_c() if device == "c" else None)


class _InC(CompiledC):
    """Compiles each kernel once."""

    def prepare(self, verified: VerifiedKernel, block: Dim3, dynamic_bytes: int = 0, options: KernelOptions = CHECKED) -> PreparedKernel:
        made: dict[bytes, PreparedKernel] = self.__dict__.setdefault("made", {})
        if verified.digest not in made:
            made[verified.digest] = super().prepare(verified, block, dynamic_bytes, options)
        return made[verified.digest]


@cache
def in_c() -> KernelDevice:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return _InC(Path(folder.name))


def trap(outcome: KernelOutcome) -> tuple[TrapKind, int] | None:
    return None if outcome.trap is None else (outcome.trap.kind, outcome.trap.thread)


@pytest.mark.parametrize("dtype", REGISTERS)
@pytest.mark.parametrize("offsets", OFFSETS)
def test_every_type_is_loaded_and_stored_by_lanes_of_every_kind(offsets: str, dtype: str) -> None:
    size = BYTES[dtype]
    for what in ("load", "store"):
        assert trap(access("p0", what, dtype, offsets=offsets, step=size, nbytes=THREADS * size)) is None
    assert trap(access("s0", "load", dtype, offsets=offsets, step=size, nbytes=max(128, THREADS * size))) is None


@pytest.mark.parametrize(("what", "offsets", "device"), WAYS)
def test_the_last_byte_is_inside_and_the_next_is_not(what: str, offsets: str, device: str) -> None:
    """Of buffers, whose size is known when they run, and of shared and local memory, whose size is known before."""
    nbytes = 131
    for space, (dtype, count) in itertools.product(("p0", "s0", "local", "arena"), (("u8", 1), ("u8", 4), ("f32", 1), ("f32", 4))):
        if space == "arena" and offsets.startswith("narrow"):
            continue
        size = BYTES[dtype] * count
        step = 0 if "same" in offsets else size if size * THREADS <= 128 else -size if offsets.endswith("looked up") else 0
        last = nbytes // size * size - size
        reach = step * (THREADS - 1)
        first = last - max(reach, 0)
        if first + min(reach, 0) < 0:
            first, step = last, 0
        assert trap(access(space, what, dtype, count=count, offsets=offsets, first=first, step=step, nbytes=nbytes, device=device)) is None
        beyond = access(space, what, dtype, count=count, offsets=offsets, first=first + size, step=step, nbytes=nbytes, device=device)
        assert trap(beyond) == (TrapKind.OUTSIDE, THREADS - 1 if step > 0 else 0)


@pytest.mark.parametrize(("what", "offsets", "device"), WAYS)
def test_displacements_move_and_may_misalign(what: str, offsets: str, device: str) -> None:
    for space, displacement in itertools.product(("p0", "s0", "local", "arena"), (-8, -2, 2, 4)):
        if space == "arena" and offsets.startswith("narrow"):
            continue
        step = 0 if "same" in offsets else 4
        found = access(space, what, "f32", displacement=displacement, offsets=offsets, first=8, step=step, nbytes=160, device=device)
        assert trap(found) == ((TrapKind.MISALIGNED, 0) if displacement % 4 else None), (space, displacement)
        if space not in ("p0", "s0"):
            continue
        below = access(space, what, "f32", displacement=displacement, offsets=offsets, first=0, step=step, nbytes=160, device=device)
        outside = displacement < 0
        assert trap(below) == ((TrapKind.OUTSIDE, 0) if outside else (TrapKind.MISALIGNED, 0) if displacement % 4 else None)
    if offsets.startswith("narrow"):  # the 32-bit number counts from 0, and the displacement does not bring it back
        for space in ("p0", "s0", "local"):
            wrapped = access(space, what, "f32", displacement=6, offsets=offsets, first=-2, nbytes=160, device=device)
            assert trap(wrapped) == (TrapKind.OUTSIDE, 0)


@pytest.mark.parametrize(("what", "offsets", "device"), WAYS)
def test_places_that_wrap_round_are_outside(what: str, offsets: str, device: str) -> None:
    step = 0 if "same" in offsets else 4
    for space in ("p0", "s0", "local"):
        if offsets.startswith("narrow") or offsets == "widened":  # numbers of 32 bits without sign: the third lane's wraps to 0
            found = access(space, what, "i32", offsets=offsets, first=-8, step=step, nbytes=160, device=device)
            assert trap(found) == (TrapKind.OUTSIDE, 0)
            continue
        if offsets == "signed looked up":
            edges, moves = (-8, (1 << 31) - 8, -(1 << 31), (1 << 30) - 8), (0, 4, -4, (1 << 30) - 4, 4 - (1 << 30))
            for first, move in itertools.product(edges, moves):
                found = access(space, what, "i32", displacement=move, offsets=offsets, first=first, step=step, nbytes=160, device=device)
                assert trap(found) == (TrapKind.OUTSIDE, 0), (space, first, move)
            continue
        for first in (-8, 1 << 40, -(1 << 40), (1 << 63) - 8):
            assert trap(access(space, what, "i32", offsets=offsets, first=first, step=step, nbytes=160, device=device)) is not None, (
                space,
                first,
            )
    if offsets == "widened":
        assert trap(access("p0", what, "i32", offsets=offsets, first=-8, step=4, nbytes=160, device=device, extend="sext")) == (
            TrapKind.OUTSIDE,
            0,
        )


@pytest.mark.parametrize("what", ["load", "store"])
def test_places_in_any_order(what: str) -> None:
    for space, dtype, count in itertools.product(("p0", "s0"), ("u8", "i16", "f32", "f64"), (1, 2)):
        size = BYTES[dtype] * count
        assert trap(access(space, what, dtype, count=count, offsets="looked up", step=size, nbytes=512, order=-1)) is None
        found = access(space, what, dtype, count=count, offsets="looked up", first=1, step=size, nbytes=768, order=-1)
        assert trap(found) == ((TrapKind.MISALIGNED, 0) if size > 1 else None)


@pytest.mark.parametrize("device", ["host", "c"])
@pytest.mark.parametrize("dtype", REGISTERS)
def test_elements_are_indexed_in_their_own_size(dtype: str, device: str) -> None:
    size = BYTES[dtype]
    for what, offsets in itertools.product(("ld", "st"), ("same", "steps", "looked up") if device == "host" else ("looked up",)):
        step = 0 if offsets == "same" else 1
        for first, kind in ((40 - step * (THREADS - 1), None), (41 - step * (THREADS - 1), TrapKind.OUTSIDE), (1 << 62, TrapKind.OUTSIDE)):
            found = access("p0", what, dtype, offsets=offsets, first=first, step=step, nbytes=41 * size + size // 2, device=device)
            thread = 0 if first == 1 << 62 else (THREADS - 1) * step
            assert trap(found) == (None if kind is None else (kind, thread)), (what, offsets, first)
