"""From steps to calls: every fused group and every library record as one native call with its argument block."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
from blake3 import blake3

from jit import library as common
from jit.host import library
from jit.host.library import blas
from jit.host.record import SCRATCH_BYTES, Arg, Ptr, Record, ScalarArg, Symbol, TempPtr, TempRef
from jit.host.simt.function import ARGS_PARAM, kernel_text
from jit.host.toolchain import Toolchain, c_function
from jit.kernels import scalar_ops
from jit.kernels.gangs import GangKernel, lower_gangs
from jit.kernels.launch import Dim3, KernelOptions, check_blocks
from jit.kernels.loop import Form, LoopKernel
from jit.kernels.lower import LANES, fixed_numbers
from jit.library.build import Build, Launch
from jit.library.writer import Walk
from jit.plan import calls
from jit.plan.access import Access, access
from jit.plan.calls import Arg as CommonArg
from jit.plan.calls import ArgBlock, Fallback, arguments, block_of
from jit.plan.form import FormedLoop, form
from jit.plan.group import Group
from wis.dtypes import DType
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import Kernel
from wis.kernel.verify import verify_kernel
from wis.program import BoundInstr, Operand


@dataclass(slots=True, kw_only=True)
class Call(calls.Call):
    """One native function with how its units are cut."""

    address: int
    units: int
    grain: float
    scratch_bytes: int
    name: str


_OWN: Final = KernelOptions(check=False, meter=False, fuel=False, clear=False)
"""Indices are inside by construction, programs are counted before they run, and shared memory is written before it is read."""
_LIMITS: Final = replace(KERNEL_LIMITS, shared_bytes_max=1 << 40)
"""Shared memory is the scratch of a thread here."""
_LIGHT: Final = ("sroa", "instruction_combine", "simplify_cfg")
"""Passes for kernels of long loops, which are written as they should run: more make them slower, and take twice as long. Short rows and
columns take the usual passes: what is the same for all of them has to leave their loops."""

_ALONE: Final = frozenset({"erfinv", "lgamma", "digamma"})
"""The reference computes these, and ``erf`` and ``erfc`` of f64: the kernel tier's forms of them have not been measured here."""

_Key = tuple[LoopKernel, tuple[tuple[int, int], ...], bool]


def supported(name: str, out: DType, ins: Sequence[DType]) -> bool:
    """Whether fused groups can have a MAP operation on these element types."""
    if name in _ALONE or (name in ("erf", "erfc") and ins[0] is DType.F64):
        return False
    return scalar_ops.supported(name, out, ins)


@dataclass(frozen=True, slots=True)
class _Native:
    """A compiled kernel; ``scratch_bytes``: what a thread that runs it needs."""

    address: int
    scratch_bytes: int


