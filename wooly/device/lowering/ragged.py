"""Groups of rows of different lengths: bags of embeddings (rows of a table summed, averaged or maximised per bag, and their gradients);
rows one after the other (torch.jagged), from and to a padded batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from wis.dtypes import DType
from wis.ops import ScatterMode
from wooly.device.lowering.dtypes import accumulate
from wooly.device.lowering.index import add_rows, take_rows
from wooly.device.lowering.registry import composite, lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Unsupported

__all__: list[str] = []

_SUM: Final = 0
_MEAN: Final = 1
_MAX: Final = 2


def _bag_of(t: Trace, offsets: Meta, n: int) -> Meta:
    """For each of ``n`` positions the bag it lies in: the last one that starts at or before it, i64 [n]."""
    out = t.temp(DType.I64, (n,))
    t.emit("search_sorted", [out], [t.cast(offsets, DType.I64), t.iota(n)], (1,))
    return t.map("sub", out, 1)


def _counted(t: Trace, indices: Meta, padding_idx: int) -> Meta | None:
    """bool [n]: which positions count; None when all do."""
    return t.map("ne", indices, padding_idx, dtype=indices.dtype) if padding_idx >= 0 else None


def _sizes(t: Trace, bag: Meta, bags: int, counted: Meta | None) -> Meta:
    """How many counted positions each bag has, i64 [bags]."""
    ones = t.full((), 1, DType.I64).expand(bag.shape) if counted is None else t.cast(counted, DType.I64)
    out = t.full((bags,), 0, DType.I64)
    add_rows(t, out, bag, ones)
    return out


def _mean_divisor(t: Trace, sizes: Meta, dtype: DType) -> Meta:
    return t.cast(t.map("max", sizes, 1), dtype)


@lowers("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(
    t: Trace,
    weight: Meta,
    indices: Meta,
    offsets: Meta,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Meta | None = None,
    *,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[Meta | None]:
    """Outputs: the bags [bags, d], the bag of each position, the bags' sizes, and (maximum) the row each element came from."""
    bags, width, n = offsets.shape[0] - int(include_last_offset), weight.shape[1], indices.shape[0]
    wide = accumulate(weight.dtype)
    bag = _bag_of(t, offsets.narrow(0, 0, bags), n)
    counted = _counted(t, indices, padding_idx)
    sizes = _sizes(t, bag, bags, counted)
    rows = t.cast(take_rows(t, weight, indices), wide)
    if per_sample_weights is not None:
        rows = t.map("mul", rows, per_sample_weights.unsqueeze(1), dtype=wide)
    top = t.full((bags, width), 0, DType.I64)
    if mode == _MAX:
        out, top = _greatest(t, rows, indices, bag, counted, sizes)
    else:
        if counted is not None:
            rows = t.where(counted.unsqueeze(1), rows, 0, dtype=wide)
        out = t.full((bags, width), 0, wide)
        add_rows(t, out, bag, rows)
        if mode == _MEAN:
            out = t.map("div", out, _mean_divisor(t, sizes, wide).unsqueeze(1))
    return [out, *(_or_empty(t, i + 1, part) for i, part in enumerate((bag, sizes, top)))]


def _or_empty(t: Trace, index: int, value: Meta) -> Meta | None:
    """A by-product in the shape torch expects: where it wants another, the by-product is unused."""
    if not t.wanted(index):
        return None
    shape = t.want(index).shape
    return value if value.shape == shape else t.full(shape, 0, value.dtype)


def _greatest(t: Trace, rows: Meta, indices: Meta, bag: Meta, counted: Meta | None, sizes: Meta) -> tuple[Meta, Meta]:
    """(greatest of each bag, 0 for an empty one; the index of the first row that reaches it).

    A NaN is the greatest where it is the first of its bag, as nothing is greater than it; elsewhere it is not greater than another.
    """
    n, width = rows.shape
    if counted is not None:
        rows = t.where(counted.unsqueeze(1), rows, -math.inf, dtype=rows.dtype)
    given, rows = rows, t.where(t.map("is_nan", rows), -math.inf, rows, dtype=rows.dtype)
    best = t.full((sizes.shape[0], width), -math.inf, rows.dtype)
    add_rows(t, best, bag, rows, ScatterMode.MAX)
    reached = t.map("eq", rows, take_rows(t, best, bag))
    position = t.where(reached, t.iota(n).unsqueeze(1), n, dtype=DType.I64)
    first = t.full(best.shape, n, DType.I64)
    add_rows(t, first, bag, position, ScatterMode.MIN)
    filled = t.map("gt", sizes, 0).unsqueeze(1)
    if n == 0:
        return t.full(best.shape, 0, best.dtype), t.full(best.shape, 0, DType.I64)
    turn = t.iota(n) if counted is None else t.where(counted, t.iota(n), n, dtype=DType.I64)
    lead = t.full((sizes.shape[0], 1), n, DType.I64)
    add_rows(t, lead, bag, turn.unsqueeze(1), ScatterMode.MIN)
    leading = take_rows(t, given, t.map("min", lead, n - 1).squeeze(1))
    lost = t.map("is_nan", leading)
    best, first = t.where(lost, leading, best, dtype=best.dtype), t.where(lost, lead, first, dtype=DType.I64)
    source = take_rows(t, indices, t.map("min", first, n - 1))
    return t.where(filled, best, 0, dtype=best.dtype), t.where(filled, t.cast(source, DType.I64), 0, dtype=DType.I64)


