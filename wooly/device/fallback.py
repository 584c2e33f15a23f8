"""Fallbacks of operations without a lowering: torch's own decomposition into others, else the CPU, visibly.

The CPU path fetches the arguments, computes here and uploads the results: right, slow, and counted (``wooly.stats()["fallbacks"]``).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NoReturn

import torch

from wooly.counters import COUNTERS
from wooly.device import checks, random, sparse, transfer
from wooly.device.backend import CPU_KEYS, cpu_generator, has_kernel, has_python_kernel, is_ours, raw_device
from wooly.device.checks import SELF_OVERLAP
from wooly.device.infer import Unknown, infer, without_frames
from wooly.device.lowering import COMPOSITES, Unsupported, libraries
from wooly.device.schema import Kind, OpInfo, describe, overload
from wooly.errors import ForeignPointerError, UnsupportedOperation

_CPU: Final = torch.device("cpu")
_CUDA_KEYS: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
_warned: Final[set[str]] = set()
_cpu_allowed = True
_substituting = threading.local()


def allow_cpu(allowed: bool) -> None:
    """Whether operations without a lowering may be computed on the CPU; if not, they raise UnsupportedOperation."""
    global _cpu_allowed
    _cpu_allowed = allowed


def report(info: OpInfo, reason: str) -> None:
    """Count one call computed on the CPU; warn at the first of each operation."""
    COUNTERS.fallbacks[info.name] += 1
    if info.name not in _warned:
        _warned.add(info.name)
        warnings.warn(
            f"{info.name} runs on the CPU of this machine: {reason}. Results are right, but data travels there and back.", stacklevel=2
        )


def choose(info: OpInfo, functional: str | None, unknown: Unknown | None) -> Callable[..., Any]:
    """The substitute for ``info``, called with its values in schema order: our own composite, torch's decomposition, or the CPU.

    ``functional``: the form of a mutating operation that returns instead of writing. ``unknown``: why nothing could be inferred; an error
    of torch's own goes to the CPU kernel, which words it as users know it.
    """
    composite = COMPOSITES.get(info.name)
    if composite is not None:
        return _guarded(info, lambda *values: composed(composite, info, values, unknown))
    if unknown is None or unknown.missing:
        if info.mutates and functional is not None and not info.draws:  # before a decomposition: those take in-place for out=, and resize
            return _guarded(info, lambda *values: write_back(info, overload(functional), values))
        decomposition = _decomposition(info)
        if decomposition is not None:
            return _guarded(info, lambda *values: _decomposed(decomposition, info, values, unknown))
    return lambda *values: on_cpu(info, values, unknown)


def composed(composite: Callable[..., Any], info: OpInfo, values: Sequence[Any], unknown: Unknown | None = None) -> Any:
    """The call by its composite; on the CPU where that raises Unsupported."""
    try:
        return _call(composite, info, values)
    except Unsupported:
        return on_cpu(info, values, unknown)


def _decomposed(fn: Callable[..., Any], info: OpInfo, values: Sequence[Any], unknown: Unknown | None) -> Any:
    """The call by its decomposition; on the CPU where that says that it does not cover it."""
    result = _call(fn, info, values)
    return on_cpu(info, values, unknown) if result is NotImplemented else _as_promised(info, values, result)


def _as_promised(info: OpInfo, values: Sequence[Any], result: Any) -> Any:
    """``result`` of a decomposition with the strides that the operation's meta kernel describes: decompositions ignore memory formats."""
    if not any(_has_layout(value) for value in _flat(values)) or info.mutates or info.is_view or not info.tensor_returns:
        return result
    try:
        promised = infer(info, values)
    except Unknown:
        return result
    if isinstance(result, torch.Tensor):
        return _strided_as(result, promised)
    return tuple(_strided_as(r, p) if isinstance(r, torch.Tensor) else r for r, p in zip(result, promised, strict=True))


def _has_layout(value: Any) -> bool:
    return not value.is_contiguous() if isinstance(value, torch.Tensor) else isinstance(value, torch.memory_format)


