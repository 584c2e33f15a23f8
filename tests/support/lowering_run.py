"""Runs lowerings without a device: aten calls on CPU tensors, mirrored through template, verifier and reference, and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from wis.program import VERSION, BufferKind, Program
from wis.reference import run
from wis.verify import verify
from wooly.device.lowering import COMPOSITES, LOWERINGS, TO_TORCH, Entry, Expected, Meta, ScalarArg, Template, Unsupported, lower, wis_dtype
from wooly.device.schema import Kind, OpInfo, describe, functional_of, overload

__all__ = ["Mirror", "Mismatch", "execute", "mirror_call", "run_lowering"]

Array = np.ndarray[Any, Any]


class Mismatch(AssertionError):
    """The lowering computed something else than torch."""


def _name(op: Any) -> str:
    schema = op._schema
    return str(schema.name) + (f".{schema.overload_name}" if schema.overload_name else "")


def _bytes_of(t: torch.Tensor) -> Array:
    storage = t.untyped_storage()
    return np.frombuffer(bytes(storage), np.uint8).copy() if storage.nbytes() else np.zeros(0, np.uint8)


def _materialised(t: torch.Tensor) -> torch.Tensor:
    """Autograd's zero tensors have no memory: real zeros in their place."""
    return torch.zeros(t.shape, dtype=t.dtype) if t._is_zerotensor() else t


def _tensor_over(buffer: Array, spec: Expected) -> torch.Tensor:
    """A CPU tensor of what a template wrote."""
    return _elements(buffer, TO_TORCH[spec.dtype]).as_strided(spec.shape, spec.strides)


def _elements(buffer: Array, dtype: torch.dtype) -> torch.Tensor:
    flat = torch.empty(buffer.size // dtype.itemsize, dtype=dtype)
    if flat.numel():
        flat.view(torch.uint8).numpy()[:] = buffer[: flat.numel() * dtype.itemsize]
    return flat


@dataclass
class _Arguments:
    """Arguments as a lowering sees them, with the buffers and numbers behind them (one slot a storage)."""

    buffers: list[Array] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)

    def meta(self, t: torch.Tensor) -> Meta:
        t = _materialised(t)
        key = t.untyped_storage()._cdata
        slot = self.slots.setdefault(key, len(self.slots))
        if slot == len(self.buffers):
            self.buffers.append(_bytes_of(t))
        return Meta(slot, wis_dtype(t.dtype), tuple(t.shape), tuple(t.stride()), t.storage_offset(), t.is_conj(), t.is_neg())

    def number(self, value: Any) -> ScalarArg:
        self.numbers.append(value)
        return ScalarArg(len(self.numbers) - 1, type(value))

    def any(self, value: Any, plain: bool) -> Any:
        if isinstance(value, torch.Tensor):
            return self.meta(value)
        if isinstance(value, list | tuple):
            return [self.any(v, plain) for v in value]
        if not plain and isinstance(value, bool | int | float | complex):
            return self.number(value)
        return value


_DROPPED = frozenset({Kind.DEVICE, Kind.LAYOUT, Kind.IGNORED, Kind.GENERATOR})


def _plain(entry: Entry, name: str, value: Any) -> bool:
    return value is None or name in entry.concrete or (not isinstance(value, list) and value in entry.special.get(name, ()))


def _lowered_arguments(
    info: OpInfo, entry: Entry, values: Sequence[Any], found: _Arguments
) -> tuple[list[Any], dict[str, Any], list[Meta]]:
    own = entry.name == info.name
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    targets: list[Meta] = []
    for arg, value in zip(info.args, values, strict=True):
        plain = arg.kind not in (Kind.NUMBER, Kind.NUMBERS) or _plain(entry, arg.name, value)
        lowered = found.any(value, plain)
        if arg.written and not own:
            targets += lowered if isinstance(lowered, list) else [lowered]
        if arg.kind in _DROPPED or (arg.is_out and not own):
            continue
        if arg.kwarg_only:
            kwargs[arg.name] = lowered
        else:
            args.append(lowered)
    return args, kwargs, targets


def _expected(result: Any) -> list[Expected | None]:
    flat: list[Any] = list(result) if isinstance(result, list | tuple) else [result]
    return [Expected(wis_dtype(r.dtype), tuple(r.shape), tuple(r.stride())) if isinstance(r, torch.Tensor) else None for r in flat]


