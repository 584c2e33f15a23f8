"""Nested tensors of the strided layout: torch's own objects over one dense tensor of the device, which holds their parts one after another.

Sizes are tensors of the CPU. torch's CPU kernels compute with the dense tensor as a whole or with its parts, by operations on dense
tensors, and serve here as well. Those that follow its pointer are composed of dense operations below, or are computed on the CPU of this
machine, visibly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wooly.device.lowering.registry import composite

__all__ = ["COMPOSED", "CPU_KEY", "MADE_OF_BUFFER", "READING", "buffer_of", "over"]

CPU_KEY: Final = ("NestedTensorCPU", torch._C.DispatchKeySet(torch._C.DispatchKey.NestedTensorCPU))
"""The key whose kernels in torch do the same for tensors of the CPU."""

READING: Final = frozenset({"sum.dim_IntList", "_nested_sum_backward", "all.dim", "where.self_out"})
"""Operators whose CPU kernel reads the memory itself, and that are not composed here."""

MADE_OF_BUFFER: Final = "_nested_view_from_buffer"
"""The operator by which kernels make a nested tensor over a dense one: it reads nothing."""


def buffer_of(nested: Tensor) -> Tensor:
    """The dense tensor, of one dimension, that holds the parts."""
    buffer: Tensor = torch.ops.aten.values.default(nested)
    return buffer


def over(buffer: Tensor, like: Tensor) -> Tensor:
    """A nested tensor over another dense tensor, whose parts have the sizes and places of those of ``like``."""
    made: Tensor = torch.ops.aten._nested_view_from_buffer.default(
        buffer, like._nested_tensor_size(), like._nested_tensor_strides(), like._nested_tensor_storage_offsets()
    )
    return made


def _of_rows(buffer: Tensor, sizes: Tensor) -> Tensor:
    """A nested tensor over parts that lie one after the other; ``sizes`` is on the CPU, [parts, dimensions]."""
    strides, offsets = torch.ops.aten._nested_compute_contiguous_strides_offsets.default(sizes)
    made: Tensor = torch.ops.aten._nested_view_from_buffer.default(buffer.reshape(-1), sizes, strides, offsets)
    return made


# --- from padded tensors


@composite("aten::_nested_from_padded")
def from_padded(padded: Tensor, cpu_nested_shape_example: Tensor, fuse_transform_0213: bool = False) -> Tensor:
    """``fuse_transform_0213``: [parts, heads, length, size] to parts of [length, heads * size]."""
    sizes = cpu_nested_shape_example.cpu()
    if fuse_transform_0213:
        padded = padded.transpose(1, 2).flatten(2)
    if sizes.size(1) + 1 != padded.dim():
        raise RuntimeError(f"sizes of {sizes.size(1)} dimensions for a padded tensor of {padded.dim()}")
    if sizes[:, 1:].eq(torch.tensor(padded.size()[2:], device="cpu")).all():
        inside = torch.arange(padded.size(1), device="cpu") < sizes[:, :1]
        rows = padded.flatten(0, 1).index_select(0, inside.flatten().nonzero().squeeze(1).to(padded.device))
        return _of_rows(rows, sizes)
    parts = [part[tuple(slice(n) for n in size)] for part, size in zip(padded.unbind(), sizes.tolist(), strict=True)]
    return _of_rows(torch.cat([part.reshape(-1) for part in parts]), sizes)


@composite("aten::_nested_tensor_from_mask_left_aligned")
def is_left_aligned(t: Tensor, mask: Tensor) -> bool:
    """Do the places that ``mask`` [parts, length] takes come first in each part?"""
    return bool((torch.arange(mask.size(1), device=mask.device) < mask.sum(1, keepdim=True)).eq(mask).all())


@composite("aten::_nested_tensor_from_mask")
def from_mask(t: Tensor, mask: Tensor, mask_check: bool = True) -> Tensor:
    """The rows of ``t`` [parts, length, size] that ``mask`` takes."""
    if mask.dtype != torch.bool:
        raise RuntimeError("Expected mask to be of ScalarType Bool, but got " + str(mask.dtype).removeprefix("torch."))
    if mask.dim() != 2 or t.dim() != 3 or t.size()[:2] != mask.size():
        raise RuntimeError(f"a mask of {tuple(mask.size())} for a padded tensor of {tuple(t.size())}")
    if mask_check and not is_left_aligned(t, mask):
        raise RuntimeError("Mask must be left-aligned without gaps")
    lengths = mask.sum(1, keepdim=True).cpu()
    return from_padded(t, torch.cat([lengths, torch.full_like(lengths, t.size(2))], 1))


# --- composed of operations on the dense tensor


def _layer_norm(x: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    out, mean, rstd = torch.native_layer_norm(_rows(x, normalized_shape), normalized_shape, weight, bias, eps)
    return over(out.reshape(-1), x), mean, rstd


def _rows(x: Tensor, normalized_shape: list[int]) -> Tensor:
    if not x.is_contiguous():
        raise RuntimeError("layer_norm of a nested tensor that is not contiguous")
    return buffer_of(x).view(-1, *normalized_shape)


def _layer_norm_backward(
    dy: Tensor, x: Tensor, normalized_shape: list[int], mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor, output_mask: list[bool]
) -> Any:
    dx, *rest = torch.ops.aten.native_layer_norm_backward.default(
        _rows(dy, normalized_shape), _rows(x, normalized_shape), normalized_shape, mean, rstd, weight, bias, output_mask
    )
    return (None if dx is None else over(dx.reshape(-1), x), *rest)


# --- the fast paths of torch.nn


class _Attention(NamedTuple):
    """What follows query, key and value in torch's schema. ``mask`` is not 0 where attention is not paid: [length, length],
    [batch, length], [batch, heads, length, length] for a ``mask_type`` of 0, 1, 2."""

    embed_dim: int
    num_head: int
    qkv_weight: Tensor
    qkv_bias: Tensor
    proj_weight: Tensor
    proj_bias: Tensor
    mask: Tensor | None = None
    need_weights: bool = True
    average_attn_weights: bool = True
    mask_type: int | None = None


@composite("aten::_native_multi_head_attention")
def multi_head_attention(query: Tensor, key: Tensor, value: Tensor, *how: Any) -> tuple[Tensor, Tensor | None]:
    """``how``: _Attention. Nested tensors are one and the same."""
    return _attend(query, key, value, _Attention(*how))


def _attend(query: Tensor, key: Tensor, value: Tensor, how: _Attention) -> tuple[Tensor, Tensor | None]:
    mask, mask_type = how.mask, how.mask_type
    sizes = query._nested_tensor_size() if query.is_nested else None
    if sizes is not None:
        query = key = value = query.to_padded_tensor(0.0)
        mask, mask_type = (torch.arange(query.size(1), device="cpu") >= sizes[:, :1]).to(query.device), 1
    q, k, v = (
        F.linear(x, w, b).view(x.size(0), x.size(1), how.num_head, -1).transpose(1, 2)
        for x, w, b in zip((query, key, value), how.qkv_weight.chunk(3), how.qkv_bias.chunk(3), strict=True)
    )
    allowed = None if mask is None else mask.bool().logical_not()
    if allowed is not None and mask_type == 1:
        allowed = allowed[:, None, None, :]
    weights = None
    if how.need_weights:
        scores = (q * q.size(-1) ** -0.5) @ k.mT
        weights = (scores if allowed is None else scores.masked_fill(~allowed, float("-inf"))).softmax(-1)
    out = F.scaled_dot_product_attention(q, k, v, allowed) if weights is None else weights @ v
    out = F.linear(out.transpose(1, 2).flatten(2), how.proj_weight, how.proj_bias)
    if weights is not None and how.average_attn_weights:
        weights = weights.mean(1)
    return out if sizes is None else from_padded(out, sizes), weights


class _Layer(NamedTuple):
    """What follows the source in torch's schema."""

    embed_dim: int
    num_heads: int
    qkv_weight: Tensor
    qkv_bias: Tensor
    proj_weight: Tensor
    proj_bias: Tensor
    use_gelu: bool
    norm_first: bool
    eps: float
    norm_weight_1: Tensor
    norm_bias_1: Tensor
    norm_weight_2: Tensor
    norm_bias_2: Tensor
    ffn_weight_1: Tensor
    ffn_bias_1: Tensor
    ffn_weight_2: Tensor
    ffn_bias_2: Tensor
    mask: Tensor | None = None
    mask_type: int | None = None


