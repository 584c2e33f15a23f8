"""Values that programs start from. The source of this module is part of every stand-alone script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["make", "rand", "distinct", "index", "module", "with_default"]


def make(seed: int, shape: tuple[int, ...], dtype: str, device: str) -> torch.Tensor:
    """Integers in [-4, 4] (unsigned: [0, 4]) of any type: sums, products and comparisons of a few are exact in every type."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0 if dtype.startswith("uint") else -4, 5, shape, generator=generator)
    if dtype.startswith("complex"):
        values = torch.complex(values.float(), torch.randint(-4, 5, shape, generator=generator).float())
    return (values > 0 if dtype == "bool" else values.to(getattr(torch, dtype))).to(device)


def rand(seed: int, shape: tuple[int, ...], dtype: str, device: str) -> torch.Tensor:
    """Normally distributed values of a floating or complex type."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.complex64 if dtype.startswith("complex") else torch.float32
    return torch.randn(shape, generator=generator, dtype=drawn).to(getattr(torch, dtype)).to(device)


def distinct(seed: int, shape: tuple[int, ...], dtype: str, device: str) -> torch.Tensor:
    """Every value once, a quarter apart, in random order: sorting and extrema have one answer."""
    n = int(torch.Size(shape).numel())
    values = torch.randperm(n, generator=torch.Generator().manual_seed(seed)) - n // 2
    return (values * 0.25).reshape(shape).to(getattr(torch, dtype)).to(device)


def index(seed: int, bound: int, shape: tuple[int, ...], device: str) -> torch.Tensor:
    """Indices in [0, bound); of no elements where the bound is 0."""
    drawn = torch.randint(0, max(bound, 1), shape if bound else (0,), generator=torch.Generator().manual_seed(seed))
    return drawn.to(device)


def module(seed: int, build: Callable[[], Any], device: str) -> Any:
    """A module whose parameters are drawn on the CPU."""
    torch.manual_seed(seed)
    return build().to(device)


def with_default(dtype: torch.dtype, build: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What ``build`` makes while ``dtype`` is the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return build()
    finally:
        torch.set_default_dtype(before)