def execute(template: Template, buffers: list[Array], numbers: Sequence[Any], seed: int = 1, offset: int = 0) -> list[Array | None]:
    """Run a template as a program of its own; returns the output buffers (None where torch makes none). Input buffers change in place."""
    outs: list[Array | None] = [None if o is None else np.zeros(o.nbytes, np.uint8) for o in template.outs]
    created = [np.zeros(0, np.uint8) if o is None else o for o in outs]
    kinds = [BufferKind.EXTERNAL] * len(buffers) + [BufferKind.CREATED] * len(created) + [BufferKind.TEMP] * len(template.temps)
    sizes = [b.size for b in (*buffers, *created)] + list(template.temps)
    scalars = template.scalars(numbers, seed, offset)
    program = Program(VERSION, tuple(int(k) for k in kinds), len(scalars), template.code)
    dims = np.array([*sizes, *template.dims], "<i8").tobytes()
    verified = verify(program, dims)
    run(verified, scalars, [*buffers, *created, *[None] * len(template.temps)])
    return outs


def mirror_call(op: Any, args: Sequence[Any], kwargs: dict[str, Any], *, compare: bool = True) -> Any:
    """Call ``op`` on CPU tensors and through its lowering; returns torch's result.

    Raises Unsupported when there is no lowering (torch's result is then lost: the caller calls again), Mismatch when they differ.
    """
    info = describe(_name(op), op)
    name = functional_of(info) if info.mutates and info.name not in LOWERINGS else info.name
    entry = LOWERINGS.get(name) if name is not None else None
    if entry is None:
        raise Unsupported(f"{info.name} has no lowering")
    values = list(args)
    values += [kwargs[arg.name] if arg.name in kwargs else arg.default for arg in info.args[len(values) :]]
    found = _Arguments()
    lowered_args, lowered_kwargs, targets = _lowered_arguments(info, entry, values, found)
    result = op(*args, **kwargs)
    own = entry.name == info.name
    if info.mutates:
        fresh = [] if not own else [r for r, source in zip(_flat(result), info.returns, strict=False) if source is None]
    else:
        fresh = _flat(result)
    written = [t for a, v in zip(info.args, values, strict=True) if a.written for t in _flat(v)]
    if any(tuple(target.shape) != tuple(t.shape) for target, t in zip(targets, written, strict=False)):
        raise Unsupported("an out= tensor that is resized")
    template = lower(entry, lowered_args, lowered_kwargs, len(found.buffers), _expected(fresh), targets)
    outs = execute(template, found.buffers, found.numbers)
    if compare and not info.draws:
        wanted = _widely(op, args, kwargs, fresh) if info.base in _COARSE_ON_CPU else fresh
        _compare(info.name, wanted, outs, template)
        _compare_mutated(info, values, found)
    return result


_COARSE_ON_CPU = ("grid_sampler_2d",)
"""Operations that CUDA computes in f32 for half types, and the CPU in the half type itself."""


def _widely(op: Any, args: Sequence[Any], kwargs: dict[str, Any], results: Sequence[Any]) -> list[Any]:
    """What ``op`` gives for half arguments that are widened first, rounded to the types of ``results``."""
    half = (torch.float16, torch.bfloat16)
    wide = op(*(a.float() if isinstance(a, torch.Tensor) and a.dtype in half else a for a in args), **kwargs)
    return [new.to(old.dtype) for new, old in zip(_flat(wide), results, strict=True)]


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _compare(name: str, wanted: Sequence[Any], outs: Sequence[Array | None], template: Template) -> None:
    for i, (want, out, spec) in enumerate(zip(wanted, outs, template.outs, strict=True)):
        if i in _UNDEFINED.get(name.partition(".")[0], ()):
            continue
        if out is not None and spec is not None:
            _close(f"{name} output {i}", _tensor_over(out, spec), want)


def _compare_mutated(info: OpInfo, values: Sequence[Any], found: _Arguments) -> None:
    for arg, value in zip(info.args, values, strict=True):
        if not arg.written:
            continue
        for t in _flat(value):
            meta = found.meta(t)
            _close(f"{info.name} argument {arg.name}", _elements(found.buffers[meta.slot], t.dtype), _raw(t))


def _raw(t: torch.Tensor) -> torch.Tensor:
    """Everything in the storage of ``t``."""
    return torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())


