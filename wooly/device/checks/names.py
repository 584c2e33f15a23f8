"""Element types as torch's error texts call them, and the tensors among the arguments of a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

__all__ = ["C_NAMES", "tensors_of", "title"]


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


C_NAMES: Final = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int16: "short int",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
    torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}
