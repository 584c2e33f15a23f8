"""Checks of memory: arguments on different devices, masks and indices, written tensors that overlap themselves or other arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch

from wis.views import broadcast_shapes
from wooly.device import sparse
from wooly.device.backend import handle_of, is_our_device, is_ours, offset_of, raw_device
from wooly.device.schema import Kind, OpInfo


def tensors_of(values: Sequence[Any]) -> Iterator[tuple[int, torch.Tensor]]:
    """(argument index, tensor) for every tensor among ``values``, lists included."""
    for i, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            yield i, value
        elif isinstance(value, list | tuple):
            for item in value:
                if isinstance(item, torch.Tensor):
                    yield i, item


_TITLES: Final = {
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def title(dtype: torch.dtype) -> str:
    """The type's name in torch's error texts."""
    return _TITLES.get(dtype, str(dtype))


CPU_INDEX_OPS: Final = frozenset(
    {"index", "index_put", "index_put_", "_index_put_impl", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
)
"""Operations whose index tensors may live on the CPU."""


def devices(info: OpInfo, values: Sequence[Any]) -> None:
    """Every tensor on the device, but for 0-dim CPU tensors that are only read; raises RuntimeError as CUDA does."""
    found = {raw_device(tensor).index for _, tensor in tensors_of(values) if is_ours(tensor)}
    for i, tensor in tensors_of(values):
        if is_ours(tensor):
            continue
        arg = info.args[i]
        device = raw_device(tensor)
        if device.type == "cpu" and not arg.written and (tensor.dim() == 0 or may_be_cpu_indices(info, i)):
            continue
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:{min(found, default=0)} and {device}! "
            f"(when checking argument for argument {arg.name} in method wrapper_CUDA_{info.base})"
        )
    if len(found) > 1:
        raise several_devices(found)
    for arg, value in zip(info.args, values, strict=True):
        if arg.kind is Kind.LAYOUT and value not in (None, torch.strided, torch.jagged, *sparse.LAYOUTS) and _on_ours(info, values):
            raise NotImplementedError(f"aten::{info.base}: layout {value} is not supported on this device; use strided tensors")


def several_devices(found: Iterable[int]) -> RuntimeError:
    """What CUDA says to tensors of several devices."""
    first, second, *_ = sorted(found)
    return RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, cuda:{first} and cuda:{second}!")


def _on_ours(info: OpInfo, values: Sequence[Any]) -> bool:
    device = next((v for a, v in zip(info.args, values, strict=True) if a.kind is Kind.DEVICE), None)
    return device is None or is_our_device(device)


def may_be_cpu_indices(info: OpInfo, index: int) -> bool:
    """May argument ``index`` of ``info`` hold CPU tensors of any rank?"""
    return info.base in CPU_INDEX_OPS and info.args[index].name == "indices"


_MASKS: Final = (torch.bool, torch.uint8)
_INDICES: Final = (*_MASKS, torch.int32, torch.int64)


def indices(info: OpInfo, values: Sequence[Any]) -> None:
    """What torch checks before it indexes: IndexError for masks of other sizes than what they mask, RuntimeError for values of another type
    than the tensor they are put into, or of a shape that does not broadcast to what is indexed."""
    if info.base not in CPU_INDEX_OPS and info.base not in ("put", "put_"):
        return
    named = {arg.name: value for arg, value in zip(info.args, values, strict=True)}
    target, source = named["self"], named.get("values", named.get("source"))
    masked = False
    if "indices" in named:
        if any(index is not None and index.dtype not in _INDICES for index in named["indices"]):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
        masked = _check_masks(target, named["indices"])
        if not masked:
            _check_broadcast([index.size() for index in named["indices"] if index is not None])
    if isinstance(source, torch.Tensor) and source.dtype != target.dtype:
        if masked and source.numel() == 1 and not named["accumulate"]:
            return  # a fill, which converts
        if "indices" in named:
            raise RuntimeError(
                f"Index put requires the source and destination dtypes match, got {title(target.dtype)} for the destination "
                f"and {title(source.dtype)} for the source."
            )
        raise RuntimeError(
            f"put_(): self and source expected to have the same dtype, but got self.dtype = {title(target.dtype)} "
            f"and source.dtype = {title(source.dtype)}"
        )
    if "indices" in named and isinstance(source, torch.Tensor):
        _check_values(target, named["indices"], source)


def _check_values(target: torch.Tensor, given: Sequence[torch.Tensor | None], values: torch.Tensor) -> None:
    """Raises RuntimeError where ``values`` do not broadcast to what is indexed. How many elements a mask selects is not known here."""
    dims = [dim for dim, index in enumerate(given) if index is not None]
    present = [index for index in given if index is not None]
    masks = [index for index in present if index.dtype in _MASKS]
    if not dims or (len(dims) > 1 and masks):
        return  # several with a mask among them: their composite comes back with integers
    first = dims[0]
    adjacent = dims == list(range(first, first + len(dims)))
    lead = tuple(target.size()[:first]) if adjacent else ()
    shape: tuple[int | None, ...]
    if masks:
        shape = (*lead, None, *target.size()[first + masks[0].dim() :])
    else:
        kept = [size for dim, size in enumerate(target.size()) if dim not in dims]
        shape = (*lead, *broadcast_shapes(*(index.size() for index in present)), *kept[len(lead) :])
    sizes = tuple(values.size())
    pairs = zip(reversed(sizes), reversed(shape), strict=False)
    if len(sizes) > len(shape) or any(want is not None and size not in (1, want) for size, want in pairs):
        to = "the elements that the mask selects" if masks else f"indexing result of shape {list(shape)}"
        raise RuntimeError(f"shape mismatch: value tensor of shape {list(sizes)} cannot be broadcast to {to}")


def _check_masks(target: torch.Tensor, given: Sequence[torch.Tensor | None]) -> bool:
    """Raises IndexError where the sizes of a mask are not those of the dimensions it stands for; whether there is a mask."""
    at, masked = 0, False
    for index in given:
        if index is None or index.dtype not in _MASKS:
            at += 1
            continue
        masked = True
        for i, size in enumerate(index.size()):
            if at + i >= target.dim() or target.size(at + i) != size:
                raise IndexError(
                    f"The shape of the mask {list(index.size())} at index {i} does not match the shape of the indexed tensor "
                    f"{list(target.size())} at index {at + i}"
                )
        at += index.dim()
    return masked


def _check_broadcast(sizes: Sequence[torch.Size]) -> None:
    """Raises IndexError where indices of these sizes do not fit each other."""
    try:
        broadcast_shapes(*sizes)
    except ValueError:
        text = "shape mismatch: indexing tensors could not be broadcast together with shapes"
        raise IndexError(f"{text} {', '.join(str(list(size)) for size in sizes)}") from None


def same_shape(target: torch.Tensor, result: torch.Tensor) -> None:
    """Raises RuntimeError when the ``result`` of an in-place operation has another shape than the tensor it is to be written into."""
    if result.size() != target.size():
        raise RuntimeError(f"output with shape {list(target.size())} doesn't match the broadcast shape {list(result.size())}")


SELF_OVERLAP: Final = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)


def repeats(target: torch.Tensor) -> bool:
    """Is it expanded: several elements of one stride-0 dimension in one place?"""
    return target.numel() > 0 and any(stride == 0 and size > 1 for size, stride in zip(target.size(), target.stride(), strict=True))


def overlap(info: OpInfo, values: Sequence[Any]) -> None:
    """Refuse to write a tensor that overlaps itself, or partly overlaps another argument; raises RuntimeError as torch does."""
    written = [t for i, t in tensors_of(values) if info.args[i].written and is_ours(t)]
    sharing: dict[int, list[torch.Tensor]] = {}
    for tensor in (t for _, t in tensors_of(values) if written and is_ours(t)):
        sharing.setdefault(handle_of(tensor), []).append(tensor)
    for target in written:
        if repeats(target):
            raise RuntimeError(SELF_OVERLAP)
        if any(other is not target and _overlaps_partly(target, other) for other in sharing[handle_of(target)]):
            raise RuntimeError(_SHARED)
        apart = [v for a, v in zip(info.args, values, strict=True) if a.name in _SEPARATE.get(info.base, ())]
        if any(isinstance(v, torch.Tensor) and is_ours(v) and _overlaps(target, v) for v in apart):
            raise RuntimeError(_SHARED)


_SHARED: Final = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location. "
    "Please clone() the tensor before performing the operation."
)


def _overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do two dense tensors share memory?"""
    if not (a.numel() and b.numel() and is_dense(a) and is_dense(b)) or handle_of(a) != handle_of(b):
        return False
    (a_low, a_high), (b_low, b_high) = _range(a), _range(b)
    return a_low < b_high and b_low < a_high


