"""From a ``LoopKernel`` to the text of one LLVM function ``void name(i64 *args, i64 r0, i64 r1, char *scratch)``."""

from __future__ import annotations

from collections.abc import Sequence

from jit.host.emit.code import LANES, memory, register
from jit.host.emit.control import Loop, coordinates
from jit.host.emit.ops import fold, load_convert, round_to, store_convert
from jit.host.emit.writer import Pass, Spot, Writer
from jit.kernels.loop import REDUCTIONS, Form, Inner, LoopKernel
from wis.dtypes import DType

__all__ = ["function_text"]

_ROWS_AHEAD = 10
"""How many rows ahead a column reduction asks for."""


def function_text(kernel: LoopKernel, name: str) -> str:
    """The LLVM module that defines ``name`` and nothing else."""
    writer = {Form.FLAT: _Flat, Form.ROWS: _Rows, Form.COLS: _Cols}[kernel.form](kernel)
    writer.write()
    code = writer.code
    head = f"define void @{name}(ptr noalias %args, i64 %r0, i64 %r1, ptr noalias %scratch) nounwind {{"
    return "\n".join([*code.declared.values(), head, "entry:", *code.lines, "}", ""])


class _Flat(Writer):
    """One contiguous index range; units of ``block`` elements."""

    def write(self) -> None:
        code = self.code
        self.scalars()
        for i, node in enumerate(self.kernel.nodes):
            if node.op == "load" and self.kernel.uniform[i]:
                p = self.kernel.places[node.args[0]]
                raw = code.value(f"load {memory(p.dtype)}, ptr {self.base[node.args[0]]}")
                self.uniform_values[i] = load_convert(self.one, p.dtype, raw)
            elif node.op == "index" and self.kernel.uniform[i]:
                self.uniform_values[i] = self.base[node.args[0]]
        self.uniform_ops(0)
        start = code.mul("%r0", self.inner_size)
        total = self.arg(self.layout.total)
        stop = code.call("i64", "llvm.smin.i64", ("i64", code.mul("%r1", self.inner_size)), ("i64", total))
        (todo,) = self.plan()
        self.inner_loop(todo, self.base, start, stop, [])
        code.do("ret void")