@composite("aten::_transformer_encoder_layer_fwd")
def encoder_layer(src: Tensor, *layer: Any) -> Tensor:
    """``layer``: _Layer. ``src`` may be nested."""
    p = _Layer(*layer)
    how = _Attention(*p[:6], mask=p.mask, need_weights=False, mask_type=p.mask_type)

    def feed_forward(x: Tensor) -> Tensor:
        inner = F.linear(x, p.ffn_weight_1, p.ffn_bias_1)
        return F.linear(F.gelu(inner) if p.use_gelu else F.relu(inner), p.ffn_weight_2, p.ffn_bias_2)

    def first_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (p.embed_dim,), p.norm_weight_1, p.norm_bias_1, p.eps)

    def second_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (p.embed_dim,), p.norm_weight_2, p.norm_bias_2, p.eps)

    if p.norm_first:
        inner = first_norm(src)
        x = src + _attend(inner, inner, inner, how)[0]
        return x + feed_forward(second_norm(x))
    x = first_norm(src + _attend(src, src, src, how)[0])
    return second_norm(x + feed_forward(x))


COMPOSED: Final[dict[str, Callable[..., Any]]] = {
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_native_multi_head_attention": multi_head_attention,
    "aten::_transformer_encoder_layer_fwd": encoder_layer,
}
