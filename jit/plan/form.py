"""From a finished group to a loop kernel and its arguments: which loops, in which order, with which operand on which stride.

The order of the kept loops is free; that of the reduced ones is not (it is the order of sums). Lanes go along the last reduced loop (ROWS)
or along a kept one (COLS), wherever memory is walked contiguously.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jit.kernels.loop import LEAVES, Form, Inner, LoopKernel, Node, Place
from jit.plan.access import Access, refine, split
from jit.plan.group import Coordinate, Group, Source
from wis.dtypes import DType
from wis.program import Scalar

__all__ = ["FormedLoop", "form"]

BLOCK = 2048
LANES = 32
KEEP_ROW_MAX = 8192
"""Rows up to this length keep costly values for later passes."""

_OP_NS = {"exp": 0.15, "log": 0.18, "tanh": 0.25, "erf": 0.3, "erfc": 0.5, "sigmoid": 0.2, "div": 0.06, "sqrt": 0.06}
_APART_NS = 0.5
"""More, for every element of an operand whose elements are not neighbours (0.1 in cache, up to 9 where they meet in few sets of it)."""


@dataclass(frozen=True, slots=True)
class FormedLoop:
    """A kernel with everything its argument block needs: ints, sources (an Access: its address; a Coordinate: 0) and scalars."""

    kernel: LoopKernel
    args: tuple[int | Access | Scalar, ...]
    units: int
    grain: float  # ns a unit, estimated


def form(group: Group) -> FormedLoop:
    """The loops of a group whose stores are final."""
    nodes, sources, scalars, stores = _live(group)
    cuts = [[n for n, _ in x.dims] for x in sources]
    pattern = group.pattern
    if pattern is not None:
        cuts.append([n for n, _ in pattern])
    sizes = refine(group.total, cuts)
    assert sizes is not None, "checked on joining"
    strides = [split(x.dims, sizes) for x in sources]
    return _Former(nodes, sources, scalars, stores, sizes, strides, pattern).make()


def _live(group: Group) -> tuple[list[Node], list[Source], list[Scalar], list[tuple[int, int]]]:
    """Nodes, sources and scalars that the stores need, renumbered; sources in order of first use."""
    wanted: set[int] = set()
    stack = list(group.stores.values())
    while stack:
        i = stack.pop()
        if i not in wanted:
            wanted.add(i)
            if group.nodes[i].op not in LEAVES:
                stack.extend(group.nodes[i].args)
    sources: list[Source] = []
    scalars: list[Scalar] = []
    nodes: list[Node] = []
    number: dict[int, int] = {}
    places: dict[Source, int] = {}

    def place(x: Source) -> int:
        if x not in places:
            places[x] = len(sources)
            sources.append(x)
        return places[x]

    for i in sorted(wanted):
        node = group.nodes[i]
        if node.op == "scalar":
            scalars.append(group.scalars[node.args[0]])
            args: tuple[int, ...] = (len(scalars) - 1,)
        elif node.op in LEAVES:
            args = (place(group.sources[node.args[0]]),)
        else:
            args = tuple(number[a] for a in node.args)
        number[i] = len(nodes)
        nodes.append(node._replace(args=args))
    return nodes, sources, scalars, [(place(x), number[i]) for x, i in group.stores.items()]


@dataclass(slots=True)
class _Former:
    nodes: list[Node]
    sources: list[Source]
    scalars: list[Scalar]
    stores: list[tuple[int, int]]
    sizes: list[int]
    strides: list[list[int]]  # [source][factor]
    pattern: tuple[tuple[int, bool], ...] | None

    def make(self) -> FormedLoop:
        reduced = self._reduced()
        kept = [f for f in range(len(self.sizes)) if not reduced[f]]
        folded = [f for f in range(len(self.sizes)) if reduced[f]]
        if self.pattern is None:
            if len(self.sizes) <= 1:
                return self._flat()
            inner = self._best(kept)
            return self._nest(Form.ROWS, [f for f in kept if f != inner], [], inner)
        if not folded:  # reductions over dimensions of size 1: one step of an otherwise empty loop
            return self._nest(Form.COLS, kept[:-1], [], kept[-1] if kept else None)
        if kept:
            across = self._best(kept)
            if self._score(across) > self._score(folded[-1]) and self.sizes[across] >= 8:
                return self._nest(Form.COLS, [f for f in kept if f != across], folded, across)
        return self._nest(Form.ROWS, kept, folded[:-1], folded[-1])

    def _reduced(self) -> list[bool]:
        """For each factor, whether the pattern reduces it."""
        if self.pattern is None:
            return [False] * len(self.sizes)
        result: list[bool] = []
        at = 0
        for size, keep in self.pattern:
            run = 1
            while run < size:
                run *= self.sizes[at]
                result.append(not keep)
                at += 1
        return result + [False] * (len(self.sizes) - len(result))

    def _score(self, factor: int) -> float:
        """How well lanes fit along a factor: contiguous traffic counts (stores twice), standing operands are free, others gather."""
        score = 0.0
        stored = {place for place, _ in self.stores}
        for i, source in enumerate(self.sources):
            stride = self.strides[i][factor]
            if isinstance(source, Coordinate) or stride == 0:
                continue
            touched = _product([size for size, s in zip(self.sizes, self.strides[i], strict=True) if s])
            weight = (2.0 if i in stored else 1.0) * touched / _product(self.sizes)
            score += weight if stride == 1 else -weight
        return score * min(1.0, self.sizes[factor] / LANES) if score > 0 else score

    def _best(self, factors: Sequence[int]) -> int:
        return max(factors, key=lambda f: (self._score(f), self.sizes[f] >= LANES, f))

    def _place(self, i: int, inner: int | None, mid: Sequence[int], form: Form) -> Place:
        source = self.sources[i]
        stride = self.strides[i][inner] if inner is not None else 1
        how = Inner.ZERO if stride == 0 else (Inner.UNIT if stride == 1 else Inner.ANY)
        moves = any(self.strides[i][f] for f in mid)
        virtual = isinstance(source, Coordinate)
        return Place(DType.I64 if isinstance(source, Coordinate) else source.dtype, how, moves, virtual)

    def _flat(self) -> FormedLoop:
        inner = 0 if self.sizes else None
        total = self.sizes[0] if self.sizes else 1
        kernel = self._kernel(Form.FLAT, 0, [], inner, keep=False)
        return FormedLoop(kernel, (BLOCK, total, *self._place_args([], [], inner)), -(-total // BLOCK), self._ns() * min(total, BLOCK) + 5)

    def _nest(self, how: Form, outer: list[int], mid: list[int], inner: int | None) -> FormedLoop:
        """``inner`` None: a space of one element; ``mid`` may be empty in COLS, which then folds a single step."""
        mid_sizes = [self.sizes[f] for f in mid]
        if how is Form.COLS and not mid:
            mid_sizes = [1]
        n = self.sizes[inner] if inner is not None else 1
        rows = _product(mid_sizes)
        kernel = self._kernel(how, len(outer), mid if mid or how is Form.ROWS else [-1], inner, keep=rows * n <= KEEP_ROW_MAX)
        outer_sizes = [self.sizes[f] for f in outer]
        strange = [-1] if how is Form.COLS and not mid else mid
        args = (n, 0, *outer_sizes, *mid_sizes, *self._place_args(outer, strange, inner))
        units = _product(outer_sizes)
        unit_elements = rows * n
        if how is Form.COLS:
            units *= -(-n // LANES)
            unit_elements = rows * LANES
        apart = sum(_APART_NS for place in kernel.places if place.inner is Inner.ANY and not place.virtual)
        return FormedLoop(kernel, args, units, (self._ns() * kernel.passes + apart) * max(unit_elements, LANES) + 20)

    def _kernel(self, how: Form, n_outer: int, mid: Sequence[int], inner: int | None, *, keep: bool) -> LoopKernel:
        real = [f for f in mid if f >= 0]
        places = tuple(self._place(i, inner, real, how) for i in range(len(self.sources)))
        return LoopKernel(how, n_outer, len(mid), places, tuple(self.nodes), tuple(self.stores), len(self.scalars), keep)

    def _place_args(self, outer: Sequence[int], mid: Sequence[int], inner: int | None) -> list[int | Access | Scalar]:
        args: list[int | Access | Scalar] = []
        for i, source in enumerate(self.sources):
            args.append(source if isinstance(source, Access) else 0)
            args.extend(self.strides[i][f] for f in outer)
            args.extend(self.strides[i][f] if f >= 0 else 0 for f in mid)
            args.append(self.strides[i][inner] if inner is not None else 1)
        return [*args, *self.scalars]

    def _ns(self) -> float:
        """Estimated time an element."""
        size = sum(x.dtype.itemsize for x in self.sources if isinstance(x, Access))
        return 0.02 * size + sum(_OP_NS.get(node.op, 0.02) for node in self.nodes if node.op not in LEAVES)


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
