"""Operations composed of other device operations in Python that have no form in which one template would do better: losses, distances and
reductions of segments, pooling at random places, resampling with a wide filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, TypeVar, cast

import torch
from torch import Generator, Tensor
from torch._prims_common import suggest_memory_format

from wooly.device.lowering.registry import composite
from wooly.device.lowering.values import Unsupported

__all__ = ["in_f32"]

_F = TypeVar("_F", bound=Callable[..., Any])


def in_f32(fn: _F) -> _F:
    """``fn``, with half types widened to f32 and its results rounded: as CUDA computes it (coordinates need more than 8 or 11 bits)."""

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        halves = [x.dtype for x in args if isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16)]
        if not halves:
            return fn(*args, **kwargs)
        results = fn(*(x.float() if isinstance(x, Tensor) and x.dtype == halves[0] else x for x in args), **kwargs)
        narrow = [r.to(halves[0]) if r.dtype == torch.float32 else r for r in (results if isinstance(results, tuple) else (results,))]
        return tuple(narrow) if isinstance(results, tuple) else narrow[0]

    return cast(_F, call)


def _validate(name: str, *args: Any, **kwargs: Any) -> None:
    """Raises what torch's meta kernel raises to these arguments."""
    described = [torch.empty_like(x, device="meta") if isinstance(x, Tensor) else x for x in args]
    getattr(torch.ops.aten, name).default(*described, **kwargs)


_PAIRS_MAX: Final = 1 << 24
"""The most numbers that are formed of pairs of elements; torch's kernels, which form one after the other, take what is larger."""


def _check_pairs(count: int) -> None:
    if count > _PAIRS_MAX:
        raise Unsupported(f"{count} pairs at a time")


@composite("aten::uniform_")
def uniform_(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Complex numbers: both parts."""
    if not x.is_complex():
        raise Unsupported(f"uniform_ of {x.dtype}")
    torch.view_as_real(x).uniform_(low, high, generator=generator)
    return x


@composite("aten::rrelu_with_noise_")
def rrelu_with_noise_(
    x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Generator | None = None
) -> Tensor:
    return x.copy_(torch.ops.aten.rrelu_with_noise(x, noise, lower, upper, training, generator))


@composite("aten::frexp.Tensor")
def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissas of 0.5 to 1 and exponents, 0 for what has none; in f64, in which a logarithm is off by at most one."""
    if not x.is_floating_point():
        raise RuntimeError("torch.frexp() only supports floating-point dtypes")
    wide = x.double()
    tiny = wide.abs() < 2.0**-1000
    wide = torch.where(tiny, wide * 2.0**60, wide)
    exponent = wide.abs().log2().floor() + 1
    mantissa = wide * torch.exp2(-exponent)
    size = mantissa.abs()
    step = torch.where(size >= 1, 1.0, torch.where(size < 0.5, -1.0, 0.0))
    none = (wide == 0) | ~wide.isfinite()
    mantissa = torch.where(none, wide, mantissa * torch.exp2(-step))
    exponent = torch.where(none, 0.0, exponent + step - torch.where(tiny, 60.0, 0.0))
    return mantissa.to(x.dtype), exponent.to(torch.int32)


# --- products of narrow types


def _are_matrices(a: Tensor, b: Tensor) -> bool:
    return a.dim() == b.dim() == 2 and a.size(1) == b.size(0)


@composite("aten::_int_mm")
def int_mm(a: Tensor, b: Tensor) -> Tensor:
    if not _are_matrices(a, b) or a.dtype not in (torch.int8, torch.uint8) or b.dtype != torch.int8:
        raise Unsupported(f"product of {a.dtype} and {b.dtype}")
    return a.to(torch.int32) @ b.to(torch.int32)


_FLOAT8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)


