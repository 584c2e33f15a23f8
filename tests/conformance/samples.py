"""Cases of an operator: its samples, and variants of them that differ in layout, batching or calling convention.

A *case* is one call that is made twice, on the CPU and on the device, with tensors of the same bits and the same layout.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, OpInfo, ReductionOpInfo, SampleInput, UnaryUfuncInfo
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tests.conformance.draws import is_random

__all__ = ["Case", "VARIANTS", "Limits", "cases", "leaves", "placed", "raised"]

VARIANTS = ("strided", "transposed", "offset", "expanded", "negative", "conjugate", "vmap", "inplace", "out")
"""Kinds of cases beside the plain one: six layouts of the arguments, a batched call, and the two other calling conventions."""

_CPU_ARGUMENTS = {"tensor_split"}
"""Operators that want their tensor arguments on the CPU, on CUDA too."""

_UP = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64, torch.complex64: torch.complex128}
_UP_BOOL = {torch.bool: torch.uint8}
_UP_INTEGER = dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.float64)

_WRONG_ON_CPU = {("median", "expanded"), ("nanmedian", "expanded"), ("nn.functional.max_pool1d", "negative")}
"""(operator, kind) that torch's CPU kernels compute wrongly: median along a dimension of stride 0 reads outside of the tensor, max_pool1d
ignores the negative bit."""
_UNDEFINED = {("nn.functional.embedding", "expanded")}
"""(operator, kind) whose result depends on the order of writes: ``max_norm`` scales rows in place that are the same memory."""


def leaves(value: Any) -> list[Any]:
    flat: list[Any] = tree_flatten(value)[0]
    return flat


@dataclass(frozen=True, eq=False)
class Case:
    """One call of an operator.

    Attributes:
        kind: "plain" or a name in VARIANTS.
        function: what is called with (input, *args, **kwargs).
        arguments: (input, args, kwargs), on the CPU.
        process: keeps of a result what is determined (torch's own samples say so for decompositions).
        index: number of the sample among those of its operator.
        host_arguments: the tensors of args and kwargs stay on the CPU.
    """

    kind: str
    function: Callable[..., Any]
    arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]
    process: Callable[[Any], Any]
    index: int = 0
    host_arguments: bool = False

    def on(self, device: str, *, grad: bool = False) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The arguments on a device, each time a fresh copy."""
        memo: dict[int, torch.Tensor] = {}
        given, args, kwargs = self.arguments
        rest = "cpu" if self.host_arguments else device
        given = placed(given, device, memo, grad=grad)
        args, kwargs = placed((args, kwargs), rest, memo, grad=grad)
        return given, args, kwargs | ({"device": device} if "device" in kwargs else {})

    def call(self, device: str, arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> Any:
        """What the call gives with ``arguments`` on ``device``: a factory without tensors makes its result there."""
        given, args, kwargs = arguments
        tensors = any(isinstance(leaf, torch.Tensor) for leaf in leaves(arguments))
        with contextlib.nullcontext() if tensors else torch.device(device):
            return self.process(self.function(given, *args, **kwargs))


def placed(value: Any, device: str, memo: dict[int, torch.Tensor] | None = None, *, grad: bool = False) -> Any:
    """A copy of ``value`` whose tensors are on ``device``, over storages of the same size, offset and strides, with the same lazy bits."""
    storages: dict[int, torch.Tensor] = {} if memo is None else memo

    def place(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device(device)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        moved = _copied(leaf.detach(), device, storages)
        return moved.requires_grad_() if grad and leaf.requires_grad else moved

    return tree_map(place, value)


def _copied(tensor: torch.Tensor, device: str, storages: dict[int, torch.Tensor]) -> torch.Tensor:
    if tensor.layout != torch.strided:
        return tensor.to(device).clone()
    conj = tensor.is_conj()
    raw = tensor.conj() if conj else tensor
    negative = raw.is_neg()
    raw = torch._neg_view(raw) if negative else raw
    storage = raw.untyped_storage()
    key = storage.data_ptr() or id(tensor)
    if key not in storages:
        whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),))
        storages[key] = whole.clone().to(device)
    moved = storages[key].view(raw.dtype).as_strided(raw.size(), raw.stride(), raw.storage_offset())
    moved = torch._neg_view(moved) if negative else moved
    return moved.conj() if conj else moved


