"""The slow path of a call: makes its plan and executes it.

The generated kernels (kernels.py) take a short cut for calls met before; every new kind of call comes through here once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from wis.limits import LIMITS
from wis.views import contiguous_strides
from wooly.counters import COUNTERS
from wooly.device import checks, fallback, numbers, random, sparse, transfer
from wooly.device.backend import handle_of, is_our_device, is_ours, offset_of, raw_device
from wooly.device.infer import Shaped, Unknown, infer, known, without_frames
from wooly.device.lowering import LOWERINGS, Entry, Expected, LoweringError, Meta, ScalarArg, Unsupported, lower, tensor_places, wis_dtype
from wooly.device.lowering.values import Number, span_nbytes
from wooly.device.programs import Stencil, verify_stencil
from wooly.device.recorder import RECORDERS
from wooly.device.schema import Kind, OpInfo, functional_of, overload
from wooly.device.tensors import HEAPS


@dataclass(frozen=True, slots=True)
class OutSpec:
    """An output to be made. ``strides`` None: contiguous."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How calls of one signature are executed.

    With a ``stencil``: make ``outs``, record, and return the result of ``build`` (mutating calls return their arguments). Without:
    ``substitute(*values)`` does everything.
    """

    stencil: Stencil | None
    outs: tuple[OutSpec, ...] = ()
    #: makes the result of the call from the new tensors
    build: Callable[[list[torch.Tensor]], Any] | None = None
    substitute: Callable[..., Any] | None = None
    #: the lowering of the stencil
    entry: Entry | None = None


@dataclass(slots=True)
class Arguments:
    """The arguments of one call as a lowering sees them, and what a record of it carries."""

    lowered: list[Any] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)
    by_handle: dict[int, int] | None = None  # mutating calls: one slot a buffer

    def tensor(self, t: torch.Tensor) -> Meta | ScalarArg:
        if raw_device(t).type == "cpu":  # 0-dim, checks.devices saw to that
            return self.number(t.item(), wis_dtype(t.dtype))
        handle = handle_of(t)
        if self.by_handle is None:
            slot = len(self.handles)
            self.handles.append(handle)
        else:
            slot = self.by_handle.setdefault(handle, len(self.handles))
            if slot == len(self.handles):
                self.handles.append(handle)
        return Meta(slot, wis_dtype(t.dtype), tuple(t.size()), tuple(t.stride()), offset_of(t), t.is_conj(), t.is_neg())

    def number(self, value: Number, dtype: Any = None) -> ScalarArg:
        arg = ScalarArg(len(self.numbers), type(value), dtype)
        self.numbers.append(int(value) if type(value) is bool else value)
        return arg

    def any(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, bool | int | float | complex):
            return self.number(value)
        if isinstance(value, list | tuple):
            return [self.any(v) for v in value]
        return value


def number_is_plain(entry: Entry | None, name: str, value: Any) -> bool:
    """Is the value of number argument ``name`` part of the template (else it is a scalar slot)?"""
    if entry is None or value is None or name in entry.concrete:
        return True
    special = entry.special.get(name)
    return special is not None and not isinstance(value, list) and value in special


def arguments_of(info: OpInfo, entry: Entry, values: Sequence[Any]) -> Arguments:
    """Walk the arguments in schema order, numbering buffers and numbers."""
    found = Arguments(by_handle={} if info.mutates else None)
    for arg, value in zip(info.args, values, strict=True):
        if arg.kind in (Kind.TENSOR, Kind.TENSORS):
            found.lowered.append(found.any(value))
        elif arg.kind in (Kind.NUMBER, Kind.NUMBERS):
            found.lowered.append(value if number_is_plain(entry, arg.name, value) else found.any(value))
        else:
            found.lowered.append(value)
    return found


_DROPPED: Final = frozenset({Kind.DEVICE, Kind.LAYOUT, Kind.IGNORED, Kind.GENERATOR})


def make_plan(info: OpInfo, values: Sequence[Any]) -> CallPlan:
    """Decide how calls like this one are carried out. Raises what the operation itself raises for wrong arguments."""
    checks.devices(info, values)
    checks.indices(info, values)
    checks.dtypes(info, values)
    if info.base in numbers.BY_SIZE:
        numbers.check(info, values)
    elsewhere = _device_elsewhere(info, values)
    if elsewhere is not None:
        return CallPlan(None, substitute=lambda *now: fallback.make_elsewhere(info, now, elsewhere))
    if any(arg.kind is Kind.LAYOUT and value in sparse.LAYOUTS for arg, value in zip(info.args, values, strict=True)):
        return CallPlan(None, substitute=lambda *now: fallback.on_cpu(info, now, None))
    if _has_cpu_indices(info, values):
        return CallPlan(None, substitute=lambda *now: _with_tensors_there(info, now))
    if info.base in _ONCE and checks.repeats(values[0]):
        once = _ONCE[info.base](info, values)
        if once is not None:
            return CallPlan(None, substitute=once)
    checks.overlap(info, values)
    checks.arguments(info, values)
    name = functional_of(info) if info.mutates and info.name not in LOWERINGS else info.name
    compute = _to_convert(info, values) if info.is_out and not info.draws else None
    if info.is_out and any(arg.written and not arg.is_out for arg in info.args):
        return CallPlan(None, substitute=lambda *now: _made_then_copied(info, now))
    typed = _as_out_type(info, values)
    if typed is not None:
        return typed
    if compute is not None:
        return CallPlan(None, substitute=lambda *now: fallback.write_back(info, compute, now))
    entry = LOWERINGS.get(name) if name is not None else None
    unknown = None
    if entry is not None:
        try:
            plan = _lowered(info, entry, values)
            COUNTERS.templates += 1
            return plan
        except Unknown as error:
            unknown = without_frames(error)
        except Unsupported:
            pass
        except LoweringError as error:
            fallback.report(info, f"its lowering failed ({error})")
        if any(not is_ours(t) for _, t in checks.tensors_of(values)):
            return CallPlan(None, substitute=lambda *now: _with_tensors_there(info, now))
    return CallPlan(None, substitute=fallback.choose(info, name, unknown))


def _to_convert(info: OpInfo, values: Sequence[Any]) -> Any:
    """The functional form of an out= call whose results have other types than its outputs, else None.

    Raises what torch raises where the outputs cannot take them.
    """
    name = functional_of(info)
    if name is None:
        return None
    op = overload(name)
    try:
        result = infer(info, values, op)
    except Unknown:
        fallback.check_without_data(info, values)
        return None
    outs = [t for i, t in checks.tensors_of(values) if info.args[i].is_out]
    made = [r for r in (result if isinstance(result, list | tuple) else [result]) if isinstance(r, torch.Tensor)]
    if all(out.dtype == one.dtype for out, one in zip(outs, made, strict=False)):  # a functional form may return more
        return None
    fallback.check_without_data(info, values)
    return op


_TYPED_BY_OUT: Final = frozenset({"sum", "prod", "cumsum", "cumprod", "mean", "nansum"})
"""Operations whose ``dtype``, where none is given, is that of their out= tensor."""


def _as_out_type(info: OpInfo, values: Sequence[Any]) -> CallPlan | None:
    """For an out= call that computes in the type of its output: a plan that says so to the operation."""
    if info.is_out and not info.draws and all(arg.is_out for arg in info.args if arg.kind in (Kind.TENSOR, Kind.TENSORS)):
        return _made_from_nothing(info, values)
    at = next((i for i, arg in enumerate(info.args) if arg.name == "dtype"), None)
    if not info.is_out or info.base not in _TYPED_BY_OUT or at is None or values[at] is not None:
        return None

    def substitute(*now: Any) -> Any:
        out = next(value for arg, value in zip(info.args, now, strict=True) if arg.is_out)
        now = (*now[:at], out.dtype, *now[at + 1 :])
        return carry_out(info, make_plan(info, now), now)

    return CallPlan(None, substitute=substitute)


def _made_then_copied(info: OpInfo, values: Sequence[Any]) -> Any:
    """The out= form of an operation that also writes arguments: the operation itself, and copies of what it returns."""
    kept = [(value, arg) for value, arg in zip(values, info.args, strict=True) if not arg.is_out]
    args, kwargs = fallback.split(info, [value for value, _ in kept], [arg for _, arg in kept])
    outs = tuple(value for value, arg in zip(values, info.args, strict=True) if arg.is_out)
    for out, new in zip(outs, overload(info.name.partition(".")[0])(*args, **kwargs), strict=True):
        transfer.resize_output(out, new.size(), new.stride())
        out.copy_(new)
    return outs


def _made_from_nothing(info: OpInfo, values: Sequence[Any]) -> CallPlan | None:
    """For the out= form of a function that makes a tensor in a type of the caller's choice: a plan that makes one of the output's type."""
    name = functional_of(info)
    if name not in LOWERINGS:
        return None
    make = overload(name)

    def substitute(*now: Any) -> Any:
        out = next(value for arg, value in zip(info.args, now, strict=True) if arg.is_out)
        new = make(*(v for v, arg in zip(now, info.args, strict=True) if not arg.is_out), dtype=out.dtype, device=raw_device(out))
        if info.base in _FILLING and out.numel() == new.numel():
            return out.copy_(new.view(out.size()))
        transfer.resize_output(out, new.size())
        return out.copy_(new)

    return CallPlan(None, substitute=substitute)


_FILLING: Final = frozenset({"arange", "linspace", "logspace"})
"""Operations that fill an output of the right number of elements in whatever shape it has."""


_Once = Callable[..., torch.Tensor]


def _places(target: torch.Tensor) -> torch.Tensor:
    """Each place of an expanded tensor once: its repeated dimensions have one element."""
    shape = [1 if stride == 0 and size else size for size, stride in zip(target.size(), target.stride(), strict=True)]
    return target.as_strided(shape, target.stride())


def _filled_once(info: OpInfo, values: Sequence[Any]) -> _Once:
    """One value for every element may be written to an expanded tensor: once to each place."""

    def fill(target: torch.Tensor, *more: Any) -> torch.Tensor:
        args, kwargs = fallback.split(info, [_places(target), *more])
        info.op(*args, **kwargs)
        return target

    return fill


def _warn_of_expanded(info: OpInfo) -> None:
    warnings.warn(
        f"Use of {info.base} on expanded tensors is deprecated. Please clone() the tensor before performing this operation. "
        "This also applies to advanced indexing e.g. tensor[indices] = tensor or tensor[mask] = scalar",
        stacklevel=2,
    )


def _masked_once(info: OpInfo, values: Sequence[Any]) -> _Once:
    """A place is written where the mask of any of its elements is set."""

    def fill(target: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
        _warn_of_expanded(info)
        places = _places(target)
        mask = mask.expand(target.size())
        for dim, size in enumerate(places.size()):
            mask = mask.any(dim, keepdim=True) if size != mask.size(dim) else mask
        places.masked_fill_(mask, value)
        return target

    return fill


def _indexed_once(info: OpInfo, values: Sequence[Any]) -> _Once:
    """Any index along a repeated dimension is the one place there."""

    def fill(target: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
        _warn_of_expanded(info)
        places = _places(target)
        places.index_fill_(dim, index if places.size(dim) == target.size(dim) else torch.zeros_like(index), value)
        return target

    return fill


def _put_once(info: OpInfo, values: Sequence[Any]) -> _Once | None:
    """``tensor[mask] = number``; None for what else is put somewhere."""
    target, indices, value, accumulate = values[:4]
    one = len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.bool and indices[0].size() == target.size()
    if accumulate or not one or value.numel() != 1:
        return None
    fill = _masked_once(info, values)
    return lambda target, indices, value, *more: fill(target, indices[0], value.reshape(()))


_ONCE: Final[dict[str, Callable[[OpInfo, Sequence[Any]], _Once | None]]] = {
    "fill_": _filled_once,
    "zero_": _filled_once,
    "masked_fill_": _masked_once,
    "index_fill_": _indexed_once,
    "index_put_": _put_once,
    "_index_put_impl_": _put_once,
}
"""Operations that may write an expanded tensor."""


def _device_elsewhere(info: OpInfo, values: Sequence[Any]) -> torch.device | None:
    for arg, value in zip(info.args, values, strict=True):
        if arg.kind is Kind.DEVICE and value is not None:
            if not is_our_device(value):
                return torch.device(value)
            transfer.check_device(value)
    return None


def _has_cpu_indices(info: OpInfo, values: Sequence[Any]) -> bool:
    return info.base in checks.CPU_INDEX_OPS and any(
        raw_device(t).type == "cpu" for i, t in checks.tensors_of(values) if checks.may_be_cpu_indices(info, i)
    )


def _with_tensors_there(info: OpInfo, values: Sequence[Any]) -> Any:
    """Indices and numbers in CPU tensors: uploaded first, as CUDA does with indices."""
    at = transfer.index_of_call(info, values)

    def there(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [there(item) for item in value]
        return transfer.upload(value, at) if isinstance(value, torch.Tensor) and raw_device(value).type == "cpu" else value

    moved = [there(value) if arg.kind in (Kind.TENSOR, Kind.TENSORS) else value for arg, value in zip(info.args, values, strict=True)]
    args, kwargs = fallback.split(info, moved)
    return info.op(*args, **kwargs)


def _lowered(info: OpInfo, entry: Entry, values: Sequence[Any]) -> CallPlan:
    """The plan through a lowering; raises Unknown, Unsupported or LoweringError."""
    own = entry.name == info.name
    makes = bool(info.returns) if not info.mutates else own and None in info.returns
    result = known(info.name, values)
    try:
        if result is None:
            result = infer(info, values, overload(entry.name) if info.is_out else None)
    except Unknown as unknown:
        if makes or info.is_out or not unknown.missing:
            raise  # else nothing new is made, and the lowering looks at shapes itself
    if info.mutates and not info.is_out and not own:
        target = _target(info, values)
        if isinstance(result, torch.Tensor) and target is not None:
            checks.same_shape(target, result)
        _check_promotion(info, values, entry)
    if info.is_out:
        wrong = _resized(info, values, result)
        if wrong is not None:
            return wrong
    found = arguments_of(info, entry, values)
    args, kwargs, targets = as_lowered(info, found.lowered, own)
    if any(type(arg) is ScalarArg and needs for arg, needs in zip(args, tensor_places(entry), strict=False)):
        raise Unsupported("a number where the lowering takes a tensor only")
    outs: list[OutSpec | None] = []
    build = None
    if makes:
        build = builder(_new_returns(info, result), outs)
    stencil = Stencil(lower(entry, args, kwargs, len(found.handles), expected_of(outs), targets), info.name)
    scattered = info.mutates and any(info.args[i].written and not checks.is_dense(t) for i, t in checks.tensors_of(values))
    verify_stencil(stencil, scattered=scattered)
    buffers = stencil.n_handles + len(stencil.temps)
    if len(stencil.code) > LIMITS.instructions_max or buffers > LIMITS.buffers_max:
        raise Unsupported("one program cannot hold it")
    specs = tuple(o for o in outs if o is not None)
    return CallPlan(stencil, specs, build, None, entry)


_NARROWING: Final = frozenset({"cumsum_", "cumprod_"})
"""In-place operations that cast their result back whatever it is."""


def _check_promotion(info: OpInfo, values: Sequence[Any], entry: Entry) -> None:
    """Raises what torch raises when an in-place result does not fit its target. Not every in-place meta kernel checks this."""
    dtypes = {t.dtype for _, t in checks.tensors_of(values)}
    dtypes.update(torch.complex64 for value in values if isinstance(value, complex))
    if info.base in _NARROWING or (len(dtypes) == 1 and all(dtype.is_floating_point for dtype in dtypes)):
        return
    try:
        result = infer(info, values, overload(entry.name))
    except Unknown as unknown:
        if unknown.missing:
            return
        raise
    target = _target(info, values)
    if isinstance(result, torch.Tensor) and target is not None:
        checks.castable(result.dtype, target.dtype)


def _target(info: OpInfo, values: Sequence[Any]) -> torch.Tensor | None:
    """What an in-place operation writes; None: a list of tensors."""
    written = next(value for arg, value in zip(info.args, values, strict=True) if arg.written)
    return written if isinstance(written, torch.Tensor) else None


def as_lowered(info: OpInfo, lowered: Sequence[Any], own: bool) -> tuple[list[Any], dict[str, Any], list[Meta]]:
    """(args, kwargs, targets) for the lowering. ``own``: it is the operation's own and writes what is to be written itself."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    targets: list[Meta] = []
    for arg, value in zip(info.args, lowered, strict=True):
        if arg.written and not own:
            targets += [v for v in (value if isinstance(value, list) else [value]) if v is not None]
        if arg.kind in _DROPPED or (arg.is_out and not own):
            continue
        if arg.kwarg_only:
            kwargs[arg.name] = value
        else:
            args.append(value)
    return args, kwargs, targets


