"""Attention as one operation.

torch's selector does not know this device and would choose the composition of ~5 operations and their views. Here
``scaled_dot_product_attention`` becomes ``_scaled_dot_product_fused_attention_overrideable``, which torch can differentiate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from wooly.device.backend import is_our_device, is_ours
from wooly.device.imports import when_imported
from wooly.device.lowering import LOWERINGS

_FUSED = "aten::_scaled_dot_product_fused_attention_overrideable"


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The kernel of ``scaled_dot_product_attention``: one operation where that is the same thing, else torch's own composition.

    Torch's composition defines what arguments mean and which are refused; ``_fusable`` admits only calls that need neither.
    """
    if not _fusable(query, key, value, attn_mask, dropout_p, enable_gqa):
        composed: torch.Tensor = torch.ops.aten.scaled_dot_product_attention.default.decompose(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return composed
    if key.size(1) != query.size(1):
        key = key.repeat_interleave(query.size(1) // key.size(1), 1)
        value = value.repeat_interleave(query.size(1) // value.size(1), 1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), float("-inf"))
        attn_mask = attn_mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
    fused: torch.Tensor = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )[0]
    return fused


def _fusable(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout_p: float, gqa: bool) -> bool:
    """Four dimensions of one batch and one type of at most 32 bits, nothing empty, no dropout, and no gradient wanted of the mask.

    Batches of torch.func.vmap have rules for the composition only.
    """
    return (
        q.dim() == k.dim() == v.dim() == 4
        and q.size(0) == k.size(0) == v.size(0)
        and (k.size(1) == v.size(1) == q.size(1) or (gqa and q.size(1) % k.size(1) == 0 and k.size(1) == v.size(1)))
        and dropout_p == 0.0
        and min(q.numel(), k.numel(), v.numel()) > 0
        and q.dtype in (torch.float16, torch.bfloat16, torch.float32)  # what the fused backward starts from is kept in f32
        and q.dtype == k.dtype == v.dtype
        and q.size(3) == k.size(3)
        and k.size(2) == v.size(2)
        and (mask is None or not mask.requires_grad)
        and (mask is None or mask.dtype in (torch.bool, q.dtype))
        and not any(map(_is_batched, (q, k, v)))
        and not _only_composed()
    )


def _only_composed() -> bool:
    """Has the script switched all fused kernels off (``sdpa_kernel(SDPBackend.MATH)``)? The composition has derivatives of all kinds."""
    return not (
        torch._C._get_flash_sdp_enabled()
        or torch._C._get_mem_efficient_sdp_enabled()
        or torch._C._get_cudnn_sdp_enabled()
        or torch._C._get_overrideable_sdp_enabled()
    )


def _is_batched(x: torch.Tensor) -> bool:
    """Is it a batch of torch.func.vmap, inside of any other transforms?"""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if torch._C._functorch.is_batchedtensor(x):
            return True
        x = torch._C._functorch.get_unwrapped(x)
    return False


def of_nested(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **more: Any,
) -> torch.Tensor:
    """Attention of nested tensors of the strided layout [batch, heads, length, size], transposed ones too, which torch's composition does
    not take: rows are padded, and keys masked."""
    attend = torch.ops.aten.scaled_dot_product_attention.default
    rows = [x.transpose(1, 2) for x in (query, key, value) if x.is_nested and x.dim() == 4]
    if attn_mask is not None or len(rows) < 3 or not all(is_ours(x) and x.is_contiguous() for x in rows):
        composed: torch.Tensor = attend.decompose(query, key, value, attn_mask, dropout_p, is_causal, **more)
        return composed
    q, k, v = (torch.nested.to_padded_tensor(x, 0.0).transpose(1, 2) for x in rows)
    places = torch.arange(k.size(2), device=k.device)
    mask = places < key._nested_tensor_size()[:, 1:2].to(k.device)[:, None, None]
    if is_causal:
        mask = mask & (places <= torch.arange(q.size(2), device=q.device)[:, None])
    out = attend(q, k, v, mask, dropout_p, **more).transpose(1, 2)
    sizes = rows[0]._nested_tensor_size()
    return torch._nested_from_padded(out, torch.cat([sizes[:, :2], torch.full_like(sizes[:, :1], out.size(3))], 1)).transpose(1, 2)


def _of_jagged(original: Callable[..., Any]) -> Callable[..., Any]:
    """Attention of jagged nested tensors: torch would choose a kernel that exists on CUDA only. Rows are padded, and keys masked."""

    @functools.wraps(original)
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **more: Any
    ) -> Any:
        jagged = all(x.is_nested and x.dim() == 4 and x._ragged_idx == 2 and x.lengths() is None for x in (query, key, value))
        if attn_mask is not None or not (jagged and is_our_device(query.device)):
            return original(query, key, value, attn_mask, dropout_p, is_causal, **more)
        from torch.nested._internal.nested_tensor import nested_from_padded

        q, k, v = (torch.nested.to_padded_tensor(x.transpose(1, 2), 0.0).transpose(1, 2) for x in (query, key, value))
        places = torch.arange(k.size(2), device=k.device)
        mask = (places < key.offsets().diff()[:, None])[:, None, None]
        if is_causal:
            mask = mask & (places <= torch.arange(q.size(2), device=q.device)[:, None])
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, dropout_p, **more).transpose(1, 2)
        lengths = {
            "min_seqlen": query._maybe_min_seqlen,
            "max_seqlen": query._maybe_max_seqlen,
            "sum_S": query.values().size(query._ragged_idx - 1),
        }
        return nested_from_padded(out, query.offsets(), 1, **lengths).transpose(1, 2)  # type: ignore[no-untyped-call]  # torch's

    return attention


def _patch_jagged(module: Any) -> None:
    module.jagged_scaled_dot_product_attention = _of_jagged(module.jagged_scaled_dot_product_attention)


def _patch_xformers(module: Any) -> None:
    """xformers' attention of [batch, length, heads, size], whose kernels are compiled for a local GPU."""
    original = module._memory_efficient_attention

    @functools.wraps(original)
    def attention(inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_our_device(inputs.query.device):
            return original(inputs, *args, **kwargs)
        inputs.validate_inputs()
        shape = inputs.normalize_bmhk()
        q, k, v = (x.flatten(2, -2).transpose(1, 2) for x in (inputs.query, inputs.key, inputs.value))
        bias = inputs.attn_bias
        if isinstance(bias, torch.Tensor):
            bias = bias.flatten(1, -3)
        elif bias is not None:
            bias = bias.materialize((*q.shape[:3], k.shape[2]), dtype=q.dtype, device=q.device)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias, inputs.p, scale=inputs.scale)
        return out.transpose(1, 2).reshape(shape).to(inputs.get_output_dtype())

    module._memory_efficient_attention = attention


def register(library: Any) -> None:
    """Take over the selection, when the device can fuse."""
    when_imported("torch.nested._internal.ops", _patch_jagged)
    when_imported("xformers.ops.fmha", _patch_xformers)
    if _FUSED in LOWERINGS:
        for key in ("PrivateUse1", "AutogradPrivateUse1"):
            library.impl("scaled_dot_product_attention", scaled_dot_product_attention, key)