class _Rows(Writer):
    """A unit is one point of the outer loops; lanes run along the inner, reduced loop."""

    def write(self) -> None:
        k, code = self.kernel, self.code
        self.scalars()
        at_entry = dict(self.uniform_values)
        sizes = [self.arg(self.layout.outer_sizes + d) for d in range(k.n_outer)]
        strides = [[self.outer_stride(i, d) for i in range(len(k.places))] for d in range(k.n_outer)]
        self._mid_sizes = [self.arg(self.layout.mid_sizes + d) for d in range(k.n_mid)]
        self._mid_strides = [[self.mid_stride(i, d) for i in range(len(k.places))] for d in range(k.n_mid)]
        self._mid_total = "1"
        for size in self._mid_sizes:
            self._mid_total = code.mul(self._mid_total, size)
        self._row_length = code.mul(self._mid_total, self.inner_size)
        self._keep_at: dict[int, str] = {}
        bytes_before = "0"
        for i in sorted(self.keepable()):
            self._keep_at[i] = bytes_before
            width = 4 if k.nodes[i].dtype in (DType.F16, DType.BF16) else k.nodes[i].dtype.itemsize
            bytes_before = code.add(bytes_before, code.mul(self._row_length, str(width)))
        loop = Loop(code, "%r0", "%r1", sizes=sizes, origin=coordinates(code, "%r0", sizes))
        self.uniform_values = at_entry
        self._row(self.at_coordinates(self.base, loop.coords, strides))
        loop.end()
        code.do("ret void")

    def _row(self, pointers: list[str]) -> None:
        k, code = self.kernel, self.code
        for i, node in enumerate(k.nodes):
            if node.op == "load" and k.uniform[i]:
                p = k.places[node.args[0]]
                raw = code.value(f"load {memory(p.dtype)}, ptr {pointers[node.args[0]]}")
                self.uniform_values[i] = load_convert(self.one, p.dtype, raw)
            elif node.op == "index" and k.uniform[i]:
                self.uniform_values[i] = pointers[node.args[0]]
        self.uniform_ops(0)
        for at, todo in enumerate(self.plan()):
            if todo.needed or todo.stores or todo.folds:
                accumulators = self._reduced_loops(todo, pointers)
                for i, acc in zip(todo.folds, accumulators, strict=True):
                    self.uniform_values[i] = self.tree(i, acc)
            self.uniform_ops(at + 1)
        for place, i in k.stores:
            if k.uniform[i] and k.place_uniform(place):
                p = k.places[place]
                raw = store_convert(self.one, p.dtype, self.uniform_values[i])
                code.do(f"store {memory(p.dtype)} {raw}, ptr {pointers[place]}")

    def _reduced_loops(self, todo: Pass, pointers: list[str]) -> list[str]:
        k, code = self.kernel, self.code
        initial = [self.neutral(i) for i in todo.folds]
        if not k.n_mid:
            self._row_offset = "0"
            return self.inner_loop(todo, pointers, "0", self.inner_size, initial)
        kinds = [self.v.type(register(k.nodes[k.nodes[i].args[0]].dtype)) for i in todo.folds]
        loop = Loop(code, "0", self._mid_total, sizes=self._mid_sizes, carried=list(zip(kinds, initial, strict=True)))
        self._row_offset = code.mul(loop.index, self.inner_size)
        # Lane l takes elements l, l + 32, ... of the whole reduced space, so a row starts in the lane where the previous one ended.
        start = code.sub("0", code.value(f"and i64 {self._row_offset}, {LANES - 1}"))
        here = self.at_coordinates(pointers, loop.coords, self._mid_strides)
        loop.end(self.inner_loop(todo, here, start, self.inner_size, loop.carried))
        return loop.carried

    def may_start_before(self) -> bool:
        return self.kernel.n_mid > 0

    def _scratch_address(self, i: int, spot: Spot) -> str:
        kind = register(self.kernel.nodes[i].dtype)
        region = self.code.gep("i8", "%scratch", self._keep_at[i])
        return self.code.gep(kind, region, self.code.add(self._row_offset, spot.index))

    def keep(self, i: int, spot: Spot) -> None:
        kind = register(self.kernel.nodes[i].dtype)
        self._masked_store(kind, spot.values[i], self._scratch_address(i, spot), 1, spot.mask)

    def reload(self, i: int, spot: Spot) -> str:
        kind = register(self.kernel.nodes[i].dtype)
        address = self._scratch_address(i, spot)
        if spot.mask is None:
            return self.code.value(f"load {self.v.type(kind)}, ptr {address}, align 1")
        return self._masked_load(kind, address, 1, spot.mask)


