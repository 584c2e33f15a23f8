"""Comparison rules: tolerances by type, and the operations whose results are not determined to the last bit.

A rule maps (arguments before the call, device's results, CPU's results) to two lists of values that must agree. Functions of this module
use nothing but torch and their arguments: the script that reproduces a difference contains their source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

__all__ = [
    "DROPOUT_NEGLIGIBLE",
    "TOLERANCES",
    "Rule",
    "beside",
    "first_difference",
    "is_deterministic",
    "reference_of",
    "rule_of",
    "rounding",
]

Rule = Callable[[dict[str, Any], list[Any], list[Any]], tuple[list[Any], list[Any]]]

TOLERANCES: Final[dict[torch.dtype, tuple[float, float]]] = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
"""(relative, absolute), as in torch.testing.assert_close; other types must be equal."""

ROUNDING_ULPS: Final = 32
"""Operations that are not elementwise may also differ by this many units in the last place of their largest result ..."""

ROUNDING_TIMES: Final = 10
"""... and by this many times what the CPU's own result differs from one computed in float64. Any operation may also agree with that one."""


DROPOUT_NEGLIGIBLE: Final = 1e-12
"""A probability of dropping out that takes the way of any other, and in float32 drops nothing and scales by 1."""


def first_difference(ours: Any, theirs: Any, rtol: float, atol: float) -> str | None:
    """How ``ours`` differs from ``theirs``, or None. Tensors agree where equal, both NaN, or ``|a - b| <= atol + rtol * |b|``."""
    if not (isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)):
        same = type(ours) is type(theirs) and (ours == theirs or (ours != ours and theirs != theirs))
        return None if same else f"the device gives {ours!r}, the CPU {theirs!r}"
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"the device gives {ours.dtype} {list(ours.shape)}, the CPU {theirs.dtype} {list(theirs.shape)}"
    a, b = (torch.view_as_real(t.resolve_conj().resolve_neg()) if t.is_complex() else t for t in (ours, theirs))
    if a.is_floating_point():
        a, b = a.double(), b.double()
        error = (a - b).abs()
        wrong = ~((a == b) | (a.isnan() & b.isnan()) | (error <= atol + rtol * b.abs()))
    else:
        wrong = a != b
        error = (a.double() - b.double()).abs()
    if not wrong.any():
        return None
    places = wrong.nonzero()
    at = tuple(places[0].tolist())
    relative = torch.where(wrong, error / b.double().abs(), 0.0)
    return (
        f"{len(places)} of {a.numel()} elements differ, first at {at}: the device gives {a[at].item()!r}, the CPU {b[at].item()!r}; "
        f"greatest absolute difference {torch.where(wrong, error, 0.0).max().item():.3g}, relative {relative.max().item():.3g} "
        f"(allowed: {atol:.3g} absolute, {rtol:.3g} relative)"
    )


