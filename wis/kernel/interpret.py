"""The definition of the kernel tier: all threads of some blocks at once, in NumPy, always running those with the least block number.

``launch`` runs a verified kernel (or a slice of its grid) on byte buffers and counts thread-instructions exactly: every op and every
terminator counts 1 for each thread that executes it. May live here: meaning. May not: rules, code generation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wis.dtypes import DType
from wis.kernel.model import Bar, BufferParam, Cbr, Kernel, Op, RegType, Ret, Space, Special
from wis.kernel.ops import BY_CODE, NAMED, Sig
from wis.kernel.verify import VerifiedKernel
from wis.reference.access import convert, immediate
from wis.reference.elementwise import MAP

__all__ = ["Launch", "Outcome", "launch"]

Array = npt.NDArray[Any]
Dim3 = tuple[int, int, int]

_WIS: Final[dict[RegType, DType]] = {
    RegType.PRED: DType.BOOL,
    RegType.F16: DType.F16,
    RegType.BF16: DType.BF16,
    RegType.F32: DType.F32,
    RegType.F64: DType.F64,
    RegType.I16: DType.I16,
    RegType.I32: DType.I32,
    RegType.I64: DType.I64,
}
_NUMPY: Final = {register: dtype.numpy for register, dtype in _WIS.items()}
_UNSIGNED: Final = {DType.I16: DType.U16, DType.I32: DType.U32, DType.I64: DType.U64}
_WARP: Final = 32
_BATCH_THREADS: Final = 1 << 16  # blocks are run this many threads at a time, which bounds memory


@dataclass(frozen=True, slots=True)
class Launch:
    """A grid of blocks, or the slice ``first .. first + count - 1`` of its blocks in row-major order (x fastest)."""

    grid: Dim3
    block: Dim3
    first: int = 0
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """``trapped``: an index was outside of its memory; ``out_of_fuel``: the run was cut short; ``instructions``: thread-instructions."""

    trapped: bool
    out_of_fuel: bool
    instructions: int


def launch(verified: VerifiedKernel, where: Launch, params: Sequence[Array | int | float], fuel: int | None = None) -> Outcome:
    """Run. ``params``: a 1-D u8 array a buffer, a number a scalar. ``fuel``: thread-instructions after which the run is cut short.

    Raises ValueError when the launch or the parameters do not fit the kernel.
    """
    kernel = verified.kernel
    threads = prod(where.block)
    if min(*where.grid, *where.block) < 1 or threads > kernel.threads_max:
        raise ValueError(f"{threads} threads a block, accepted is 1 to {kernel.threads_max}; grids and blocks have at least one of each")
    count = prod(where.grid) - where.first if where.count is None else where.count
    if where.first < 0 or count < 0 or where.first + count > prod(where.grid):
        raise ValueError(f"blocks {where.first} to {where.first + count} of {prod(where.grid)}")
    memory, scalars = _arguments(kernel, params)
    step = max(1, _BATCH_THREADS // threads)
    trapped, spent = False, 0
    for first in range(where.first, where.first + count, step):
        blocks = np.arange(first, min(first + step, where.first + count))
        batch = _Batch(kernel, where, blocks, memory, scalars, None if fuel is None else fuel - spent)
        finished = batch.run()
        trapped |= batch.trapped
        spent += batch.instructions
        if not finished:
            return Outcome(trapped, True, spent)
    return Outcome(trapped, False, spent)


def _arguments(kernel: Kernel, params: Sequence[Array | int | float]) -> tuple[dict[int, Array], dict[int, Array]]:
    if len(params) != len(kernel.params):
        raise ValueError(f"the kernel has {len(kernel.params)} parameters, {len(params)} were given")
    memory, scalars = {}, {}
    for number, (param, given) in enumerate(zip(kernel.params, params, strict=True)):
        if isinstance(param, BufferParam):
            if not isinstance(given, np.ndarray) or given.dtype != np.uint8 or given.ndim != 1:
                raise ValueError(f"parameter {number} must be a 1-D u8 array")
            memory[number] = given
        else:
            if isinstance(given, np.ndarray):
                raise ValueError(f"parameter {number} must be a number")
            scalars[number] = immediate(given, _WIS[RegType(param.reg_type)])
    return memory, scalars


class _Batch:
    """The threads of some blocks. ``pc``: the block of code each thread is at; beyond the last one, ended or (parked) at a barrier."""

    def __init__(
        self, kernel: Kernel, where: Launch, blocks: Array, memory: dict[int, Array], scalars: dict[int, Array], fuel: int | None
    ) -> None:
        self.kernel, self.memory, self.scalars, self.fuel = kernel, memory, scalars, fuel
        threads = prod(where.block)
        self.n = len(blocks) * threads
        self.cta = np.repeat(np.arange(len(blocks)), threads)
        self.special = _specials(where, np.repeat(blocks, threads), np.tile(np.arange(threads), len(blocks)))
        self.regs = [np.zeros(self.n, _NUMPY[RegType(t)]) for t in kernel.regs]
        self.shared = [np.zeros((len(blocks), array.n), DType(array.dtype).numpy) for array in kernel.shared]
        self.trapped = False
        self.instructions = 0

    def run(self) -> bool:
        """Whether all threads ended (and not the fuel)."""
        blocks = self.kernel.blocks
        ended, parked = len(blocks), len(blocks) + 1  # a parked thread's pc is ``parked`` plus where it goes on
        pc = np.zeros(self.n, np.int64)
        with np.errstate(all="ignore"):
            while True:
                at = int(pc.min(initial=ended))
                if at >= ended:
                    waiting = pc >= parked
                    if not waiting.any():
                        return True
                    # All that have not ended are at a barrier: the verifier saw that those of one block are at the same one.
                    pc[waiting] -= parked
                    continue
                if self.fuel is not None and self.instructions >= self.fuel:
                    return False
                here = np.flatnonzero(pc == at)
                block = blocks[at]
                for op in block.code:
                    self._execute(op, here)
                self.instructions += len(here) * (len(block.code) + 1)
                end = block.end
                if isinstance(end, Cbr):
                    pc[here] = np.where(self.regs[end.pred][here], end.yes, end.no)
                elif isinstance(end, Ret):
                    pc[here] = ended
                else:
                    pc[here] = end.target + (parked if isinstance(end, Bar) else 0)

    def _execute(self, op: Op, here: Array) -> None:
        row = BY_CODE[op.op]
        if row.sig is Sig.LOAD:
            self.regs[op.outs[0]][here] = self._load(op, here)
        elif row.sig is Sig.STORE:
            self._store(op, here)
        else:
            target = RegType(self.kernel.regs[op.outs[0]])
            self.regs[op.outs[0]][here] = self._value(op, row.name, row.sig, target, here)

    def _value(self, op: Op, name: str, sig: Sig, target: RegType, here: Array) -> Array:
        if sig is Sig.CONST:
            bits = np.array([op.attrs[0]], np.int64)
            return _from_bits(bits, target)
        if sig is Sig.SPECIAL:
            return np.asarray(self.special[Special(op.attrs[0])][here])
        if sig is Sig.PARAM:
            return self.scalars[op.attrs[0]]
        ins = [self.regs[r][here] for r in op.ins]
        if sig in _CONVERSIONS:
            return _CONVERSIONS[sig](name, ins[0], target)
        return np.asarray(_FUNCTIONS[name](*ins))

    def _address(self, op: Op, here: Array) -> tuple[Array, Array, Array]:
        """The flat memory as elements, positions in it (0 where outside), and which threads are inside."""
        space, which, dtype = op.attrs
        index = self.regs[op.ins[0]][here]
        kind = DType.U8.numpy if dtype == DType.BOOL else DType(dtype).numpy
        if space == Space.SHARED:
            array = self.shared[which]
            size = array.shape[1]
            flat, base = array.reshape(-1).view(kind), self.cta[here] * size
        else:
            raw = self.memory[which]
            size = len(raw) // kind.itemsize
            flat, base = raw[: size * kind.itemsize].view(kind), np.zeros(len(here), np.int64)
        inside = (index >= 0) & (index < size)
        self.trapped |= not bool(inside.all())
        return flat, base + np.where(inside, index, 0), inside

    def _load(self, op: Op, here: Array) -> Array:
        flat, position, inside = self._address(op, here)
        target = _NUMPY[RegType(self.kernel.regs[op.outs[0]])]
        result = np.zeros(len(here), target)
        values = flat[position[inside]]
        result[inside] = values != 0 if op.attrs[2] == DType.BOOL else values.astype(target)
        return result

    def _store(self, op: Op, here: Array) -> None:
        flat, position, inside = self._address(op, here)
        values = self.regs[op.ins[1]][here][inside]
        flat[position[inside]] = values.astype(flat.dtype)  # threads that store to one place: the last one's value stays


def _specials(where: Launch, block: Array, thread: Array) -> dict[Special, Array]:
    result = {Special.LANE: thread % _WARP}
    for first, number, sizes in ((Special.TID_X, thread, where.block), (Special.CTAID_X, block, where.grid)):
        rest = number
        for d, size in enumerate(sizes):
            result[Special(first + d)] = rest % size
            rest = rest // size
            result[Special(first + 3 + d)] = np.full(len(number), size)
    return {which: values.astype(np.int32) for which, values in result.items()}


def _from_bits(bits: Array, target: RegType) -> Array:
    if target is RegType.PRED:
        return np.asarray(bits != 0)
    return bits.astype(f"i{target.bits // 8}").view(_NUMPY[target])


def _unsigned(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}")


def _widen(name: str, x: Array, target: RegType) -> Array:
    return (_unsigned(x) if name == "zext" else x).astype(_NUMPY[target])


def _int_float(name: str, x: Array, target: RegType) -> Array:
    return (_unsigned(x) if name == "u2f" else x).astype(_NUMPY[target])


def _float_int(name: str, x: Array, target: RegType) -> Array:
    source, to = DType.F32 if x.dtype == np.float32 else DType.F64, _WIS[target]
    return convert(x, source, _UNSIGNED[to] if name == "f2u" else to).view(_NUMPY[target])


def _float_float(name: str, x: Array, target: RegType) -> Array:
    source = next(wis for wis in (DType.F16, DType.BF16, DType.F32, DType.F64) if wis.numpy == x.dtype)
    return convert(x, source, _WIS[target])


_CONVERSIONS: Final[dict[Sig, Callable[[str, Array, RegType], Array]]] = {
    Sig.WIDEN: _widen,
    Sig.NARROW: lambda name, x, target: x.astype(_NUMPY[target]),
    Sig.FLOAT_FLOAT: _float_float,
    Sig.INT_FLOAT: _int_float,
    Sig.FLOAT_INT: _float_int,
    Sig.REINTERPRET: lambda name, x, target: x.view(_NUMPY[target]),
}


def _as_unsigned(f: Callable[..., Array]) -> Callable[..., Array]:
    """``f`` on the unsigned reading of its operands; an integer result is read back as signless."""

    def g(*args: Array) -> Array:
        result = np.asarray(f(*(_unsigned(a) for a in args)))
        return result.view(args[0].dtype) if result.dtype.kind == "u" else result

    return g


_FUNCTIONS: Final[dict[str, Callable[..., Array]]] = {
    **{name: MAP[name] for name in NAMED if name in MAP},
    **{
        name: MAP[name] for name in ("add", "sub", "mul", "neg", "abs", "div", "fma", "sqrt", "min", "max", "fmin", "fmax", "floor", "ceil")
    },
    **{name: MAP[name] for name in ("trunc", "copysign", "and", "or", "xor", "not", "eq", "ne", "lt", "le")},
    "mov": lambda x: x,
    "sel": lambda p, a, b: np.asarray(np.where(p, a, b)),
    "rint": MAP["round"],
    "div_s": MAP["trunc_div"],
    "div_u": _as_unsigned(MAP["trunc_div"]),
    "rem_s": MAP["fmod"],
    "rem_u": _as_unsigned(MAP["fmod"]),
    "min_s": np.minimum,
    "min_u": _as_unsigned(np.minimum),
    "max_s": np.maximum,
    "max_u": _as_unsigned(np.maximum),
    "shl": MAP["shl"],  # a signed amount below 0 is, read unsigned, past the width too
    "shr_s": MAP["shr"],
    "shr_u": _as_unsigned(MAP["shr"]),
    "lt_s": np.less,
    "lt_u": _as_unsigned(np.less),
    "le_s": np.less_equal,
    "le_u": _as_unsigned(np.less_equal),
}

_OTHERWISE = {*_CONVERSIONS, Sig.CONST, Sig.SPECIAL, Sig.PARAM, Sig.LOAD, Sig.STORE}
