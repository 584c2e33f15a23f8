"""Writing library kernels: values with operators, variables, loops and branches on top of the assembler.

Elements are held as ``jit.kernels.scalar_ops`` says (bool as pred, 8 bits as i16, half precision as f32). Indices and sizes are i64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

from jit.kernels.assemble import Assembler
from jit.kernels.scalar_ops import EXTREMES, extreme, from_memory, held, memory_kind, operation, round_to, to_memory
from wis.dtypes import DType
from wis.kernel.model import Access, Atomic, Bar, Cbr, Kernel, Math, Op, RegType, Ret, Shuffle, Space, Special
from wis.kernel.ops import BY_NAME
from wis.traps import INDEX_MAX, INDEX_MIN, index_key

I64: Final = RegType.I64


class Walk(Enum):
    """How a launch covers an index space. The value is the number of threads a block."""

    POINTS = 256  # a thread a point
    LANES = 16  # the same, and a block is neighbours along the last dimension: the lanes of a vector
    RUNS = 1  # a block is one thread, which takes points one after the other along the last dimension


@dataclass(frozen=True, slots=True)
class Made:
    """A kernel, the names of its parameters in order, the threads a block it is written for, and how these cover an index space."""

    kernel: Kernel
    params: tuple[str, ...]
    threads: int
    walk: Walk


class Val:
    """A register with operators. Integers are signed; ``//`` and ``%`` are for operands that are not negative."""

    __slots__ = ("reg", "w")

    def __init__(self, w: Writer, reg: int) -> None:
        self.w, self.reg = w, reg

    @property
    def kind(self) -> RegType:
        return self.w.a.kind(self.reg)

    def _other(self, x: Val | int | float) -> int:
        return x.reg if isinstance(x, Val) else self.w.a.const(self.kind, x)

    def _same(self, name: str, x: Val | int | float) -> Val:
        return Val(self.w, self.w.a.same(name, self.reg, self._other(x)))

    def _test(self, name: str, a: int, b: int) -> Val:
        whole = self.kind in (RegType.I16, RegType.I32, RegType.I64)
        return Val(self.w, self.w.a.test(name + "_s" if whole else name, a, b))

    def __add__(self, x: Val | int | float) -> Val:
        return self._same("add", x)

    def __sub__(self, x: Val | int | float) -> Val:
        return self._same("sub", x)

    def __mul__(self, x: Val | int | float) -> Val:
        return self._same("mul", x)

    def __truediv__(self, x: Val | int | float) -> Val:
        return self._same("div", x)

    def __floordiv__(self, x: Val | int) -> Val:
        return self._same("div_u", x)

    def __mod__(self, x: Val | int) -> Val:
        return self._same("rem_u", x)

    def __and__(self, x: Val | int) -> Val:
        return self._same("and", x)

    def __or__(self, x: Val | int) -> Val:
        return self._same("or", x)

    def __xor__(self, x: Val | int) -> Val:
        return self._same("xor", x)

    def __lshift__(self, x: Val | int) -> Val:
        return self._same("shl", x)

    def __rshift__(self, x: Val | int) -> Val:
        return self._same("shr_u", x)

    def __invert__(self) -> Val:
        return Val(self.w, self.w.a.same("not", self.reg))

    def __lt__(self, x: Val | int | float) -> Val:
        return self._test("lt", self.reg, self._other(x))

    def __le__(self, x: Val | int | float) -> Val:
        return self._test("le", self.reg, self._other(x))

    def __gt__(self, x: Val | int | float) -> Val:
        return self._test("lt", self._other(x), self.reg)

    def __ge__(self, x: Val | int | float) -> Val:
        return self._test("le", self._other(x), self.reg)

    def below(self, x: Val) -> Val:
        """Whether this is less than ``x``, both read as unsigned: from 0 on and less than ``x``, where that is not negative."""
        return Val(self.w, self.w.a.test("lt_u", self.reg, x.reg))

    def eq(self, x: Val | int | float) -> Val:
        return Val(self.w, self.w.a.test("eq", self.reg, self._other(x)))

    def ne(self, x: Val | int | float) -> Val:
        return Val(self.w, self.w.a.test("ne", self.reg, self._other(x)))

    def pick(self, yes: Val, no: Val | int | float) -> Val:
        """``yes`` where this truth value holds, else ``no``."""
        other = yes._other(no)
        return Val(self.w, self.w.a.same("sel", self.reg, yes.reg, other))

    def op(self, name: str, *others: Val | int | float) -> Val:
        """An op of the kernel tier on this and others of its type."""
        return Val(self.w, self.w.a.same(name, self.reg, *(self._other(x) for x in others)))

    def to(self, name: str, kind: RegType) -> Val:
        """A converting op."""
        return Val(self.w, self.w.a.op(name, kind, self.reg))

    def near(self) -> Val:
        """A place, which lanes compare in 32 bits: lowerings for gangs see to it that it fits."""
        return self if self.w.walk is Walk.POINTS else self.to("narrow", RegType.I32)

    def set(self, x: Val | int | float) -> None:
        """Give a variable another value."""
        self.w.a.op("mov", self.kind, self._other(x), into=self.reg)


