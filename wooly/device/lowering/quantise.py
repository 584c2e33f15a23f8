"""Numbers as if they had few bits, which training for such numbers computes with: rounded to steps of a scale, and the scale from the range
that was seen. Weights of four bits.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from wooly.device.lowering.registry import composite
from wooly.device.lowering.values import Unsupported

__all__: list[str] = []

_SMALL_SCALE = 6.1e-5
"""A scale below is raised to it, in f32 (quant_utils.h in ATen)."""


def _rounded(x: Tensor, scale: Tensor | float, zero_point: Tensor | int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    """(x in steps of the scale, where it was within the bounds)."""
    if not (x.is_floating_point() and quant_min <= quant_max):
        raise Unsupported("what the CPU's kernel refuses")
    scale = torch.as_tensor(scale, dtype=torch.float32, device=x.device)
    steps = (x.float() * scale.reciprocal()).round() + zero_point
    inside = (steps >= quant_min) & (steps <= quant_max)
    return ((steps.clamp(quant_min, quant_max) - zero_point) * scale).to(x.dtype), inside


@composite("aten::fake_quantize_per_tensor_affine_cachemask")
def per_tensor(x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    """One scale, a number."""
    if not quant_min <= zero_point <= quant_max:
        raise Unsupported("what the CPU's kernel refuses")
    return _rounded(x, scale, zero_point, quant_min, quant_max)


@composite("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def per_tensor_by_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, fake_quant_enabled: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor]:
    """One scale, a tensor. Unchanged where ``fake_quant_enabled`` is 0."""
    on = fake_quant_enabled.bool().view(())
    out, inside = _rounded(x, scale.view(()), zero_point.view(()), quant_min, quant_max)
    return torch.where(on, out, x), inside | ~on


@composite("aten::fake_quantize_per_channel_affine_cachemask")
def per_channel(x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int) -> tuple[Tensor, Tensor]:
    """A scale for each position of dimension ``axis``."""
    fits = scale.dim() == 1 and zero_point.dtype == torch.int32 and scale.dtype == torch.float32 and 0 <= axis < x.dim()
    if not fits or scale.size() != zero_point.size() or scale.numel() != x.size(axis):
        raise Unsupported("what the CPU's kernel refuses, or zero points that are not whole")
    shape = [-1 if dim == axis else 1 for dim in range(x.dim())]
    return _rounded(x, scale.view(shape), zero_point.view(shape), quant_min, quant_max)


def _scale_of(low: Tensor, high: Tensor, quant_min: int, quant_max: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """(scale f32, zero point i32) for numbers from ``low`` to ``high`` (ChooseQuantizationParams in ATen)."""
    low, high = low.float(), high.float()
    around = (low < 0) & (high > 0)
    if symmetric:
        half = (quant_max - quant_min) // 2
        widest = torch.maximum((low / -(half + 1)).abs(), (high / half).abs()).double()
        low, high = torch.where(around, -widest * (half + 1), low).float(), torch.where(around, widest * half, high).float()
    low, high = low.clamp(max=0).double(), high.clamp(min=0).double()
    scale = (high - low) / (quant_max - quant_min)
    scale = torch.where((scale.float() == 0) | scale.float().reciprocal().isinf(), 0.1, scale)
    small = torch.tensor(_SMALL_SCALE, dtype=torch.float32, device="cpu").double().item()
    larger, reach = (small / scale).clamp(min=1), small * (quant_max - quant_min)
    raised = scale < small
    wide_low = torch.where(raised & (high == 0), -reach, low * larger)
    high = torch.where(raised & (low == 0), reach, high * larger)
    low, scale = wide_low, scale.clamp(min=small)
    by_low = abs(quant_min) - (low / scale).abs() < abs(quant_max) - (high / scale).abs()
    zero_point = torch.where(by_low, quant_min - low / scale, quant_max - high / scale)
    if symmetric:
        zero_point = torch.where(around, (quant_min + quant_max) / 2, zero_point)
    return scale.float(), zero_point.clamp(quant_min, quant_max).round().int()


class _Observer(NamedTuple):
    """What follows the numbers in torch's schema."""

    observer_on: Tensor
    fake_quant_on: Tensor
    running_min: Tensor
    running_max: Tensor
    scale: Tensor
    zero_point: Tensor
    averaging_const: float
    quant_min: int
    quant_max: int
    ch_axis: int
    per_row_fake_quant: bool = False
    symmetric_quant: bool = False


