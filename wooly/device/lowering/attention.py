"""Scaled dot product attention as one instruction, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wis.dtypes import DType
from wis.program import Imm
from wooly.device.lowering.dtypes import accumulate
from wooly.device.lowering.errors import Unsupported
from wooly.device.lowering.linear import matmul
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Value

__all__: list[str] = []


def _check(query: Meta, dropout_p: Any) -> None:
    if query.ndim != 4:
        raise Unsupported("attention over other than 4 dimensions")
    if not isinstance(dropout_p, int | float) or dropout_p != 0:
        raise Unsupported("attention with dropout")


def _additive(t: Trace, mask: Meta | None, query: Meta, key: Meta) -> list[Meta]:
    """The mask as [b, h, m, n] to add: where a bool mask is false, -inf."""
    if mask is None:
        return []
    if mask.dtype == DType.BOOL:
        zero = t.full((), 0, query.dtype)
        mask = t.where(mask, zero.expand(mask.shape), -math.inf, dtype=query.dtype)
    return [t.cast(mask, query.dtype).expand((*query.shape[:3], key.shape[2]))]


def _scale(query: Meta, scale: Value | None) -> Value:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


@lowers("aten::_scaled_dot_product_fused_attention_overrideable", special={"dropout_p": (0,)})
def attention(
    t: Trace,
    query: Meta,
    key: Meta,
    value: Meta,
    attn_bias: Meta | None = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Value | None = None,
) -> list[Meta | None]:
    """Outputs: o, logsumexp, and what only other implementations use (left out, or empty where torch wants a tensor)."""
    _check(query, dropout_p)
    b, h, m, _ = query.shape
    o = t.temp(query.dtype, (b, h, m, value.shape[-1]))
    lse = t.temp(accumulate(query.dtype), (b, h, m))
    ins: list[Meta | Imm] = [query, key, value, t.imm(_scale(query, scale), DType.F64), *_additive(t, attn_bias, query, key)]
    t.emit("sdpa", [o, lse], ins, (is_causal,))
    results: list[Meta | None] = [o, lse]
    unused = range(2, len(t.wants))
    return results + [t.full(t.want(i).shape, 0, t.want(i).dtype) if t.wanted(i) else None for i in unused]


@lowers("aten::_scaled_dot_product_fused_attention_overrideable_backward", special={"dropout_p": (0,)})
def attention_backward(
    t: Trace,
    dy: Meta,
    query: Meta,
    key: Meta,
    value: Meta,
    attn_bias: Meta | None,
    grad_input_mask: Sequence[bool],
    out: Meta,
    *,
    logsumexp: Meta,
    cum_seq_q: Meta | None,
    cum_seq_k: Meta | None,
    max_q: int,
    max_k: int,
    dropout_p: Any,
    is_causal: bool,
    philox_seed: Meta | None,
    philox_offset: Meta | None,
    scale: Value | None = None,
) -> list[Meta | None]:
    _check(query, dropout_p)
    stat = accumulate(query.dtype)
    bias = attn_bias if attn_bias is not None and attn_bias.numel else None  # autograd passes an empty tensor for none
    extra = _additive(t, bias, query, key)
    outs = [t.temp(query.dtype, x.shape) for x in (query, key, value)]
    lse = t.cast(logsumexp, stat)
    ins: list[Meta | Imm] = [t.cast(dy, query.dtype), query, key, value, out, lse, t.imm(_scale(query, scale), DType.F64), *extra]
    t.emit("sdpa_dx", outs, ins, (is_causal,))
    results: list[Meta | None] = [part if t.wanted(i) else None for i, part in enumerate(outs)]
    if len(t.wants) > 3:
        results.append(
            _bias_gradient(t, dy, query, key, value, bias=bias, out=out, lse=lse, is_causal=is_causal, scale=scale)
            if t.wanted(3) and bias
            else None
        )
    return results


def _bias_gradient(
    t: Trace, dy: Meta, query: Meta, key: Meta, value: Meta, *, bias: Meta, out: Meta, lse: Meta, is_causal: bool, scale: Value | None
) -> Meta:
    """d logits = p * (dy v^T - sum(dy * out)), with p from the saved logsumexp; summed over what the bias was broadcast along."""
    if is_causal:
        raise Unsupported("gradient of a bias beside a causal mask")
    wide = accumulate(query.dtype)
    q, k, v, dy, out = (t.cast(x, wide) for x in (query, key, value, dy, out))
    logits = t.map("add", t.map("mul", matmul(t, q, k.transpose(2, 3)), _scale(query, scale)), bias, dtype=wide)
    p = t.map("exp", t.map("sub", logits, t.cast(lse, wide).unsqueeze(-1)))
    delta = t.reduce("sum", t.map("mul", dy, out), [3], True)
    slope = t.map("mul", p, t.map("sub", matmul(t, dy, v.transpose(2, 3)), delta))
    lead = slope.ndim - bias.ndim
    dims = [d for d in range(slope.ndim) if d < lead or bias.shape[d - lead] == 1 != slope.shape[d]]
    return t.reshape(t.reduce("sum", slope, dims, True), bias.shape)
