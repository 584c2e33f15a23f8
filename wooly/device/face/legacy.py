"""The legacy typed classes: ``torch.cuda.FloatTensor(2, 3)``, ``isinstance(x, torch.cuda.LongTensor)``."""

from __future__ import annotations

from typing import Any, Final

import torch

from wooly.device.backend import is_ours
from wooly.device.face.api import Face, put, wrapping
from wooly.device.face.devices import ours

__all__ = ["ELEMENT_TYPES", "patch"]

ELEMENT_TYPES: Final[dict[str, torch.dtype]] = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _TypedTensor(type):
    """Metaclass of the typed classes: calling one makes a tensor, and instances are our tensors of the element type."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, device: Any = None) -> torch.Tensor:
        # As torch.FloatTensor: sizes or a torch.Size make memory, anything else is data.
        if all(isinstance(arg, int) for arg in args):
            return torch.empty(args or (0,), dtype=cls.dtype, device=ours())
        if len(args) == 1 and isinstance(args[0], torch.Size):
            return torch.empty(args[0], dtype=cls.dtype, device=ours())
        if len(args) != 1:
            raise TypeError(f"new(): expected sizes or one sequence of data, got {len(args)} arguments")
        if isinstance(args[0], torch.Tensor):
            return args[0].to(device=ours(), dtype=cls.dtype)
        return torch.tensor(args[0], dtype=cls.dtype, device=ours())

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and is_ours(instance) and instance.dtype == cls.dtype


def patch(face: Face) -> None:
    """Replace torch.cuda's typed classes, and let the legacy default-type switch accept them."""
    for name, dtype in ELEMENT_TYPES.items():
        put(torch.cuda, name, _TypedTensor(name, (), {"dtype": dtype, "__module__": "torch.cuda", "is_cuda": True, "is_sparse": False}))

    original = torch.set_default_tensor_type
    switched = False

    @wrapping(original)
    def set_default_tensor_type(t: Any) -> None:
        nonlocal switched
        name = t if isinstance(t, str) else f"{getattr(t, '__module__', '')}.{getattr(t, '__name__', '')}"
        short = name.removeprefix("torch.cuda.")
        if short != name and short in ELEMENT_TYPES:
            torch.set_default_dtype(ELEMENT_TYPES[short])
            torch.set_default_device("cuda")
            switched = True
            return
        original(t)
        if switched:
            torch.set_default_device(None)
            switched = False

    put(torch, "set_default_tensor_type", set_default_tensor_type)
