"""From steps to calls: every fused group and every library record as one native call with its argument block."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jit.host import library
from jit.host.emit.kernel import function_text
from jit.host.library import blas
from jit.host.record import F32, F64, SCRATCH_BYTES, Arg, Ptr, Record, ScalarArg, Symbol, TempPtr, TempRef, TrapPtr, TrapSite
from jit.host.toolchain import Toolchain
from jit.kernels.loop import LoopKernel
from jit.plan import calls
from jit.plan.access import Access, access
from jit.plan.calls import ArgBlock, Fallback
from jit.plan.form import FormedLoop, form
from jit.plan.group import Group
from wis.dtypes import DType
from wis.program import BoundInstr, Operand, Scalar
from wis.traps import index_key

__all__ = ["Call", "Lowering", "title"]


@dataclass(slots=True, kw_only=True)
class Call(calls.Call):
    """One native function with how its units are cut."""

    address: int
    units: int
    grain: float
    max_chunks: int
    scratch_bytes: int
    name: str


class Lowering:
    """Makes calls. ``new_temp(nbytes)`` gives the number of a new TEMP buffer."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._toolchain = toolchain
        self._kernels: dict[LoopKernel, int] = {}
        self._functions: dict[str, int] = {}
        self._seal = _emitter_digest()

    @property
    def kernels(self) -> int:
        """How many different fused kernels were needed so far."""
        return len(self._kernels)

    def group(self, group: Group) -> Call:
        """A fused group as one call."""
        made = form(group)
        return Call(
            _arg_block([_arg(x) for x in made.args]), tuple(group.loads), tuple(group.stores), address=self._kernel(made.kernel),
            units=made.units, grain=made.grain, max_chunks=0, scratch_bytes=SCRATCH_BYTES, name=title(made),
        )  # fmt: skip

    def _kernel(self, kernel: LoopKernel) -> int:
        address = self._kernels.get(kernel)
        if address is None:
            key = f"{self._seal}\n{kernel!r}"
            name = f"fused_{hashlib.sha256(key.encode()).hexdigest()[:32]}"
            address = self._toolchain.function(key, name, lambda: function_text(kernel, name))
            self._kernels[kernel] = address
        return address

    def has(self, instr: BoundInstr) -> bool:
        """Whether the library has a native form of this instruction."""
        return library.lower(instr) is not None

    def single(self, instr: BoundInstr, new_temp: Callable[[int], int]) -> list[Call | Fallback]:
        """One unfused instruction: the library's records, or the reference."""
        records = library.lower(instr)
        if records is None:
            return [Fallback.of(instr)]
        temps: dict[int, tuple[int, int]] = {}
        for record in records:
            for x in (*record.reads, *record.writes):
                if isinstance(x, TempRef) and x.id not in temps:
                    temps[x.id] = (new_temp(x.nbytes), x.nbytes)
        return [self._record(record, temps) for record in records]

    def _record(self, record: Record, temps: dict[int, tuple[int, int]]) -> Call:
        def touched(x: Operand | TempRef) -> Access:
            if isinstance(x, Operand):
                return access(x)
            number, nbytes = temps[x.id]
            return Access(number, DType.U8, 0, ((nbytes, 1),), 0, nbytes)

        def arg(x: Arg) -> Arg:
            return Ptr(temps[x.id][0], x.byte_offset) if isinstance(x, TempPtr) else x

        return Call(
            _arg_block([arg(x) for x in record.args]), tuple(touched(x) for x in record.reads), tuple(touched(x) for x in record.writes),
            address=self._library(record.fn), units=record.units, grain=record.grain, max_chunks=record.max_chunks,
            scratch_bytes=max(record.scratch_bytes, SCRATCH_BYTES), name=record.fn,
        )  # fmt: skip

    def _library(self, fn: str) -> int:
        """The address of a library function, with what it calls loaded before it."""
        if fn not in self._functions:
            for other in library.requires(fn):
                self._library(other)
            source = library.source(fn)
            self._functions[fn] = self._toolchain.function(source, fn, lambda: source, optimise=True)
        return self._functions[fn]


def _arg(x: int | Access | Scalar) -> Arg:
    if isinstance(x, Access):
        return Ptr(x.buffer, x.offset * x.dtype.itemsize)
    return ScalarArg(x.slot, x.dtype) if isinstance(x, Scalar) else x


def title(made: FormedLoop) -> str:
    return f"{made.kernel.form.name.lower()}[{'+'.join(node.op for node in made.kernel.nodes if node.op not in ('load', 'scalar'))}]"


def _emitter_digest() -> str:
    """A digest of the emitter's own source: a cached object is only as good as the code that wrote it."""
    from pathlib import Path

    import jit.host.emit as emitter
    import jit.kernels as kernels

    digest = hashlib.sha256()
    for package in (emitter, kernels):
        for path in sorted(Path(str(package.__file__)).parent.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _arg_block(args: Sequence[Arg]) -> ArgBlock:
    """The block of these arguments; what only a run knows is 0 in ``words``."""
    words: list[int] = []
    pointers: list[tuple[int, int, int]] = []
    traps: list[int] = []
    sites: list[int] = []
    scalars: list[tuple[DType, int, int]] = []
    for slot, x in enumerate(args):
        value = 0
        if isinstance(x, int):
            value = x
        elif isinstance(x, Ptr):
            pointers.append((slot, x.buffer, x.byte_offset))
        elif isinstance(x, ScalarArg):
            scalars.append((x.dtype, slot, x.slot))
        elif isinstance(x, F32):
            value = int(np.float32(x.value).view(np.uint32))
        elif isinstance(x, F64):
            value = int(np.float64(x.value).view(np.int64))
        elif isinstance(x, Symbol):
            value = blas.address(x.name)
        elif isinstance(x, TrapPtr):
            traps.append(slot)
        elif isinstance(x, TrapSite):
            sites.append(slot)
            value = index_key(x.dimension, 0)
        else:
            raise TypeError(f"{x!r} is not resolved to a buffer")
        words.append(value)
    table = np.array(pointers, np.int64).reshape(-1, 3)
    return ArgBlock(np.array(words, np.int64), table, tuple(traps), tuple(scalars), tuple(sites))
