"""From a ``LoopKernel`` to a kernel of the kernel tier, for back ends that run the 32 threads of a block as the lanes of one vector.

    FLAT   a block takes ``BLOCK`` elements
    ROWS   a block is one point of the outer loops; its lanes share the reduced loops in the order of sums
    COLS   a block takes 32 neighbours of the inner loop through the reduced loops; lane l of their sums is row l of an array in shared
           memory

Loops are uniform: the lanes run together while all of them are inside, and what is left runs once under a mask. So coordinates are scalars,
loads are whole vectors, and lanes meet by shuffles. Coordinates on the outer loops are those of the block in the grid. Costly values that a
later pass wants again are kept in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Final, NamedTuple

from jit.errors import Inexpressible
from jit.kernels.launch import Dim3
from jit.kernels.loop import LEAVES, REDUCTIONS, Form, LoopKernel
from jit.kernels.lower import LANES, SHARED_TYPE, Argument, What, Writer
from jit.kernels.scalar_ops import EXTREMES, extreme, fold, from_memory, held, identity, memory_kind, operation, round_to, to_memory
from wis.dtypes import DType
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import Kernel, Math, RegType, Shuffle, Space, Special
from wis.kernel.ops import NAMED

BLOCK: Final = 2048
_KEPT_MAX: Final = 8192 + 32
"""Elements of a row whose values are kept (``LoopKernel.keep``): 8192, and a few, so that two arrays do not fall into the same sets of a
cache."""
_KEEP_COST: Final = 8
_NAMED_COST: Final = 20
"""Of a named function, in simple operations; a value that costs ``_KEEP_COST`` is kept for a later pass rather than computed again."""
_I32, _I64 = RegType.I32, RegType.I64


@dataclass(frozen=True, slots=True)
class GangKernel:
    """A kernel for blocks of 32 threads, and what its parameters are made of."""

    kernel: Kernel
    arguments: tuple[Argument, ...]
    loop: LoopKernel

    def grid(self, args: Sequence[object]) -> Dim3:
        """Blocks along x, y and z, when the slots of the loop kernel hold ``args``."""

        def size(slot: int) -> int:
            found = args[slot]
            assert isinstance(found, int)
            return found

        loop, at = self.loop, self.loop.layout
        if loop.form is Form.FLAT:
            return -(-size(at.total) // BLOCK), 1, 1
        dims = [size(at.outer_sizes + d) for d in reversed(range(loop.n_outer))]
        if loop.form is Form.COLS:
            dims.insert(0, -(-size(at.inner_size) // LANES))
        x, y, *rest = [*dims, 1, 1]
        return x, y, prod(rest)


def lower_gangs(
    loop: LoopKernel, name: str, math: Math = Math.NATIVE, fixed: Mapping[int, int] = MappingProxyType({}), *, short: bool = False
) -> GangKernel:
    """The kernel; f16 and bf16 scalars of the program are given to it as f32. ``fixed``: as in ``lower``; ``short``: rows (of one loop)
    have fewer elements than there are lanes.

    Raises Inexpressible when it needs what the kernel tier does not have.
    """
    writer = _GangWriter(loop, fixed, short)
    writer.write()
    kernel = writer.a.kernel(name, math, LANES)
    if len(kernel.params) > KERNEL_LIMITS.params_max:
        raise Inexpressible(f"{len(kernel.params)} parameters, a kernel has at most {KERNEL_LIMITS.params_max}")
    return GangKernel(kernel, tuple(writer.arguments), loop)


class _Pass(NamedTuple):
    """One walk over the reduced loops: registers of what is folded, what is stored, and which values are kept for later ones."""

    level: int
    folds: Sequence[int]
    totals: Sequence[int]
    stores: Sequence[tuple[int, int]]
    keeps: Sequence[int]


class _GangWriter(Writer):
    """Emits the three forms. ``base``: the index of each operand where the block stands; ``row``: how far a walk is, for kept values."""

    def __init__(self, loop: LoopKernel, fixed: Mapping[int, int], short: bool) -> None:
        super().__init__(loop, fixed)
        self._short = short
        self.outer = list(range(loop.n_outer))
        self.mid = list(range(loop.n_outer, loop.n_outer + loop.n_mid))
        self.inner = loop.n_outer + loop.n_mid
        self.base: list[int] = []
        self.steps: dict[int, int] = {}
        self.kept: dict[int, int] = {}
        self.row = -1

    def _given(self, dtype: DType, slot: int) -> int:
        return self._scalar(held(dtype), What.VALUE, slot)

    def _body(self) -> None:
        a = self.a
        self.lane32 = a.op("special", _I32, attrs=(Special.TID_X,))
        self.lane = a.op("sext", _I64, self.lane32)
        for i, strides in enumerate(self.strides):
            stride = strides.get(self.inner)
            if stride is not None:
                self.steps[i] = a.same("mul", self.lane, stride)
        {Form.FLAT: self._flat, Form.ROWS: self._rows, Form.COLS: self._cols}[self.loop.form]()

    # --- notation
    def _number(self, x: int) -> int:
        return self.a.const(_I64, x)

    def _variable(self, x: int) -> int:
        return self.a.op("mov", self.a.kind(x), x)

    def _count(self, start: int, stop: Callable[[int], int], step: int, body: Callable[[int], None]) -> int:
        """``for at = start; stop(at); at += step``; returns ``at`` behind the loop."""
        a = self.a
        at = self._variable(start)
        head = a.block()
        a.jump(head)
        a.start(head)
        inside, after = a.fork(stop(at))
        a.start(inside)
        body(at)
        a.op("add", _I64, at, self._number(step), into=at)
        a.jump(head)
        a.start(after)
        return at

    def _below(self, n: Callable[[], int]) -> Callable[[int], int]:
        return lambda at: self.a.test("lt_s", at, n())

    def _when(self, test: int, body: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        a = self.a
        yes, no = a.fork(test)
        join = no if otherwise is None else a.block()
        a.start(yes)
        body()
        a.jump(join)
        if otherwise is not None:
            a.start(no)
            otherwise()
            a.jump(join)
        a.start(join)

    # --- addresses
    def _grid(self, loops: Sequence[int]) -> dict[int, int]:
        """The block's coordinates on loops, the fastest first: x, y, and all others in z."""
        a = self.a
        found = {d: a.special(which) for d, which in zip(loops[:2], (Special.CTAID_X, Special.CTAID_Y), strict=False)}
        if len(loops) > 2:
            found |= self._coordinates(a.special(Special.CTAID_Z), loops[:1:-1])
        return found

    def _across(self, starts: Sequence[int], base: int) -> list[int]:
        """The index of each operand in every lane, at ``base`` plus the lane on the inner loop: a scalar plus what differs by lane."""
        a, found = self.a, []
        for i, start in enumerate(starts):
            if self.inner in self.strides[i]:
                stride = self.strides[i][self.inner]
                moved = a.same("add", start, base if stride is None else a.same("mul", base, stride))
                start = a.same("add", moved, self.lane if stride is None else self.steps[i])
            found.append(start)
        return found

    def _inside(self, base: int, stop: int) -> int:
        """The lanes for which ``base`` plus the lane is below ``stop``; compared in 32 bits."""
        a = self.a
        left = a.same("min_s", a.same("sub", stop, base), self._number(LANES))
        return a.test("lt_s", self.lane32, a.op("narrow", _I32, left))

    def _fits(self, base: int, stop: int) -> int:
        return self.a.test("le_s", self.a.same("add", base, self._number(LANES)), stop)

    def _lanes(self, first: int, stop: int, body: Callable[[int], None]) -> None:
        """``body`` for all of ``first`` to ``stop`` (both uniform), 32 at a time."""
        base = self._count(first, lambda at: self._fits(at, stop), LANES, body)
        self._when(self.a.test("lt_s", base, stop), lambda: self._when(self._inside(base, stop), lambda: body(base)))

    # --- FLAT
    def _flat(self) -> None:
        a, n = self.a, self._number(BLOCK)
        first = a.same("mul", a.special(Special.CTAID_X), n)
        stop = a.same("min_s", a.same("add", first, n), self.sizes[self.inner])
        self.base = list(self.offsets)
        self._uniform(0)
        todo = _Pass(0, (), (), self.loop.stores, ())
        self._lanes(first, stop, lambda at: self._element(todo, self._across(self.base, at)))

    # --- ROWS
    def _rows(self) -> None:
        coordinates = self._grid(self.outer[::-1])
        self.base = [self._moved(i, start, coordinates) for i, start in enumerate(self.offsets)]
        self._uniform(0)
        for i in sorted(self._worth_keeping()):
            self.kept[i] = self.a.shared(SHARED_TYPE[held(self.loop.nodes[i].dtype)], _KEPT_MAX)
        for level in range(self.loop.passes):
            folds, stores = self._at(level)
            if folds or stores:
                totals = [self._start_of(i) for i in folds]
                self._walk(_Pass(level, folds, totals, stores, [i for i in self.kept if self.loop.level[i] == level]))
                for i, total in zip(folds, totals, strict=True):
                    self.values[i] = self._meet(i, total)
            self._uniform(level + 1)
        self._store_standing()

    def _walk(self, todo: _Pass) -> None:
        n = self.sizes[self.inner]
        if not self.mid:

            def element(base: int) -> None:
                self.row = base
                self._element(todo, self._across(self.base, base))

            if self._short:
                self._when(self._inside(self._number(0), n), lambda: element(self._number(0)))
            else:
                self._lanes(self._number(0), n, element)
            return
        self._count(self._number(0), self._below(lambda: self._product(self.mid)), 1, lambda at: self._line(todo, at))

    def _line(self, todo: _Pass, m: int) -> None:
        """The inner loop at place ``m`` of the loops around it. Lane l takes elements l, l + 32, ... of the whole reduced space, so a line
        starts in the lane where the one before it ended."""
        a, n = self.a, self.sizes[self.inner]
        coordinates = self._coordinates(m, self.mid)
        here = [self._moved(i, start, coordinates) for i, start in enumerate(self.base)]
        before = a.same("mul", m, n)
        first = a.same("sub", self._number(0), a.same("and", before, self._number(LANES - 1)))

        def element(base: int) -> None:
            self.row = a.same("add", before, base)
            self._element(todo, self._across(here, base))

        def part(base: int) -> None:
            skip = a.op("narrow", _I32, a.same("max_s", a.same("sub", self._number(0), base), self._number(0)))
            left = a.op("narrow", _I32, a.same("min_s", a.same("sub", n, base), self._number(LANES)))
            some = a.test("lt_u", a.same("sub", self.lane32, skip), a.same("sub", left, skip))
            self._when(some, lambda: element(base))

        def vector(base: int) -> None:
            whole = a.same("and", a.test("le_s", self._number(0), base), self._fits(base, n))
            self._when(whole, lambda: element(base), lambda: part(base))

        self._count(first, self._below(lambda: n), LANES, vector)

    def _worth_keeping(self) -> set[int]:
        """Costly values that a later pass uses."""
        loop, result = self.loop, set()
        cost = [0] * len(loop.nodes)
        for i, node in enumerate(loop.nodes):
            if loop.keep and node.op not in LEAVES and not loop.uniform[i]:
                cost[i] = (_NAMED_COST if node.op in NAMED else 1) + sum(cost[x] for x in node.args)
        for i, node in enumerate(loop.nodes):
            if node.op in LEAVES or (loop.uniform[i] and node.op not in REDUCTIONS):
                continue
            when = loop.level[node.args[0]] if node.op in REDUCTIONS else loop.level[i]
            result |= {x for x in node.args if when > loop.level[x] and cost[x] >= _KEEP_COST and loop.nodes[x].dtype is not DType.BOOL}
        return result

    def _meet(self, i: int, total: int) -> int:
        """In lane 0: it takes up lane 16, then lane 8 (which took up 24), ...; then all lanes have what lane 0 has."""
        for half in (16, 8, 4, 2, 1):
            total = self._fold(i, total, self.a.shuffled(Shuffle.BFLY, total, half))
        return round_to(self.a, self.loop.nodes[i].dtype, self.a.shuffled(Shuffle.IDX, total, 0))

    # --- COLS
    def _cols(self) -> None:
        a = self.a
        loops = [self.inner, *self.outer[::-1]]
        coordinates = self._grid(loops)
        base = a.same("mul", coordinates.pop(self.inner), self._number(LANES))
        starts = [self._moved(i, start, coordinates) for i, start in enumerate(self.offsets)]
        self.base = self._across(starts, base)
        n = self.sizes[self.inner]
        self.sums = {
            i: a.shared(SHARED_TYPE[held(self._source(i))], LANES * LANES)
            for i, node in enumerate(self.loop.nodes)
            if node.op in REDUCTIONS
        }
        given = dict(self.values)

        def columns() -> None:
            self.values = dict(given)
            self._columns()

        self._when(self._fits(base, n), columns, lambda: self._when(self._inside(base, n), columns))

    def _columns(self) -> None:
        self._uniform(0)
        for level in range(self.loop.passes):
            folds, stores = self._at(level)
            if folds or stores:
                self._column_walk(folds, stores)
                for i in folds:
                    self.values[i] = self._folded(i)
            self._uniform(level + 1)
        self._store_standing()

    def _sum(self, i: int, at: int) -> int:
        kind = held(self._source(i))
        return self.a.load(Space.SHARED, self.sums[i], SHARED_TYPE[kind], at, kind)

    def _put_sum(self, i: int, at: int, value: int) -> None:
        self.a.store(Space.SHARED, self.sums[i], SHARED_TYPE[held(self._source(i))], at, value)

    def _column_walk(self, folds: Sequence[int], stores: Sequence[tuple[int, int]]) -> None:
        a, end = self.a, LANES * LANES

        def clear(at: int) -> None:
            for i in folds:
                source = self._source(i)
                self._put_sum(i, a.same("add", at, self.lane), a.const(held(source), identity(self.loop.nodes[i].op, source)))

        def line(m: int) -> None:
            coordinates = self._coordinates(m, self.mid)
            here = [self._moved(i, start, coordinates) for i, start in enumerate(self.base)]
            row = a.same("mul", a.same("and", m, self._number(LANES - 1)), self._number(LANES))
            slot, values = a.same("add", row, self.lane), dict(self.values)
            for i in folds:
                value = self._value(self.loop.nodes[i].args[0], values, here)
                self._put_sum(i, slot, self._fold(i, self._sum(i, slot), value))
            self._store_all(stores, values, here)

        if folds:
            self._count(self._number(0), self._below(lambda: self._number(end)), LANES, clear)
        self._count(self._number(0), self._below(lambda: self._product(self.mid)), 1, line)

    def _folded(self, i: int) -> int:
        """The 32 rows of sums folded by halves, in place."""
        a = self.a
        half = self._variable(self._number(LANES // 2 * LANES))
        head = a.block()
        a.jump(head)
        a.start(head)
        body, after = a.fork(a.test("le_s", self._number(LANES), half))
        a.start(body)

        def pair(at: int) -> None:
            low = a.same("add", at, self.lane)
            self._put_sum(i, low, self._fold(i, self._sum(i, low), self._sum(i, a.same("add", low, half))))

        self._count(self._number(0), self._below(lambda: half), LANES, pair)
        a.op("shr_u", _I64, half, self._number(1), into=half)
        a.jump(head)
        a.start(after)
        return round_to(a, self.loop.nodes[i].dtype, self._sum(i, self.lane))

    # --- values
    def _uniform(self, level: int) -> None:
        """Values that do not depend on the reduced loops and can be computed now."""
        loop = self.loop
        for i, node in enumerate(loop.nodes):
            if loop.uniform[i] and loop.level[i] == level and node.op not in REDUCTIONS:
                self._value(i, self.values, self.base)

    def _element(self, todo: _Pass, here: Sequence[int]) -> None:
        """One step of a walk, in the lanes that run: what is kept, folded and stored."""
        a, loop, values = self.a, self.loop, dict(self.values)
        for i, array in self.kept.items():
            kind = held(loop.nodes[i].dtype)
            if loop.level[i] < todo.level and self._wanted(i, todo):
                values[i] = a.load(Space.SHARED, array, SHARED_TYPE[kind], a.same("add", self.row, self.lane), kind)
            elif i in todo.keeps:
                value = self._value(i, values, here)
                a.store(Space.SHARED, array, SHARED_TYPE[kind], a.same("add", self.row, self.lane), value)
        for i, total in zip(todo.folds, todo.totals, strict=True):
            joined = self._fold(i, total, self._value(loop.nodes[i].args[0], values, here))
            a.op("mov", a.kind(total), joined, into=total)
        self._store_all(todo.stores, values, here)

    def _wanted(self, i: int, todo: _Pass) -> bool:
        """Whether this pass needs the kept value ``i``."""
        stack = [*(self.loop.nodes[n].args[0] for n in todo.folds), *(n for _, n in todo.stores), *todo.keeps]
        while stack:
            n = stack.pop()
            if n == i:
                return True
            if n not in self.values and n not in self.kept and self.loop.nodes[n].op not in LEAVES:
                stack.extend(self.loop.nodes[n].args)
        return False

    def _store_all(self, stores: Sequence[tuple[int, int]], values: dict[int, int], here: Sequence[int]) -> None:
        ready = [(place, self._value(i, values, here)) for place, i in stores]  # all is loaded before anything is stored
        for place, value in ready:
            dtype = self.loop.places[place].dtype
            self.a.store(Space.GLOBAL, self.buffers[place], dtype, here[place], to_memory(self.a, dtype, value))

    def _store_standing(self) -> None:
        """Results that stand still along the reduced loops."""
        self._store_all([(place, i) for place, i in self.loop.stores if self._standing(place, i)], self.values, self.base)

    def _value(self, i: int, values: dict[int, int], here: Sequence[int]) -> int:
        """The register of node ``i``, where the operands have the indices ``here``; computed once a block of code."""
        if i not in values:
            node, nodes = self.loop.nodes[i], self.loop.nodes
            if node.op == "index":
                values[i] = here[node.args[0]]
            elif node.op == "load":
                place = node.args[0]
                dtype = self.loop.places[place].dtype
                raw = self.a.load(Space.GLOBAL, self.buffers[place], dtype, here[place], memory_kind(dtype))
                values[i] = from_memory(self.a, dtype, raw)
            else:
                args = [self._value(n, values, here) for n in node.args]
                kinds = [nodes[n].dtype for n in node.args]
                if node.op in EXTREMES and node.dtype.is_float:
                    values[i] = extreme(self.a, node.op, args[0], args[1])
                else:
                    values[i] = operation(self.a, node.op, node.dtype, kinds, args)
        return values[i]

    def _fold(self, i: int, total: int, x: int) -> int:
        op, source = self.loop.nodes[i].op, self._source(i)
        return extreme(self.a, op, total, x) if op in EXTREMES and source.is_float else fold(self.a, op, source, total, x)
