"""Perturbed arithmetic: how far rounding may move what a program computes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

__all__ = ["RoundsOtherwise"]


class RoundsOtherwise(TorchDispatchMode):
    """While active, floating results of operations that return new tensors differ by up to a unit in the last place, at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draws = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        aliases = any(value.alias_info is not None for value in (*func._schema.arguments, *func._schema.returns))
        return result if aliases else tree_map(self._nudged, result)

    def _nudged(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        if x.is_meta or x._is_zerotensor():  # neither holds values to move
            return x
        real = torch.view_as_real(x) if x.is_complex() else x
        moved = real * (1 + torch.finfo(x.dtype).eps * (torch.rand(real.shape, generator=self._draws, dtype=real.dtype) * 2 - 1))
        return torch.view_as_complex(moved) if x.is_complex() else moved