def _resized(info: OpInfo, values: Sequence[Any], result: Any) -> CallPlan | None:
    """For out= tensors of another shape than the result: a plan that resizes them first. Raises when their type does not fit."""
    outs = [t for i, t in checks.tensors_of(values) if info.args[i].is_out]
    metas = [r for r in (result if isinstance(result, list | tuple) else [result]) if isinstance(r, torch.Tensor)]
    if all(out.size() == meta.size() for out, meta in zip(outs, metas, strict=True)):
        return None
    layouts = [(tuple(meta.size()), None if info.base in _ROWS_WHEN_RESIZED else meta.stride()) for meta in metas]
    buffers = {handle_of(out) for out in outs}
    if info.base == "cat" and any(t.numel() and handle_of(t) in buffers for i, t in checks.tensors_of(values) if not info.args[i].is_out):
        raise RuntimeError("unsupported operation: the input tensors cannot refer to any of the output memory locations")

    def substitute(*now: Any) -> Any:
        # An input that is the very tensor to be resized keeps its own sizes.
        written = [id(out) for i, out in checks.tensors_of(now) if info.args[i].is_out]
        now = tuple(v.detach() if id(v) in written and not a.is_out else v for a, v in zip(info.args, now, strict=True))
        for (_, out), layout in zip([(i, t) for i, t in checks.tensors_of(now) if info.args[i].is_out], layouts, strict=True):
            transfer.resize_output(out, *layout)
        return carry_out(info, make_plan(info, now), now)

    return CallPlan(None, substitute=substitute)