@composite("aten::_fused_moving_avg_obs_fq_helper")
def observed(x: Tensor, *observer: Any) -> tuple[Tensor, Tensor]:
    """``x`` as if quantised by the range that is seen, of the whole or of each channel; the running range and the scale are written.
    ``observer``: _Observer."""
    o = _Observer(*observer)
    if not x.is_floating_point() or not x.numel():
        raise Unsupported("what the CPU's kernel refuses")
    others = [dim for dim in range(x.dim()) if dim != o.ch_axis]
    if o.per_row_fake_quant and not o.running_min.numel():
        for tensor, content in ((o.running_min, float("inf")), (o.running_max, float("-inf")), (o.scale, 0), (o.zero_point, 0)):
            tensor.resize_(x.size(o.ch_axis)).fill_(content)
    seen = (x.amin(others), x.amax(others)) if o.per_row_fake_quant else (x.amin(), x.amax())
    on, quantises = o.observer_on.bool().view(()), o.fake_quant_on.bool().view(())
    for running, now in zip((o.running_min, o.running_max), seen, strict=True):
        now = now.to(running.dtype).view(running.shape)
        running.copy_(torch.where(on, torch.where(running.isinf(), now, running + o.averaging_const * (now - running)), running))
    low, high = o.running_min.view(o.scale.shape), o.running_max.view(o.scale.shape)
    scale, zero_point = _scale_of(low, high, o.quant_min, o.quant_max, o.symmetric_quant)
    o.scale.copy_(torch.where(quantises, scale, o.scale))
    o.zero_point.copy_(torch.where(quantises, zero_point, o.zero_point))
    if o.per_row_fake_quant:
        out, inside = per_channel(x, scale, zero_point, o.ch_axis, o.quant_min, o.quant_max)
    else:
        out, inside = _rounded(x, scale.view(()), zero_point.view(()), o.quant_min, o.quant_max)
    return torch.where(quantises, out, x), inside | ~quantises


# --- weights of four bits

_COLUMNS, _DEPTH = 8, 16
"""Columns of the product, and positions of the sum, that one tile of packed weights holds."""
_FOUR_BITS: Final = 15


def _places(device: torch.device) -> Tensor:
    """Bits [pair of tiles, half of a tile, position of two] at which CUDA's kernel finds eight weights in 32 bits."""
    return torch.tensor([[[0, 16], [4, 20]], [[8, 24], [12, 28]]], dtype=torch.int32, device=device)


@composite("aten::_convert_weight_to_int4pack")
def packed_weights(weight: Tensor, inner_tiles: int) -> Tensor:
    """Weights [columns, k / 2], the first of two in a byte's upper half, in the order of CUDA's kernel.

    Of each pair of tiles, a lane of 32 has eight weights of one column: two neighbours in each half of each tile."""
    columns, depth = weight.shape[0], weight.shape[-1] * 2
    if weight.dtype != torch.uint8 or columns % _COLUMNS or inner_tiles not in (2, 4, 8) or depth % (inner_tiles * _DEPTH):
        raise RuntimeError(f"weights of four bits: {columns} columns and {depth} positions in {weight.dtype} do not fill tiles")
    numbers = torch.stack((weight >> 4, weight & _FOUR_BITS), -1).int()
    tiles = numbers.view(-1, _COLUMNS, depth // (inner_tiles * _DEPTH), inner_tiles // 2, 2, 2, 4, 2)
    words = (tiles.permute(0, 2, 1, 6, 3, 4, 5, 7) << _places(weight.device)).sum((-3, -2, -1), dtype=torch.int32)
    return words.flatten(2, 3)


@composite("aten::_weight_int4pack_mm")
def packed_weights_mm(x: Tensor, weight: Tensor, group: int, scale_and_zero: Tensor) -> Tensor:
    """``x`` [rows, k] by packed weights, of which each ``group`` has a scale and what 8 stands for [k / group, columns, 2]."""
    if x.dtype != torch.bfloat16 or scale_and_zero.dtype != torch.bfloat16 or x.dim() != 2 or group not in (32, 64, 128, 256):
        raise RuntimeError("weights of four bits: rows and scales must be bfloat16, and groups of 32, 64, 128 or 256")
    lanes = weight.view(*weight.shape[:2], _COLUMNS, 4, -1)
    numbers = lanes[..., None, None, None] >> _places(x.device) & _FOUR_BITS
    columns = weight.shape[0] * _COLUMNS
    groups = numbers.permute(0, 2, 1, 4, 5, 6, 3, 7).reshape(columns, -1, group) - 8
    scale, zero = scale_and_zero.float().unbind(-1)
    dense = groups * scale.t().unsqueeze(-1) + zero.t().unsqueeze(-1)
    return x @ dense.to(x.dtype).flatten(1).t()