_UNDEFINED = {
    **{f"aten::{name}": (1,) for name in ("sort", "topk", "kthvalue", "median", "nanmedian", "mode")},
    **{f"aten::{name}": (1, 2, 3) for name in ("_embedding_bag", "_embedding_bag_forward_only")},
    "aten::_linalg_solve_ex": (1, 2),
}
"""Outputs that torch does not define: which of equal elements is named, by-products for the backward pass of one implementation, factors of
matrices whose rows are each other's conjugates (eigenvectors), in which rounding chooses the pivot."""

_TOLERANCES = {
    torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1.6e-2), torch.float32: (2e-5, 2e-5), torch.complex64: (2e-5, 2e-5),
    torch.float64: (1e-7, 1e-7), torch.complex128: (1e-7, 1e-7),
}  # fmt: skip


def _close(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    theirs = _materialised(theirs.detach()).resolve_conj().resolve_neg()
    rtol, atol = _TOLERANCES.get(theirs.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol * (1 + _greatest(theirs)), equal_nan=True)
    except AssertionError as error:
        raise Mismatch(f"{what}: {error}") from None


def _greatest(t: torch.Tensor) -> float:
    """Errors of sums and products grow with what went into them: absolute tolerance is relative to the tensor's greatest element."""
    if not (t.is_floating_point() or t.is_complex()) or t.numel() == 0:
        return 0.0
    size = t.abs()
    size = size[size.isfinite()]
    return float(size.max()) if size.numel() else 0.0


_IGNORED = frozenset({
    "aten::detach", "aten::_local_scalar_dense", "aten::set_", "aten::resize_", "aten::is_same_size", "aten::equal", "aten::empty",
    "aten::_reshape_alias", "aten::view", "aten::as_strided", "aten::lift_fresh", "aten::_has_compatible_shallow_copy_type",
    "aten::unfold", "aten::view_as_real", "aten::view_as_complex", "prim::device",
})  # fmt: skip


class Mirror(TorchDispatchMode):
    """While active, every aten call on CPU tensors is also run through its lowering.

    ``native`` counts calls that a lowering covered, ``missing`` the others by reason, ``wrong`` lists what differed.
    Calls without a lowering go through torch's Python decomposition when there is one, as on the device.
    """

    def __init__(self, compare: bool = True) -> None:
        super().__init__()
        self.native: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._compare = compare
        self._active: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        if self._is_free(func, name):
            return func(*args, **kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        try:
            result = mirror_call(func, args, kwargs, compare=self._compare)
            self.native[name] += 1
            return result
        except Unsupported as reason:
            return self._otherwise(func, name, args, kwargs, str(reason))
        except (AssertionError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            self.wrong.append(f"{name}: {type(error).__name__}: {error}")
            return func(*args, **kwargs)

    @staticmethod
    def _is_free(func: Any, name: str) -> bool:
        """Views, in-place views and what makes no values cost no instruction."""
        base = name.partition(".")[0]
        return (
            base in _IGNORED
            or base.startswith(("aten::empty", "aten::new_empty", "profiler::"))
            or func.is_view
            or (torch.Tag.inplace_view in func.tags)
        )

    def _otherwise(self, func: Any, name: str, args: Any, kwargs: Any, reason: str) -> Any:
        from torch._decomp import decomposition_table

        substitute = COMPOSITES.get(name) or decomposition_table.get(func)
        substitute = substitute or getattr(func.overloadpacket, "impl_aten", None)  # what torch's own prims stand for
        if substitute is not None and name not in self._active:
            self._active.add(name)
            try:
                with self:
                    return substitute(*args, **kwargs)
            except Unsupported as refused:
                reason = str(refused)
            finally:
                self._active.discard(name)
        self.missing[f"{name}: {reason}"] += 1
        return func(*args, **kwargs)


def run_lowering(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], like: Sequence[torch.Tensor | None], *, seed: int = 1, offset: int = 0
) -> list[torch.Tensor | None]:
    """The results of one lowering on CPU tensors; ``like`` says what its outputs are. For calls that torch's CPU does not have."""
    entry = LOWERINGS[name]
    info = describe(name, overload(name))
    found = _Arguments()
    values = [*args, *(kwargs[a.name] if a.name in kwargs else a.default for a in info.args[len(args) :])]
    lowered_args, lowered_kwargs, _ = _lowered_arguments(info, entry, values, found)
    template = lower(entry, lowered_args, lowered_kwargs, len(found.buffers), _expected(list(like)))
    outs = execute(template, found.buffers, found.numbers, seed, offset)
    pairs = zip(outs, template.outs, strict=True)
    return [None if out is None or spec is None else _tensor_over(out, spec) for out, spec in pairs]
