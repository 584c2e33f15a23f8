"""Matrix products and their sums; scaled dot product attention as one instruction, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from wis.dtypes import COMPLEX, FLOATS, DType
from wis.program import Imm
from wis.views import broadcast_shapes
from wooly.device.lowering.binary import scaled
from wooly.device.lowering.dtypes import accumulate, result_type, wis_dtype
from wooly.device.lowering.reduce import norm_over
from wooly.device.lowering.registry import composite, lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Unsupported, Value

__all__ = ["matmul"]

_FACTORS: Final = {"alpha": (0, 1), "beta": (0, 1)}
_HALVES: Final = (DType.F16, DType.BF16)


def matmul(t: Trace, a: Meta, b: Meta) -> Meta:
    """[..., m, k] x [..., k, n]; batch dimensions broadcast; one element type."""
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = t.temp(a.dtype, (*batch, a.shape[-2], b.shape[-1]))
    if a.shape[-1] == 0:
        return t.full(out.shape, 0, a.dtype)
    t.emit("matmul", [out], [a.expand((*batch, *a.shape[-2:])), b.expand((*batch, *b.shape[-2:]))])
    return out


@lowers("aten::mm", "aten::bmm")
def mm(t: Trace, a: Meta, b: Meta) -> Meta:
    return matmul(t, a, b)


def _widened(t: Trace, out_dtype: torch.dtype, *xs: Meta) -> list[Meta]:
    return [t.cast(x, wis_dtype(out_dtype)) for x in xs]


@lowers("aten::mm.dtype", "aten::bmm.dtype")
def mm_dtype(t: Trace, a: Meta, b: Meta, out_dtype: torch.dtype) -> Meta:
    """The product of half matrices in f32: sums are formed in f32 anyway, and are not rounded."""
    return matmul(t, *_widened(t, out_dtype, a, b))


@lowers("aten::addmm.dtype", "aten::baddbmm.dtype", special=_FACTORS)
def addmm_dtype(t: Trace, x: Meta, a: Meta, b: Meta, out_dtype: torch.dtype, *, beta: Value = 1, alpha: Value = 1) -> Meta:
    return _plus(t, x, matmul(t, *_widened(t, out_dtype, a, b)), beta, alpha)


def _plus(t: Trace, x: Meta, product: Meta, beta: Value, alpha: Value) -> Meta:
    """beta * x + alpha * product; a beta of 0 leaves x out, NaN and all."""
    dtype = product.dtype
    right = scaled(t, product, alpha, dtype)
    if isinstance(beta, int | float) and beta == 0:
        assert isinstance(right, Meta)
        return right
    return t.map("add", scaled(t, x, beta, dtype), right, dtype=dtype)


def _without_product(t: Trace, x: Meta, shape: Sequence[int], beta: Value, alpha: Value) -> Meta | None:
    """beta * x where alpha is 0: BLAS does not look at the product then, NaN and all."""
    if not (isinstance(alpha, int | float) and alpha == 0):
        return None
    if isinstance(beta, int | float) and beta == 0:
        return t.full(shape, 0, x.dtype)
    left = scaled(t, x, beta, x.dtype)
    return left.expand(shape) if isinstance(left, Meta) else None


@lowers("aten::baddbmm", special=_FACTORS)
def baddbmm(t: Trace, x: Meta, a: Meta, b: Meta, *, beta: Value = 1, alpha: Value = 1) -> Meta:
    """Of halves: rounded once where a factor would make the error of a rounded product larger."""
    if a.dtype in _HALVES and not all(isinstance(factor, int | float) and factor in (0, 1) for factor in (alpha, beta)):
        x, a, b = t.acc(x), t.acc(a), t.acc(b)
    return _plus(t, x, matmul(t, a, b), beta, alpha)


@lowers("aten::addmm", special=_FACTORS)
def addmm(t: Trace, x: Meta, a: Meta, b: Meta, *, beta: Value = 1, alpha: Value = 1) -> Meta:
    left = _without_product(t, x, (a.shape[0], b.shape[1]), beta, alpha)
    return baddbmm(t, x, a, b, beta=beta, alpha=alpha) if left is None else left


@lowers("aten::_addmm_activation", special=_FACTORS)
def addmm_activation(t: Trace, x: Meta, a: Meta, b: Meta, *, beta: Value = 1, alpha: Value = 1, use_gelu: bool = False) -> Meta:
    out = addmm(t, x, a, b, beta=beta, alpha=alpha)
    return t.map("gelu", out, attrs=(1,)) if use_gelu else t.map("max", out, 0, dtype=out.dtype)


@lowers("aten::addbmm", special=_FACTORS)
def addbmm(t: Trace, x: Meta, a: Meta, b: Meta, *, beta: Value = 1, alpha: Value = 1) -> Meta:
    left = _without_product(t, x, a.shape[1:2] + b.shape[2:], beta, alpha)
    if left is not None:
        return left
    product = matmul(t, a, b) if x.dtype.is_integer else matmul(t, t.acc(a), t.acc(b))
    return _plus(t, x, t.reduce("sum", product, [0]), beta, alpha)


_TAYLOR: Final = 20
"""Terms of the series of exp, so that the next is beyond f64 for norms up to 1."""
_BLOCK: Final = 5


@composite("aten::linalg_matrix_exp")
def matrix_exp(a: Tensor) -> Tensor:
    """Taylor's polynomial of a / 2^s, whose 1-norm is at most 1, squared s times (Higham, Functions of Matrices, 10.3 and, for the
    polynomial by Paterson and Stockmeyer, 4.2). Reads the greatest s, as torch waits for norms.
    """
    torch.ops.aten.linalg_matrix_exp(torch.empty_like(a, device="meta"))  # refuses other types and shapes
    if a.size(-1) < 2:
        return torch.exp(a)
    x = a.to(torch.complex128 if a.is_complex() else torch.float64)  # each squaring doubles the error
    squarings = x.abs().sum(-2).amax(-1).log2().ceil().clamp(min=0)
    finite = squarings.isfinite()
    x = x * torch.where(finite, torch.exp2(-squarings), math.nan)[..., None, None]
    squarings = torch.where(finite, squarings, 0)[..., None, None]
    powers = [torch.eye(a.size(-1), dtype=x.dtype, device=a.device).expand(a.size()), x]
    while len(powers) <= _BLOCK:
        powers.append(powers[-1] @ x)
    blocks = [sum(powers[k] / math.factorial(first + k) for k in range(_BLOCK)) for first in range(0, _TAYLOR, _BLOCK)]
    result: Any = blocks.pop()
    while blocks:
        result = result @ powers[-1] + blocks.pop()
    for done in range(int(squarings.amax().item()) if squarings.numel() else 0):
        result = torch.where(squarings > done, result @ result, result)
    out: Tensor = result.to(a.dtype)
    return out


def _matrix_vector(t: Trace, a: Meta, v: Meta) -> Meta:
    return matmul(t, a, v.unsqueeze(-1)).squeeze(-1)


@lowers("aten::mv")
def mv(t: Trace, a: Meta, v: Meta) -> Meta:
    return _matrix_vector(t, a, v)


@lowers("aten::addmv", special=_FACTORS)
def addmv(t: Trace, x: Meta, a: Meta, v: Meta, *, beta: Value = 1, alpha: Value = 1) -> Meta:
    left = _without_product(t, x, a.shape[:1], beta, alpha)
    return _plus(t, x, _matrix_vector(t, a, v), beta, alpha) if left is None else left


@lowers("aten::addr", special=_FACTORS)
def addr(t: Trace, x: Meta, a: Meta, b: Meta, *, beta: Value = 1, alpha: Value = 1) -> Meta:
    dtype = result_type((x, a, b))
    if dtype == DType.BOOL:
        raise Unsupported("addr of bool")
    return _plus(t, x, t.map("mul", a.unsqueeze(-1), b.unsqueeze(0), dtype=accumulate(dtype)), beta, alpha)


@lowers("aten::dot")
def dot(t: Trace, a: Meta, b: Meta) -> Meta:
    """A sum of products: those of a matrix product are added one after the other, which loses digits along long vectors."""
    if a.dtype.is_integer:
        return matmul(t, a.unsqueeze(0), b.unsqueeze(-1)).squeeze(0).squeeze(0)
    return t.reduce("sum", t.map("mul", t.acc(a) if a.dtype in FLOATS else a, t.acc(b) if b.dtype in FLOATS else b), [0])


@lowers("aten::vdot")
def vdot(t: Trace, a: Meta, b: Meta) -> Meta:
    return dot(t, t.map("conj", a) if a.dtype in COMPLEX else a, b)


@lowers("aten::_trilinear")
def trilinear(
    t: Trace,
    a: Meta,
    b: Meta,
    c: Meta,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    *,
    unroll_dim: int = 1,
) -> Meta:
    a, b, c = t.acc(a), t.acc(b), t.acc(c)
    for dims, which in ((expand1, 0), (expand2, 1), (expand3, 2)):
        for dim in dims:
            if which == 0:
                a = a.unsqueeze(dim)
            elif which == 1:
                b = b.unsqueeze(dim)
            else:
                c = c.unsqueeze(dim)
    return t.reduce("sum", t.map("mul", t.map("mul", a, b), c), sumdim)


@lowers("aten::_euclidean_dist")
def euclidean_dist(t: Trace, a: Meta, b: Meta) -> Meta:
    return _cdist(t, a, b, 2.0)


@lowers("aten::_cdist_forward", concrete=("p",))
def cdist_forward(t: Trace, a: Meta, b: Meta, p: float, compute_mode: int | None) -> Meta:
    return _cdist(t, a, b, p)


def _cdist(t: Trace, a: Meta, b: Meta, p: float) -> Meta:
    """The p-norm of a[..., i, :] - b[..., j, :] for every pair (i, j)."""
    gap = t.map("sub", a.unsqueeze(-2), b.unsqueeze(-3))
    if gap.shape[-1] == 0:
        return t.full(gap.shape[:-1], 0, gap.dtype)
    return norm_over(t, gap, p, [gap.ndim - 1], False)


@lowers("aten::_cdist_backward", concrete=("p",))
def cdist_backward(t: Trace, dy: Meta, a: Meta, b: Meta, p: float, dist: Meta) -> Meta:
    """Gradient by ``a``: sum over j of dy * sign(gap) |gap|^(p-1) / dist^(p-1), 0 where dist is 0."""
    if p == 0:
        return t.full(a.shape, 0, a.dtype)
    gap = t.map("sub", a.unsqueeze(-2), b.unsqueeze(-3))
    d, dy = dist.unsqueeze(-1), dy.unsqueeze(-1)
    if p == 1:
        slope = t.map("mul", dy, t.map("sign", gap))
    elif p == float("inf"):
        reached = t.cast(t.map("eq", t.map("abs", gap), d), gap.dtype)
        slope = t.map("mul", dy, t.map("mul", t.map("sign", gap), reached))
    else:
        size = t.map("abs", gap)
        power = t.map("mul", t.map("sign", gap), t.map("pow", size, p - 1)) if p != 2 else gap
        scale = d if p == 2 else t.map("pow", d, p - 1)
        slope = t.map("mul", dy, t.map("div", power, scale))
    flat = t.map("eq", d, 0.0)
    slope = t.where(flat, 0.0, slope, dtype=slope.dtype)
    return t.reduce("sum", slope, [slope.ndim - 2])


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
