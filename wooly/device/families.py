"""Plans for calls that differ in nothing but sizes: a growing cache, a last short batch, images of many sizes.

A lowering costs hundreds of microseconds a call of a new size. When some calls of an operator differ in the same places of their shapes,
those places become symbols (symbolic.py), and the lowering runs once with them. From then on, sizes that meet its conditions get their
plan by arithmetic. It is believed once it has made, for sizes that it was not traced with, what the lowering makes.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch

from wis.views import broadcast_shapes, contiguous_strides
from wooly.counters import COUNTERS
from wooly.device.calls import CallPlan, OutSpec, Slot, arguments_of, as_lowered, builder, expected_of, first, make_plan
from wooly.device.infer import RULES, Shaped, iterated
from wooly.device.lowering import LOWERINGS, Entry, Meta, Unsupported, lower
from wooly.device.programs import Stencil, verify_stencil
from wooly.device.schema import Arg, Kind, OpInfo
from wooly.device.symbolic import Concrete, Conditions, Size, compiled

_MET_MIN: Final = 4
"""Calls that differ in the same places before a lowering runs with symbols, which costs about as much as five calls."""
_POINTS_MAX: Final = 8
_PLACES_MAX: Final = 64
_SYMBOLIC_MAX: Final = 4
_FAILURES_MAX: Final = 3
_FAMILIES_MAX: Final = 1024
"""Of one operator."""


@dataclass(slots=True)
class _SymbolicPlan:
    """A call plan whose sizes are symbols at the places ``varying``."""

    varying: tuple[int, ...]
    #: sizes at the other places
    fixed: tuple[int, ...]
    #: (dims, bytes of temporaries, outputs as (shape, strides, bytes), structure of the result) for sizes at ``varying``, or None
    sized: Callable[..., Any]
    #: for the sizes of the trace
    plan: CallPlan
    #: no rule says which sizes torch takes: each plan is looked at by the verifier
    verified: bool
    #: made for other sizes what the lowering makes
    proved: bool = False

    def at(self, sizes: tuple[int, ...]) -> CallPlan | None:
        """The plan for these sizes; None: a condition does not hold."""
        chosen = self.varying
        if tuple([n for i, n in enumerate(sizes) if i not in chosen]) != self.fixed:
            return None
        stencil = self.plan.stencil
        assert stencil is not None, "symbolic plans have a stencil"
        try:
            found = self.sized(*[sizes[i] for i in chosen])
            if found is None:
                return None
            dims, temps, layouts, structure = found
            outs = tuple([OutSpec(out.dtype, *layout) for out, layout in zip(self.plan.outs, layouts, strict=True)])
            made = stencil.resized(dims, temps, [out.nbytes for out in outs])
        except (ArithmeticError, struct.error):
            return None
        if any(bool(a) != bool(b) for a, b in zip((*made.needs, *temps), (*stencil.needs, *stencil.temps), strict=True)):
            return None  # what is empty is looked at by itself
        if self.verified:
            try:
                verify_stencil(made, scattered=True)
            except Unsupported:
                return None
        build = partial(self.plan.build.func, structure) if isinstance(self.plan.build, partial) else self.plan.build
        return CallPlan(made, outs, build, None, self.plan.entry)


@dataclass(slots=True)
class _Family:
    """Calls alike but for sizes."""

    #: sizes of the last calls
    points: deque[tuple[int, ...]] = field(default_factory=lambda: deque(maxlen=_POINTS_MAX))
    #: by the places in which calls differed from an earlier one
    met: Counter[tuple[int, ...]] = field(default_factory=Counter)
    symbolic: list[_SymbolicPlan] = field(default_factory=list)
    failures: int = 0


class Families:
    """The plans of one operator, for keys that were not met before."""

    def __init__(self, info: OpInfo) -> None:
        self._info = info
        entry = LOWERINGS.get(info.name)
        self._entry: Entry | None = entry if not info.mutates else None
        self.families: dict[Any, _Family] = {}

    def plan(self, key: Sequence[Any], values: Sequence[Any]) -> CallPlan:
        """The plan of a call: by a symbolic plan of its family, else by the lowering. Raises what ``make_plan`` raises."""
        apart = _taken_apart(self._info, key) if self._entry is not None else None
        if apart is None:
            return make_plan(self._info, values)
        pattern, sizes = apart
        family = self.families.get(pattern)
        if family is None:
            if len(self.families) >= _FAMILIES_MAX:
                self.families.clear()
            family = self.families[pattern] = _Family()
        for candidate in family.symbolic:
            made = candidate.at(sizes)
            if made is None:
                continue
            if candidate.proved:
                COUNTERS.resized += 1
                return made
            plan = make_plan(self._info, values)
            candidate.proved = _same(made, plan)
            if not candidate.proved:
                family.symbolic.remove(candidate)
                family.failures += 1
            return plan
        plan = make_plan(self._info, values)
        stencil = plan.stencil
        if stencil is not None and not stencil.rng_counters and len(family.symbolic) < _SYMBOLIC_MAX and family.failures < _FAILURES_MAX:
            self._learn(family, sizes, plan, values)
        return plan

    def _learn(self, family: _Family, sizes: tuple[int, ...], plan: CallPlan, values: Sequence[Any]) -> None:
        """Note a call, and trace its lowering with symbols when enough like it were met."""
        differing = [tuple([i for i, (a, b) in enumerate(zip(sizes, point, strict=True)) if a != b]) for point in family.points]
        family.points.append(sizes)
        if not differing:
            return
        varying = min(differing, key=len)
        if len(family.met) >= _PLACES_MAX:
            family.met.clear()
        family.met[varying] += 1
        if not varying or family.met[varying] < _MET_MIN:
            return
        del family.met[varying]
        assert self._entry is not None, "families are of operators with a lowering"
        try:
            family.symbolic.append(_traced(self._info, self._entry, values, plan, sizes, varying))
        except Exception:  # a lowering may raise anything for a symbol; the plan by values is there, and the calls stay as they were
            family.failures += 1


def _taken_apart(info: OpInfo, key: Sequence[Any]) -> tuple[Any, tuple[int, ...]] | None:
    """The key of a call without its sizes, strides and offsets, and those, in order; None: it has none, or tensors that are not ours."""
    sizes: list[int] = []
    pattern: list[Any] = []
    for part in key:
        if type(part) is not tuple or not part:
            pattern.append(part)
        elif type(part[0]) is tuple:
            pattern.append(tuple([_of_tensor(item, sizes) for item in part]))
        elif _describes_tensor(part):
            pattern.append(_of_tensor(part, sizes))
        elif _are_sizes(part):
            sizes += part
            pattern.append(len(part))
        elif info.base in _BY_NUMBERS and part[0] is int:
            sizes.append(part[1])
            pattern.append(int)
        else:
            pattern.append(part)
    return (tuple(pattern), tuple(sizes)) if sizes and _ELSEWHERE not in sizes else None


_BY_NUMBERS: Final = frozenset({"arange"})
"""Operations that are given sizes as numbers."""
_BY_SIZES: Final = frozenset({"aten::ones", "aten::zeros", "aten::full"})
"""Operations whose result has the sizes of the first argument."""
_ELSEWHERE: Final = -1 << 63
"""Noted for a tensor that is not ours, or none among tensors."""


def _describes_tensor(part: Any) -> bool:
    return len(part) >= 5 and isinstance(part[1], torch.Size)


def _are_sizes(value: Any) -> bool:
    return all(type(n) is int for n in value)


def _of_tensor(part: Any, sizes: list[int]) -> Any:
    """The description of one tensor without sizes, which are appended to ``sizes``."""
    if type(part) is not tuple or not _describes_tensor(part) or part[4]:
        sizes.append(_ELSEWHERE)
        return None
    sizes += (*part[1], *part[2], part[3])
    return (part[0], len(part[1]), *part[5:])


def _traced(
    info: OpInfo, entry: Entry, values: Sequence[Any], plan: CallPlan, sizes: tuple[int, ...], varying: tuple[int, ...]
) -> _SymbolicPlan:
    """The symbolic plan with symbols at ``varying``; raises Concrete, or whatever its lowering raises to symbols."""
    conditions = Conditions()
    symbols = {i: Size(size, f"s{i}", conditions) for i, size in enumerate(sizes) if i in varying}
    numbers: Iterator[Any] = iter([symbols.get(i, size) for i, size in enumerate(sizes)])
    tensors: list[tuple[Shaped, Any]] = []

    def of_tensor(value: Any) -> Any:
        if value is None:
            return None
        if value.is_conj() or value.is_neg():
            raise Concrete("lazy bits")
        shape, strides = (tuple([next(numbers) for _ in range(value.dim())]) for _ in range(2))
        for size in shape:
            if isinstance(size, Size) and not size > 1:
                raise Concrete("sizes of 0 and 1 are no symbols")
        tensors.append((Shaped(value.dtype, shape, strides), next(numbers)))
        return tensors[-1][0]

    def of_argument(arg: Arg, value: Any) -> Any:
        if arg.kind is Kind.TENSOR and isinstance(value, torch.Tensor):
            return of_tensor(value)
        if arg.kind is Kind.TENSORS:
            return [of_tensor(one) for one in value or ()]
        if arg.kind is Kind.PLAINS and value is not None and _are_sizes(value):
            return [next(numbers) for _ in value]
        return next(numbers) if arg.kind is Kind.NUMBER and info.base in _BY_NUMBERS and type(value) is int else value

    described = [of_argument(arg, value) for arg, value in zip(info.args, values, strict=True)]
    operands = [tensor for tensor, _ in tensors]
    unknown: list[Size] = []
    result = _by_rule(info, described, operands, plan)
    if result is None:
        _ask_relations(operands, list(symbols.values()))
        outs, structure = _unknown_outs(plan, conditions, unknown)
    else:
        outs = []
        build = builder(result, outs)
        structure = build.args[0] if isinstance(build, partial) else None
    found = arguments_of(info, entry, values)
    order = iter(tensors)
    lowered = [
        sizes_now if arg.kind is Kind.PLAINS else _with_sizes(value, order)
        for arg, value, sizes_now in zip(info.args, found.lowered, described, strict=True)
    ]
    args, kwargs, targets = as_lowered(info, lowered, True)
    template = lower(entry, args, kwargs, len(found.handles), expected_of(outs), targets)
    layouts = tuple([(out.shape, out.strides, out.nbytes) for out in outs if out is not None])
    names, solved = ([size.text for size in some] for some in (symbols.values(), unknown))
    sized = compiled(names, solved, conditions, (template.dims, template.temps, layouts, structure))
    made = _SymbolicPlan(varying, tuple([n for i, n in enumerate(sizes) if i not in varying]), sized, plan, result is None)
    again = made.at(sizes)
    if again is None or not _same(again, plan):
        raise Concrete("other sizes than without symbols")
    dims, temps, _, _ = sized(*[size.value for size in symbols.values()])
    specs = iter(expected_of(plan.outs))
    concrete = replace(template, dims=dims, temps=temps, outs=tuple([None if out is None else next(specs) for out in template.outs]))
    if not _alike(Stencil(concrete, info.name), plan.stencil):
        raise Concrete("other instructions than without symbols")
    return made


def _by_rule(info: OpInfo, values: Sequence[Any], operands: Sequence[Shaped], plan: CallPlan) -> Any:
    """The result of a call whose sizes are symbols, as a rule of infer.py says it; None: no rule knows."""
    rule = RULES.get(info.name)
    result = rule(values) if rule is not None else None
    if info.name in _BY_SIZES:
        return Shaped(plan.outs[0].dtype, tuple(values[0]), contiguous_strides(values[0]))
    if result is not None or torch.Tag.pointwise not in info.op.tags or len(plan.outs) != 1 or plan.build is not first:
        return result
    if any(value is torch.contiguous_format for value in values):
        shape = broadcast_shapes(*(x.shape for x in operands))
        return Shaped(plan.outs[0].dtype, shape, contiguous_strides(shape))
    if any(isinstance(value, torch.memory_format) for value in values):
        return None
    return Shaped(plan.outs[0].dtype, *iterated(operands))


def _ask_relations(operands: Sequence[Shaped], symbols: Sequence[Size]) -> None:
    """Let the plan hold only for sizes that are equal where these are, and for tensors in rows: what else torch may ask of its arguments is
    decided by that. Raises Concrete for tensors that are not in rows."""
    for x in operands:
        other = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
        if x.strides != contiguous_strides(x.shape) or (other is not None and x.is_contiguous(memory_format=other)):
            raise Concrete("not in rows")
    for at, size in enumerate(symbols):
        next((True for earlier in symbols[:at] if earlier.value == size.value and earlier == size), None)


def _unknown_outs(plan: CallPlan, conditions: Conditions, unknown: list[Size]) -> tuple[list[OutSpec | None], Any]:
    """The outputs in rows, with sizes that the lowering will be asked for (appended to ``unknown``), and the structure of the result."""
    structure = plan.build.args[0] if isinstance(plan.build, partial) else None
    slots = [0] if structure is None else _slots_of(structure)
    outs: list[OutSpec | None] = [None] * len(slots)
    for number, out in enumerate(plan.outs):
        if out.strides is not None:
            raise Concrete("a result that is not in rows")
        shape = tuple([Size(n, f"o{number}_{dim}", conditions) for dim, n in enumerate(out.shape)])
        unknown += shape
        sizes: Any = shape
        outs[slots.index(number)] = OutSpec(out.dtype, sizes, None, math.prod(sizes) * out.dtype.itemsize)
    return outs, structure


def _slots_of(structure: Any) -> list[int | None]:
    """For every place of a result's structure that may hold a tensor, in order: the number of its output, None for none."""
    if isinstance(structure, list | tuple):
        return [number for part in structure for number in _slots_of(part)]
    if structure is None:
        return [None]
    if isinstance(structure, Slot):
        return [structure.index]
    raise Concrete("a number among the results")


