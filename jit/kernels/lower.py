"""From a ``LoopKernel`` to a kernel of the kernel tier, for back ends that run threads.

Four shapes of launch:

    element by element   one thread an element, 256 a block
    with reductions      one block of 32 threads for each kept element; thread l takes elements l, l + 32, ... of the reduced loops,
                         which is lane l of the order of sums; lanes meet in shared memory by halves
    by tiles             the same for 16 kept elements a block, whose threads are neighbours in each lane: where neighbours among the
                         kept elements are neighbours in memory
    by columns           one thread for each kept element, 64 a block, which takes the lanes one after the other: where those would be
                         too many blocks

Sizes, strides, offsets and scalars are parameters, so launches of other dims share the kernel. A place is a buffer parameter of its own
(the whole buffer) and an offset in elements; several may be one buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from types import MappingProxyType
from typing import Final, NamedTuple

from jit.errors import Inexpressible
from jit.kernels.assemble import Assembler
from jit.kernels.loop import LEAVES, REDUCTIONS, Form, Inner, LoopKernel
from jit.kernels.scalar_ops import fold, from_memory, held, identity, memory_kind, operation, round_to, to_memory
from wis.dtypes import DType
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import Access, Bar, Br, Kernel, Math, RegType, Space, Special

__all__ = ["What", "Argument", "Lowered", "Sharing", "Writer", "fixed_numbers", "lower", "ELEMENT_THREADS", "LANES", "SHARED_TYPE"]

ELEMENT_THREADS: Final = 256
COLUMN_THREADS: Final = 64
TILE_COLUMNS: Final = 16
LANES: Final = 32
LEVELS: Final = 5
SHARED_TYPE: Final = {
    RegType.PRED: DType.BOOL, RegType.I16: DType.I16, RegType.I32: DType.I32, RegType.I64: DType.I64, RegType.F32: DType.F32,
    RegType.F64: DType.F64,
}  # fmt: skip


class What(Enum):
    """What a parameter is made of."""

    BUFFER = "buffer"  # the buffer of the operand in the slot
    OFFSET = "offset"  # its offset in elements (a virtual operand: the number in the slot)
    VALUE = "value"  # the number in the slot; a scalar in its element type's range


class Sharing(Enum):
    """What makes a kept element of a kernel with reductions: a block of threads, those of one column of a tile, or a thread."""

    BLOCK = (1, LANES)
    TILE = (TILE_COLUMNS, TILE_COLUMNS * LANES)
    THREAD = (COLUMN_THREADS, COLUMN_THREADS)

    def __init__(self, each: int, threads: int) -> None:
        self.each, self.threads = each, threads  # of a block: how many kept elements it makes, and its threads


class Argument(NamedTuple):
    """A parameter of the kernel: made from which slot of the loop kernel's ``Layout``."""

    what: What
    slot: int


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel and how to launch it. ``kept``: slots of the sizes whose product is the number of elements or of blocks; ``each``: of
    these, what a block makes; ``threads``: a block's."""

    kernel: Kernel
    arguments: tuple[Argument, ...]
    kept: tuple[int, ...]
    each: int
    threads: int

    def grid(self, sizes: Sequence[int]) -> tuple[int, int]:
        """(blocks, threads a block), when the slots ``kept`` hold ``sizes``."""
        return -(-prod(sizes) // self.each), self.threads


def lower(
    loop: LoopKernel, name: str, math: Math = Math.NATIVE, fixed: Mapping[int, int] = MappingProxyType({}), *,
    sharing: Sharing = Sharing.BLOCK,
) -> Lowered:  # fmt: skip
    """The kernel. ``fixed``: numbers by slot that become part of it instead of parameters; ``sharing``: of a kernel with reductions.

    Raises Inexpressible when it needs what the kernel tier does not have.
    """
    by_element = loop.form is Form.FLAT or not (
        any(node.op in REDUCTIONS for node in loop.nodes) or any(loop.place_uniform(place) for place, _ in loop.stores)
    )
    writer = _ThreadWriter(loop, by_element, sharing, fixed)
    writer.write()
    each, threads = (ELEMENT_THREADS, ELEMENT_THREADS) if by_element else (sharing.each, sharing.threads)
    kernel = writer.a.kernel(name, math, threads)
    if len(kernel.params) > KERNEL_LIMITS.params_max:
        raise Inexpressible(f"{len(kernel.params)} parameters, a kernel has at most {KERNEL_LIMITS.params_max}")
    return Lowered(kernel, tuple(writer.arguments), tuple(writer.sizes_at[d] for d in writer.kept), each, threads)


def fixed_numbers(loop: LoopKernel, args: Sequence[object]) -> dict[int, int]:
    """Numbers by slot that have to become part of a kernel, because it would have too many parameters: sizes and strides, or none."""
    at = loop.layout
    if 2 + len(loop.places) * (1 + at.place_slots) + at.places + loop.n_scalars <= KERNEL_LIMITS.params_max:
        return {}
    sizes_and_strides = (slot for slot in range(at.scalars) if (slot - at.places) % at.place_slots)
    return {slot: x for slot in sizes_and_strides if isinstance(x := args[slot], int)}


class Writer:
    """Parameters, addresses and values of a kernel. Loops are numbered as in the layout: outer, then mid, then inner."""

    def __init__(self, loop: LoopKernel, fixed: Mapping[int, int]) -> None:
        self.a, self.loop, self.fixed = Assembler(), loop, fixed
        self.arguments: list[Argument] = []
        at, n, m = loop.layout, loop.n_outer, loop.n_mid
        inner = at.total if loop.form is Form.FLAT else at.inner_size
        self.sizes_at = [*range(at.outer_sizes, at.outer_sizes + n), *range(at.mid_sizes, at.mid_sizes + m), inner]

    def write(self) -> None:
        """The whole kernel."""
        self._parameters()
        self._body()

    def _body(self) -> None:
        raise NotImplementedError

    def _parameters(self) -> None:
        a, loop = self.a, self.loop
        stored = {place for place, _ in loop.stores}
        loaded = {node.args[0] for node in loop.nodes if node.op == "load"}
        self.buffers: dict[int, int] = {}
        for i, place in enumerate(loop.places):
            if not place.virtual:
                held(place.dtype)
                self.buffers[i] = a.buffer(place.dtype, Access.READ * (i in loaded) | Access.WRITE * (i in stored))
                self.arguments.append(Argument(What.BUFFER, self._slot(i)))
        self.sizes = [self._scalar(RegType.I64, What.VALUE, slot) for slot in self.sizes_at]
        self.offsets = [self._scalar(RegType.I64, What.OFFSET, self._slot(i)) for i in range(len(loop.places))]
        self.strides = [self._strides(i) for i in range(len(loop.places))]
        self.values: dict[int, int] = {}
        for i, node in enumerate(loop.nodes):
            if node.op == "scalar":
                self.values[i] = self._given(node.dtype, loop.layout.scalars + node.args[0])

    def _given(self, dtype: DType, slot: int) -> int:
        """A scalar of the program."""
        return from_memory(self.a, dtype, self._scalar(memory_kind(dtype), What.VALUE, slot))

    def _slot(self, place: int) -> int:
        return self.loop.layout.places + place * self.loop.layout.place_slots

    def _scalar(self, kind: RegType, what: What, slot: int) -> int:
        if what is What.VALUE and slot in self.fixed:
            return self.a.const(kind, self.fixed[slot])
        self.arguments.append(Argument(what, slot))
        return self.a.scalar(kind)

    def _strides(self, i: int) -> dict[int, int | None]:
        """The stride along each loop that the operand moves along; None is 1."""
        loop, place = self.loop, self.loop.places[i]
        last = loop.n_outer + loop.n_mid
        moves = [d for d in range(last) if d < loop.n_outer or place.mid]
        found: dict[int, int | None] = {d: self._scalar(RegType.I64, What.VALUE, self._slot(i) + 1 + d) for d in moves}
        if place.inner is Inner.UNIT:
            found[last] = None
        elif place.inner is Inner.ANY:
            found[last] = self._scalar(RegType.I64, What.VALUE, self._slot(i) + 1 + last)
        return found

    # --- addresses
    def _coordinates(self, index: int, loops: Sequence[int]) -> dict[int, int]:
        """The place on each of ``loops`` at a row-major ``index`` into them."""
        a, found = self.a, {}
        for d in reversed(loops):
            first = d == loops[0]
            found[d] = index if first else a.same("rem_u", index, self.sizes[d])
            index = index if first else a.same("div_u", index, self.sizes[d])
        return found

    def _moved(self, i: int, start: int, coordinates: dict[int, int]) -> int:
        for d, at in coordinates.items():
            if d in self.strides[i]:
                stride = self.strides[i][d]
                start = self.a.same("add", start, at if stride is None else self.a.same("mul", at, stride))
        return start

    def _product(self, loops: Sequence[int]) -> int:
        total = self.a.const(RegType.I64, 1)
        for d in loops:
            total = self.a.same("mul", total, self.sizes[d])
        return total

    # --- what happens when
    def _at(self, level: int) -> tuple[list[int], list[tuple[int, int]]]:
        """What is reduced and what is stored on the walk of this level."""
        loop = self.loop
        folds = [i for i, node in enumerate(loop.nodes) if node.op in REDUCTIONS and loop.level[i] == level + 1]
        return folds, [(place, i) for place, i in loop.stores if loop.level[i] == level and not self._standing(place, i)]

    def _standing(self, place: int, i: int) -> bool:
        return self.loop.uniform[i] and self.loop.place_uniform(place)

    def _source(self, i: int) -> DType:
        """The element type of what reduction ``i`` reduces."""
        return self.loop.nodes[self.loop.nodes[i].args[0]].dtype

    def _start_of(self, i: int, into: int | None = None) -> int:
        """What a fold starts from, in a new register or in ``into``."""
        source = self._source(i)
        return self.a.op("mov", held(source), self.a.const(held(source), identity(self.loop.nodes[i].op, source)), into=into)


class _ThreadWriter(Writer):
    """The shapes of launch for threads."""

    def __init__(self, loop: LoopKernel, by_element: bool, sharing: Sharing, fixed: Mapping[int, int]) -> None:
        super().__init__(loop, fixed)
        self.by_element, self.sharing = by_element, sharing
        self.column: int | None = None
        self.across: int | None = None
        self.inside: int | None = None
        n, m = loop.n_outer, loop.n_mid
        every, mid = list(range(n + m + 1)), list(range(n, n + m))
        self.reduced = [] if by_element else (mid if loop.form is Form.COLS else [*mid, n + m])
        self.kept = [d for d in every if d not in self.reduced]

    def _body(self) -> None:
        if self.by_element:
            self._element()
        elif self.sharing is Sharing.THREAD:
            self._column()
        else:
            self._lanes()

    def _thread_of_its_own(self) -> None:
        """A thread for each kept element; threads beyond the last one end."""
        a = self.a
        block = a.same("mul", a.special(Special.CTAID_X), a.special(Special.NTID_X))
        index = a.same("add", block, a.special(Special.TID_X))
        inside, outside = a.fork(a.test("lt_s", index, self._product(self.kept)))
        a.start(outside)
        a.start(inside)
        self._based(index)

    # --- one thread an element
    def _element(self) -> None:
        loop = self.loop
        self._thread_of_its_own()
        values = dict(self.values)
        for i in range(len(loop.nodes)):
            self._value(i, values, {})
        for place, i in loop.stores:
            self._store(place, values[i], {})

    # --- one thread a kept element, lane after lane
    def _column(self) -> None:
        loop = self.loop
        self._thread_of_its_own()
        self.length = self._product(self.reduced)
        self._uniform(0)
        for level in range(loop.passes):
            self._column_pass(level)
            self._uniform(level + 1)
        for place, i in loop.stores:
            if self._standing(place, i):
                self._store(place, self.values[i], {})

    def _column_pass(self, level: int) -> None:
        """One walk over the reduced loops. Lanes come in the order 0, 16, 8, 24, ... (their bits reversed), so that those that meet come
        one after the other, and what waits for its partner is one value for each of five levels."""
        a, loop = self.a, self.loop
        folds, stores = self._at(level)
        if not folds:
            if stores:
                self._walk(a.const(RegType.I64, 0), 1, (), (), stores)
            return
        waiting = [[self._start_of(i) for i in folds] for _ in range(LEVELS)]
        totals, results = [self._start_of(i) for i in folds], [self._start_of(i) for i in folds]
        turn = a.op("mov", RegType.I64, a.const(RegType.I64, 0))
        head = a.block()
        a.jump(head)
        a.start(head)
        body, after = a.fork(a.test("lt_s", turn, a.const(RegType.I64, LANES)))
        a.start(body)
        for i, total in zip(folds, totals, strict=True):
            self._start_of(i, total)
        word = a.op("brev", RegType.I32, a.op("narrow", RegType.I32, turn))
        lane = a.op("zext", RegType.I64, a.op("shr_u", RegType.I32, word, a.const(RegType.I32, 32 - LEVELS)))
        self._walk(lane, LANES, folds, totals, stores)
        following = a.block()
        for at in range(LEVELS):
            bit = a.same("and", turn, a.const(RegType.I64, 1 << at))
            met, waits = a.fork(a.test("ne", bit, a.const(RegType.I64, 0)))
            a.start(waits)
            for total, place in zip(totals, waiting[at], strict=True):
                a.op("mov", a.kind(total), total, into=place)
            a.jump(following)
            a.start(met)
            for i, total, place in zip(folds, totals, waiting[at], strict=True):
                joined = fold(a, loop.nodes[i].op, loop.nodes[loop.nodes[i].args[0]].dtype, place, total)
                a.op("mov", a.kind(total), joined, into=total)
        for total, result in zip(totals, results, strict=True):
            a.op("mov", a.kind(total), total, into=result)
        a.jump(following)
        a.start(following)
        a.op("add", RegType.I64, turn, a.const(RegType.I64, 1), into=turn)
        a.jump(head)
        a.start(after)
        for i, result in zip(folds, results, strict=True):
            self.values[i] = round_to(a, loop.nodes[i].dtype, result)

    def _walk(self, start: int, step: int, folds: Sequence[int], totals: Sequence[int], stores: Sequence[tuple[int, int]]) -> None:
        """Elements ``start``, ``start + step``, ... of the reduced loops: folded into ``totals``, and stored."""
        a, loop = self.a, self.loop
        index = a.op("mov", RegType.I64, start)
        head = a.block()
        a.jump(head)
        a.start(head)
        body, after = a.fork(a.test("lt_s", index, self.length))
        a.start(body)
        coordinates = self._coordinates(index, self.reduced)
        values = dict(self.values)
        for i, total in zip(folds, totals, strict=True):
            (arg,) = loop.nodes[i].args
            joined = fold(a, loop.nodes[i].op, loop.nodes[arg].dtype, total, self._value(arg, values, coordinates))
            a.op("mov", a.kind(total), joined, into=total)
        for place, i in stores:
            self._store(place, self._value(i, values, coordinates), coordinates)
        a.op("add", RegType.I64, index, a.const(RegType.I64, step), into=index)
        a.jump(head)
        a.start(after)

    # --- 32 threads a kept element
    def _lanes(self) -> None:
        a, loop = self.a, self.loop
        self.thread = a.special(Special.TID_X)
        if self.sharing is Sharing.TILE:
            self._tile()
        else:
            self._row()
        self._uniform(0)
        for level in range(loop.passes):
            self._pass(level)
            self._uniform(level + 1)
        stores = [(place, i) for place, i in loop.stores if self._standing(place, i)]
        if stores:
            after = a.block()  # all threads have read what is stored now
            a.end(Bar(after))
            a.start(after)
            first = a.test("eq", self.lane, a.const(RegType.I64, 0))
            first, last = a.fork(first if self.inside is None else a.op("and", RegType.PRED, first, self.inside))
            a.start(first)
            for place, i in stores:
                self._store(place, self.values[i], {})
            a.jump(last)
            a.start(last)

    def _row(self) -> None:
        """A block for a kept element."""
        self.lane = self.thread
        self._based(self.a.special(Special.CTAID_X))
        self.length = self._product(self.reduced)

    def _tile(self) -> None:
        """A block for ``TILE_COLUMNS`` of them. Threads beyond the last one add up nothing of the last one."""
        a = self.a
        self.across = a.const(RegType.I64, TILE_COLUMNS)
        self.lane, self.column = a.same("div_u", self.thread, self.across), a.same("rem_u", self.thread, self.across)
        index = a.same("add", a.same("mul", a.special(Special.CTAID_X), self.across), self.column)
        last = a.same("sub", self._product(self.kept), a.const(RegType.I64, 1))
        self.inside = a.test("le_s", index, last)
        self._based(a.same("min_s", index, last))
        self.length = a.op("sel", RegType.I64, self.inside, self._product(self.reduced), a.const(RegType.I64, 0))

    def _based(self, index: int) -> None:
        """What is at this place on the kept loops."""
        coordinates = self._coordinates(index, self.kept)
        self.base = [self._moved(i, start, coordinates) for i, start in enumerate(self.offsets)]

    def _uniform(self, level: int) -> None:
        """Values that do not depend on the reduced loops and can be computed now."""
        loop = self.loop
        for i, node in enumerate(loop.nodes):
            if loop.uniform[i] and loop.level[i] == level and node.op not in REDUCTIONS:
                self._value(i, self.values, {})

    def _pass(self, level: int) -> None:
        """One walk over the reduced loops: what is reduced and what is stored at this level."""
        folds, stores = self._at(level)
        if not folds and not stores:
            return
        totals = [self._start_of(i) for i in folds]
        self._walk(self.lane, LANES, folds, totals, stores)
        if folds:
            self._meet(folds, totals)

    def _meet(self, folds: Sequence[int], totals: Sequence[int]) -> None:
        """Lane l takes up l + 16, then l + 8, ..., in shared memory; then all threads have the result."""
        a, loop = self.a, self.loop
        arrays = [a.shared(SHARED_TYPE[a.kind(total)], self.sharing.threads) for total in totals]
        kinds = [(SHARED_TYPE[a.kind(total)], a.kind(total)) for total in totals]
        for array, (memory, _), total in zip(arrays, kinds, totals, strict=True):
            a.store(Space.SHARED, array, memory, self.thread, total)
        half = a.op("mov", RegType.I64, a.const(RegType.I64, LANES // 2))
        head = a.block()
        a.end(Bar(head))
        a.start(head)
        step, done = a.fork(a.test("lt_s", a.const(RegType.I64, 0), half))
        a.start(step)
        low, join = a.fork(a.test("lt_s", self.lane, half))
        a.start(low)
        other = a.same("add", self.thread, half if self.across is None else a.same("mul", half, self.across))
        for i, array, (memory, kind) in zip(folds, arrays, kinds, strict=True):
            pair = [a.load(Space.SHARED, array, memory, at, kind) for at in (self.thread, other)]
            joined = fold(a, loop.nodes[i].op, loop.nodes[loop.nodes[i].args[0]].dtype, pair[0], pair[1])
            a.store(Space.SHARED, array, memory, self.thread, joined)
        a.end(Br(join))
        a.start(join)
        a.op("shr_u", RegType.I64, half, a.const(RegType.I64, 1), into=half)
        a.end(Bar(head))
        a.start(done)
        for i, array, (memory, kind) in zip(folds, arrays, kinds, strict=True):
            result = a.load(Space.SHARED, array, memory, a.const(RegType.I64, 0) if self.column is None else self.column, kind)
            self.values[i] = round_to(a, loop.nodes[i].dtype, result)

    # --- values
    def _value(self, i: int, values: dict[int, int], coordinates: dict[int, int]) -> int:
        """The register of node ``i`` at these places on the reduced loops, computed once a block of code."""
        if i not in values:
            node = self.loop.nodes[i]
            if node.op in LEAVES:
                values[i] = self._leaf(node.op, node.args[0], coordinates)
            else:
                args = [self._value(n, values, coordinates) for n in node.args]
                values[i] = operation(self.a, node.op, node.dtype, [self.loop.nodes[n].dtype for n in node.args], args)
        return values[i]

    def _leaf(self, op: str, place: int, coordinates: dict[int, int]) -> int:
        index = self._moved(place, self.base[place], coordinates)
        if op == "index":
            return index
        dtype = self.loop.places[place].dtype
        return from_memory(self.a, dtype, self.a.load(Space.GLOBAL, self.buffers[place], dtype, index, memory_kind(dtype)))

    def _store(self, place: int, value: int, coordinates: dict[int, int]) -> None:
        dtype = self.loop.places[place].dtype
        index = self._moved(place, self.base[place], coordinates)
        self.a.store(Space.GLOBAL, self.buffers[place], dtype, index, to_memory(self.a, dtype, value))