_ROWS_WHEN_RESIZED: Final = frozenset({"_fft_c2c", "_fft_c2r", "_fft_r2c", "slice_scatter"})
"""Operations whose out= tensor, resized, has not the layout of the result that they make without one."""


def _new_returns(info: OpInfo, result: Any) -> Any:
    """The part of an inferred result that is new, not an argument handed back."""
    if not info.mutates or not isinstance(result, tuple):
        return result
    return tuple(r for r, source in zip(result, info.returns, strict=True) if source is None)


def first(tensors: list[torch.Tensor]) -> Any:
    """The builder of operations that return one tensor."""
    return tensors[0]


def builder(result: Any, outs: list[Any]) -> Callable[[list[torch.Tensor]], Any]:
    """Collect the tensors of an inferred result into ``outs``; returns a function that makes the like of it from new tensors."""
    if isinstance(result, torch.Tensor | Shaped):
        outs.append(_spec(result))
        return first
    return partial(_fill, _shape_of(result, outs))


def expected_of(outs: Sequence[OutSpec | None]) -> list[Expected | None]:
    """The outputs as a lowering is given them."""
    return [None if o is None else Expected(wis_dtype(o.dtype), o.shape, o.strides or contiguous_strides(o.shape)) for o in outs]


def _shape_of(result: Any, outs: list[Any]) -> Any:
    if isinstance(result, torch.Tensor | Shaped):
        outs.append(_spec(result))
        return Slot(sum(o is not None for o in outs) - 1)
    if isinstance(result, list | tuple):
        parts = [_shape_of(r, outs) for r in result]
        return parts if isinstance(result, list) else tuple(parts)
    if result is None:
        outs.append(None)
    return result