def _with_sizes(lowered: Any, tensors: Iterator[tuple[Shaped, Any]]) -> Any:
    """The arguments of a lowering, with the sizes of ``tensors``, which are theirs in order."""
    if isinstance(lowered, list):
        return [_with_sizes(value, tensors) for value in lowered]
    if not isinstance(lowered, Meta):
        return lowered
    shaped, offset = next(tensors)
    if offset != lowered.offset:
        raise Concrete("an offset from another place")
    return replace(lowered, shape=shaped.shape, strides=shaped.strides, offset=offset)


def _alike(a: Stencil, b: Stencil | None) -> bool:
    """Whether two stencils are the same in everything, sizes included."""
    return b is not None and all(getattr(a, name) == getattr(b, name) for name in _COMPARED)


_COMPARED: Final = (
    "structure", "sources", "dims", "temps", "needs", "n_ins", "n_handles", "rng_counters", "checks", "along", "kernels", "name",
)  # fmt: skip


def _same(a: CallPlan, b: CallPlan) -> bool:
    """Whether two plans with stencils do the same."""
    if a.stencil is None or not _alike(a.stencil, b.stencil) or a.outs != b.outs or a.entry is not b.entry:
        return False
    if isinstance(a.build, partial) and isinstance(b.build, partial):
        return a.build.func is b.build.func and a.build.args == b.build.args
    return a.build is b.build