class Writer:
    """One kernel. Parameters are declared first; ``made`` ends it."""

    def __init__(self, walk: Walk = Walk.POINTS, threads: int = 0) -> None:
        self.a = Assembler()
        self.walk = walk
        self.threads = threads or walk.value
        self._names: list[str] = []
        self._buffers: dict[str, tuple[int, DType]] = {}

    def made(self, name: str, math: Math = Math.NATIVE) -> Made:
        """The kernel; ``name``, with how it walks, is unique among all."""
        name = name if self.walk is Walk.POINTS else f"{name}_{self.walk.name.lower()}"
        return Made(self.a.kernel(name, math, self.threads), tuple(self._names), self.threads, self.walk)

    # --- parameters
    def buffer(self, name: str, dtype: DType, access: Access = Access.READ) -> None:
        """A buffer of elements of ``dtype``; memory of that name is accessed by index."""
        self._names.append(name)
        self._buffers[name] = (self.a.buffer(dtype, access), dtype)

    def number(self, name: str) -> Val:
        """An i64."""
        self._names.append(name)
        return Val(self, self.a.scalar(I64))

    def numbers(self, name: str, n: int) -> list[Val]:
        """``name``0, ``name``1, ..."""
        return [self.number(f"{name}{i}") for i in range(n)]

    def strides(self, name: str, n: int, unit: bool = False) -> list[Val]:
        """``name``0, ``name``1, ...; ``unit``, and wherever a block is neighbours: the last is the constant 1."""
        unit = unit or self.walk is Walk.LANES
        return [*self.numbers(name, n - unit), *[self.const(1)] * unit]

    def value(self, name: str, dtype: DType) -> Val:
        """A number of an element type, held as elements are. Where threads take runs it is given as it is held."""
        self._names.append(name)
        if self.walk is not Walk.POINTS:
            return Val(self, self.a.scalar(held(dtype)))
        return Val(self, from_memory(self.a, dtype, self.a.scalar(memory_kind(dtype))))

    # --- values
    def const(self, x: int | float, kind: RegType = I64) -> Val:
        return Val(self, self.a.const(kind, x))

    def var(self, x: Val) -> Val:
        """A variable that starts as ``x``."""
        return Val(self, self.a.op("mov", x.kind, x.reg))

    def variable(self, dtype: DType, x: int | float) -> Val:
        """A variable that holds an element and starts as a constant."""
        return self.var(self.const(x, held(dtype)))

    def special(self, which: Special) -> Val:
        return Val(self, self.a.special(which))

    def index(self) -> Val:
        """Which thread this is of a one-dimensional grid."""
        return self.special(Special.CTAID_X) * self.threads + self.special(Special.TID_X)

    def operation(self, name: str, out: DType, ins: Sequence[DType], *x: Val) -> Val:
        """A MAP op of tensor programs."""
        if name in EXTREMES and out.is_float and self.walk is not Walk.POINTS:
            return Val(self, extreme(self.a, name, x[0].reg, x[1].reg))
        return Val(self, operation(self.a, name, out, ins, [v.reg for v in x]))

    def rounded(self, dtype: DType, x: Val) -> Val:
        return Val(self, round_to(self.a, dtype, x.reg))

    def shuffled(self, mode: Shuffle, x: Val, by: int) -> Val:
        """What another lane of the warp has in ``x``."""
        return Val(self, self.a.shuffled(mode, x.reg, by))

    def least(self, x: Val) -> Val:
        """The least of what the lanes of a warp have in ``x``, an i32."""
        return Val(self, self.a.op("redux", RegType.I32, x.reg, self.a.const(RegType.I32, -1), attrs=(Atomic.MIN, 1)))

    # --- memory
    def load(self, name: str, index: Val) -> Val:
        param, dtype = self._buffers[name]
        raw = self.a.load(Space.GLOBAL, param, dtype, index.reg, memory_kind(dtype))
        return Val(self, from_memory(self.a, dtype, raw))

    def store(self, name: str, index: Val, x: Val) -> None:
        param, dtype = self._buffers[name]
        self.a.store(Space.GLOBAL, param, dtype, index.reg, to_memory(self.a, dtype, x.reg))

    def store_all(self, name: str, index: Val, values: Sequence[Val]) -> None:
        """Several elements side by side, at once; on devices that are strict about it ``index`` must be a multiple of how many."""
        param, dtype = self._buffers[name]
        regs = [to_memory(self.a, dtype, x.reg) for x in values]
        attrs = (Space.GLOBAL, param, dtype, len(values), 0, 0)
        self.a.do(Op(BY_NAME["store"].code, (), ((index * dtype.itemsize).reg, *regs), attrs))

    def shared(self, dtype: DType, n: int) -> int:
        return self.a.shared(dtype, n)

    def get(self, array: int, dtype: DType, index: Val) -> Val:
        """An element of shared memory."""
        return Val(self, self.a.load(Space.SHARED, array, dtype, index.reg, held(dtype)))

    def put(self, array: int, dtype: DType, index: Val, x: Val) -> None:
        self.a.store(Space.SHARED, array, dtype, index.reg, x.reg)

    def report(self, index: Val, operand: int = 0) -> None:
        """Report an index that is out of bounds to the buffer ``trap``; ``site``, a number, is the key of index 0 of the first operand."""
        word, _ = self._buffers["trap"]
        low, high = index.op("max_s", INDEX_MIN), self.const(INDEX_MAX)
        key = self.site + index_key(operand, 0) - index_key(0, 0) + low.op("min_s", high)
        attrs = (Space.GLOBAL, word, DType.I64, Atomic.MIN, 0)
        self.a.do(Op(BY_NAME["red"].code, (), (self.const(0).reg, key.reg), attrs))

    def reports(self) -> None:
        """Declare what ``report`` needs."""
        self.buffer("trap", DType.I64, Access.READ_WRITE)
        self.site = self.number("site")

    # --- control
    def barrier(self) -> None:
        after = self.a.block()
        self.a.end(Bar(after))
        self.a.start(after)

    def leave_unless(self, pred: Val) -> None:
        """The thread ends where ``pred`` does not hold."""
        inside, outside = self.a.fork(pred.reg)
        self.a.start(outside)
        self.a.end(Ret())
        self.a.start(inside)

    @contextmanager
    def when(self, pred: Val) -> Iterator[None]:
        inside, after = self.a.fork(pred.reg)
        self.a.start(inside)
        yield
        self.a.jump(after)
        self.a.start(after)

    @contextmanager
    def loop(self, stop: Val | int, start: Val | int = 0, step: Val | int = 1) -> Iterator[Val]:
        """A counter from ``start`` while it is less than ``stop``."""
        i = self.var(start if isinstance(start, Val) else self.const(start))
        with self.while_(lambda: i < stop):
            yield i
            i.set(i + step)

    @contextmanager
    def while_(self, test: object) -> Iterator[None]:
        """Repeat while ``test()`` holds, which is written at the head of the loop."""
        assert callable(test)
        head = self.a.block()
        self.a.jump(head)
        self.a.start(head)
        body, after = self.a.block(), self.a.block()
        pred: Val = test()
        self.a.end(Cbr(pred.reg, body, after))
        self.a.start(body)
        yield
        self.a.jump(head)
        self.a.start(after)

    @contextmanager
    def loops(self, sizes: Sequence[Val]) -> Iterator[list[Val]]:
        """Every point of an index space, row-major."""
        with ExitStack() as stack:
            yield [stack.enter_context(self.loop(n)) for n in sizes]

    # --- index spaces
    def coordinates(self, index: Val, sizes: Sequence[Val]) -> list[Val]:
        """The place at a row-major ``index``; the first size bounds nothing."""
        found: list[Val] = []
        for d in range(len(sizes) - 1, 0, -1):
            found.append(index % sizes[d])
            index = index // sizes[d]
        return [index, *reversed(found)] if sizes else []

    def place(self, start: Val, coordinates: Sequence[Val], strides: Sequence[Val]) -> Val:
        for at, stride in zip(coordinates, strides, strict=True):
            start = start + at * stride
        return start

    def product(self, sizes: Sequence[Val]) -> Val:
        total = self.const(1)
        for size in sizes:
            total = total * size
        return total


class Points:
    """What one thread takes of the index space ``sizes``. ``at``: its coordinates, without the last one where the thread takes a run."""

    def __init__(self, w: Writer, sizes: Sequence[Val]) -> None:
        self._w = w
        if w.walk is Walk.POINTS:
            index = w.index()
            w.leave_unless(index < w.product(sizes))
            self.at = w.coordinates(index, sizes)
            return
        beyond = w.coordinates(w.special(Special.CTAID_Z), sizes[:-2])
        self.at = [*beyond, w.special(Special.CTAID_Y)] if len(sizes) > 1 else []
        if w.walk is Walk.LANES:
            self.at.append(w.index())
            w.leave_unless(self.at[-1] < sizes[-1])
            return
        run = w.number("run")
        self._first = w.special(Special.CTAID_X) * run
        self._stop = (self._first + run).op("min_s", sizes[-1])

    @contextmanager
    def each(self) -> Iterator[list[Val]]:
        """The coordinates of each of its points."""
        if self._w.walk is not Walk.RUNS:
            yield self.at
            return
        with self._w.loop(self._stop, self._first) as last:
            yield [*self.at, last]
