"""Operations composed of other device operations in Python: their output sizes depend on data (which waits once for the size) or on a
storage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wooly.device.lowering.registry import composite

__all__ = ["nonzero"]


@composite("aten::nonzero")
def nonzero(x: Tensor) -> Tensor:
    """Indices of the true elements, [count, rank]."""
    if x.dim() == 0:
        return torch.empty((int(x.ne(0).sum().item()), 0), dtype=torch.int64, device=x.device)
    if x.dtype == torch.complex32:  # its comparison runs on the CPU; the indices then have the layout that nonzero gives them
        x = x.ne(0)
    return torch.nonzero_static(x, size=int(torch.count_nonzero(x).item()))


@composite("aten::masked_select")
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    x, mask = torch.ops.aten.broadcast_tensors([x, mask])
    return torch.index_select(x.reshape(-1), 0, nonzero(mask.reshape(-1)).squeeze(1))


@composite("aten::index.Tensor")
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Indexing where some indices are masks: each becomes the positions of its true elements."""
    plain: list[Tensor | None] = []
    for i in indices:
        if i is not None and i.dtype in (torch.bool, torch.uint8):
            plain += nonzero(i).unbind(1) if i.dim() else [nonzero(i.reshape(1)).squeeze(1)]
            if not i.dim():
                x = x.unsqueeze(len(plain) - 1)
        else:
            plain.append(i)
    result: Tensor = torch.ops.aten.index.Tensor(x, plain)
    return result


@composite("aten::index_put")
def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    return index_put_(x.clone(), indices, values, accumulate)