def _strided_as(tensor: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    strides = zip(tensor.size(), tensor.stride(), want.stride(), strict=True) if tensor.size() == want.size() else ()
    if all(have == promised for size, have, promised in strides if size > 1):
        return tensor
    return torch.empty_strided(want.size(), want.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _decomposition(info: OpInfo) -> Callable[..., Any] | None:
    from torch._decomp import decomposition_table  # takes a third of a second to import; needed by few programs

    fn: Callable[..., Any] | None = decomposition_table.get(info.op)
    return None if info.base in _NOT_DECOMPOSED or info.draws else fn


def _call(fn: Callable[..., Any], info: OpInfo, values: Sequence[Any]) -> Any:
    args, kwargs = split(info, values)
    return fn(*args, **kwargs)


def _guarded(info: OpInfo, substitute: Callable[..., Any]) -> Callable[..., Any]:
    """``substitute``, or the CPU when it comes back to where it started: some are written in terms of the operation itself."""

    def guarded(*values: Any) -> Any:
        active: set[str] = _substituting.__dict__.setdefault("names", set())
        if info.name in active:
            return on_cpu(info, values, None)
        active.add(info.name)
        try:
            return substitute(*values)
        finally:
            active.discard(info.name)

    return guarded


_NOT_DECOMPOSED: Final = frozenset("isin nan_to_num nan_to_num_ sub sub_ upsample_bicubic2d upsample_bilinear2d".split())
"""Operations whose decomposition in torch is not what its kernels compute: other types (complex, bool), rounded images of bytes."""


def write_back(info: OpInfo, op: Any, values: Sequence[Any]) -> Any:
    """Compute a mutating operation by its functional form, then copy the results into the arguments."""
    kept = [v for v, a in zip(_with_tensors_for_numbers(info, list(values)), info.args, strict=True) if not a.is_out]
    args, kwargs = split(info, kept, [a for a in info.args if not a.is_out])
    result = op(*args, **kwargs)
    results = _flat(result if isinstance(result, list | tuple) else [result])
    targets: list[torch.Tensor] = []
    for i in info.written:
        targets += values[i] if isinstance(values[i], list | tuple) else [values[i]]
    for target, new in zip(targets, results, strict=False):
        if info.is_out:
            transfer.resize_output(target, new.shape, new.stride())
        else:
            checks.same_shape(target, new)
            checks.castable(new.dtype, target.dtype)
        target.copy_(new)
    return _returned(info, values, results[len(targets) :])


def _returned(info: OpInfo, values: Sequence[Any], new: Sequence[Any]) -> Any:
    left = iter(new)
    returned = [next(left) if source is None else values[source] for source in info.returns]
    return returned[0] if len(returned) == 1 else tuple(returned) if returned else None


def split(info: OpInfo, values: Sequence[Any], args: Sequence[Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Values in schema order as (args, kwargs) of a call; defaults are left out at the end."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for arg, value in zip(info.args if args is None else args, values, strict=True):
        if arg.kwarg_only:
            if not (arg.has_default and value is arg.default):
                keywords[arg.name] = value
        else:
            positional.append(value)
    return positional, keywords


def on_cpu(info: OpInfo, values: Sequence[Any], unknown: Unknown | None) -> Any:
    """Fetch, compute with torch's CPU kernel, upload."""
    if not _cpu_allowed:
        if unknown is not None and not unknown.missing:
            raise without_frames(unknown.error)
        raise UnsupportedOperation(
            f"{info.name} has no implementation on this device, and WOOLY_CPU_FALLBACK=0 forbids computing it on this machine"
        )
    if unknown is not None and not unknown.missing:
        _raise_without_data(info, values)
    here = transfer.fetch_all(values)
    here = _with_tensors_for_numbers(info, here)
    if info.base in _WORKS_FOR_GRADIENTS:
        here = [v.requires_grad_() if isinstance(v, torch.Tensor) else v for v in here]
    args, kwargs = split(info, [_local(a, v) for a, v in zip(info.args, here, strict=True)])
    with _seeded(info, values, kwargs):
        result = info.op(*args, **kwargs)
    report(info, "it has no implementation on the device" if unknown is None or unknown.missing else "its result's size depends on data")
    for i in info.written:
        _copy_back(values[i], here[i], info.args[i].is_out)
    _check_layouts(info, result)
    if info.mutates:
        return _returned_from_cpu(info, values, result)
    back = {id(cpu): ours for ours, cpu in zip(_flat(values), _flat(here), strict=True)}
    return _uploaded(result, back, transfer.index_of_call(info, values))


_WORKS_FOR_GRADIENTS: Final = frozenset({"_sparse_mm_reduce_impl"})
"""Operations whose kernel leaves out what only their backward needs, where no argument requires a gradient: the copies must say so."""


def _with_tensors_for_numbers(info: OpInfo, values: list[Any]) -> list[Any]:
    """``values`` with tensors in place of the numbers that torch hands to kernels that take tensors; numbers do not decide types."""
    numbers = [
        arg.kind is Kind.TENSOR and isinstance(value, bool | int | float | complex) for arg, value in zip(info.args, values, strict=True)
    ]
    tensor = next((value for value in values if isinstance(value, torch.Tensor)), None)
    if tensor is None or not any(numbers):
        return values
    return [torch.tensor(v, dtype=torch.result_type(tensor, v)) if number else v for v, number in zip(values, numbers, strict=True)]


def _check_layouts(info: OpInfo, result: Any) -> None:
    for tensor in _flat([result]):
        if (
            isinstance(tensor, torch.Tensor)
            and not sparse.has_parts(tensor)
            and (tensor.layout is not torch.strided or tensor.is_quantized)
        ):
            kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
            raise UnsupportedOperation(f"{info.name}: this device has no {kind} tensors; keep such tensors on the CPU")


def unclaimed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every operator that has no other for the device: operators of other libraries, and torch's for other back ends.

    A kernel that is registered in Python for CUDA is called, and where that follows a pointer, one for the CPU that may do without; else
    our own form of the operator (``lowering.libraries``); else the CPU's on copies, visibly. Raises UnsupportedOperation where there is
    none: a kernel compiled for CUDA cannot run without a GPU on this machine.
    """
    info = _described(op)
    if has_python_kernel(info.name, "CUDA"):
        before = _versions(args, kwargs)
        for key, keys in (("CUDA", _CUDA_KEYS), ("CPU", CPU_KEYS)):
            try:
                if has_python_kernel(info.name, key):
                    return op.redispatch(keys, *args, **kwargs)
            except ForeignPointerError:
                changed = info.mutates and (None in before or before != _versions(args, kwargs))
                if changed or not has_kernel(info.name, "CPU"):
                    raise
    form = _form(op)
    if form is not None:
        return composed(form, info, _in_order(info, args, kwargs))
    if not has_kernel(info.name, "CPU"):
        raise UnsupportedOperation(f"{info.name} has no kernel for this device and none for the CPU that could stand in for it")
    return on_cpu(info, _in_order(info, args, kwargs), None)


def _versions(args: Sequence[Any], kwargs: dict[str, Any]) -> list[int | None]:
    """How often each tensor of a call was written; None: it is not counted."""
    tensors = (value for value in _flat([*args, *kwargs.values()]) if isinstance(value, torch.Tensor))
    return [None if tensor.is_inference() else tensor._version for tensor in tensors]


@cache
def _described(op: Any) -> OpInfo:
    return describe(op.name(), op)


@cache
def _form(op: Any) -> Callable[..., Any] | None:
    return libraries.form_of(op.name())


def with_tensors_for_numbers(op: Any, keys: Any) -> Callable[..., Any]:
    """torch's kernel of ``op`` for ``keys``, which is written in C++: it takes no numbers for tensors."""
    info = _described(op)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        positional, named = split(info, _with_tensors_for_numbers(info, _in_order(info, args, kwargs)))
        return op.redispatch(keys, *positional, **named)

    return kernel


def on_sparse(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every operator on sparse tensors of the device that has none of its own: the CPU's, visibly."""
    info = _described(op)
    return on_cpu(info, _in_order(info, args, kwargs), None)


def _in_order(info: OpInfo, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The values of a call in schema order."""
    given = iter(args)
    return [kwargs.get(a.name, a.default) if a.kwarg_only else next(given, kwargs.get(a.name, a.default)) for a in info.args]


def no_quantized(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every operator on quantized tensors of the device, and of those that make one: a refusal."""
    refusal(op.name(), "quantized tensors; keep such tensors on the CPU")()


def refusal(name: str, lacking: str) -> Callable[..., NoReturn]:
    """A kernel for operator ``name`` that raises UnsupportedOperation: this device has no ``lacking``."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedOperation(f"{name}: this device has no {lacking}")

    return refuse


_STAND_IN_BYTES_MAX: Final = 64 << 20
_computable: Final[set[str]] = set()
"""Operations that torch's meta kernel refused and its CPU kernel did not."""


def check_without_data(info: OpInfo, values: Sequence[Any]) -> None:
    """Raises what the CPU kernel raises to tensors of these sizes and types. What it raises to the values of its stand-ins (singular
    matrices, divisors of 0) does not count."""
    if _stand_in_nbytes(values) > _STAND_IN_BYTES_MAX:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _compute_without_data(info, values)
        except RuntimeError as error:
            if type(error).__name__ != "LinAlgError" and str(error) != "ZeroDivisionError":
                raise


def _raise_without_data(info: OpInfo, values: Sequence[Any]) -> None:
    """Raise what the CPU kernel says to these arguments: a mistake in shapes or types must not cost a transfer. Returns when it computes
    something after all; then it is not asked for this operation again."""
    if info.name in _computable or info.draws or _stand_in_nbytes(values) > _STAND_IN_BYTES_MAX:
        return
    _compute_without_data(info, values)
    _computable.add(info.name)


def _stand_in_nbytes(values: Sequence[Any]) -> int:
    return sum(v.numel() * v.dtype.itemsize for v in _flat(values) if isinstance(v, torch.Tensor))


def _compute_without_data(info: OpInfo, values: Sequence[Any]) -> None:
    """The CPU kernel, with zeros in place of the tensors of the device."""
    here = _with_tensors_for_numbers(info, [_zeros_for(v) for v in values])
    args, kwargs = split(info, [_local(a, v) for a, v in zip(info.args, here, strict=True)])
    try:
        info.op(*args, **kwargs)
    except Exception as error:
        raise error.with_traceback(None) from None


def _zeros_for(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_zeros_for(v) for v in value]
    if not (isinstance(value, torch.Tensor) and is_ours(value)):
        return value
    span = 1 + sum((size - 1) * stride for size, stride in zip(value.size(), value.stride(), strict=True)) if value.numel() else 0
    return torch.zeros(span, dtype=value.dtype).as_strided(value.size(), value.stride())


def _flat(values: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        flat += value if isinstance(value, list | tuple) else [value]
    return flat


def _local(arg: Any, value: Any) -> Any:
    if arg.kind is Kind.DEVICE:
        return _CPU if value is not None else None
    if arg.kind is Kind.GENERATOR or arg.name == "pin_memory":
        return None
    return value


class _seeded:
    """torch's CPU stream set from the device's for the length of a call that draws, so that scripts repeat themselves."""

    def __init__(self, info: OpInfo, values: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._generator: Any = None
        if info.draws or any(a.kind is Kind.GENERATOR for a in info.args):
            given = next((v for a, v in zip(info.args, values, strict=True) if a.kind is Kind.GENERATOR), None)
            sizes = [v.numel() for v in _flat(values) if isinstance(v, torch.Tensor)]
            seed, offset = random.of(given, transfer.index_of_call(info, values)).take(max([*sizes, 1]))
            self._seed = (seed * 0x9E3779B97F4A7C15 + offset) & ((1 << 63) - 1)
            self._generator = cpu_generator()

    def __enter__(self) -> None:
        if self._generator is not None:
            self._state = self._generator.get_state()
            self._generator.manual_seed(self._seed)

    def __exit__(self, *exc: object) -> None:
        if self._generator is not None:
            self._generator.set_state(self._state)


def _copy_back(target: Any, computed: Any, is_out: bool) -> None:
    if isinstance(target, list | tuple):
        for t, c in zip(target, computed, strict=True):
            _copy_back(t, c, is_out)
    elif isinstance(target, torch.Tensor) and target.layout in sparse.LAYOUTS:
        if target.layout is not torch.sparse_coo:
            target.resize_as_sparse_(transfer.upload(computed, raw_device(target).index))
        target.copy_(computed)
    elif isinstance(target, torch.Tensor):
        if is_out:
            transfer.resize_output(target, computed.shape, computed.stride())
        if target.device.type == "cuda" and "aten::copy_" in _substituting.__dict__.get("names", ()):
            raise RuntimeError(SELF_OVERLAP)  # the one copy that no node does: windows that share elements
        target.copy_(computed)


def _returned_from_cpu(info: OpInfo, values: Sequence[Any], result: Any) -> Any:
    if not info.returns:
        return None
    results = result if isinstance(result, tuple) else (result,)
    at = transfer.index_of_call(info, values)
    returned = [_uploaded(r, {}, at) if source is None else values[source] for r, source in zip(results, info.returns, strict=True)]
    return returned[0] if len(returned) == 1 else tuple(returned)


def _uploaded(result: Any, back: dict[int, Any], at: int) -> Any:
    if isinstance(result, torch.Tensor):
        return back[id(result)] if id(result) in back else transfer.upload(result, at)
    if isinstance(result, list | tuple):
        parts = [_uploaded(r, back, at) for r in result]
        return parts if isinstance(result, list) else tuple(parts)
    return result


def make_elsewhere(info: OpInfo, values: Sequence[Any], device: torch.device) -> Any:
    """A factory like ``zeros_like(x, device="cpu")``: only the metadata of ``x`` matters, the result lives on ``device``."""
    there = [_stand_in(v, device) for v in values]
    args, kwargs = split(info, [None if a.kind is Kind.GENERATOR else v for a, v in zip(info.args, there, strict=True)])
    return info.op(*args, **kwargs)


def _stand_in(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor) and is_ours(value):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)
    return value