@composite("aten::_scaled_mm")
def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """In f32, with a scale for each whole operand, or for each row of the one and each column of the other; rounded once."""
    if not _are_matrices(a, b) or scale_result is not None or a.dtype not in _FLOAT8 or b.dtype not in _FLOAT8:
        raise Unsupported("what the CPU's kernel refuses, or a scale of the result")
    by_rows = scale_a.shape == (a.size(0), 1) and scale_b.shape == (1, b.size(1)) and scale_a.is_contiguous() and scale_b.is_contiguous()
    if not (by_rows or scale_a.numel() == scale_b.numel() == 1) or not scale_a.dtype == scale_b.dtype == torch.float32:
        raise Unsupported("scales of blocks")
    if out_dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise Unsupported(f"a scaled product in {out_dtype}")
    scales = (scale_a, scale_b) if by_rows else (scale_a.reshape(()), scale_b.reshape(()))
    out = (a.float() * scales[0]) @ (b.float() * scales[1])
    return (out if bias is None else out + bias).to(out_dtype)


_WHOLE_OR_ROWS: Final = ([0], [1])
"""Recipes of ``torch.nn.functional.scaled_mm`` that its predecessor takes too."""


@composite("aten::_scaled_mm_v2")
def scaled_mm_by_recipe(
    a: Tensor,
    b: Tensor,
    scale_a: list[Tensor],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[Tensor],
    recipe_b: list[int],
    *rest: Any,
) -> Tensor:
    swizzle_b, bias, out_dtype, contraction_dim, _ = rest
    if recipe_a != recipe_b or recipe_a not in _WHOLE_OR_ROWS or any((*swizzle_a, *swizzle_b, *contraction_dim)):
        raise Unsupported("scales of blocks")
    return scaled_mm(a, b, scale_a[0], scale_b[0], bias, None, out_dtype)


@composite("aten::_weight_int8pack_mm")
def int8_weights_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Weights [columns, k] of one byte, with a scale for each column of the product; in f32, rounded once."""
    fits = _are_matrices(x, weight.t()) and weight.dtype == torch.int8 and weight.is_contiguous() and scales.shape == weight.shape[:1]
    if not fits or x.dtype not in (torch.float32, torch.float16, torch.bfloat16) or scales.dtype != x.dtype:
        raise Unsupported("what the CPU's kernel refuses")
    return (x.float() @ weight.t().float() * scales.float()).to(x.dtype)


# --- margins between labels

_MEAN, _SUM = 1, 2


def _label_gaps(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(gaps 1 - x[target] + x [n, targets, classes], 0 where they do not count; the targets; is each class a target?). Targets count up to
    the first negative one."""
    classes = max(x.numel(), 1) if x.dim() < 2 else x.size(1)
    _check_pairs(x.numel() * classes)
    x, target = x.reshape(-1, classes), target.reshape(-1, classes)
    counts = (target < 0).cumsum(1) == 0
    target = torch.where(counts, target, 0)
    is_target = torch.zeros_like(x).scatter_add(1, target, counts.to(x.dtype)) > 0
    gaps = 1 - x.gather(1, target).unsqueeze(2) + x.unsqueeze(1)
    return torch.where((gaps > 0) & counts.unsqueeze(2) & ~is_target.unsqueeze(1), gaps, 0.0), target, is_target


