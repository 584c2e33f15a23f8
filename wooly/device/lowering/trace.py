"""Trace: collects the instructions of one call.

A lowering is an expression: it takes Metas and numbers, emits instructions whose results are fresh temporaries, and returns the results.
Only then are results bound to where they belong (new output, mutated argument, out= tensor): usually by renaming the temporary, else by a
last copy. So a functional lowering serves its in-place and out= variants too, and inputs are never overwritten before their last use.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from wis.dtypes import COMPLEX, FLOATS, DType
from wis.ops import BY_NAME, Dist, Op
from wis.program import Imm, Instr, Ref
from wis.views import broadcast_shapes, contiguous_strides
from wooly.device.lowering.dtypes import accumulate, float_type, result_type
from wooly.device.lowering.template import Counter, Seed, Source, Template
from wooly.device.lowering.values import Derived, Expected, LoweringError, Meta, Number, ScalarArg, Value, wire_number

Results = Meta | None | Sequence["Meta | None"]

_COMPARE: Final = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_OF_NOTHING: Final = {"sum": 0, "prod": 1}
_SUM_MAX: Final = 1 << 14
"""The most elements that one reduction sums: 512 a lane."""
_SUM_BLOCK: Final = 1 << 12

_OF_FLAGS: Final = {"sum": "reduce_max", "prod": "reduce_min"}
_TEST: Final = frozenset({"is_nan", "is_inf", "sign_bit"})


@dataclass(slots=True)
class _Step:
    """One instruction not yet encoded.

    ``check``: what it means when it traps, if it is there for nothing else. ``along``: the dimensions of the call's tensor that its indices
    choose along, where they are not those of its operand.
    """

    op: Op
    outs: list[Meta]
    ins: list[Meta | Imm]
    attrs: tuple[int, ...]
    check: str = ""
    along: tuple[int, ...] = ()


_FRACTIONS: Final = frozenset({*FLOATS, DType.C64, DType.C128})


class Trace:
    """One call being lowered.

    ``expected`` are the new outputs as torch would make them, ``targets`` the existing tensors that take the results instead (then there
    are no new outputs). ``wants`` is the one or the other: what each result has to look like, None where torch gives no tensor.
    """

    refuses_nan: ClassVar[bool] = False
    """Whether a run traps at the first operation that has a NaN among its results (``WOOLY_CHECK=nan``)."""

    def __init__(self, n_ins: int, expected: Sequence[Expected | None] = (), targets: Sequence[Meta] = ()) -> None:
        self.n_ins = n_ins
        self.expected = tuple(expected)
        self.targets = tuple(targets)
        self.wants: tuple[Expected | Meta | None, ...] = self.targets or self.expected
        self._first_temp = n_ins + len(self.expected)
        self._temps: list[int] = []
        self._steps: list[_Step] = []
        self._sources: list[Source] = []
        self._slot_of: dict[tuple[type, str], int] = {}
        self._writes: list[tuple[Meta, Meta]] = []
        self._rng_counters = 0
        self._touching: defaultdict[int, list[int]] = defaultdict(list)  # by buffer: indices of the first ``_indexed`` steps
        self._indexed = 0

    # --- emission

    def temp(self, dtype: DType, shape: Sequence[int]) -> Meta:
        """A new contiguous temporary."""
        shape = tuple(shape)
        meta = Meta(self._first_temp + len(self._temps), dtype, shape, contiguous_strides(shape))
        self._temps.append(meta.numel * dtype.itemsize)
        return meta

    def emit(
        self, name: str, outs: Sequence[Meta], ins: Sequence[Meta | Imm], attrs: Sequence[int] = (), *, along: Sequence[int] = ()
    ) -> None:
        """One instruction. ``along``: the dimensions to name when an index is out of bounds, if not those of the operand."""
        if name == "cast" and outs[0].dtype is DType.U8 and isinstance(ins[0], Meta) and ins[0].dtype in _FRACTIONS:
            ins = [self.cast(ins[0], DType.I64)]  # as torch converts floats to uint8, so that -1.0 becomes 255
        self._steps.append(_Step(BY_NAME[name], list(outs), list(ins), tuple(int(a) for a in attrs), along=tuple(along)))

    def imm(self, value: Value, dtype: DType) -> Imm:
        """An immediate operand for a number, converted to ``dtype``."""
        if isinstance(value, Meta):
            raise LoweringError("a tensor cannot be an immediate")
        kind = int if dtype.is_integer else float
        if isinstance(value, Derived):
            value = replace(value, kind=kind)
        elif not isinstance(value, ScalarArg):
            value = wire_number(value, kind)
        return Imm(self._slot(value), int(dtype))

    def _slot(self, source: Source) -> int:
        key = (type(source), repr(source))  # repr tells 0.0 from -0.0 and finds NaN equal to itself
        slot = self._slot_of.setdefault(key, len(self._sources))
        if slot == len(self._sources):
            self._sources.append(source)
        return slot

    def derive(self, fn: Callable[..., Number], *args: ScalarArg | Derived | Number, kind: type = float) -> Derived | Number:
        """``fn`` of numbers, some of whose values are only known when the template is used (then evaluated each time)."""
        if not any(isinstance(a, ScalarArg | Derived) for a in args):
            return fn(*args)
        return Derived(fn, args, kind)

    # --- elementwise

    def map(self, name: str, *xs: Value, dtype: DType | None = None, attrs: Sequence[int] = ()) -> Meta:
        """Elementwise ``name`` over broadcast operands, all converted to ``dtype`` (default: their result type)."""
        compute = result_type(xs) if dtype is None else dtype
        shape = broadcast_shapes(*(x.shape for x in xs if isinstance(x, Meta)))
        out_dtype = DType.BOOL if name in _COMPARE or name in _TEST else compute
        out = self.temp(out_dtype, shape)
        number = compute if name in _COMPARE else accumulate(compute)  # arithmetic takes numbers unrounded, comparisons do not
        self.emit(name, [out], [self.cast(x, compute).expand(shape) if isinstance(x, Meta) else self.imm(x, number) for x in xs], attrs)
        return out

    def where(self, condition: Meta, a: Value, b: Value, dtype: DType | None = None) -> Meta:
        """``a`` where condition (bool), else ``b``."""
        compute = result_type((a, b)) if dtype is None else dtype
        shape = broadcast_shapes(*(x.shape for x in (condition, a, b) if isinstance(x, Meta)))
        out = self.temp(compute, shape)
        chosen = [self.cast(x, compute).expand(shape) if isinstance(x, Meta) else self.imm(x, compute) for x in (a, b)]
        self.emit("where", [out], [condition.expand(shape), *chosen])
        return out

    def cast(self, x: Meta, dtype: DType) -> Meta:
        """``x`` in ``dtype``: itself when it is, else a new temporary. Complex to real takes the real part, real to complex adds 0i."""
        if x.dtype == dtype:
            return x
        out = self.temp(dtype, x.shape)
        self.emit("cast", [out], [x])
        return out

    def acc(self, x: Meta) -> Meta:
        """``x`` as the float type in which torch computes with it: f32 for the half types and integers, else its own."""
        return self.cast(x, accumulate(float_type(x.dtype)))

    def copy(self, x: Meta, dtype: DType | None = None) -> Meta:
        """A new contiguous temporary with the elements of ``x``."""
        out = self.temp(x.dtype if dtype is None else dtype, x.shape)
        self.emit("cast", [out], [x])
        return out

    def contiguous(self, x: Meta) -> Meta:
        return x if x.is_contiguous else self.copy(x)

    def reshape(self, x: Meta, shape: Sequence[int]) -> Meta:
        """The elements of ``x`` in row-major order as ``shape``: a view when strides allow it, else a copy."""
        view = x.view(shape)
        if view is None:
            view = self.copy(x).view(shape)
            assert view is not None, "a contiguous tensor has every view"
        return view

    def full(self, shape: Sequence[int], value: Value, dtype: DType) -> Meta:
        """A new temporary filled with one number."""
        out = self.temp(dtype, shape)
        self.emit("cast", [out], [self.imm(value, dtype)])
        return out

    def store(self, target: Meta, x: Value) -> None:
        """Write ``x`` (cast and broadcast) into a part of a tensor now."""
        if isinstance(x, Meta):
            self.emit("cast", [target], [x.expand(target.shape)])
        else:
            self.emit("cast", [target], [self.imm(x, target.dtype)])

    def iota(self, length: int, dtype: DType = DType.I64, start: Value = 0, step: Value = 1) -> Meta:
        """start, start + step, ... as a new 1-d temporary."""
        out = self.temp(dtype, (length,))
        self.emit("iota", [out], [self.imm(start, dtype), self.imm(step, dtype)], (0,))
        return out

    def random(self, shape: Sequence[int], dtype: DType, dist: Dist) -> Meta:
        """Numbers from the call's generator; each use of the template takes the next ones of the stream."""
        out = self.temp(dtype, shape)
        delta = self._rng_counters
        seed, counter = Imm(self._slot(Seed()), int(DType.I64)), Imm(self._slot(Counter(delta)), int(DType.I64))
        self.emit("random", [out], [seed, counter], (int(dist),))
        wide = dist == Dist.NORMAL or dtype in (DType.F64, DType.I64)
        self._rng_counters += -(-out.numel // (2 if wide else 4))
        return out

    # --- reductions and scans

    def reduce(self, name: str, x: Meta, dims: Sequence[int], keepdim: bool = False, dtype: DType | None = None) -> Meta:
        """sum, prod, reduce_max or reduce_min of ``x`` (in ``dtype``) over ``dims``; over none it is ``x`` itself. Sums of bool are
        true where any is true, products where all are."""
        x = x if dtype is None else self.cast(x, dtype)
        dims = sorted({d % x.ndim for d in dims}) if x.ndim else []
        if not dims:
            return x
        shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
        if x.numel == 0 and name in _OF_NOTHING:
            out = self.full(shape, _OF_NOTHING[name], x.dtype)
        elif name == "sum" and (x.dtype in FLOATS or x.dtype in COMPLEX) and math.prod(x.shape[d] for d in dims) > _SUM_MAX:
            out = self._long_sum(x, dims)
        else:
            out = self.temp(x.dtype, shape)
            self.emit(_OF_FLAGS.get(name, name) if x.dtype is DType.BOOL else name, [out], [x])
        return out if keepdim else self.drop(out, dims)

    def _long_sum(self, x: Meta, dims: Sequence[int]) -> Meta:
        """The sum over ``dims``, which stay with size 1, as sums of sums: the order of sums of a reduction is that of 32 lanes, whose error
        grows with the number of elements (blocked summation: Higham, Accuracy and Stability of Numerical Algorithms, 4.2)."""
        long = [d for d in dims if x.shape[d] > 1]  # the others would be summed again without end
        if x.shape[long[-1]] > _SUM_MAX:
            return self.reduce("sum", self._block_sums(x, long[-1]), dims, keepdim=True)
        inner, count = [long[-1]], x.shape[long[-1]]
        for dim in reversed(long[:-1]):
            count *= x.shape[dim]
            if count > _SUM_MAX:
                break
            inner.append(dim)
        return self.reduce("sum", self.reduce("sum", x, inner, keepdim=True), dims, keepdim=True)

    def _block_sums(self, x: Meta, dim: int) -> Meta:
        """The sums of blocks along ``dim``, in order."""
        size, block = x.shape[dim], _SUM_BLOCK
        whole = size // block
        out = self.temp(x.dtype, (*x.shape[:dim], -(-size // block), *x.shape[dim + 1 :]))
        blocks = x.narrow(dim, 0, whole * block).split(dim, block)
        self.emit("sum", [out.narrow(dim, 0, whole).unsqueeze(dim + 1)], [blocks])
        if size % block:
            self.emit("sum", [out.narrow(dim, whole, 1)], [x.narrow(dim, whole * block, size % block)])
        return out

    def drop(self, x: Meta, dims: Sequence[int]) -> Meta:
        """``x`` without its ``dims``, which all have size 1."""
        for dim in sorted((d % x.ndim for d in dims), reverse=True):
            x = x.squeeze(dim)
        return x

    def check(self, ok: Meta, message: str) -> None:
        """The run traps with ``message`` unless all of ``ok`` (bool) holds: what CUDA's kernels do by an assert on the device.

        It is a gather from one element, at 1 where something does not hold.
        """
        if ok.numel == 0:
            return
        holds = self.reduce("reduce_min", ok, range(ok.ndim))
        at = self.cast(self.map("not", holds), DType.I64).unsqueeze(0)
        self.emit("gather", [self.temp(DType.I64, (1,))], [at, at], (0,))
        self._steps[-1].check = message

    # --- binding

    def write(self, target: Meta, value: Meta) -> None:
        """Let ``value`` be the new content of a mutated argument, when the lowering is done (until then its old content is read)."""
        self._writes.append((value, target))

    def want(self, index: int = 0) -> Expected | Meta:
        """What result ``index`` has to look like."""
        wanted = self.wants[index]
        if wanted is None:
            raise LoweringError(f"result {index} is not wanted")
        return wanted

    def wanted(self, index: int) -> bool:
        """Does the caller want result ``index``?"""
        return index < len(self.wants) and self.wants[index] is not None

    def finish(self, results: Results) -> Template:
        """Bind what a lowering returned to where it belongs, drop dead instructions, and make the template."""
        values = _as_tuple(results)
        homes: Sequence[Meta | None] = self.targets or [
            None if e is None else Meta(self.n_ins + i, e.dtype, e.shape, e.strides) for i, e in enumerate(self.expected)
        ]
        if len(values) != len(homes):
            raise LoweringError(f"{len(values)} results for {len(homes)} outputs")
        pairs = list(self._writes)
        for i, (value, home) in enumerate(zip(values, homes, strict=True)):
            if home is None:
                continue
            if value is None:
                raise LoweringError(f"no result for output {i}")
            pairs.append((value, home))
        uses = Tally(value.slot for value, _ in pairs)
        for value, home in pairs:
            self._bind(value, home, shared=uses[value.slot] > 1)
        for _, home in pairs if Trace.refuses_nan else ():
            if home.dtype in _FRACTIONS:
                written = replace(home, conj=False, neg=False)
                self.check(self.map("not", self.map("is_nan", written)), "a result is NaN, and WOOLY_CHECK=nan is set")
        self._steps = [s for s in self._steps if not _is_nothing(s)]
        self._drop_dead()
        return self._encode()

    def _bind(self, value: Meta, home: Meta, shared: bool) -> None:
        """Make ``home`` hold ``value``: by renaming its temporary where nothing can tell the difference, else by a copy."""
        if home.conj:
            value, home = self.map("conj", self.cast(value, home.dtype)), replace(home, conj=False)
        if home.neg:
            value, home = self.map("neg", self.cast(value, home.dtype)), replace(home, neg=False)
        try:
            value = value.expand(home.shape) if value.shape != home.shape else value
        except ValueError as error:
            raise LoweringError(f"result of shape {value.shape} for an output of shape {home.shape}") from error
        if value == home:
            return
        if not shared and self._renamable(value, home):
            self._rename(value, home)
        else:
            self.emit("cast", [home], [value])

    def _steps_touching(self, *slots: int) -> list[_Step]:
        """The steps that touch any of these buffers, in order, without looking through all steps for each of thousands of results."""
        for at in range(self._indexed, len(self._steps)):
            for slot in {m.slot for m in (*self._steps[at].outs, *self._steps[at].ins) if isinstance(m, Meta)}:
                self._touching[slot].append(at)
        self._indexed = len(self._steps)
        return [self._steps[at] for at in sorted(set().union(*(self._touching[slot] for slot in slots)))]

    def _renamable(self, value: Meta, home: Meta) -> bool:
        index = value.slot - self._first_temp
        whole = index >= 0 and value.offset == 0 and value.is_contiguous and self._temps[index] == value.numel * value.dtype.itemsize
        if not whole or value.dtype != home.dtype:
            return False
        written = False
        for step in self._steps_touching(value.slot, home.slot):
            touches = [m for m in (*step.outs, *step.ins) if isinstance(m, Meta) and m.slot == value.slot]
            if any(not self._follows(m, home) for m in touches):
                return False
            if written and any(isinstance(m, Meta) and m.slot == home.slot for m in (*step.ins, *step.outs)):
                return False  # home still holds what a later instruction reads (or was written by another result)
            if any(m.slot == value.slot for m in step.outs):
                written = written or not _is_copy(step, home)
        return True

    @staticmethod
    def _follows(m: Meta, home: Meta) -> bool:
        """Can operand ``m`` of the temporary be described in ``home``? Whole ones always, parts only when the layout stays."""
        if m.dtype != home.dtype:
            return False
        return (m.shape == home.shape and m.is_contiguous and m.offset == 0) or home.is_contiguous

    def _rename(self, value: Meta, home: Meta) -> None:
        def renamed(m: Meta | Imm) -> Meta | Imm:
            if not isinstance(m, Meta) or m.slot != value.slot:
                return m
            if m.shape == home.shape and m.is_contiguous and m.offset == 0:
                return home
            return replace(m, slot=home.slot, offset=m.offset + home.offset)

        for step in self._steps_touching(value.slot):
            step.outs = [m for m in map(renamed, step.outs) if isinstance(m, Meta)]
            step.ins = [renamed(m) for m in step.ins]
        both = {*self._touching[home.slot], *self._touching.pop(value.slot)}
        self._touching[home.slot] = [at for at in both if not _is_nothing(self._steps[at])]

    def _drop_dead(self) -> None:
        """Remove instructions that only write unread temporaries."""
        needed: set[int] = set()
        kept = []
        for step in reversed(self._steps):
            if step.check or any(self._matters(m, needed) for m in step.outs):
                needed.update(m.slot for m in step.ins if isinstance(m, Meta))
                needed.update(m.slot for m in step.outs if step.op.rmw)
                kept.append(step)
        self._steps = kept[::-1]

    def _matters(self, out: Meta, needed: set[int]) -> bool:
        """Is what an instruction writes seen? Nothing is written to an empty operand, but a temporary that is read needs a writer."""
        is_temp = out.slot >= self._first_temp
        if out.numel == 0:
            return is_temp and out.slot in needed and self._temps[out.slot - self._first_temp] == 0
        return not is_temp or out.slot in needed

    def _encode(self) -> Template:
        used = sorted({m.slot for s in self._steps for m in (*s.outs, *s.ins) if isinstance(m, Meta) and m.slot >= self._first_temp})
        slots = {slot: self._first_temp + i for i, slot in enumerate(used)}
        temps = tuple(self._temps[slot - self._first_temp] for slot in used)
        live = sorted({x.scalar for s in self._steps for x in s.ins if isinstance(x, Imm)})
        scalars = {slot: i for i, slot in enumerate(live)}
        dims: list[int] = []
        code = []

        def ref(m: Meta) -> Ref:
            dims.extend((*m.shape, *m.strides, m.offset))
            return Ref(slots.get(m.slot, m.slot), int(m.dtype), m.ndim)

        for step in self._steps:
            outs = tuple(ref(m) for m in step.outs)
            ins = tuple(ref(x) if isinstance(x, Meta) else Imm(scalars[x.scalar], x.dtype) for x in step.ins)
            code.append(Instr(step.op.code, outs, ins, step.attrs))
        return Template(
            self.n_ins,
            self.expected,
            temps,
            tuple(code),
            tuple(dims),
            tuple(self._sources[slot] for slot in live),
            self._rng_counters,
            checks=tuple((at, step.check) for at, step in enumerate(self._steps) if step.check),
            along=tuple((at, step.along) for at, step in enumerate(self._steps) if step.along),
        )


def _is_copy(step: _Step, home: Meta) -> bool:
    """Does ``step`` copy the unchanged ``home``? Then renaming its output to ``home`` makes it nothing."""
    return step.op.name == "cast" and step.ins[0] == home


def _is_nothing(step: _Step) -> bool:
    """Does ``step`` copy a tensor to itself?"""
    return step.op.name == "cast" and step.outs == step.ins


def _as_tuple(results: Results) -> tuple[Meta | None, ...]:
    if results is None:
        return ()
    return (results,) if isinstance(results, Meta) else tuple(results)
