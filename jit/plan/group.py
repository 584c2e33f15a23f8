"""A fused group under construction: instructions that one loop nest can run together.

All instructions of a group share one index space of N elements. Values are a graph of operations; reading what the group itself has
written with the same access takes the value instead of the memory. A group with a reduction has a *pattern*: which parts of the index
space are kept and which are reduced; instructions on the kept part alone (N = product of the kept sizes) may join it.

Legal to join, because elements then run in another order than instruction by instruction:
 - what is read is either not written in the group, or written with the same access;
 - what is written overlaps no other access of the group, but for a read with the same access (each element is read before it is written);
   in a group with a reduction, which reads in several passes, only on the kept part, where reads come before all writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jit.kernels.loop import LEAVES, Node
from jit.plan.access import Access, access, canonical, lift, may_overlap, refine
from wis.dtypes import DType
from wis.ops import Kind
from wis.program import BoundInstr, Operand, Scalar

__all__ = ["Pattern", "Group", "Candidate", "Constant", "Coordinate", "Read", "Source", "candidate", "Supported"]

Pattern = tuple[tuple[int, bool], ...]
"""(size, kept) from the slowest part of the index space to the fastest, neighbours merged."""

Supported = Callable[[str, DType, Sequence[DType]], bool]

NODES_MAX = 160
PLACES_MAX = 28
FACTORS_MAX = 7


class Constant(NamedTuple):
    """A value of one element that depends on scalars only: computed where it is used instead of being stored."""

    op: str
    dtype: DType
    args: tuple[Constant | Scalar, ...]


class Coordinate(NamedTuple):
    """A virtual operand: a coordinate of the index space, as dims with stride 1 along one dimension."""

    dims: tuple[tuple[int, int], ...]


Source = Access | Coordinate
Read = Source | Scalar | Constant


class Candidate(NamedTuple):
    """One instruction as seen by fusion. ``total``: elements of its index space; ``pattern``: None for element by element operations.

    ``place`` is its number in the code.
    """

    instr: BoundInstr
    total: int
    pattern: Pattern | None
    reads: tuple[Read, ...]
    writes: tuple[Access, ...]
    place: int


def candidate(place: int, instr: BoundInstr, supported: Supported) -> Candidate | None:
    """The instruction for fusion, or None when it has to stand alone."""
    op = instr.op
    if op.kind not in (Kind.MAP, Kind.IOTA, Kind.REDUCE) or op.name in ("argmax", "argmin"):
        return None
    out = instr.outs[0]
    kinds = [x.dtype for x in instr.ins]
    if op.kind is Kind.IOTA:
        if out.dtype.is_complex or out.dtype is DType.BOOL or not out.numel:
            return None
        (dim,) = instr.attrs
        steps = [int(d == dim) for d in range(len(out.shape))]
        return Candidate(instr, out.numel, None, (Coordinate(canonical(out.shape, steps)), *_scalars(instr)), (access(out),), place)
    pattern: Pattern | None = None
    if op.kind is Kind.REDUCE:
        source = instr.ins[0]
        if not isinstance(source, Operand) or not source.numel or out.dtype.is_complex:
            return None
        total, pattern = source.numel, _pattern(source.shape, out.shape)
    else:
        total = out.numel
        if not total or not supported(op.name, out.dtype, kinds):
            return None
    reads = tuple(access(x) if isinstance(x, Operand) else x for x in instr.ins)
    writes = (access(out),)
    if not _few_factors(instr, total, [x for x in (*reads, *writes) if isinstance(x, Access)], pattern):
        return None
    if any(isinstance(r, Access) and r[:4] != writes[0][:4] and may_overlap(r, writes[0]) for r in reads):
        return None  # reads all before writing any, with different accesses: not a loop
    if pattern is not None and any(isinstance(r, Access) and may_overlap(r, writes[0]) for r in reads):
        return None
    return Candidate(instr, total, pattern, reads, writes, place)


def _few_factors(instr: BoundInstr, total: int, accesses: Sequence[Access], pattern: Pattern | None) -> bool:
    """Whether the loops over all of its elements, merged as far as its operands allow, are few enough for a group."""
    shapes = [x.shape for x in (*instr.outs, *instr.ins) if isinstance(x, Operand)]
    if max(map(len, shapes)) <= FACTORS_MAX:
        return True
    if pattern is not None:
        return all(sum(n > 1 for n in shape) <= FACTORS_MAX for shape in shapes)
    sizes = refine(total, [[n for n, _ in x.dims] for x in accesses])
    return sizes is not None and len(sizes) <= FACTORS_MAX


def _scalars(instr: BoundInstr) -> tuple[Scalar, ...]:
    return tuple(x for x in instr.ins if isinstance(x, Scalar))


def _pattern(shape: Sequence[int], kept_shape: Sequence[int]) -> Pattern:
    parts: list[tuple[int, bool]] = []
    for size, kept in zip(shape, kept_shape, strict=True):
        if size == 1:
            continue
        keep = size == kept
        if parts and parts[-1][1] == keep:
            parts[-1] = (parts[-1][0] * size, keep)
        else:
            parts.append((size, keep))
    return tuple(parts)


class Group:
    """A fused group. ``sources``: its operands over the whole index space; ``stores``: which node is written to which access."""

    def __init__(self, first: Candidate) -> None:
        self.total = first.total
        self.pattern: Pattern | None = first.pattern
        self.kept = _kept(first.pattern)
        self.candidates: list[Candidate] = []
        self.sources: list[Source] = []
        self.nodes: list[Node] = []
        self.scalars: list[Scalar] = []
        self.stores: dict[Access, int] = {}
        self.loads: dict[Access, int] = {}
        self.has_inplace = False
        self.sizes: list[int] = []
        self._source_index: dict[Source, int] = {}
        self._memo: dict[Node, int] = {}
        self._values: dict[Access, int] = {}
        joined = self.join(first, alone=True)
        assert joined, first.instr

    # --- joining
    def join(self, c: Candidate, *, alone: bool = False) -> bool:
        """Add the instruction if that is legal and sensible; otherwise change nothing."""
        pattern = self.pattern
        if c.pattern is not None:
            if c.total != self.total or (pattern is not None and pattern != c.pattern) or (pattern is None and self.has_inplace):
                return False
            pattern = c.pattern
        elif c.total != self.total and (pattern is None or c.total != self.kept):
            return False
        lifted = pattern is not None and c.pattern is None and c.total != self.total
        reads = [x if isinstance(x, (Scalar, Constant)) else _over(x, pattern if lifted else None) for x in c.reads]
        writes = [_over(x, pattern if lifted or c.pattern is not None else None) for x in c.writes]
        if any(x is None for x in (*reads, *writes)):
            return False
        if not alone and not self._related(reads):
            return False
        kept_only = lifted or c.pattern is not None
        fits = self._fits(reads, writes, pattern, kept_only)
        if fits is None:
            return False
        self.sizes, inplace = fits
        self.has_inplace |= inplace
        self.pattern, self.kept = pattern, _kept(pattern)
        self._add(c, reads, writes)
        return True

    def makes(self, x: Access) -> bool:
        """Whether the group writes the value at this access (of its own index space)."""
        return x in self.stores

    @classmethod
    def merged(cls, first: Group, second: Group, last: Candidate) -> Group | None:
        """One group of both and ``last``, in the order of the code, or None when that is not legal."""
        members = sorted((*first.candidates, *second.candidates, last), key=lambda c: c.place)
        group = cls(members[0])
        for c in members[1:]:
            if not group.join(c, alone=True):
                return None
        return group

    def _related(self, reads: Sequence[Read | None]) -> bool:
        """Whether it reads something the group makes or reads: unrelated work would only make the kernel special."""
        return any(isinstance(x, Access) and (x in self._values or x in self.loads) for x in reads)

    def _fits(
        self, reads: Sequence[Read | None], writes: Sequence[Source | None], pattern: Pattern | None, kept_only: bool
    ) -> tuple[list[int], bool] | None:
        """The refined sizes with these operands, and whether a write is in place; None when it is illegal or would spoil the loops."""
        if len(self.nodes) > NODES_MAX or len(self.sources) > PLACES_MAX:
            return None
        fresh: list[Source] = []
        for x in reads:
            if x is None or isinstance(x, (Scalar, Constant)) or x in self._values:
                continue
            if isinstance(x, Access) and any(may_overlap(x, w) for w in self.stores):
                return None
            fresh.append(x)
        inplace = False
        for w in writes:
            assert isinstance(w, Access)
            if any(w != other and may_overlap(w, other) for other in self.stores):
                return None
            for r in (*self.loads, *(x for x in reads if isinstance(x, Access))):
                if may_overlap(w, r):
                    if r != w or (pattern is not None and not kept_only):
                        return None
                    inplace = True
            fresh.append(w)
        cuts = [[n for n, _ in x.dims] for x in (*self.sources, *fresh)]
        if pattern is not None:
            cuts.append([n for n, _ in pattern])
        sizes = refine(self.total, cuts)
        if sizes is None or len(sizes) > FACTORS_MAX:
            return None
        if self.sizes and pattern is None and max(sizes) < 16 <= max(self.sizes):
            return None
        return sizes, inplace

    def _add(self, c: Candidate, reads: Sequence[Read | None], writes: Sequence[Source | None]) -> None:
        self.candidates.append(c)
        instr = c.instr
        args = [self._value(x) for x in reads if x is not None]
        out = instr.outs[0].dtype
        if instr.op.kind is Kind.IOTA:
            result = self._iota(out, args, [x.dtype for x in instr.ins])
        else:
            result = self._node(Node(instr.op.name, out, tuple(args)))
        for w in writes:
            assert isinstance(w, Access)
            self._source(w)
            self.stores[w] = result
            self._values[w] = result

    def _iota(self, out: DType, args: Sequence[int], kinds: Sequence[DType]) -> int:
        """start + step * coordinate: integers in i64 (then wrapped), floats in f64 (then rounded)."""
        index, start, step = args
        wide = DType.I64 if out.is_integer else DType.F64
        terms = [
            node if kind is wide else self._node(Node("cast", wide, (node,)))
            for node, kind in ((index, DType.I64), (start, kinds[0]), (step, kinds[1]))
        ]
        product = self._node(Node("mul", wide, (terms[2], terms[0])))
        total = self._node(Node("add", wide, (terms[1], product)))
        return total if out is wide else self._node(Node("cast", out, (total,)))

    # --- the value graph
    def _value(self, x: Read) -> int:
        if isinstance(x, Constant):
            return self._node(Node(x.op, x.dtype, tuple(self._value(a) for a in x.args)))
        if isinstance(x, Scalar):
            if x not in self.scalars:
                self.scalars.append(x)
            return self._node(Node("scalar", x.dtype, (self.scalars.index(x),)))
        if isinstance(x, Coordinate):
            return self._node(Node("index", DType.I64, (self._source(x),)))
        if x not in self._values:
            self.loads[x] = self._values[x] = self._node(Node("load", x.dtype, (self._source(x),)))
        return self._values[x]

    def _source(self, x: Source) -> int:
        at = self._source_index.get(x)
        if at is None:
            at = self._source_index[x] = len(self.sources)
            self.sources.append(x)
        return at

    def _node(self, node: Node) -> int:
        at = self._memo.get(node)
        if at is None:
            at = self._memo[node] = len(self.nodes)
            self.nodes.append(node)
        return at

    # --- after grouping
    def drop_stores(self, dead: Callable[[Access], bool]) -> None:
        """Drop dead stores, and the loads that only they needed."""
        self.stores = {x: node for x, node in self.stores.items() if not dead(x)}
        live: set[int] = set()
        stack = list(self.stores.values())
        while stack:
            i = stack.pop()
            if i not in live:
                live.add(i)
                if self.nodes[i].op not in LEAVES:
                    stack.extend(self.nodes[i].args)
        self.loads = {x: i for x, i in self.loads.items() if i in live}


def _kept(pattern: Pattern | None) -> int:
    kept = 1
    for size, keep in pattern or ():
        if keep:
            kept *= size
    return kept


def _over(x: Source, pattern: Pattern | None) -> Source | None:
    """An operand over the kept part as one over the whole space (``pattern`` None: it is over the whole space already)."""
    if pattern is None:
        return x
    dims = lift(x.dims, pattern)
    return None if dims is None else x._replace(dims=dims)