def beside(buffer: torch.Tensor, views: list[tuple[torch.dtype, Any, Any, int]]) -> torch.Tensor:
    """The bytes of ``buffer`` that none of ``views`` (type, size, strides, offset) covers, and 0 where one does."""
    rest = buffer.clone()
    for dtype, size, stride, offset in views:
        rest[: len(rest) // dtype.itemsize * dtype.itemsize].view(dtype).as_strided(size, stride, offset).zero_()
    return rest


def rounding(theirs: torch.Tensor, exact: torch.Tensor) -> float:
    """The absolute difference that rounding explains in a result of many terms, given the same result computed in float64."""
    wide = exact.to(torch.complex128 if exact.is_complex() else torch.float64)
    finite = wide[wide.isfinite()]
    error = (theirs.to(wide.dtype) - wide)[wide.isfinite()]
    if not finite.numel():
        return 0.0
    largest = float(finite.abs().max())
    return ROUNDING_TIMES * float(error.abs().nan_to_num().max()) + ROUNDING_ULPS * torch.finfo(theirs.dtype).eps * largest


# --- results that are not determined by the arguments


def _picked(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """The elements of ``x`` that ``index`` names along ``dim``."""
    if x.dim() == 0:
        return x
    return x.gather(dim, index if index.dim() == x.dim() else index.unsqueeze(dim))


def which_of_equals(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """(values, indices) along ``dim``: of equal elements any may be named, so indices count by the values they name."""
    x, dim = call["self"], call.get("dim", -1)
    return [ours[0], _picked(x, dim, ours[1])], [theirs[0], _picked(x, dim, theirs[1])]


def which_in_order(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """(values, indices) of all or the first elements in order: as for one element, and no index may be named twice."""
    x, dim = call["self"], call.get("dim", -1)
    dim = -1 if dim is None else dim
    if x.dim() == 0:
        return ours, theirs
    if call.get("sorted") is False:
        ours, theirs = ([t[0].sort(dim).values, t[1].gather(dim, t[0].sort(dim).indices)] for t in (ours, theirs))
    a, b = (t[1].sort(dim).values.diff(dim=dim).gt(0) for t in (ours, theirs))
    return [ours[0], _picked(x, dim, ours[1]), a], [theirs[0], _picked(x, dim, theirs[1]), b]


def which_of_all(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Indices alone, along ``dim`` or (None) of the flattened tensor."""
    x, dim = call["self"], call.get("dim")
    if dim is None:
        x, dim = x.reshape(-1), 0
        return [x[ours[0].reshape(-1)]], [x[theirs[0].reshape(-1)]]
    return [_picked(x, dim, ours[0])], [_picked(x, dim, theirs[0])]


def which_in_window(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """(values, indices) of pooling: indices name positions of the flattened image."""
    dims = 3 if "3d" in call["op"] else 2
    flat = call["self"].flatten(-dims)
    return [ours[0], flat.gather(-1, ours[1].flatten(-dims))], [theirs[0], flat.gather(-1, theirs[1].flatten(-dims))]


def first_result(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """The first result; the others are notes for the backward pass, which a device takes in its own form."""
    return ours[:1], theirs[:1]


def kept_or_zero(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Dropout: zero where the mask says so, else scaled."""
    p = call["p"]
    kept = ours[1].to(call["input"].dtype)
    return [ours[0]], [call["input"] * kept * (0.0 if p == 1 else 1 / (1 - p))]


def uniform(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """In [from, to); rounding to a narrow type may give the upper end."""
    low, high = call.get("from", 0.0), call.get("to", 1.0)
    return [(t >= low) & (t <= high) for t in ours], [torch.ones_like(t, dtype=torch.bool) for t in theirs]


def whole_numbers(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """In [low, high)."""
    low = call.get("low", 0) or 0
    return [(t >= low) & (t < call["high"]) for t in ours], [torch.ones_like(t, dtype=torch.bool) for t in theirs]


def zero_or_one(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Bernoulli: 0 and 1, and one of them only where the probability is."""
    p = call.get("p")
    p = call["self"] if p is None else p
    good = [((t == 0) & (p != torch.ones_like(p) if isinstance(p, torch.Tensor) else p != 1)) | ((t == 1) & (p != 0)) for t in ours]
    return good, [torch.ones_like(t, dtype=torch.bool) for t in theirs]


def permutation(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Each number once."""
    return [t.sort().values for t in ours], [t.sort().values for t in theirs]


def possible_draws(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Multinomial: only indices of weights above 0, each once without replacement."""
    good = [call["self"].gather(-1, ours[0]) > 0]
    if not call.get("replacement"):
        good.append(ours[0].sort(-1).values.diff(dim=-1) > 0)
    return good, [torch.ones_like(t) for t in good]


def finite(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Drawn from all numbers."""
    good = [t.isfinite() for t in ours]
    return good, [torch.ones_like(t) for t in good]


def nothing(call: dict[str, Any], ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Unwritten memory, or numbers without a property to test: type and shape only."""
    return [], []


_TIES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("max", "min", "median", "nanmedian", "mode", "kthvalue", "_aminmax", "cummax", "cummin"), which_of_equals),
    **dict.fromkeys(("sort", "topk"), which_in_order),
    **dict.fromkeys(("argmax", "argmin"), which_of_all),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d"), which_in_window),
    **dict.fromkeys(("fractional_max_pool2d", "fractional_max_pool3d"), which_in_window),
}

_NOTES: Final = frozenset({"_embedding_bag", "_embedding_bag_forward_only"})

_DRAWN: Final[dict[str, Rule]] = {
    "native_dropout": kept_or_zero,
    **dict.fromkeys(("rand", "rand_like", "uniform", "uniform_"), uniform),
    **dict.fromkeys(("randint", "randint_like"), whole_numbers),
    **dict.fromkeys(("bernoulli", "bernoulli_"), zero_or_one),
    "randperm": permutation,
    "multinomial": possible_draws,
    **dict.fromkeys(("randn", "randn_like", "normal", "normal_", "log_normal", "exponential", "exponential_"), finite),
}

UNWRITTEN: Final = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided empty_quantized resize_ resize".split()
)
"""Operations that make memory without writing it: their results have a type and a shape."""


def is_deterministic(base: str, draws: bool, call: dict[str, Any]) -> bool:
    """Is the result determined by the arguments? Those that drop out are with nothing to drop."""
    if not draws:
        return True
    if "dropout_p" in call:
        return bool(call["dropout_p"] <= DROPOUT_NEGLIGIBLE)
    if base == "native_dropout":
        return call["train"] is False or call["p"] == 0
    return call.get("training") is False or (base.startswith("_fused") and not call.get("dropout"))


def rule_of(base: str, deterministic: bool, n_results: int, call: dict[str, Any]) -> Rule | None:
    """The rule for ``base`` (an operation's name without namespace and overload); None: the results themselves."""
    if base in UNWRITTEN:
        return nothing
    if not deterministic:
        return _DRAWN[base] if base in _DRAWN else nothing
    if base in _NOTES:
        return first_result
    if base not in _TIES or "self" not in call or (n_results < 2 and base not in ("argmax", "argmin")):
        return None
    return _TIES[base]


# --- operations that torch has for accelerators only


def attention(query: Any, key: Any, value: Any, attn_bias: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
              return_debug_mask: bool = False, *, scale: float | None = None) -> Any:  # fmt: skip
    """``_scaled_dot_product_fused_attention_overrideable`` without dropout, in float64: (output, logsumexp)."""
    q, k, v = query.double(), key.double(), value.double()
    logits = q @ k.mT * (q.size(-1) ** -0.5 if scale is None else scale)
    if attn_bias is not None:
        logits = logits + attn_bias
    if is_causal:
        logits = logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).tril().logical_not(), float("-inf"))
    p = torch.nan_to_num(logits.softmax(-1)) if logits.isneginf().any() else logits.softmax(-1)
    return (p @ v).to(query.dtype), logits.logsumexp(-1).to(torch.promote_types(query.dtype, torch.float32))


def attention_backward(
    dy: Any, query: Any, key: Any, value: Any, attn_bias: Any, grad_input_mask: Any, out: Any, *rest: Any, scale: float | None = None
) -> Any:
    """The gradient of ``attention``, in float64.

    ``rest``: logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset.
    """
    is_causal = rest[6]
    q, k, v, dy = query.double(), key.double(), value.double(), dy.double()
    scale = q.size(-1) ** -0.5 if scale is None else scale
    bias = attn_bias if attn_bias is not None and attn_bias.numel() else None
    logits = q @ k.mT * scale
    if bias is not None:
        logits = logits + bias
    if is_causal:
        logits = logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).tril().logical_not(), float("-inf"))
    p = torch.nan_to_num(logits.softmax(-1)) if logits.isneginf().any() else logits.softmax(-1)
    dp = dy @ v.mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True))
    grads = [ds @ k * scale, ds.mT @ q * scale, p.mT @ dy, ds if bias is None else ds.sum_to_size(bias.shape)]
    return tuple(g.to(query.dtype) if wanted else None for g, wanted in zip(grads, grad_input_mask, strict=True))


def rms_norm_backward(dy: Any, x: Any, normalized_shape: Any, rstd: Any, weight: Any, output_mask: Any) -> Any:
    """``_fused_rms_norm_backward``, in float64."""
    dims = list(range(-len(normalized_shape), 0))
    normal = x.double() * rstd.double()
    scaled = dy.double() if weight is None else dy.double() * weight
    dx = rstd * (scaled - normal * (scaled * normal).mean(dims, keepdim=True))
    dw = None if weight is None else (dy.double() * normal).sum_to_size(weight.shape).to(weight.dtype)
    return (dx.to(x.dtype) if output_mask[0] else None), (dw if output_mask[1] else None)


_REFERENCES: Final[dict[str, Callable[..., Any]]] = {
    "_scaled_dot_product_fused_attention_overrideable": attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": attention_backward,
    "_fused_rms_norm_backward": rms_norm_backward,
}


def reference_of(base: str) -> Callable[..., Any] | None:
    """Substitutes for CPU kernels that torch lacks."""
    return _REFERENCES.get(base)