def _overlaps_partly(a: torch.Tensor, b: torch.Tensor) -> bool:
    """As torch decides it: only for dense tensors, all else is too hard to tell."""
    if not (a.numel() and b.numel() and is_dense(a) and is_dense(b)):
        return False
    (a_low, a_high), (b_low, b_high) = _range(a), _range(b)
    if (a_low, a_high) == (b_low, b_high):
        return a.stride() != b.stride()
    return a_low < b_high and b_low < a_high


def _range(t: torch.Tensor) -> tuple[int, int]:
    low = offset_of(t) * t.dtype.itemsize
    return low, low + t.numel() * t.dtype.itemsize


def is_dense(t: torch.Tensor) -> bool:
    """Non-overlapping and dense: the elements fill one run of memory in some order of the dimensions."""
    expected = 1
    for stride, size in sorted((st, n) for st, n in zip(t.stride(), t.size(), strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


_SEPARATE: Final = {
    "masked_select": ("self", "mask"),
    "gather": ("self",),
    "take": ("self", "index"),
    "put_": ("index", "source"),
    "index_add_": ("index", "source"),
    "index_copy_": ("index", "source"),
    **dict.fromkeys(("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"), ("index", "src")),
}
"""Arguments that may not share any memory with the written tensor, by operation; others may be the very same tensor."""