@composite("aten::index_put_")
def index_put_(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """As ``index``; what is written through the expanded view lands in ``x``."""
    target, plain = x, list[Tensor | None]()
    for i in indices:
        if i is not None and i.dtype in (torch.bool, torch.uint8):
            plain += nonzero(i).unbind(1) if i.dim() else [nonzero(i.reshape(1)).squeeze(1)]
            if not i.dim():
                target = target.unsqueeze(len(plain) - 1)
        else:
            plain.append(i)
    torch.ops.aten.index_put_(target, plain, values, accumulate)
    return x


@composite("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, output_size: int | None = None) -> Tensor:
    """Element i, ``repeats[i]`` times: position j belongs to the first i whose running total passes j."""
    if repeats.dtype not in (torch.int32, torch.int64):
        raise NotImplementedError(f"repeats has to be Long or Int tensor, not {repeats.dtype}")
    torch.ops.aten._assert_async.msg(repeats.ge(0).all(), "repeats can not be negative")
    ends = repeats.cumsum(0)
    total = output_size if output_size is not None else int(ends[-1].item()) if repeats.numel() else 0
    positions = torch.arange(total, dtype=ends.dtype, device=repeats.device)
    return torch.searchsorted(ends, positions, right=True).to(repeats.dtype)


@composite("aten::histc")
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """With the bounds of the data where the given ones are equal; raises RuntimeError where they are not finite."""
    if min == max and x.numel():
        least, greatest = torch.aminmax(x)
        min, max = least.item(), greatest.item()
    if not (math.isfinite(min) and math.isfinite(max)):
        raise RuntimeError(f"torch.histc: range of [{min:g}, {max:g}] is not finite")
    if min > max:
        raise RuntimeError("torch.histc: max must be larger than min")
    result: Tensor = torch.ops.aten.histc.default(x, bins, *((min - 1, max + 1) if min == max else (min, max)))
    return result


def _with_numbers(name: str) -> Callable[..., Any]:
    op = getattr(torch.ops.aten, name).ScalarList
    return lambda xs, firsts, seconds, scalars: op(xs, firsts, seconds, scalars.tolist())


for _name in ("_foreach_addcmul", "_foreach_addcmul_", "_foreach_addcdiv", "_foreach_addcdiv_"):
    composite(f"aten::{_name}.Tensor")(_with_numbers(_name))  # the scalars are on the CPU


@composite("aten::bincount")
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if x.dim() != 1 and x.numel():
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if x.dim() == 1 and not x.numel():
        return torch.zeros(minlength, dtype=torch.int64, device=x.device)  # whatever the type of the weights is
    size = max(minlength, int(x.max().item()) + 1 if x.numel() else 0)
    if x.numel() and bool((x < 0).any().item()):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    values = torch.ones_like(x, dtype=dtype) if weights is None else weights.to(dtype)
    return torch.zeros(size, dtype=dtype, device=x.device).index_add_(0, x.to(torch.int64), values)


# --- unique


def _groups(starts: Tensor) -> tuple[Tensor, Tensor]:
    """(positions where a group starts, group number of every position), for bool ``starts`` along one dimension."""
    return nonzero(starts).squeeze(1), starts.cumsum(0) - 1


def _starts(rows: Tensor) -> Tensor:
    """bool: is row i other than row i - 1 (the first one always)?"""
    first = torch.ones(min(rows.size(0), 1), dtype=torch.bool, device=rows.device)
    differs = rows[1:].ne(rows[:-1])
    return torch.cat([first, differs if rows.dim() == 1 else differs.flatten(1).any(1)])


def _counts(positions: Tensor, total: int) -> Tensor:
    ends = torch.cat([positions[1:], torch.full((min(positions.size(0), 1),), total, dtype=torch.int64, device=positions.device)])
    return ends - positions


def _empty(x: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=x.device)


@composite("aten::_unique2")
def unique2(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    values, order = x.reshape(-1).sort()
    positions, groups = _groups(_starts(values))
    inverse = _empty(x)
    if return_inverse:
        inverse = torch.empty_like(groups).scatter_(0, order, groups).reshape(x.shape)
    counts = _counts(positions, values.size(0)) if return_counts else _empty(x)
    return values.index_select(0, positions), inverse, counts


@composite("aten::_unique")
def unique(x: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    return unique2(x, sorted, return_inverse)[:2]


def _rows(x: Tensor, dim: int) -> Tensor:
    """What is unique: the tensors along ``dim``. Raises RuntimeError, in torch's words, if they are empty."""
    zeros = sum(size == 0 for size in x.size())
    if x.size(dim) == 0 and zeros > 1:
        raise RuntimeError("Number of zero sized dimensions is more than one, so unique cannot be applied ")
    if x.size(dim) and zeros:
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
    return x.movedim(dim, 0)


@composite("aten::unique_dim")
def unique_dim(
    x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in lexicographic order: stable sorts by the last column first."""
    rows = _rows(x, dim)
    flat = rows.reshape(rows.size(0), math.prod(rows.shape[1:]))
    order = torch.arange(rows.size(0), device=x.device)
    for column in reversed(range(flat.size(1))):
        by_column = torch.sort(flat[:, column].index_select(0, order), stable=True)[1]
        order = order.index_select(0, by_column)
    ordered = rows.index_select(0, order)
    positions, groups = _groups(_starts(ordered))
    inverse = torch.empty_like(groups).scatter_(0, order, groups)
    return ordered.index_select(0, positions).movedim(0, dim), inverse, _counts(positions, rows.size(0))


@composite("aten::unique_consecutive")
def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.reshape(-1) if dim is None else _rows(x, dim)
    positions, groups = _groups(_starts(rows))
    values = rows.index_select(0, positions)
    inverse = groups.reshape(x.shape) if dim is None else groups
    counts = _counts(positions, rows.size(0))
    return (
        values if dim is None else values.movedim(0, dim),
        inverse if return_inverse else _empty(x),
        counts if return_counts else _empty(x),
    )


@composite("aten::unique_dim_consecutive")
def unique_dim_consecutive(x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    return unique_consecutive(x, return_inverse, return_counts, dim)


def _cloned_with_strides(x: Tensor) -> Tensor:
    """A copy with the strides of ``x``, in which the same elements share memory, as torch makes it; expanded tensors are laid out anew."""
    if any(stride == 0 and size > 1 for size, stride in zip(x.size(), x.stride(), strict=True)):
        return x.clone()
    storage = x.untyped_storage().nbytes() // x.dtype.itemsize
    return x.as_strided((storage,), (1,), 0).clone().as_strided(x.size(), x.stride(), x.storage_offset())


@composite("aten::as_strided_scatter")
def as_strided_scatter(x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """Positions are those of the storage of ``x``, of which the result has a copy."""
    out = _cloned_with_strides(x)
    out.as_strided(size, stride, storage_offset).copy_(src)
    return out


def _scattered(view: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def scatter(x: Tensor, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = _cloned_with_strides(x)
        part = view(out, *args, **kwargs)
        if part.size() != src.size():
            sizes = f"src sizes = {list(src.size())}, slice sizes = {list(part.size())}"
            raise RuntimeError(f"expected src to have a size equal to the slice of self. {sizes}")
        part.copy_(src)
        return out

    return scatter


for _name, _view in (("select", torch.select), ("slice", torch.ops.aten.slice.Tensor), ("diagonal", torch.diagonal)):
    composite(f"aten::{_name}_scatter")(_scattered(_view))


@composite("aten::view_copy")
def view_copy(x: Tensor, size: Sequence[int]) -> Tensor:
    """A copy in another shape, of tensors too that have no view in it."""
    return x.reshape(size).clone(memory_format=torch.contiguous_format)


@composite("aten::__ilshift__.Tensor", "aten::__ilshift__.Scalar")
def shift_left_(x: Tensor, other: Tensor | int) -> Tensor:
    """torch's decomposition converts the result into ``x`` whatever its type is."""
    return x.bitwise_left_shift_(other)


@composite("aten::__irshift__.Tensor", "aten::__irshift__.Scalar")
def shift_right_(x: Tensor, other: Tensor | int) -> Tensor:
    return x.bitwise_right_shift_(other)