@composite("aten::multilabel_margin_loss_forward")
@in_f32
def multilabel_margin_loss_forward(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    if x.dim() > 2 or (x.dim() and not x.size(-1)):
        raise RuntimeError(f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {list(x.shape)}")
    if target.shape != x.shape:
        raise RuntimeError(f"inconsistent target size: {list(target.shape)} for input of size: {list(x.shape)}")
    gaps, _, is_target = _label_gaps(x, target)
    loss = gaps.sum((1, 2)) / gaps.size(2)
    if reduction == _MEAN:
        loss = loss.mean()
    elif reduction == _SUM or x.dim() < 2:
        loss = loss.sum()
    return loss, is_target.to(x.dtype).reshape(target.shape)


@composite("aten::multilabel_margin_loss_backward")
@in_f32
def multilabel_margin_loss_backward(dy: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Tensor:
    """What a class gains by a target, that target loses."""
    gaps, targets, _ = _label_gaps(x, target)
    active = (gaps > 0).to(x.dtype)
    slope = active.sum(1).scatter_add(1, targets, -active.sum(2)) / (gaps.size(2) * (gaps.size(0) if reduction == _MEAN else 1))
    return (slope * dy.reshape(-1, 1)).reshape(x.shape)


# --- weights as sizes and directions


def _others(x: Tensor, dim: int) -> list[int]:
    return [d for d in range(x.dim()) if d != dim % x.dim()]


@composite("aten::_weight_norm_interface")
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """(g v / |v|, |v|), with norms over all dimensions but ``dim``; those of half types stay in f32."""
    wide = v.float() if v.dtype in (torch.float16, torch.bfloat16) else v
    norms = torch.linalg.vector_norm(wide, 2, _others(v, dim), keepdim=True)
    return (wide * (g / norms)).to(v.dtype), norms


@composite("aten::_weight_norm_interface_backward")
@in_f32
def weight_norm_backward(dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    along = (dw * v).sum(_others(v, dim), keepdim=True) / norms
    return g / norms * (dw - v * along / norms), along


# --- distances between the rows of one matrix


def _differences(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(x[i] - x[j], i, j) for all i < j, in row-major order."""
    _check_pairs(x.size(0) * x.numel())
    i, j = torch.triu_indices(x.size(0), x.size(0), 1, device=x.device)
    return x[i] - x[j], i, j


@composite("aten::_pdist_forward")
def pdist_forward(x: Tensor, p: float = 2.0) -> Tensor:
    gaps = _differences(x)[0]
    if not gaps.numel():
        return gaps.sum(-1)
    if x.dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"pdist of {x.dtype}")  # which torch's kernel refuses
    distances: Tensor = torch.linalg.vector_norm(gaps, p, -1)
    return distances


@composite("aten::_pdist_backward")
def pdist_backward(dy: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    """The gradient of a distance by a difference d: sign(d) (|d| / distance)**(p - 1), 0 where the distance is."""
    gaps, i, j = _differences(x)
    size, distances = gaps.abs(), distances.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(x)
    if p == math.inf:
        slope = (size == distances).to(x.dtype)
    else:
        slope = torch.where((distances == 0) | ((gaps == 0) & (p < 1)), 0.0, (size / distances) ** (p - 1))
    slope = slope * gaps.sign() * dy.unsqueeze(-1)
    return torch.zeros_like(x).index_add(0, i, slope).index_add(0, j, -slope)


# --- segments


def _segments(data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> tuple[Tensor, Tensor]:
    """(the segment of every element, in the shape of ``data``: their number where it has none; lengths, broadcast against results)."""
    if offsets is None:
        assert lengths is not None, "torch asks for one of them"
        ends = lengths.cumsum(-1)
    else:
        ends, lengths = offsets.narrow(-1, 1, offsets.size(-1) - 1), offsets.diff(dim=-1)
    places = torch.arange(data.size(axis), device=data.device).expand(*ends.shape[:-1], data.size(axis))
    if offsets is not None:
        places = torch.where(places < offsets.narrow(-1, 0, 1), data.size(axis), places)
    numbers = torch.searchsorted(ends.contiguous(), places.contiguous(), right=True)
    inner = (1,) * (data.dim() - axis - 1)
    return numbers.reshape(*numbers.shape, *inner).expand(data.shape), lengths.reshape(*lengths.shape, *inner)


@composite("aten::_convert_indices_from_coo_to_csr")
def coo_to_csr(rows: Tensor, size: int, *, out_int32: bool = False) -> Tensor:
    """How many of ``rows``, which are in order, lie before each row and before the end."""
    return torch.searchsorted(rows, torch.arange(size + 1, dtype=rows.dtype, device=rows.device), out_int32=out_int32)


@composite("aten::_convert_indices_from_csr_to_coo")
def csr_to_coo(starts: Tensor, columns: Tensor, *, out_int32: bool = False, transpose: bool = False) -> Tensor:
    if starts.dim() != 1:
        raise Unsupported("indices of several matrices")
    places = torch.arange(columns.numel(), dtype=starts.dtype, device=starts.device)
    rows = torch.searchsorted(starts[1:], places, right=True, out_int32=out_int32)
    columns = columns.to(rows.dtype)
    return torch.stack([columns, rows] if transpose else [rows, columns])


_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_SCATTERED = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def _per_segment(data: Tensor, numbers: Tensor, count: int, axis: int, how: str, start: float) -> Tensor:
    shape = [*data.shape]
    shape[axis] = count + 1
    out = torch.full(shape, start, dtype=data.dtype, device=data.device).scatter_reduce(axis, numbers, data, how)
    return out.narrow(axis, 0, count)


@composite("aten::segment_reduce")
@in_f32
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    axis %= data.dim()
    if lengths is not None and not unsafe:
        if bool((lengths < 0).any().item()):
            raise RuntimeError("lengths contains negative value!")
        if bool((lengths.sum(-1) != data.size(axis)).any().item()):
            raise RuntimeError("Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe.")
    numbers, sizes = _segments(data, lengths, offsets, axis)
    reduce = {"amax": "max", "amin": "min"}.get(reduce, reduce)
    start = _START[reduce] if initial is None else initial
    out = _per_segment(data, numbers, sizes.size(axis), axis, _SCATTERED[reduce], start)
    if reduce == "mean":
        out = torch.where(sizes > 0, out / sizes, math.nan if initial is None else out)
    return out.contiguous()


@composite("aten::_segment_reduce_backward")
@in_f32
def segment_reduce_backward(
    dy: Tensor,
    out: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    """Extremes share their gradient; an element of a product that is 0 or NaN takes the product of the others."""
    axis %= data.dim()
    numbers, sizes = _segments(data, lengths, offsets, axis)
    count = sizes.size(axis)

    def spread(values: Tensor) -> Tensor:
        pad = values.new_zeros((*data.shape[:axis], 1, *data.shape[axis + 1 :]))
        return torch.cat([values, pad], axis).gather(axis, numbers)

    def total(values: Tensor, how: str = "sum") -> Tensor:
        return spread(_per_segment(values, numbers, count, axis, how, 1.0 if how == "prod" else 0.0))

    slope = spread(dy)
    if reduce == "mean":
        return slope / spread(sizes.expand(dy.shape))
    if reduce in ("max", "min"):
        chosen = ((data == spread(out)) | data.isnan()).to(data.dtype)
        return torch.where(chosen > 0, slope * chosen / total(chosen), 0.0)
    if reduce == "prod":
        zero, nan = (data == 0).to(data.dtype), data.isnan().to(data.dtype)
        rest = total(torch.where((zero > 0) | (nan > 0), 1.0, data), "prod") * (1.0 if initial is None else initial)
        rest = torch.where(total(zero) > zero, 0.0, rest)
        rest = torch.where(total(nan) > nan, math.nan, rest)
        return slope * torch.where((zero > 0) | (nan > 0), rest, spread(out) / data)
    return slope


# --- fractional pooling


def _starts(size: int, count: int, kernel: int, sample: Tensor) -> Tensor:
    """Where windows begin: floor((i + sample) alpha) - floor(sample alpha), the last one at the end; [*sample.shape, count]."""
    i = torch.arange(count, dtype=sample.dtype, device=sample.device)
    alpha = (size - kernel) / (count - 1) if count > 1 else 0.0
    sample = sample.unsqueeze(-1)
    starts = (((i + sample) * alpha).trunc() - (sample * alpha).trunc()).to(torch.int64)
    return torch.where(i == count - 1, size - kernel, starts)


def _fractional_max_pool(x: Tensor, kernel: Sequence[int], output: Sequence[int], samples: Tensor) -> tuple[Tensor, Tensor]:
    """Samples [n, c, rank]: of volumes in the order of the dimensions, of images the last dimension's first."""
    rank = len(kernel)
    _validate(f"fractional_max_pool{rank}d", x, kernel, output, samples)
    batched = x if x.dim() == rank + 2 else x.unsqueeze(0)
    sizes, lead = batched.shape[2:], batched.shape[:2]
    flat = torch.zeros((1,) * (2 + 2 * rank), dtype=torch.int64, device=x.device)
    for d in range(rank):
        starts = _starts(sizes[d], output[d], kernel[d], samples[..., d if rank == 3 else rank - 1 - d].to(x.dtype))
        rows = starts.unsqueeze(-1) + torch.arange(kernel[d], device=x.device)
        shape = [*lead, *(1,) * (2 * rank)]
        shape[2 + d], shape[2 + rank + d] = output[d], kernel[d]
        flat = flat * sizes[d] + rows.reshape(shape)
    flat = flat.expand(*lead, *output, *kernel).reshape(*lead, math.prod(output), math.prod(kernel))
    values = batched.flatten(2).gather(2, flat.flatten(2)).reshape(flat.shape)
    greatest, at = values.max(-1)
    result = (*x.shape[: x.dim() - rank], *output)
    return greatest.reshape(result), flat.gather(-1, at.unsqueeze(-1)).reshape(result)


@composite("aten::fractional_max_pool2d")
@in_f32
def fractional_max_pool2d(x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], samples: Tensor) -> tuple[Tensor, Tensor]:
    return _fractional_max_pool(x, kernel_size, output_size, samples)


@composite("aten::fractional_max_pool3d")
@in_f32
def fractional_max_pool3d(x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], samples: Tensor) -> tuple[Tensor, Tensor]:
    return _fractional_max_pool(x, kernel_size, output_size, samples)


@composite("aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d_backward")
def fractional_max_pool_backward(dy: Tensor, x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], indices: Tensor) -> Tensor:
    lead = x.dim() - len(kernel_size)
    return torch.zeros_like(x).flatten(lead).scatter_add(-1, indices.flatten(lead), dy.flatten(lead)).reshape(x.shape)


# --- resampling that filters before it reduces (antialias)


def _triangle(x: Tensor) -> Tensor:
    return (1 - x).clamp_min(0)


def _cubic(x: Tensor) -> Tensor:
    """Cubic convolution with a = -1/2 (Keys 1981, doi:10.1109/TASSP.1981.1163711)."""
    near, far = (1.5 * x - 2.5) * x * x + 1, ((x - 5) * x + 8) * x - 4
    return torch.where(x < 1, near, torch.where(x < 2, -0.5 * far, 0.0))


_FILTERS: Final[dict[str, tuple[Callable[[Tensor], Tensor], float]]] = {"bilinear": (_triangle, 1.0), "bicubic": (_cubic, 2.0)}
"""By mode: the weight of an input at a distance, and the distance from which on it is 0."""


def _weights(mode: str, size: int, count: int, align_corners: bool, scale: float | None, like: Tensor) -> Tensor:
    """The weight of every input for every output, [count, size]: distances are in inputs or, where they are wider, in outputs."""
    weight, reach = _FILTERS[mode]
    if align_corners:
        step = (size - 1) / (count - 1) if count > 1 else 0.0
    else:
        step = 1 / scale if scale else size / count
    width = max(step, 1.0)
    centre = (torch.arange(count, dtype=torch.float64, device=like.device) + 0.5).unsqueeze(1) * step
    first = (centre - reach * width + 0.5).trunc().clamp_min(0)
    last = (centre + reach * width + 0.5).trunc().clamp_max(size)
    place = torch.arange(size, dtype=torch.float64, device=like.device)
    weights = torch.where((place >= first) & (place < last), weight(((place - centre + 0.5) / width).abs()), 0.0)
    return (weights / weights.sum(1, keepdim=True)).to(like.dtype)


def _filtered(mode: str) -> None:
    """Register the resizing of images by ``mode`` and its gradient: a product of matrices for every dimension."""

    @in_f32
    def forward(
        x: Tensor, output_size: Sequence[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
    ) -> Tensor:
        if not x.is_floating_point():
            raise Unsupported("resizing in fixed point")
        _validate(f"_upsample_{mode}2d_aa", x, output_size, align_corners)
        rows = _weights(mode, x.size(2), output_size[0], align_corners, scales_h, x)
        columns = _weights(mode, x.size(3), output_size[1], align_corners, scales_w, x)
        out, layout = rows @ (x @ columns.mT), suggest_memory_format(x)
        return out if layout == torch.contiguous_format else out.clone(memory_format=layout)

    @in_f32
    def backward(
        dy: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        rows = _weights(mode, input_size[2], output_size[0], align_corners, scales_h, dy)
        columns = _weights(mode, input_size[3], output_size[1], align_corners, scales_w, dy)
        return rows.mT @ (dy @ columns)

    composite(f"aten::_upsample_{mode}2d_aa")(forward)
    composite(f"aten::_upsample_{mode}2d_aa_backward")(backward)


for _mode in _FILTERS:
    _filtered(_mode)


# --- complex numbers with parts of 16 bits: moved as their parts


@composite("aten::full_like")
def full_like(x: Tensor, fill_value: complex, *, dtype: torch.dtype | None = None, **layout: Any) -> Tensor:
    if (dtype or x.dtype) != torch.complex32:
        raise Unsupported(f"full_like of {dtype or x.dtype}")
    out = torch.empty_like(x, dtype=dtype, **layout)
    for part, number in zip(torch.view_as_real(out).unbind(-1), (fill_value.real, fill_value.imag), strict=True):
        part.fill_(number)
    return out


@composite("aten::clone")
def clone(x: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
    if x.dtype.itemsize == 1 and x.is_floating_point():  # any float8, as its bits
        return x.view(torch.uint8).clone(memory_format=memory_format or torch.preserve_format).view(x.dtype)
    if x.dtype != torch.complex32 or x.is_neg():
        raise Unsupported(f"clone of {x.dtype}")
    out = torch.empty_like(x, memory_format=memory_format or torch.preserve_format)
    parts = torch.view_as_real(out)
    parts.copy_(torch.view_as_real(x.conj() if x.is_conj() else x))
    if x.is_conj():
        parts[..., 1].neg_()
    return out


@composite("aten::cat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    if any(x.dtype != torch.complex32 or x.is_neg() or suggest_memory_format(x) != torch.contiguous_format for x in tensors):
        raise Unsupported(f"cat of {tensors[0].dtype}")
    parts = [torch.view_as_real(x.resolve_conj()) for x in tensors]
    return torch.view_as_complex(torch.cat(parts, dim if dim >= 0 else dim - 1))


# --- one result of many elements


@composite("aten::hash_tensor")
def hash_tensor(x: Tensor, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Tensor:
    """The exclusive or of the bits that elements have as f64, or as i64: halves folded onto each other."""
    if mode != 0 or x.is_complex():
        raise Unsupported(f"hashes of mode {mode} of {x.dtype}")
    _validate("hash_tensor", x, dim, keepdim=keepdim)
    dims = sorted(d % max(x.dim(), 1) for d in dim) or list(range(x.dim()))
    bits = x.double().view(torch.int64) if x.is_floating_point() else x.to(torch.int64)
    for d in dims if x.dim() else ():
        while bits.size(d) > 1:
            half = bits.size(d) // 2
            folded = bits.narrow(d, 0, half) ^ bits.narrow(d, half, half)
            bits = torch.cat([folded, bits.narrow(d, 2 * half, bits.size(d) % 2)], d)
    result = bits if keepdim or not x.dim() else bits.reshape([n for d, n in enumerate(bits.shape) if d not in dims])
    return result.clone(memory_format=torch.contiguous_format).view(torch.uint64)


_LOG_SUMS_MAX = 512
"""The most elements of which running sums are formed one after the other."""


@composite("aten::logcumsumexp", "aten::_logcumsumexp")
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Of complex numbers: imaginary parts depend on the order of the sums, which is that of torch's kernels."""
    if not x.is_complex() or (x.dim() and x.size(dim) > _LOG_SUMS_MAX):
        raise Unsupported("logcumsumexp of real numbers, or of many")
    if not x.numel():
        return torch.empty_like(x)
    parts = x.unbind(dim) if x.dim() else (x,)
    totals = [_log_sum(parts[0], torch.full_like(parts[0], -math.inf))]
    for part in parts[1:]:
        totals.append(_log_sum(part, totals[-1]))
    return torch.stack(totals, dim) if x.dim() else totals[0]


def _log_sum(new: Tensor, total: Tensor) -> Tensor:
    """log(exp(new) + exp(total)), less the greater of them while that is finite."""
    less = new.real < total.real
    low, high = torch.where(less, new, total), torch.where(less, total, new)
    endless = low.real.isinf() & (low.real == high.real)
    a, b = (torch.where(endless, x, 0.0).exp() for x in (low, high))
    sums = torch.where(low.real < 0, low, (a + b).log())
    result = torch.where(endless, sums, (low - high).exp().log1p() + high)
    return torch.where(new.isnan() | total.isnan(), complex(math.nan, math.nan), result)
