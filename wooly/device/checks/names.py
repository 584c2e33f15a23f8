"""Names of element types in torch's error texts, and the tensors among the arguments of a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

__all__ = ["tensors_of", "title"]


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
