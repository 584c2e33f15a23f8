"""Shared parts of the three loop forms: arguments, values, one vector step, and the inner loop across vectors.

Values across the inner loop are explicit vectors of 32 lanes with a masked variant of the body for ragged ends, so neither speed nor
the order of a sum depends on the optimiser. Each pass over the reduced loops computes what its stores and reductions need; a costly value
that a later pass wants again is kept in scratch, a cheap one is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jit.host.emit.code import LANES, Code, Lanes, memory, register
from jit.host.emit.control import Loop
from jit.host.emit.maths import COST
from jit.host.emit.ops import emit, fold, identity, load_convert, round_to, store_convert
from jit.kernels.loop import LEAVES, REDUCTIONS, Form, Inner, LoopKernel
from wis.dtypes import DType

__all__ = ["Pass", "Spot", "Writer"]

_KEEP_COST = 8
"""A value at least this costly (in simple operations) is kept for a later pass rather than computed again."""


@dataclass(slots=True)
class Pass:
    """What one pass over the reduced loops has to do."""

    needed: list[int]  # nodes in order
    stores: list[tuple[int, int]]
    folds: list[int]  # reduction nodes
    keeps: list[int]  # nodes to put in scratch


@dataclass(slots=True)
class Spot:
    """Where the inner loop stands: row pointers, the lane-0 index, and the mask (None: all lanes are inside)."""

    pointers: Sequence[str]
    index: str
    mask: str | None
    values: dict[int, str] = field(default_factory=dict)


class Writer:
    """Common to the three forms."""

    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel
        self.layout = kernel.layout
        self.code = Code()
        self.v = Lanes(self.code, LANES)
        self.one = Lanes(self.code, 1)
        self.u = self.one  # the lanes of uniform values
        self.uniform_values: dict[int, str] = {}
        self.step_vectors: dict[int, str] = {}
        self.base: list[str] = []
        self.inner_stride: list[str] = []
        self.inner_size = self.arg(self.layout.inner_size)
        self._load_places()

    # --- arguments
    def arg(self, slot: int, kind: str = "i64") -> str:
        place = self.code.value(f"getelementptr i64, ptr %args, i64 {slot}")
        return self.code.value(f"load {kind}, ptr {place}")

    def place_slot(self, place: int, at: int = 0) -> int:
        return self.layout.places + place * self.layout.place_slots + at

    def _load_places(self) -> None:
        """Addresses and strides, and for strided operands the vector of lane offsets."""
        k = self.kernel
        last = 1 + k.n_outer + k.n_mid
        for i, place in enumerate(k.places):
            self.base.append(self.arg(self.place_slot(i), "i64" if place.virtual else "ptr"))
            self.inner_stride.append(self.arg(self.place_slot(i, last)) if place.inner is Inner.ANY else "1")
            if place.inner is Inner.ANY:
                wide = self.v.splat("i64", self.inner_stride[i])
                self.step_vectors[i] = self.v.op("mul", "i64", self.v.iota("i64"), wide)

    def outer_stride(self, place: int, d: int) -> str:
        return self.arg(self.place_slot(place, 1 + d))

    def mid_stride(self, place: int, d: int) -> str:
        return self.arg(self.place_slot(place, 1 + self.kernel.n_outer + d))

    def moved(self, place: int, base: str, offset: str) -> str:
        """An address (or coordinate) ``offset`` elements further."""
        p = self.kernel.places[place]
        return self.code.add(base, offset) if p.virtual else self.code.gep(memory(p.dtype), base, offset)

    def at_coordinates(self, base: Sequence[str], coords: Sequence[str], strides: Sequence[Sequence[str]]) -> list[str]:
        """Each operand's address at loop coordinates; ``strides[d][place]``."""
        result = []
        for i, start in enumerate(base):
            offset = ""
            for d, x in enumerate(coords):
                term = self.code.mul(x, strides[d][i])
                offset = self.code.add(offset, term) if offset else term
            result.append(self.moved(i, start, offset) if offset else start)
        return result

    # --- uniform values
    def scalars(self) -> None:
        """Scalar arguments and what depends on nothing else, once at the entry."""
        for i, node in enumerate(self.kernel.nodes):
            if node.op == "scalar":
                kind = register(node.dtype)
                raw = self.arg(self.layout.scalars + node.args[0], "i8" if kind == "i1" else kind)
                if kind == "i1":
                    raw = self.one.compare("icmp ne", "i8", raw, "0")
                self.uniform_values[i] = self.u.splat(kind, raw)
        fixed = [node.op == "scalar" for node in self.kernel.nodes]
        for i, node in enumerate(self.kernel.nodes):
            if node.op not in LEAVES and node.op not in REDUCTIONS:
                fixed[i] = all(fixed[a] for a in node.args)
                if fixed[i]:
                    kinds = [self.kernel.nodes[a].dtype for a in node.args]
                    args = [self.uniform_values[a] for a in node.args]
                    self.uniform_values[i] = emit(self.u, node.op, node.dtype, kinds, args)

    def uniform_ops(self, below: int) -> None:
        """Uniform operations whose reductions are done (level <= ``below``)."""
        k = self.kernel
        for i, node in enumerate(k.nodes):
            if (
                k.uniform[i]
                and i not in self.uniform_values
                and node.op not in REDUCTIONS
                and node.op not in LEAVES
                and k.level[i] <= below
            ):
                kinds = [k.nodes[a].dtype for a in node.args]
                self.uniform_values[i] = emit(self.u, node.op, node.dtype, kinds, [self.uniform_values[a] for a in node.args])

    def spread(self, i: int) -> str:
        """A uniform value in every lane."""
        if self.u.n == LANES:
            return self.uniform_values[i]
        return self.v.splat(register(self.kernel.nodes[i].dtype), self.uniform_values[i])

    # --- planning of passes
    def keepable(self) -> set[int]:
        """Nodes worth keeping in scratch: costly, not uniform, and used by a later pass."""
        k = self.kernel
        if not k.keep or k.form is Form.COLS:
            return set()
        cost = [0] * len(k.nodes)
        result = set()
        for i, node in enumerate(k.nodes):
            if node.op not in LEAVES and not k.uniform[i]:
                cost[i] = COST.get(node.op, 1) + sum(cost[a] for a in node.args)
        for i, node in enumerate(k.nodes):
            if node.op in LEAVES:
                continue
            when = k.level[node.args[0]] if node.op in REDUCTIONS else k.level[i]
            if node.op not in REDUCTIONS and k.uniform[i]:
                continue
            result |= {a for a in node.args if when > k.level[a] and cost[a] >= _KEEP_COST and k.nodes[a].dtype is not DType.BOOL}
        return result

    def plan(self) -> list[Pass]:
        """What each pass does."""
        k = self.kernel
        keeps = self.keepable()
        passes = []
        for p in range(k.passes):
            stores = [(place, i) for place, i in k.stores if not (k.uniform[i] and k.place_uniform(place)) and k.level[i] == p]
            folds = [i for i, node in enumerate(k.nodes) if node.op in REDUCTIONS and k.level[node.args[0]] == p]
            keep = sorted(i for i in keeps if k.level[i] == p)
            needed: set[int] = set()
            stack = [i for _, i in stores] + [k.nodes[i].args[0] for i in folds] + keep
            while stack:
                i = stack.pop()
                if i in needed or k.uniform[i]:
                    continue
                needed.add(i)
                if k.nodes[i].op not in LEAVES and not (i in keeps and k.level[i] < p):
                    stack.extend(k.nodes[i].args)
            passes.append(Pass(sorted(needed), stores, folds, keep))
        return passes

    def spread_all(self, todo: Pass) -> dict[int, str]:
        """Uniform values this pass uses, in every lane; emitted ahead of the loop."""
        k = self.kernel
        wanted = {i for _, i in todo.stores} | {k.nodes[i].args[0] for i in todo.folds}
        for i in todo.needed:
            if k.nodes[i].op not in LEAVES:
                wanted.update(k.nodes[i].args)
        return {i: self.spread(i) for i in sorted(wanted) if k.uniform[i] and i in self.uniform_values}

    # --- the body
    def load(self, place: int, spot: Spot) -> str:
        """A vector of an operand (memory form converted to register form)."""
        p, v, code = self.kernel.places[place], self.v, self.code
        kind = memory(p.dtype)
        base = spot.pointers[place]
        if p.inner is Inner.ZERO:
            return self.v.splat(register(p.dtype), load_convert(self.one, p.dtype, code.value(f"load {kind}, ptr {base}")))
        wide = v.type(kind)
        size = p.dtype.itemsize
        if p.inner is Inner.UNIT:
            address = code.gep(kind, base, spot.index)
            if spot.mask is None:
                raw = code.value(f"load {wide}, ptr {address}, align {size}")
            else:
                raw = self._masked_load(kind, address, size, spot.mask)
        else:
            start = code.gep(kind, base, code.mul(spot.index, self.inner_stride[place]))
            addresses = code.value(f"getelementptr {kind}, ptr {start}, {v.type('i64')} {self.step_vectors[place]}")
            mask = spot.mask or v.const("i1", 1)
            name = f"llvm.masked.gather.{v.suffix(kind)}.v{LANES}p0"
            raw = code.call(wide, name, (v.type("ptr"), addresses), ("i32", str(size)), (v.type("i1"), mask), (wide, "zeroinitializer"))
        return load_convert(v, p.dtype, raw)

    def _masked_load(self, kind: str, address: str, size: int, mask: str) -> str:
        v = self.v
        wide, name = v.type(kind), f"llvm.masked.load.{v.suffix(kind)}.p0"
        return self.code.call(wide, name, ("ptr", address), ("i32", str(size)), (v.type("i1"), mask), (wide, "zeroinitializer"))

    def _masked_store(self, kind: str, value: str, address: str, size: int, mask: str | None) -> None:
        v = self.v
        if mask is None:
            self.code.do(f"store {v.type(kind)} {value}, ptr {address}, align {size}")
            return
        name = f"llvm.masked.store.{v.suffix(kind)}.p0"
        self.code.call("void", name, (v.type(kind), value), ("ptr", address), ("i32", str(size)), (v.type("i1"), mask))

    def store(self, place: int, value: str, spot: Spot) -> None:
        """A vector into an operand; a ZERO operand cannot be stored to here (outs never overlap themselves)."""
        p, v, code = self.kernel.places[place], self.v, self.code
        kind = memory(p.dtype)
        raw = store_convert(v, p.dtype, value)
        base, size = spot.pointers[place], p.dtype.itemsize
        if p.inner is Inner.UNIT:
            self._masked_store(kind, raw, code.gep(kind, base, spot.index), size, spot.mask)
            return
        assert p.inner is Inner.ANY
        start = code.gep(kind, base, code.mul(spot.index, self.inner_stride[place]))
        addresses = code.value(f"getelementptr {kind}, ptr {start}, {v.type('i64')} {self.step_vectors[place]}")
        name = f"llvm.masked.scatter.{v.suffix(kind)}.v{LANES}p0"
        mask = spot.mask or v.const("i1", 1)
        code.call("void", name, (v.type(kind), raw), (v.type("ptr"), addresses), ("i32", str(size)), (v.type("i1"), mask))

    def coordinate(self, place: int, spot: Spot) -> str:
        """A vector of a virtual operand."""
        p, code = self.kernel.places[place], self.code
        base = spot.pointers[place]
        if p.inner is Inner.ZERO:
            return self.v.splat("i64", base)
        first = code.add(base, code.mul(spot.index, self.inner_stride[place]))
        steps = self.step_vectors[place] if p.inner is Inner.ANY else self.v.iota("i64")
        return self.v.op("add", "i64", self.v.splat("i64", first), steps)

    def body(self, todo: Pass, spot: Spot, spread: dict[int, str], accumulators: Sequence[str]) -> list[str]:
        """One step of the inner loop; returns the next accumulators (in the order of ``todo.folds``)."""
        k = self.kernel
        spot.values = dict(spread)
        kept = self.keepable()
        for i in todo.needed:
            node = k.nodes[i]
            if node.op == "load":
                spot.values[i] = self.load(node.args[0], spot)
            elif node.op == "index":
                spot.values[i] = self.coordinate(node.args[0], spot)
            elif i in kept and i not in todo.keeps:
                spot.values[i] = self.reload(i, spot)
            else:
                kinds = [k.nodes[a].dtype for a in node.args]
                spot.values[i] = emit(self.v, node.op, node.dtype, kinds, [spot.values[a] for a in node.args])
            if i in todo.keeps:
                self.keep(i, spot)
        for place, i in todo.stores:
            self.store(place, spot.values[i], spot)
        return [self.accumulate(i, acc, spot) for i, acc in zip(todo.folds, accumulators, strict=True)]

    def accumulate(self, i: int, accumulator: str, spot: Spot) -> str:
        """One step of reduction ``i``; lanes outside contribute the identity."""
        node = self.kernel.nodes[i]
        source = self.kernel.nodes[node.args[0]].dtype
        value = spot.values[node.args[0]]
        if spot.mask is not None:
            value = self.v.select(register(source), spot.mask, value, self.neutral(i))
        return fold(self.v, node.op, source, accumulator, value)

    def neutral(self, i: int) -> str:
        """The identity of reduction ``i`` in every lane."""
        node = self.kernel.nodes[i]
        source = self.kernel.nodes[node.args[0]].dtype
        return f"splat ({register(source)} {identity(node.op, source)})"

    def keep(self, i: int, spot: Spot) -> None:
        raise NotImplementedError

    def reload(self, i: int, spot: Spot) -> str:
        raise NotImplementedError

    def write(self) -> None:
        raise NotImplementedError

    # --- the inner loop
    def inner_loop(self, todo: Pass, pointers: Sequence[str], start: str, stop: str, accumulators: Sequence[str]) -> list[str]:
        """Across ``[start, stop)`` by vectors; a vector that is not wholly inside ``[0 or start.., stop)`` takes the masked body."""
        code, v = self.code, self.v
        spread = self.spread_all(todo)
        kinds = [v.type(register(self.kernel.nodes[self.kernel.nodes[i].args[0]].dtype)) for i in todo.folds]
        loop = Loop(code, start, stop, LANES, carried=list(zip(kinds, accumulators, strict=True)))
        whole, ragged, join = code.fresh("whole"), code.fresh("ragged"), code.fresh("join")
        left = code.sub(stop, loop.index)
        inside = code.value(f"icmp sge i64 {left}, {LANES}")
        if self.may_start_before():
            inside = code.value(f"and i1 {inside}, {code.value(f'icmp sge i64 {loop.index}, 0')}")
        code.fork(inside, whole, ragged)
        code.label(whole)
        full = self.body(todo, Spot(pointers, loop.index, None), spread, loop.carried)
        full_block = code.block
        code.branch(join)
        code.label(ragged)
        some = self.body(todo, Spot(pointers, loop.index, self.mask(loop.index, left)), spread, loop.carried)
        some_block = code.block
        code.branch(join)
        code.label(join)
        merged = [
            code.value(f"phi {kind} [ {a}, %{full_block} ], [ {b}, %{some_block} ]") for kind, a, b in zip(kinds, full, some, strict=True)
        ]
        loop.end(merged)
        return loop.carried

    def may_start_before(self) -> bool:
        """Whether the first vector may begin at a negative index (lanes shifted by the position in the reduced space)."""
        return False

    def mask(self, index: str, left: str) -> str:
        """Lanes of the vector at ``index`` that are inside: from max(0, -index) up to ``left``."""
        code, v = self.code, self.v
        wide = code.value(f"trunc i64 {code.call('i64', 'llvm.smin.i64', ('i64', left), ('i64', str(LANES)))} to i32")
        iota = v.iota("i32")
        if not self.may_start_before():
            return v.compare("icmp ult", "i32", iota, v.splat("i32", wide))
        first = code.call("i64", "llvm.smax.i64", ("i64", code.sub("0", index)), ("i64", "0"))
        skip = code.value(f"trunc i64 {first} to i32")
        shifted = v.op("sub", "i32", iota, v.splat("i32", skip))
        return v.compare("icmp ult", "i32", shifted, v.splat("i32", code.value(f"sub i32 {wide}, {skip}")))

    def tree(self, i: int, accumulator: str) -> str:
        """Fold the lanes by halves and round to the reduction's type; a scalar."""
        node = self.kernel.nodes[i]
        source = self.kernel.nodes[node.args[0]].dtype
        kind = register(source)
        width, value = LANES, accumulator
        while width > 1:
            half = width // 2
            lanes = Lanes(self.code, half)
            parts = []
            for first in (0, half):
                if half == 1:
                    parts.append(self.code.value(f"extractelement <2 x {kind}> {value}, i32 {first}"))
                else:
                    order = ", ".join(f"i32 {first + lane}" for lane in range(half))
                    wide = f"<{width} x {kind}>"
                    parts.append(self.code.value(f"shufflevector {wide} {value}, {wide} poison, <{half} x i32> <{order}>"))
            value = fold(lanes, node.op, source, parts[0], parts[1])
            width = half
        return round_to(self.one, node.dtype, value)
