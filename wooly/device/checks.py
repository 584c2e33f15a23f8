"""Mistakes that CUDA reports and a recording device must find itself: mixed devices, overlapping targets, wrong out= types.

May live here: checks of arguments, raising what CUDA raises. May not: recording. They run once a signature (see calls.py), because
each depends only on metadata and on which arguments share a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from wooly.device.backend import handle_of, is_our_device, is_ours, offset_of, raw_device
from wooly.device.schema import Kind, OpInfo

__all__ = ["devices", "overlap", "tensors_of", "CPU_INDEX_OPS", "may_be_cpu_indices", "castable", "is_dense", "repeats", "SELF_OVERLAP"]

CPU_INDEX_OPS: Final = frozenset(
    {"index", "index_put", "index_put_", "_index_put_impl", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
)
"""Operations whose index tensors may live on the CPU."""


def tensors_of(values: Sequence[Any]) -> Iterator[tuple[int, torch.Tensor]]:
    """(argument index, tensor) for every tensor among ``values``, lists included."""
    for i, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            yield i, value
        elif isinstance(value, list | tuple):
            for item in value:
                if isinstance(item, torch.Tensor):
                    yield i, item


def devices(info: OpInfo, values: Sequence[Any]) -> None:
    """Every tensor on the device, but for 0-dim CPU tensors that are only read; raises RuntimeError as CUDA does."""
    for i, tensor in tensors_of(values):
        if is_ours(tensor):
            continue
        arg = info.args[i]
        device = raw_device(tensor)
        if device.type == "cpu" and not arg.written and (tensor.dim() == 0 or may_be_cpu_indices(info, i)):
            continue
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and {device}! "
            f"(when checking argument for argument {arg.name} in method wrapper_CUDA_{info.base})"
        )
    for arg, value in zip(info.args, values, strict=True):
        if arg.kind is Kind.LAYOUT and value not in (None, torch.strided) and _on_ours(info, values):
            raise NotImplementedError(f"aten::{info.base}: layout {value} is not supported on this device; use strided tensors")


def _on_ours(info: OpInfo, values: Sequence[Any]) -> bool:
    device = next((v for a, v in zip(info.args, values, strict=True) if a.kind is Kind.DEVICE), None)
    return device is None or is_our_device(device)


def may_be_cpu_indices(info: OpInfo, index: int) -> bool:
    """May argument ``index`` of ``info`` hold CPU tensors of any rank?"""
    return info.base in CPU_INDEX_OPS and info.args[index].name == "indices"


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
    for target in written:
        if repeats(target):
            raise RuntimeError(SELF_OVERLAP)
        for _, other in tensors_of(values):
            if other is not target and is_ours(other) and handle_of(other) == handle_of(target) and _overlaps_partly(target, other):
                raise RuntimeError(
                    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
                    "location. Please clone() the tensor before performing the operation."
                )


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


def castable(result: torch.dtype, out: torch.dtype) -> None:
    """Raises RuntimeError when an out= tensor cannot take results of type ``result``."""
    if not torch.can_cast(result, out):
        raise RuntimeError(f"result type {_title(result)} can't be cast to the desired output type {_title(out)}")


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


def _title(dtype: torch.dtype) -> str:
    """The type's name in torch's error texts."""
    return _TITLES.get(dtype, str(dtype))
