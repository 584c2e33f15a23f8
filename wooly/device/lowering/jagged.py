"""Rows of different lengths, one after the other (torch.jagged), from and to a padded batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wooly.device.lowering.registry import composite

__all__: list[str] = []


def _only(offsets: Sequence[Tensor]) -> Tensor:
    if len(offsets) != 1:
        raise RuntimeError(f"only one jagged dimension is supported, got {len(offsets)}")
    return offsets[0]


@composite("aten::_jagged_to_padded_dense_forward")
def to_padded(values: Tensor, offsets: Sequence[Tensor], max_lengths: Sequence[int], padding_value: float = 0.0) -> Tensor:
    """[total, n] to [rows, longest, n]: row r holds values[offsets[r] : offsets[r + 1]], cut at the longest, then the padding."""
    bounds = _only(offsets)
    at = bounds[:-1, None] + torch.arange(max_lengths[0], device=values.device)
    inside = (at < bounds[1:, None])[..., None]
    if not values.size(0):
        return values.new_full((*at.size(), values.size(1)), padding_value)
    return torch.where(inside, values[at.clamp(max=values.size(0) - 1)], padding_value).to(values.dtype)


@composite("aten::_padded_dense_to_jagged_forward")
def from_padded(dense: Tensor, offsets: Sequence[Tensor], total_L: int | None = None) -> Tensor:
    """[rows, longest, n] to [total, n], where total is the last offset (read if it is not given). Places beyond the longest are zero."""
    bounds = _only(offsets)
    at = torch.arange(int(bounds[-1].item()) if total_L is None else total_L, device=dense.device)
    row = torch.searchsorted(bounds, at.to(bounds.dtype), right=True) - 1
    column = at - bounds[row]
    if not dense.size(1):
        return dense.new_zeros((at.numel(), dense.size(2)))
    found = dense[row, column.clamp(max=dense.size(1) - 1)]
    return torch.where((column < dense.size(1))[:, None], found, 0).to(dense.dtype)