class _Cols(Writer):
    """A unit is a block of 32 neighbouring kept elements; the reduced loops run inside it. Lane l of a sum is a vector in memory."""

    def write(self) -> None:
        k, code = self.kernel, self.code
        self.u = self.v
        self.scalars()
        at_entry = dict(self.uniform_values)
        self._slots: dict[int, str] = {}
        for i, node in enumerate(k.nodes):
            if node.op in REDUCTIONS:
                kind = self.v.type(register(k.nodes[node.args[0]].dtype))
                self._slots[i] = code.value(f"alloca [{LANES} x {kind}], align 64")
        sizes = [self.arg(self.layout.outer_sizes + d) for d in range(k.n_outer)]
        strides = [[self.outer_stride(i, d) for i in range(len(k.places))] for d in range(k.n_outer)]
        self._mid_sizes = [self.arg(self.layout.mid_sizes + d) for d in range(k.n_mid)]
        self._mid_strides = [[self.mid_stride(i, d) for i in range(len(k.places))] for d in range(k.n_mid)]
        self._mid_total = "1"
        for size in self._mid_sizes:
            self._mid_total = code.mul(self._mid_total, size)
        blocks = code.value(f"udiv i64 {code.add(self.inner_size, str(LANES - 1))}, {LANES}")
        loop = Loop(code, "%r0", "%r1")
        block = code.value(f"urem i64 {loop.index}, {blocks}")
        coords = coordinates(code, code.value(f"udiv i64 {loop.index}, {blocks}"), sizes)
        pointers = self.at_coordinates(self.base, coords, strides)
        index = code.mul(block, str(LANES))
        left = code.sub(self.inner_size, index)
        whole, ragged, join = code.fresh("whole"), code.fresh("ragged"), code.fresh("join")
        code.fork(code.value(f"icmp sge i64 {left}, {LANES}"), whole, ragged)
        for name in (whole, ragged):
            code.label(name)
            self.uniform_values = dict(at_entry)
            self._block(Spot(pointers, index, None if name == whole else self.mask(index, left)))
            code.branch(join)
        code.label(join)
        loop.end()
        code.do("ret void")

    def _block(self, spot: Spot) -> None:
        k = self.kernel
        for i, node in enumerate(k.nodes):
            if k.uniform[i] and node.op == "load":
                self.uniform_values[i] = self.load(node.args[0], spot)
            elif k.uniform[i] and node.op == "index":
                self.uniform_values[i] = self.coordinate(node.args[0], spot)
        self.uniform_ops(0)
        for at, todo in enumerate(self.plan()):
            if todo.needed or todo.stores or todo.folds:
                self._reduced_loops(todo, spot)
            for i in todo.folds:
                self.uniform_values[i] = round_to(self.v, k.nodes[i].dtype, self._fold_lanes(i))
            self.uniform_ops(at + 1)
        for place, i in k.stores:
            if k.uniform[i] and k.place_uniform(place):
                self.store(place, self.uniform_values[i], spot)

    def _slot(self, i: int, lane: str) -> str:
        return self.code.gep(self._vector(i), self._slots[i], lane)

    def _vector(self, i: int) -> str:
        return self.v.type(register(self.kernel.nodes[self.kernel.nodes[i].args[0]].dtype))

    def _reduced_loops(self, todo: Pass, spot: Spot) -> None:
        code = self.code
        if todo.folds:
            clear = Loop(code, "0", str(LANES))
            for i in todo.folds:
                code.do(f"store {self._vector(i)} {self.neutral(i)}, ptr {self._slot(i, clear.index)}, align 64")
            clear.end()
        loop = Loop(code, "0", self._mid_total, sizes=self._mid_sizes)
        here = self.at_coordinates(spot.pointers, loop.coords, self._mid_strides)
        self._prefetch(todo, here, spot.index)
        lane = code.value(f"and i64 {loop.index}, {LANES - 1}")
        slots = [self._slot(i, lane) for i in todo.folds]
        before = [code.value(f"load {self._vector(i)}, ptr {slot}, align 64") for i, slot in zip(todo.folds, slots, strict=True)]
        after = self.body(todo, Spot(here, spot.index, spot.mask), self.spread_all(todo), before)
        for i, slot, value in zip(todo.folds, slots, after, strict=True):
            code.do(f"store {self._vector(i)} {value}, ptr {slot}, align 64")
        loop.end()

    def _prefetch(self, todo: Pass, here: Sequence[str], index: str) -> None:
        """Ask for the rows ahead: a block is a narrow column of memory, which the processor's own prefetcher does not follow."""
        k, code = self.kernel, self.code
        if k.n_mid != 1:
            return
        for place in {k.nodes[i].args[0] for i in todo.needed if k.nodes[i].op == "load"}:
            p = k.places[place]
            if p.inner is not Inner.UNIT or not p.mid:
                continue
            ahead = code.mul(self._mid_strides[0][place], str(_ROWS_AHEAD))
            address = code.gep(memory(p.dtype), code.gep(memory(p.dtype), here[place], ahead), index)
            for line in range(0, LANES * p.dtype.itemsize, 64):
                code.call("void", "llvm.prefetch.p0", ("ptr", code.gep("i8", address, str(line))), ("i32", "0"), ("i32", "3"), ("i32", "1"))

    def _fold_lanes(self, i: int) -> str:
        """The 32 partial results folded by halves, in place."""
        code = self.code
        node = self.kernel.nodes[i]
        source = self.kernel.nodes[node.args[0]].dtype
        vector = self._vector(i)
        half = LANES // 2
        while half:
            loop = Loop(code, "0", str(half))
            low, high = self._slot(i, loop.index), self._slot(i, code.add(loop.index, str(half)))
            a = code.value(f"load {vector}, ptr {low}, align 64")
            b = code.value(f"load {vector}, ptr {high}, align 64")
            code.do(f"store {vector} {fold(self.v, node.op, source, a, b)}, ptr {low}, align 64")
            loop.end()
            half //= 2
        return code.value(f"load {vector}, ptr {self._slots[i]}, align 64")
