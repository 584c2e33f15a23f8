"""Random valid kernels that use everything, with the arguments of a launch.

No two threads of a generated kernel race, so every back end must leave the same bytes, count the same instructions and report the same
trap: a thread stores to its own slots only; what threads exchange in shared memory is between barriers; what they add up together is
integer and commutes. NaNs, whose bits are not defined, are made one before they could be seen in memory or in an integer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from tests.support.kernel_writer import Writer
from wis.dtypes import DType
from wis.kernel.matrix import INTEGERS
from wis.kernel.model import (
    KERNEL_VERSION,
    LOCAL_BASE,
    SHARED_BASE,
    Access,
    Atomic,
    Bar,
    BufferParam,
    Call,
    Function,
    Kernel,
    Math,
    Matrix,
    Rounding,
    ScalarParam,
    Shared,
    Shuffle,
    Space,
    Special,
    Sync,
)
from wis.kernel.model import RegType as T
from wis.kernel.ops import KERNEL_OPS, KernelOp, Sig
from wis.kernel.strict import STRICT_FORMS
from wis.kernel.verify import MEMORY_TYPES

__all__ = ["Case", "Pick", "random_case", "seeded_case"]

Bytes = npt.NDArray[np.uint8]
Pick = Callable[[int, int], int]  # an integer between two bounds, both included
A = TypeVar("A")

INTS: Final = (T.I16, T.I32, T.I64)
FLOATS: Final = (T.F32, T.F64)
ANY_FLOATS: Final = (T.F16, T.BF16, T.F32, T.F64)
_SLOT: Final = 64  # bytes of the output that belong to one thread
_OWN: Final = 16  # bytes of shared memory that do
_INPUT: Final = 512
_PLACES: Final = 16  # elements that threads add up in
_LOCAL: Final = 48
_BLOCKS: Final = (
    (1, 1, 1), (32, 1, 1), (64, 1, 1), (33, 1, 1), (7, 5, 1), (8, 4, 2), (96, 1, 1), (5, 1, 3), (40, 1, 1), (16, 16, 1), (300, 1, 1),
)  # fmt: skip
_COMMUTING: Final = (Atomic.ADD, Atomic.MIN, Atomic.MAX, Atomic.AND, Atomic.OR, Atomic.XOR)
_ATOMIC_TYPES: Final = (DType.I32, DType.U32, DType.I64, DType.U64)
_SIMPLE: Final = (
    Sig.NUMBER, Sig.FLOAT, Sig.INT, Sig.BITS, Sig.EQUAL, Sig.ORDER_FLOAT, Sig.ORDER_INT, Sig.SELECT, Sig.WIDEN, Sig.NARROW, Sig.FLOAT_FLOAT,
    Sig.INT_FLOAT, Sig.FLOAT_INT, Sig.REINTERPRET, Sig.COUNT, Sig.FIELD, Sig.INSERT, Sig.WORD3, Sig.ROUNDED, Sig.CVT_ROUNDED,
    Sig.INT_FLOAT_ROUNDED, Sig.MOV, Sig.CONST, Sig.SPECIAL,
)  # fmt: skip
_WARP: Final = (Sig.SHFL, Sig.VOTE, Sig.BALLOT, Sig.MATCH_ANY, Sig.MATCH_ALL, Sig.ACTIVEMASK, Sig.REDUX, Sig.MMA, Sig.MMA_F64, Sig.WARPSYNC)


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel and one launch of it. ``params``: u8 arrays (the first value of what a run may change) and numbers."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_bytes: int
    params: tuple[Bytes | int | float, ...]


@dataclass(frozen=True, slots=True)
class _Traits:
    """What a kernel as a whole does."""

    reads_back: bool  # a thread loads from its output slot, and reaches it by address
    barriers: bool
    early_ends: bool
    warp: bool
    dynamic: bool
    wild: bool  # a few accesses are outside or misaligned
    threads: int  # for how many there are places in shared memory
    local_bytes: int
    constants: bytes
    reds: tuple[tuple[Atomic, DType], ...]  # the function and type of each buffer (p2, p3) and of the shared array s2


def random_case(pick: Pick, size: int = 40) -> Case:
    """A case of about ``size`` statements from a source of integers."""
    yes = _chance(pick)
    reds = tuple((_COMMUTING[pick(0, 5)], _ATOMIC_TYPES[pick(0, 3)]) for _ in range(3))
    block = _BLOCKS[pick(0, len(_BLOCKS) - 1)]
    wild = yes(20)
    local_bytes = (_LOCAL, _LOCAL, 0, 1000)[pick(0, 3)]
    constants = bytes(pick(0, 255) for _ in range(pick(0 if wild else 1, 40)))
    traits = _Traits(yes(50), yes(60), yes(25), yes(60), yes(30), wild, max(96, prod(block)), local_bytes, constants, reds)
    grid = ((1, 1, 1), (3, 1, 1), (2, 2, 1), (1, 2, 3), (5, 1, 1))[pick(0, 4)]
    functions: list[Function] = []
    uniform: list[bool] = []  # whether a function has barriers, so that all threads must call it together
    for number in range(pick(0, 2)):
        meets = traits.barriers and yes(40)
        body = _Body(pick, traits, functions, uniform)
        functions.append(body.function(f"f{number}", max(3, size // 8), meets))
        uniform.append(meets)
    kernel = _Body(pick, traits, functions, uniform).kernel(size, _most_threads(pick, prod(block)))
    return Case(kernel, grid, block, 8 * pick(0, 6) if traits.dynamic else 0, _params(pick, kernel, prod(grid) * prod(block), traits))


def _most_threads(pick: Pick, threads: int) -> int:
    return (threads, 96, 256)[pick(0, 2)] if threads <= 96 else threads  # never more than traits say there are places for


def _chance(pick: Pick) -> Callable[[int], bool]:
    return lambda percent: pick(1, 100) <= percent


def _params(pick: Pick, kernel: Kernel, threads: int, traits: _Traits) -> tuple[Bytes | int | float, ...]:
    rng = np.random.default_rng(pick(0, (1 << 32) - 1))
    values = rng.integers(0, 256, _INPUT, np.uint8)
    floats = (rng.standard_normal(_INPUT // 8) * 4).astype(np.float32)
    values[: _INPUT // 2] = floats.view(np.uint8)
    out = threads * _SLOT - (pick(0, 2 * _SLOT) if traits.wild else 0)
    sums = [rng.integers(0, 256, _PLACES * dtype.itemsize, np.uint8) for _, dtype in traits.reds[:2]]
    integers, floats_ = [pick(-100, 100), pick(-(1 << 63), (1 << 63) - 1)], [pick(-1000, 1000) / 8, pick(-1000, 1000) / 3]
    return (values, rng.integers(0, 256, max(out, 0), np.uint8), *sums, *integers, *floats_, pick(-9, 9))


class _Body:
    """The code of a kernel or function, statement by statement."""

    def __init__(self, pick: Pick, traits: _Traits, functions: Sequence[Function], uniform: Sequence[bool]) -> None:
        self.pick, self.traits, self.functions, self.uniform_functions = pick, traits, functions, uniform
        self.yes = _chance(pick)
        self.w = Writer()
        self.fixed: set[int] = set()  # registers that only the prologue writes

    def choose(self, options: Sequence[A]) -> A:
        return options[self.pick(0, len(options) - 1)]

    def kernel(self, size: int, threads_max: int) -> Kernel:
        self._prologue()
        for number, type_ in enumerate((T.I32, T.I64, T.F32, T.F64, T.I16)):
            self.w.value("param", type_, attrs=(4 + number,))
        self._statements(size, 0, meets=self.traits.barriers)
        self._epilogue()
        access = Access.READ_WRITE if self.traits.reads_back else Access.WRITE
        params: tuple[BufferParam | ScalarParam, ...] = (
            BufferParam(DType.F32, Access.READ),
            BufferParam(DType.U8, access),
            *(BufferParam(dtype, Access.READ_WRITE) for _, dtype in self.traits.reds[:2]),
            *(ScalarParam(t) for t in (T.I32, T.I64, T.F32, T.F64, T.I16)),
        )
        shared = [
            Shared(DType.U8, self.traits.threads * _OWN),
            Shared(DType.I32, self.traits.threads),
            Shared(self.traits.reds[2][1], _PLACES),
        ]
        shared += [Shared(DType.U8, self.pick(0, 9))] if self.traits.dynamic else []
        regs, blocks = tuple(self.w.regs), self.w.finish()
        return Kernel(
            KERNEL_VERSION, "k", Math.STRICT, threads_max, params, tuple(shared), regs, blocks, int(self.traits.dynamic),
            self.traits.local_bytes, self.traits.constants,
            tuple(self.functions),
        )  # fmt: skip

    def function(self, name: str, size: int, meets: bool) -> Function:
        """Takes an i32 and an f32, gives an i32 and an f32."""
        ins = (self.w.reg(T.I32), self.w.reg(T.F32))
        self._prologue()
        outs = (self.w.value("mov", T.I32, ins[0]), self.w.value("mov", T.F32, ins[1]))
        self._statements(size, 1, meets=meets)
        return Function(name, ins, outs, tuple(self.w.regs), self.w.finish())

    def _prologue(self) -> None:
        """Who the thread is, and something of every type."""
        w = self.w

        def special(which: Special) -> int:
            return w.value("special", T.I32, attrs=(which,))

        def chained(axes: Sequence[int], sizes: Sequence[int]) -> int:
            (x, y, z), (sx, sy) = axes, sizes
            inner = w.value("add", T.I32, y, w.value("mul", T.I32, sy, z))
            return w.value("add", T.I32, x, w.value("mul", T.I32, sx, inner))

        self.tid = chained([special(Special(k)) for k in (0, 1, 2)], [special(Special(k)) for k in (3, 4)])
        self.cta = chained([special(Special(k)) for k in (6, 7, 8)], [special(Special(k)) for k in (9, 10)])
        per_block = w.value("mul", T.I32, special(Special.NTID_X), special(Special.NTID_Y))
        self.threads = w.value("mul", T.I32, per_block, special(Special.NTID_Z))
        number = w.value("add", T.I32, w.value("mul", T.I32, self.cta, self.threads), self.tid)
        self.slot32 = w.value("mul", T.I32, number, w.const(T.I32, _SLOT))
        self.slot = w.value("sext", T.I64, self.slot32)
        self.own = w.value("mul", T.I32, self.tid, w.const(T.I32, _OWN))
        self.fixed = set(range(len(w.regs)))
        w.scope = {t: [] for t in T}
        w.value("mov", T.I32, self.tid)
        w.value("mov", T.I64, self.slot)
        w.const(T.I16, self.pick(-(1 << 15), (1 << 15) - 1))
        w.value("eq", T.PRED, self.tid, w.const(T.I32, self.pick(0, 3)))
        f = w.value("s2f", T.F32, self.tid)
        for t in (T.F64, T.F16, T.BF16):
            w.value("cvt", t, f)

    def _epilogue(self) -> None:
        """The values of some registers go to memory, so that what was computed can be seen."""
        for t, place in ((T.I32, 0), (T.I64, 8), (T.F32, 16), (T.F64, 24), (T.I16, 32), (T.PRED, 40)):
            value = self._known(self.choose(self.w.scope[t]), t)
            dtype = {T.I32: DType.I32, T.I64: DType.I64, T.F32: DType.F32, T.F64: DType.F64, T.I16: DType.I16, T.PRED: DType.BOOL}[t]
            self.w.emit("store", (), (self.slot, value), (Space.GLOBAL, 1, dtype, 1, place, 0))

    # Values

    def any(self, type_: T) -> int:
        """A register of this type that is written."""
        if not self.w.scope[type_] or self.yes(8):
            return self.w.const(type_, self._bits(type_))
        return self.choose(self.w.scope[type_])

    def _bits(self, type_: T) -> int:
        if type_ is T.PRED:
            return self.pick(0, 1)
        top = 1 << type_.bits - 1
        if type_ in INTS:
            return self.choose((0, 1, -1, 2, 7, 31, 32, -top, top - 1, self.pick(-40, 40) % top, self.pick(-top, top - 1)))
        kind = {T.F16: np.float16, T.F32: np.float32, T.F64: np.float64}.get(type_)
        if kind is None:
            return self.choose((0, 0x3F80, -0x4000, 0x4049, self.pick(-top, top - 1)))
        value = self.choose((0.0, -0.0, 1.0, -1.5, 0.1, 3.0, 1e-3, 123.75, float("inf"), float("nan"), self.pick(-1000, 1000) / 7))
        return int(np.array([value], kind).view(f"i{type_.bits // 8}")[0])

    def target(self, type_: T) -> int:
        """Where a result goes: a new register, or one that holds something."""
        if self.w.scope[type_] and self.yes(40):
            return self.choose(self.w.scope[type_])
        self.w.regs.append(int(type_))
        return len(self.w.regs) - 1

    def put(self, name: str, types: Sequence[T], ins: Sequence[int], attrs: Sequence[int] = ()) -> list[int]:
        """An op whose results go somewhere. Results of one op go to different registers."""
        outs: list[int] = []
        for t in types:
            out = self.target(t)
            if out in outs:
                self.w.regs.append(int(t))
                out = len(self.w.regs) - 1
            outs.append(out)
        self.w.emit(name, outs, ins, attrs)
        for t, out in zip(types, outs, strict=True):
            if out not in self.w.scope[t]:
                self.w.scope[t].append(out)
        return outs

    def _known(self, r: int, type_: T) -> int:
        """The value with one NaN for all."""
        if type_ not in ANY_FLOATS:
            return r
        w = self.w
        number = r if type_ in FLOATS else w.value("cvt", T.F32, r)
        quiet = {T.F16: 0x7E00, T.BF16: 0x7FC0, T.F32: 0x7FC00000, T.F64: 0x7FF8 << 48}[type_]
        return w.value("sel", type_, w.value("ne", T.PRED, number, number), w.const(type_, quiet), r)

    def small(self, most: int) -> int:
        """An i32 of 0 .. most, a power of two less one."""
        return self.w.value("and", T.I32, self.any(T.I32), self.w.const(T.I32, most))

    # Statements

    def _statements(self, size: int, depth: int, meets: bool) -> None:
        while size > 0:
            size -= self._statement(size, depth, meets)

    def _statement(self, size: int, depth: int, meets: bool) -> int:
        """Write one; what it counts for."""
        kind = self.pick(0, 99)
        if kind < 46:
            self._compute()
            return 1
        if kind < 68:
            self._memory()
            return 1
        if kind < 76 and self.traits.warp:
            self._warp()
            return 1
        if kind < 82 and meets:
            self._exchange()
            return 2
        if kind < 85 and self.functions:
            self._call(meets)
            return 2
        if kind < 87 and self.w.loops:
            self.w.leave(self.any(T.PRED), turn_only=self.yes(50)) if not meets else self._compute()
            return 1
        if kind < 88 and self.traits.early_ends and not self.w.loops:
            self.w.finish_if(self.any(T.PRED))
            return 1
        if depth >= 3 or size < 3:
            self._compute()
            return 1
        inner = self.pick(2, max(2, size // 2))
        self._nested(inner, depth, meets)
        return inner + 1

    def _nested(self, inner: int, depth: int, meets: bool) -> None:
        w, kind = self.w, self.pick(0, 5)
        if kind == 0:
            with w.when(self.any(T.PRED)):
                self._statements(inner, depth + 1, False)
        elif kind == 1:
            for _ in w.cases(None, self.any(T.PRED), 2):
                self._statements(inner // 2, depth + 1, False)
        elif kind == 2:
            index = self.small(7) if self.yes(70) else self.any(T.I32)
            count = self.pick(2, 5)
            for _ in w.cases(index, None, count):
                self._statements(max(1, inner // count), depth + 1, False)
        elif kind == 3:  # a branch that all threads of a block take the same way
            odd = w.value("and", T.I32, self.cta, w.const(T.I32, self.choose((1, 2))))
            with w.when(w.value("eq", T.PRED, odd, w.const(T.I32, 0))):
                self._statements(inner, depth + 1, meets)
        elif kind == 4:
            with w.loop(w.const(T.I32, self.pick(0, 4))) as counter:
                w.value("mov", T.I32, counter)
                self._statements(inner, depth + 1, meets)
        else:
            with w.loop(self.small(self.choose((1, 3, 7)))) as counter:
                w.value("mov", T.I32, counter)
                self._statements(inner, depth + 1, False)

    def _compute(self) -> None:
        row = self.choose(_COMPUTED)
        sig = row.sig
        if sig in (Sig.NUMBER, Sig.FLOAT, Sig.INT, Sig.BITS, Sig.SELECT, Sig.MOV):
            self._of_one_type(row)
        elif sig in (Sig.EQUAL, Sig.ORDER_FLOAT, Sig.ORDER_INT):
            t = self.choose({Sig.EQUAL: INTS + FLOATS, Sig.ORDER_FLOAT: FLOATS, Sig.ORDER_INT: INTS}[sig])
            self.put(row.name, [T.PRED], [self.any(t), self.any(t)])
        elif sig is Sig.CONST:
            t = self.choose(list(T))
            self.put("const", [t], [], [self._bits(t)])
        elif sig is Sig.SPECIAL:
            self.put("special", [T.I32], [], [self.choose(list(Special))])
        elif sig is Sig.COUNT:
            self.put(row.name, [T.I32], [self.any(self.choose(INTS))])
        elif sig in (Sig.FIELD, Sig.INSERT):
            t = self.choose((T.I32, T.I64))
            amounts = [self.small(63) if self.yes(70) else self.any(T.I32) for _ in range(2)]
            self.put(row.name, [t], [*(self.any(t) for _ in range(row.n_ins - 2)), *amounts])
        elif sig is Sig.WORD3:
            most = {"lop3": 255, "prmt": 6}.get(row.name, 1)
            self.put(row.name, [T.I32], [self.any(T.I32) for _ in range(3)], [self.pick(0, most)])
        else:
            self._convert(row)

    def _of_one_type(self, row: KernelOp) -> None:
        if row.named:
            types: Sequence[T] = [t for t in FLOATS if (row.name, t) in STRICT_FORMS]
            if not types:
                return
        else:
            types = {Sig.NUMBER: INTS + FLOATS, Sig.FLOAT: FLOATS, Sig.INT: INTS, Sig.BITS: (*INTS, T.PRED)}.get(row.sig, tuple(T))
        t = self.choose(types)
        ins = [self.any(t) for _ in range(row.n_ins - (row.sig is Sig.SELECT))]
        if row.name == "copysign":
            ins[1] = self._known(ins[1], t)  # the sign of a NaN is not defined
        if row.sig is Sig.SELECT:
            ins = [self.any(T.PRED), *ins]
        self.put(row.name, [t], ins)

    def _convert(self, row: KernelOp) -> None:
        sig, attrs = row.sig, [self.choose(list(Rounding))] if row.attrs == ("rounding",) else []
        if sig is Sig.ROUNDED:
            t = self.choose(FLOATS)
            self.put(row.name, [t], [self.any(t) for _ in range(row.n_ins)], attrs)
            return
        if sig in (Sig.WIDEN, Sig.NARROW):
            low, high = self.choose(((T.I16, T.I32), (T.I16, T.I64), (T.I32, T.I64)))
            source, out = (low, high) if sig is Sig.WIDEN else (high, low)
        elif sig in (Sig.FLOAT_FLOAT, Sig.CVT_ROUNDED):
            source, out = self.choose([(a, b) for a in ANY_FLOATS for b in ANY_FLOATS if a is not b])
        elif sig is Sig.REINTERPRET:
            pairs = ((T.I32, T.F32), (T.I64, T.F64), (T.I16, T.F16), (T.I16, T.BF16), (T.F16, T.BF16))
            source, out = self.choose(pairs)
            source, out = (source, out) if self.yes(50) else (out, source)
        else:
            source, out = self.choose(INTS), self.choose(FLOATS)
            source, out = (source, out) if sig in (Sig.INT_FLOAT, Sig.INT_FLOAT_ROUNDED) else (out, source)
        value = self.any(source)
        self.put(row.name, [out], [self._known(value, source) if sig is Sig.REINTERPRET else value], attrs)

    def _warp(self) -> None:
        row = self.choose(_WARP_OPS)
        mask = self._mask()
        if row.sig is Sig.SHFL:
            t = self.choose((T.I32, T.F32))
            by = self.w.const(T.I32, self.choose((1, 2, 4, 8, 16, 3))) if self.yes(60) else self.any(T.I32)
            bounds = self.w.const(T.I32, self.choose((31, 0, 0x1F1F, 0x1800 | 7))) if self.yes(80) else self.any(T.I32)
            self.put("shfl", [t, T.PRED], [self.any(t), by, bounds, mask], [self.choose(list(Shuffle))])
        elif row.sig in (Sig.VOTE, Sig.BALLOT):
            out = T.PRED if row.sig is Sig.VOTE else T.I32
            self.put(row.name, [out], [self.any(T.PRED), mask], [self.pick(0, 2)] if row.attrs else [])
        elif row.sig in (Sig.MATCH_ANY, Sig.MATCH_ALL):
            t = self.choose((T.I32, T.I64))
            value = self.w.value("and", t, self.any(t), self.w.const(t, 3)) if self.yes(70) else self.any(t)
            self.put(row.name, [T.I32] if row.sig is Sig.MATCH_ANY else [T.I32, T.PRED], [value, mask])
        elif row.sig is Sig.REDUX:
            self.put("redux", [T.I32], [self.any(T.I32), mask], [self.choose(_COMMUTING), self.pick(0, 1)])
        elif row.sig is Sig.MMA:
            form = self.choose(list(Matrix))
            sums = [T.I32 if form in INTEGERS else T.F32] * 4
            self.put("mma", sums, [self.any(t) for t in [T.I32] * 3 + sums], [form])
        elif row.sig is Sig.MMA_F64:
            self.put("mma_f64", [T.F64] * 2, [self.any(T.F64) for _ in range(4)])
        elif row.sig is Sig.ACTIVEMASK:
            self.put("activemask", [T.I32], [])
        else:
            self.w.emit("warpsync", (), (mask,))

    def _mask(self) -> int:
        kind = self.pick(0, 2)
        if kind == 0:
            return self.w.const(T.I32, -1)
        return self.any(T.I32) if kind == 1 else self.w.value("activemask", T.I32)

    def _call(self, meets: bool) -> None:
        allowed = [f for f, uniform in enumerate(self.uniform_functions) if meets or not uniform]
        if not allowed:
            return
        f = self.choose(allowed)
        ins = (self.any(T.I32), self.any(T.F32))
        outs = [self.target(T.I32), self.target(T.F32)]
        self.w.close(Call(f, ins, tuple(outs), self.w.here + 1))
        for t, out in zip((T.I32, T.F32), outs, strict=True):
            if out not in self.w.scope[t]:
                self.w.scope[t].append(out)

    # Memory

    def _memory(self) -> None:
        kinds = (self._slot, self._input, self._own_shared, self._local, self._constants, self._red, self._address, self._rare)
        self.choose((*kinds, self._slot))()

    def _shape(self, most: int) -> tuple[DType, T, int]:
        """An element type, a register type and a count of at most ``most`` bytes together."""
        dtype = self.choose(list(MEMORY_TYPES))
        t = self.choose(sorted(MEMORY_TYPES[dtype]))
        count = self.choose([c for c in (1, 1, 1, 2, 4, 8) if c * dtype.itemsize <= min(16, most)])
        return dtype, t, count

    def _access(self, space: int, which: int, base: int, size: int, loads: bool, stores: bool) -> None:
        """A load or store at a multiple of its width in ``size`` bytes behind register ``base`` (rarely beside that, in wild kernels)."""
        dtype, t, count = self._shape(size)
        width = dtype.itemsize * count
        displacement = width * self.pick(0, size // width - 1)
        if self.traits.wild and self.yes(6):
            displacement = self.choose((displacement + 1, 1 << 34, -(1 << 62), (1 << 63) - 1))
        if loads and (not stores or self.yes(50)):
            self.put("load", [t] * count, [base], (space, which, dtype, count, displacement, self.yes(10)))
        elif stores:
            values = [self._known(self.any(t), t) for _ in range(count)]
            self.w.emit("store", (), (base, *values), (space, which, dtype, count, displacement, self.yes(10)))

    def _slot(self) -> None:
        if self.yes(25):
            self._slot_element()
            return
        self._access(Space.GLOBAL, 1, self.choose((self.slot, self.slot32)), _SLOT, self.traits.reads_back, True)

    def _slot_element(self) -> None:
        """The same by number of element."""
        dtype, t, _ = self._shape(8)
        per_slot = _SLOT // dtype.itemsize
        first = self.w.value("shr_s", T.I64, self.slot, self.w.const(T.I64, dtype.itemsize.bit_length() - 1))
        beside = self.choose((1 << 62, -(1 << 63), 1 << 61, -1)) if self.traits.wild and self.yes(10) else self.pick(0, per_slot - 1)
        index = self.w.value("add", T.I64, first, self.w.const(T.I64, beside)) if beside >= 0 else self.w.const(T.I64, beside)
        if self.traits.reads_back and self.yes(50):
            self.put("ld", [t], [index], (Space.GLOBAL, 1, dtype))
        else:
            self.w.emit("st", (), (index, self._known(self.any(t), t)), (Space.GLOBAL, 1, dtype))

    def _input(self) -> None:
        if self.yes(30):
            wild = self.traits.wild and self.yes(30)
            index = self.any(T.I64) if wild else self.w.value("zext", T.I64, self.small(127))
            self.put("ld", [T.F32], [index], (Space.GLOBAL, 0, DType.F32))
            return
        masked = self.w.value("and", T.I32, self.any(T.I32), self.w.const(T.I32, 0x1F0))
        base = masked if self.yes(50) else self.w.value("zext", T.I64, masked)
        self._access(Space.GLOBAL, 0, base, 16, True, False)

    def _own_shared(self) -> None:
        self._access(Space.SHARED, 0, self.own, _OWN, True, True)

    def _local(self) -> None:
        if not self.traits.local_bytes and not self.traits.wild:
            return
        base = self.w.value("and", T.I32, self.any(T.I32), self.w.const(T.I32, 0x20))
        self._access(Space.LOCAL, 0, base, 16, True, True)

    def _constants(self) -> None:
        """Any place: constants are short, so that many of these trap in wild kernels; else only the first byte is sure to be there."""
        if self.traits.wild:
            self._access(Space.CONST, 0, self.small(31), 16, True, False)
        else:
            self.put("load", [T.I32], [self.w.const(T.I32, 0)], (Space.CONST, 0, DType.U8, 1, 0, 0))

    def _red(self) -> None:
        """Threads of all blocks meet at one place; or one thread alone, which may then look at the old value."""
        if self.traits.reads_back and self.yes(40):
            dtype = self.choose(_ATOMIC_TYPES)
            t = T.I32 if dtype.itemsize == 4 else T.I64
            function = self.choose([f for f in Atomic if dtype is DType.U32 or f not in (Atomic.INC, Atomic.DEC)])
            operands = [self.any(t) for _ in range(2 if function is Atomic.CAS else 1)]
            place = dtype.itemsize * self.pick(0, _SLOT // dtype.itemsize - 1)
            self.put("atom", [t], [self.slot, *operands], (Space.GLOBAL, 1, dtype, function, place))
            return
        which = self.pick(0, 1)
        function, dtype = self.traits.reds[which]
        self._add_up(Space.GLOBAL, 2 + which, function, dtype)

    def _add_up(self, space: int, which: int, function: Atomic, dtype: DType) -> None:
        t = T.I32 if dtype.itemsize == 4 else T.I64
        offset = self.w.value("mul", T.I32, self.small(_PLACES - 1), self.w.const(T.I32, dtype.itemsize))
        self.w.emit("red", (), (offset, self.any(t)), (space, which, dtype, function, 0))

    def _address(self) -> None:
        """By address: the own slot, own bytes of shared memory, local memory, the input."""
        kind, w = self.pick(0, 3 if self.traits.reads_back else 2), self.w
        if kind == 3:
            base = w.value("add", T.I64, w.value("addr", T.I64, attrs=(Space.GLOBAL, 1)), self.slot)
            self._access(Space.ARENA, 0, base, _SLOT, True, True)
        elif kind == 0:
            base = w.value("add", T.I64, w.const(T.I64, SHARED_BASE), w.value("zext", T.I64, self.own))
            self._access(Space.ARENA, 0, base, _OWN, True, True)
        elif kind == 1 and (self.traits.local_bytes or self.traits.wild):
            base = w.const(T.I64, LOCAL_BASE) if self.yes(50) else w.value("addr", T.I64, attrs=(Space.LOCAL, 0))
            self._access(Space.ARENA, 0, base, _LOCAL, True, True)
        else:
            place = w.value("zext", T.I64, w.value("and", T.I32, self.any(T.I32), w.const(T.I32, 0x1F0)))
            self._access(Space.ARENA, 0, w.value("add", T.I64, w.value("addr", T.I64, attrs=(Space.GLOBAL, 0)), place), 16, True, False)

    def _rare(self) -> None:
        if self.traits.wild and self.yes(40):
            with self.w.when(self.any(T.PRED)):
                self.w.emit("raise")
        elif self.traits.wild and self.yes(20):
            self._access(Space.ARENA, 0, self.any(T.I64), 16, True, False)
        elif self.yes(30):
            self.w.emit("fence", (), (), (self.pick(0, 2),))
        else:
            self._slot()

    def _exchange(self) -> None:
        """Between barriers: every thread writes its element of s1, then looks at others'; or all add up in s2."""
        w = self.w
        self._meet()
        kind = self.pick(0, 3)
        if kind == 0:
            function, dtype = self.traits.reds[2]
            self._add_up(Space.SHARED, 2, function, dtype)
            self._meet()
            self._access(Space.SHARED, 2, w.const(T.I32, 0), _PLACES * dtype.itemsize, True, False)
            return
        value = self.any(T.I32)
        if kind == 1:
            w.emit("st", (), (w.value("zext", T.I64, self.tid), value), (Space.SHARED, 1, DType.I32))
        else:
            w.emit("store", (), (w.value("shl", T.I32, self.tid, w.const(T.I32, 2)), value), (Space.SHARED, 1, DType.I32, 1, 0, 0))
        if kind == 3 and self.yes(50) and not self.traits.early_ends:
            self._hand_over()
        else:
            self._meet()
        other = w.value("rem_u", T.I32, self.any(T.I32), w.const(T.I32, self.traits.threads))
        if self.yes(50):
            self.put("ld", [T.I32], [w.value("zext", T.I64, other)], (Space.SHARED, 1, DType.I32))
        else:
            self.put("load", [T.I32], [w.value("shl", T.I32, other, w.const(T.I32, 2))], (Space.SHARED, 1, DType.I32, 1, 0, 0))

    def _meet(self) -> None:
        w = self.w
        w.close(Bar(w.here + 1) if self.yes(60) else Sync(w.here + 1, self.choose((0, 0, 3)), -1, 0))

    def _hand_over(self) -> None:
        """Even warps arrive at a barrier, odd ones wait for them there; then all meet."""
        w = self.w
        one = w.value("and", T.I32, w.value("special", T.I32, attrs=(Special.WARP,)), w.const(T.I32, 1))
        number = self.pick(1, 15)
        for k in w.cases(None, w.value("eq", T.PRED, one, w.const(T.I32, 0)), 2):
            w.close(Sync(w.here + 1, number, self.threads, 1 - k))
        w.close(Bar(w.here + 1))


_COMPUTED: Final = [row for row in KERNEL_OPS if row.sig in _SIMPLE]
_WARP_OPS: Final = [row for row in KERNEL_OPS if row.sig in _WARP]


def seeded_case(seed: int, size: int = 40) -> Case:
    """The case of this seed."""
    return random_case(random.Random(seed).randint, size)