def raised(value: Any, dtype: torch.dtype) -> Any:
    """``value`` with everything of ``dtype`` in the widest type of its kind (booleans: bytes; integers: float64)."""
    up = _UP_BOOL if dtype == torch.bool else _UP_INTEGER if dtype in _UP_INTEGER else _UP

    def lift(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and leaf.dtype in up:
            return leaf.detach().to(up[leaf.dtype]).requires_grad_(leaf.requires_grad)
        return up.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    return tree_map(lift, value)


# --- which cases


@dataclass(frozen=True)
class Limits:
    """How many cases of an operator and type. ``samples`` None: all. ``seed`` also chooses which samples."""

    samples: int | None = None
    variants: int = 0
    seed: int = 0


def cases(op: OpInfo, dtype: torch.dtype, limits: Limits, *, grad: bool) -> Iterator[Case]:
    """Plain cases spread over the operator's samples, then variants; which variants rotates with the operator, the type and the seed."""
    torch.manual_seed(limits.seed)
    samples: list[SampleInput] = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    if not samples:
        return
    count = len(samples) if limits.samples is None else min(limits.samples, len(samples))
    start = limits.seed % len(samples)
    chosen = sorted({(start + i * len(samples) // count) % len(samples) for i in range(count)}) if count else []
    for index in chosen:
        yield _plain(op, samples[index], index)
    kinds = [kind for kind in VARIANTS if not (grad and kind in ("inplace", "out", "expanded"))]
    at = sum(op.name.encode()) + sum(str(dtype).encode()) + limits.seed
    made = 0
    for i in itertools.count():
        if made >= limits.variants or i >= 3 * limits.variants:
            return
        index = (at + 7 * i) % len(samples)
        case = _variant(op, samples[index], kinds[(at + i) % len(kinds)], index)
        if case is not None:
            made += 1
            yield case


def _plain(op: OpInfo, sample: SampleInput, index: int) -> Case:
    arguments = (sample.input, sample.args, sample.kwargs)
    function = _STABLE_ON_CPU.get(op.name) or (_Jiterated(op.op, _JITERATED[op.name]) if op.name in _JITERATED else op.op)
    return Case("plain", function, arguments, sample.output_process_fn_grad, index, op.name in _CPU_ARGUMENTS)


def _stable_sort(given: torch.Tensor, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Any:
    if given.device.type == "cpu":
        return torch.sort(given, dim=dim, descending=descending, stable=True)
    return torch.sort(given, dim, descending) if stable is None else torch.sort(given, dim=dim, descending=descending, stable=stable)


def _stable_msort(given: torch.Tensor) -> torch.Tensor:
    return _stable_sort(given, 0)[0] if given.device.type == "cpu" else torch.msort(given)


_STABLE_ON_CPU: dict[str, Callable[..., Any]] = {"sort": _stable_sort, "msort": _stable_msort}
"""Functions for operators that leave the order of equal elements, and so gradients, open: the device keeps it, and the CPU is asked to."""


@dataclass(frozen=True)
class _Jiterated:
    """A function that is compiled for the device only. ``on_cpu``: what it computes."""

    function: Callable[..., Any]
    on_cpu: Callable[..., Any]

    def __call__(self, first: torch.Tensor, *args: Any, **numbers: Any) -> Any:
        if first.device.type != "cpu":
            return self.function(first, *args, **numbers)
        dtype = torch.result_type(first, args[0]) if args else first.dtype
        return self.on_cpu(first, *args, **{name: torch.tensor(number).to(dtype) for name, number in numbers.items()})


_JITERATED: dict[str, Callable[..., Any]] = {
    "jiterator_unary": lambda x: x * x + x,
    "jiterator_binary": lambda x, y, alpha=True: x + alpha * y,
    "jiterator_4inputs_with_extra_args": lambda a, b, c, d, alpha=True, beta=True: alpha * a + beta * b + c + d,
    "jiterator_binary_return_by_ref": lambda x, y: x + y,
    "jiterator_2inputs_2outputs": lambda x, y: (x + y, x - y if x.dtype != torch.bool else x ^ y),
}


def _variant(op: OpInfo, sample: SampleInput, kind: str, index: int) -> Case | None:
    """The sample as a case of ``kind``, or None where that changes nothing."""
    if (op.name, kind) in _WRONG_ON_CPU | _UNDEFINED:
        return None
    case = replace(_plain(op, sample, index), kind=kind)
    if kind == "vmap":
        return None if op.name in _JITERATED or is_random(op.name, *case.arguments[1:]) else _batched(op, case)
    if kind == "inplace":
        function = op.get_inplace()
        return replace(case, function=function) if function is not None and not sample.broadcasts_input else None
    if kind == "out":
        return replace(case, function=_Out(op.op)) if op.supports_out and "out" not in sample.kwargs else None
    change = _Layout(kind)
    given = tree_map(change, case.arguments[0])
    args, kwargs = case.arguments[1:] if kind == "expanded" else tree_map(change, case.arguments[1:])
    return replace(case, arguments=(given, args, kwargs)) if change.changed else None


@dataclass
class _Layout:
    """Gives tensors another layout with the same values (an expanded one: its first row everywhere)."""

    kind: str
    changed: int = field(default=0)

    def __call__(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
            return leaf
        with torch.no_grad():
            made = self._made(leaf.detach())
        if made is None:
            return leaf
        self.changed += 1
        return made.requires_grad_(leaf.requires_grad)

    def _made(self, t: torch.Tensor) -> torch.Tensor | None:
        if self.kind == "strided" and t.dim():
            return noncontiguous_like(t)
        if self.kind == "transposed" and t.dim() > 1:
            return t.transpose(0, -1).contiguous().transpose(0, -1)
        if self.kind == "offset":
            room = torch.zeros(t.numel() + 5, dtype=t.dtype)
            return room[3 : 3 + t.numel()].view(t.size()).copy_(t)
        if self.kind == "expanded" and t.dim() and t.size(0) > 1:
            return t[:1].clone().expand(t.size())
        if self.kind == "negative" and (t.is_floating_point() or t.is_complex()):
            return torch._neg_view(t.neg().resolve_neg())
        if self.kind == "conjugate" and t.is_complex():
            return t.conj().resolve_conj().conj()
        return None


@dataclass(frozen=True)
class _Out:
    """Calls an operator with ``out=`` tensors that hold something else."""

    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        like = self.function(*args, **kwargs)
        if any(leaf.device.type == "meta" for leaf in leaves(like) if isinstance(leaf, torch.Tensor)):
            return like  # not every out= form has a meta kernel
        out = tree_map(lambda leaf: torch.ones_like(leaf) if isinstance(leaf, torch.Tensor) else leaf, like)
        self.function(*args, **kwargs, out=out)
        return out


def _batched(op: OpInfo, case: Case) -> Case | None:
    """``torch.vmap`` over two rows of the input, and over every other tensor among the arguments."""
    flat, spec = tree_flatten(case.arguments)
    tensors = [i for i, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]
    if not tensors:
        return None
    elementwise = isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo | ReductionOpInfo)
    in_dims: list[int | None] = []
    for n, i in enumerate(tensors):
        rows = [flat[i].detach(), flat[i].detach().flip(0) if elementwise and flat[i].dim() else flat[i].detach()]
        dim = None if n % 2 else (-1 if len(tensors) > 1 and not n else 0)
        in_dims.append(dim)
        if dim is not None:
            flat[i] = torch.stack(rows, dim).requires_grad_(flat[i].requires_grad)
    function = case.function

    def call(given: Any, *args: Any, **kwargs: Any) -> Any:
        now, _ = tree_flatten((given, args, kwargs))

        def once(*parts: torch.Tensor) -> Any:
            whole = list(now)
            for i, part in zip(tensors, parts, strict=True):
                whole[i] = part
            one, rest, keywords = tree_unflatten(whole, spec)
            out = function(one, *rest, **keywords)
            return tuple(t for t in leaves(case.process(out)) if isinstance(t, torch.Tensor))

        return torch.vmap(once, tuple(in_dims))(*(now[i] for i in tensors))

    return replace(case, function=call, arguments=tree_unflatten(flat, spec), process=lambda out: out)