@dataclass(frozen=True, slots=True)
class Slot:
    index: int


def _fill(shape: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(shape, Slot):
        return tensors[shape.index]
    if isinstance(shape, list):
        return [_fill(s, tensors) for s in shape]
    if isinstance(shape, tuple):
        return tuple(_fill(s, tensors) for s in shape)
    return shape


def _spec(meta: torch.Tensor | Shaped) -> OutSpec:
    shape, strides = tuple(meta.shape), tuple(meta.stride())
    nbytes = span_nbytes(meta.dtype.itemsize, shape, strides)
    return OutSpec(meta.dtype, shape, None if nbytes and strides == contiguous_strides(shape) else strides, nbytes)


def carry_out(info: OpInfo, plan: CallPlan, values: Sequence[Any]) -> Any:
    """Do one call by its plan."""
    stencil = plan.stencil
    if stencil is None:
        assert plan.substitute is not None, "a plan has a stencil or a substitute"
        return plan.substitute(*values)
    assert plan.entry is not None, "a stencil comes from a lowering"
    found = arguments_of(info, plan.entry, values)
    at = transfer.index_of_call(info, values)
    if stencil.rng_counters:
        checks.distribution(info, values)
        found.numbers += drawn(info, values, stencil.rng_counters, at)
    made = []
    for out in plan.outs:
        tensor, handle = HEAPS[at].new_tensor(out.dtype, out.shape, out.strides, out.nbytes)
        made.append(tensor)
        found.handles.append(handle)
    RECORDERS[at].push((stencil, found.handles, found.numbers))
    new = plan.build(made) if plan.build is not None else None
    return mutated(info, values, new) if info.mutates else new


def mutated(info: OpInfo, values: Sequence[Any], new: Any) -> Any:
    """The return value of a mutating call: its written arguments, and ``new`` tensors where it makes any."""
    left = iter(new if isinstance(new, tuple) else (new,))
    returned = [next(left) if source is None else values[source] for source in info.returns]
    return returned[0] if len(returned) == 1 else tuple(returned) if returned else None


def drawn(info: OpInfo, values: Sequence[Any], counters: int, at: int) -> list[int]:
    """(seed, offset) for a call that draws ``counters`` from its generator, else from that of device ``at``."""
    generator = next((v for a, v in zip(info.args, values, strict=True) if a.kind is Kind.GENERATOR), None)
    seed, offset = random.of(generator, at).take(counters)
    return [seed - (1 << 64) if seed >> 63 else seed, offset]