class Lowering:
    """Makes calls. ``new_temp(nbytes)`` gives the number of a new TEMP buffer."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._toolchain = toolchain
        self._groups: dict[_Key, tuple[GangKernel, _Native]] = {}
        self._kernels: dict[str, _Native] = {}
        self._functions: dict[str, int] = {}
        self._seal = _source_digest()

    @property
    def kernels(self) -> int:
        """How many different fused kernels were needed so far."""
        return len(self._groups)

    def group(self, group: Group) -> Call:
        """A fused group as one call: a verified kernel whose blocks are the units."""
        made = form(group)
        kernel, native = self._fused(made)
        grid = kernel.grid(made.args)
        block = _block(kernel.kernel, arguments(kernel.arguments, made.args), grid)
        block_ns = made.units * made.grain / max(1, prod(grid))
        return _call(native, _title(made), block, grid, block_ns, tuple(group.loads), tuple(group.stores))

    def _fused(self, made: FormedLoop) -> tuple[GangKernel, _Native]:
        fixed, short = fixed_numbers(made.kernel, made.args), is_short(made)
        key = made.kernel, tuple(fixed.items()), short
        if key not in self._groups:
            kernel = lower_gangs(made.kernel, "group", fixed=fixed, short=short)
            passes = () if short or made.kernel.form is Form.COLS else _LIGHT
            self._groups[key] = kernel, self._compiled(kernel.kernel, LANES, passes)
        return self._groups[key]

    def _compiled(self, kernel: Kernel, threads: int, passes: Sequence[str]) -> _Native:
        """A kernel for blocks of so many threads."""
        verified = verify_kernel(kernel, _LIMITS)
        seal = f"{self._seal}\n{verified.digest.hex()}\n{threads} {_OWN} {passes}"
        symbol = f"{kernel.name}_{blake3(seal.encode()).hexdigest(16)}"
        found = self._toolchain.functions(
            seal,
            (symbol, f"{symbol}_scratch"),
            lambda: kernel_text(verified, symbol, (threads, 1, 1), 0, _OWN),
            optimise=True,
            passes=passes,
        )
        return _Native(found[symbol], c_function(found[f"{symbol}_scratch"], ctypes.c_int64)())

    def has(self, instr: BoundInstr) -> bool:
        """Whether a library has a native form of this instruction."""
        return common.lower(Build(lambda _: 0, lambda x: x, gangs=True), instr) or library.lower(instr) is not None

    def single(self, instr: BoundInstr, new_temp: Callable[[int], int]) -> list[Call | Fallback]:
        """One unfused instruction: launches of the library, records of the host's own, or the reference."""
        build = Build(new_temp, self._launched, gangs=True)
        if common.lower(build, instr):
            return list(build.calls)
        records = library.lower(instr)
        if records is None:
            return [Fallback.of(instr)]
        temps: dict[int, tuple[int, int]] = {}
        for record in records:
            for x in (*record.reads, *record.writes):
                if isinstance(x, TempRef) and x.id not in temps:
                    temps[x.id] = (new_temp(x.nbytes), x.nbytes)
        return [self._record(record, temps) for record in records]

    def _launched(self, x: Launch) -> Call:
        """A launch of a kernel of the library, whose blocks are the units."""
        name = x.made.kernel.name
        if name not in self._kernels:
            vectors = x.made.walk is Walk.RUNS and x.made.threads > 1
            self._kernels[name] = self._compiled(x.made.kernel, x.made.threads, _LIGHT if vectors else ())
        return _call(self._kernels[name], name, _block(x.made.kernel, x.args, x.grid), x.grid, x.block_ns, x.reads, x.writes)

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
            address=self._library(record.fn), units=record.units, grain=record.grain,
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


def _title(made: FormedLoop) -> str:
    return f"{made.kernel.form.name.lower()}[{'+'.join(node.op for node in made.kernel.nodes if node.op not in ('load', 'scalar'))}]"


def _source_digest() -> str:
    """A digest of the code generator's own source: a cached object is only as good as the code that wrote it. Kernels are in its key."""
    import jit.host.emit as emitter
    import jit.host.simt as simt

    digest = blake3()
    for package in (emitter, simt):
        for path in sorted(Path(str(package.__file__)).parent.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def is_short(made: FormedLoop) -> bool:
    """Whether the rows of a group have fewer elements than there are lanes."""
    loop = made.kernel
    inner = made.args[loop.layout.inner_size]
    return loop.form is Form.ROWS and not loop.n_mid and isinstance(inner, int) and inner < LANES


def _block(kernel: Kernel, args: Sequence[CommonArg], grid: Dim3) -> ArgBlock:
    """The words of a launch as ``jit.host.simt.function`` reads them; the state is not used."""
    return block_of(kernel, args, buffer_words=ARGS_PARAM, number_words=ARGS_PARAM, head=(0, *grid))


def _call(
    native: _Native, name: str, block: ArgBlock, grid: Dim3, block_ns: float, reads: tuple[Access, ...], writes: tuple[Access, ...]
) -> Call:
    check_blocks(name, max(grid))
    return Call(
        block, reads, writes, address=native.address, units=prod(grid), grain=block_ns,
        scratch_bytes=max(SCRATCH_BYTES, native.scratch_bytes), name=name,
    )  # fmt: skip


def _arg_block(args: Sequence[Arg]) -> ArgBlock:
    """The block of these arguments; what only a run knows is 0 in ``words``."""
    words: list[int] = []
    pointers: list[tuple[int, int, int]] = []
    scalars: list[tuple[DType, int, int]] = []
    for slot, x in enumerate(args):
        value = 0
        if isinstance(x, int):
            value = x
        elif isinstance(x, Ptr):
            pointers.append((slot, x.buffer, x.byte_offset))
        elif isinstance(x, ScalarArg):
            scalars.append((x.dtype, slot, x.slot))
        elif isinstance(x, Symbol):
            value = blas.address(x.name)
        else:
            raise TypeError(f"{x!r} is not resolved to a buffer")
        words.append(value)
    table = np.array(pointers, np.int64).reshape(-1, 3)
    return ArgBlock(np.array(words, np.int64), table, (), tuple(scalars))