@lowers("aten::_embedding_bag_backward")
def embedding_bag_backward(
    t: Trace,
    dy: Meta,
    indices: Meta,
    offsets: Meta,
    offset2bag: Meta,
    bag_size: Meta,
    maximum_indices: Meta,
    num_weights: int,
    *,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Meta | None,
    padding_idx: int = -1,
) -> Meta:
    if sparse:
        raise Unsupported("sparse gradients of embeddings")
    wide = accumulate(dy.dtype)
    out = t.full((num_weights, dy.shape[1]), 0, wide)
    dy, bags, n = t.cast(dy, wide), dy.shape[0], indices.shape[0]
    bag = _bag_of(t, offsets.narrow(0, 0, bags), n)
    counted = _counted(t, indices, padding_idx)
    sizes = _sizes(t, bag, bags, counted)
    if mode == _MAX:
        filled = t.map("gt", sizes, 0).unsqueeze(1)
        t.emit("scatter", [out], [t.where(filled, dy, 0, dtype=wide), maximum_indices], (0, ScatterMode.ADD))
        return out
    if mode == _MEAN:
        dy = t.map("div", dy, _mean_divisor(t, sizes, wide).unsqueeze(1))
    rows = take_rows(t, dy, bag)
    if per_sample_weights is not None:
        rows = t.map("mul", rows, per_sample_weights.unsqueeze(1), dtype=wide)
    if scale_grad_by_freq:
        counts = t.full((num_weights,), 0, wide)
        add_rows(t, counts, indices, t.full((), 1, wide).expand(indices.shape))
        rows = t.map("div", rows, take_rows(t, counts, indices).unsqueeze(1))
    if counted is not None:
        rows = t.where(counted.unsqueeze(1), rows, 0, dtype=wide)
    add_rows(t, out, indices, rows)
    return out


@composite("aten::_embedding_bag_backward")
def sparse_embedding_bag_backward(grad: Tensor, indices: Tensor, offsets: Tensor, *rest: Any) -> Tensor:
    """The gradient as a COO tensor with a row for each position that counts."""
    _, _, _, num_weights, by_freq, mode, sparse, weights, padding_idx = (*rest, -1)[:9]
    if not sparse or mode == _MAX or by_freq:
        raise Unsupported("dense gradients, which have a lowering, or a mode that torch refuses")
    starts = offsets[: grad.size(0)].long()
    bag = torch.searchsorted(starts, torch.arange(indices.size(0), device=grad.device), right=True) - 1
    rows = grad[bag]
    if mode == _MEAN:
        counted = torch.ones_like(indices, dtype=torch.long) if padding_idx < 0 else (indices != padding_idx).long()
        rows = rows / torch.zeros_like(starts).index_add_(0, bag, counted).clamp(min=1)[bag, None]
    if weights is not None:
        rows = rows * weights[:, None]
    found: Tensor = torch.ops.aten.embedding_sparse_backward.default(rows, indices, num_weights, padding_idx, False)
    return found


@lowers("aten::_embedding_bag_per_sample_weights_backward")
def per_sample_weights_backward(
    t: Trace, dy: Meta, weight: Meta, indices: Meta, offsets: Meta, offset2bag: Meta, mode: int, padding_idx: int = -1
) -> Meta:
    bag = _bag_of(t, offsets.narrow(0, 0, dy.shape[0]), indices.shape[0])
    products = t.map("mul", t.acc(take_rows(t, dy, bag)), t.acc(take_rows(t, weight, indices)))
    out = t.reduce("sum", products, [1])
    counted = _counted(t, indices, padding_idx)
    return out if counted is None else t.where(counted, out, 0, dtype=out.dtype)


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
