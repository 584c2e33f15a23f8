"""Semantics of the coarse ops, directly from their formulas, in the type that the operands compute in.

Agreement with the decomposition (wis/decompose.py) and with back ends is within the tolerance of the type.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from wis.reference import special
from wis.reference.access import Array
from wis.reference.elementwise import wide

__all__ = [
    "softmax", "log_softmax", "softmax_dx", "log_softmax_dx", "layer_norm", "layer_norm_dx", "layer_norm_dwb", "gelu", "gelu_dx", "silu",
    "silu_dx", "sdpa", "sdpa_dx", "AdamW", "adamw",
]  # fmt: skip


def softmax(x: Array) -> Array:
    if x.shape[-1] == 0:
        return x
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return np.asarray(e / np.sum(e, axis=-1, keepdims=True))


def log_softmax(x: Array) -> Array:
    if x.shape[-1] == 0:
        return x
    shifted = x - np.max(x, axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True)))


def softmax_dx(dy: Array, y: Array) -> Array:
    return np.asarray((dy - np.sum(dy * y, axis=-1, keepdims=True)) * y)


def log_softmax_dx(dy: Array, y: Array) -> Array:
    return np.asarray(dy - np.exp(y) * np.sum(dy, axis=-1, keepdims=True))


def layer_norm(x: Array, w: Array, b: Array, eps: float) -> tuple[Array, Array, Array]:
    """x [r, c] -> y [r, c], mean [r, 1], rstd [r, 1]."""
    mean = _row_mean(x)
    centred = x - mean
    rstd = np.asarray(1.0 / np.sqrt(_row_mean(centred * centred) + x.dtype.type(eps)))
    return np.asarray(centred * rstd * w + b), mean, rstd


def _row_mean(x: Array) -> Array:
    return np.asarray(np.sum(x, axis=-1, keepdims=True) / x.dtype.type(x.shape[-1]))


def layer_norm_dx(dy: Array, x: Array, mean: Array, rstd: Array, w: Array) -> Array:
    normed = (x - mean) * rstd
    g = dy * w
    return np.asarray((g - _row_mean(g) - normed * _row_mean(g * normed)) * rstd)


def layer_norm_dwb(dy: Array, x: Array, mean: Array, rstd: Array) -> tuple[Array, Array]:
    normed = (x - mean) * rstd
    return np.asarray(np.sum(dy * normed, axis=0, keepdims=True)), np.asarray(np.sum(dy, axis=0, keepdims=True))


_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


@wide
def _gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1.0 + np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x * x * x))))


@wide
def _gelu_erf(x: Array) -> Array:
    return np.asarray(0.5 * x * special.erfc(-x * _SQRT_HALF))


@wide
def _gelu_tanh_dx(dy: Array, x: Array) -> Array:
    t = np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x * x * x))
    slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBE * x * x)
    return np.asarray(dy * slope)


@wide
def _gelu_erf_dx(dy: Array, x: Array) -> Array:
    slope = 0.5 * special.erfc(-x * _SQRT_HALF) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return np.asarray(dy * slope)


def gelu(x: Array, tanh: bool) -> Array:
    return _gelu_tanh(x) if tanh else _gelu_erf(x)


def gelu_dx(dy: Array, x: Array, tanh: bool) -> Array:
    return _gelu_tanh_dx(dy, x) if tanh else _gelu_erf_dx(dy, x)


def silu(x: Array) -> Array:
    return np.asarray(x / (1.0 + np.exp(-x)))


def silu_dx(dy: Array, x: Array) -> Array:
    s = 1.0 / (1.0 + np.exp(-x))
    return np.asarray(dy * s * (1.0 + x * (1.0 - s)))


def _scores(q: Array, k: Array, scale: float, mask: Array | None, causal: bool) -> Array:
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * q.dtype.type(scale)
    if mask is not None:
        scores = scores + mask
    if causal:
        m, n = scores.shape[-2:]
        scores = np.where(np.arange(n) <= np.arange(m)[:, None], scores, scores.dtype.type(-np.inf))
    return np.asarray(scores)


def sdpa(q: Array, k: Array, v: Array, scale: float, mask: Array | None, causal: bool) -> tuple[Array, Array]:
    """o [b, h, m, e] and the row-wise log-sum-exp of the scores [b, h, m]; a fully masked row gives 0 and -inf."""
    scores = _scores(q, k, scale, mask, causal)
    if scores.shape[-1] == 0:
        return np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype), np.full(q.shape[:-1], -np.inf, q.dtype)
    top = np.max(scores, axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(top), np.zeros((), top.dtype), top))
    total = np.sum(e, axis=-1, keepdims=True)
    empty = total == 0
    p = np.where(empty, np.zeros((), e.dtype), e / total)
    lse = np.where(empty, top, top + np.log(total))
    return np.asarray(np.matmul(p, v)), np.asarray(lse[..., 0])


class Attention(NamedTuple):
    """What the gradient of attention reads."""

    do: Array
    q: Array
    k: Array
    v: Array
    o: Array
    lse: Array


def sdpa_dx(a: Attention, scale: float, mask: Array | None, causal: bool) -> tuple[Array, Array, Array]:
    """dq, dk, dv."""
    lse = a.lse[..., None]
    scores = _scores(a.q, a.k, scale, mask, causal)
    p = np.where(np.isneginf(lse), np.zeros((), scores.dtype), np.exp(scores - lse))
    dv = np.matmul(np.swapaxes(p, -1, -2), a.do)
    dp = np.matmul(a.do, np.swapaxes(a.v, -1, -2))
    ds = p * (dp - np.sum(a.do * a.o, axis=-1, keepdims=True)) * a.q.dtype.type(scale)
    return np.asarray(np.matmul(ds, a.k)), np.asarray(np.matmul(np.swapaxes(ds, -1, -2), a.q)), np.asarray(dv)


class AdamW(NamedTuple):
    """The immediates of ``adamw``, in their order."""

    lr: np.float64
    beta1: np.float64
    beta2: np.float64
    weight_decay: np.float64
    eps: np.float64
    bias1: np.float64
    bias2_sqrt: np.float64


def adamw(p: Array, m: Array, v: Array, g: Array, h: AdamW, decoupled: bool, maximize: bool) -> tuple[Array, Array, Array]:
    """One step; every coefficient is formed in f64 and rounded once to the type of ``p``."""
    c = p.dtype.type
    if maximize:
        g = -g
    if decoupled:
        p = p * c(1.0 - h.lr * h.weight_decay)
    else:
        g = g + c(h.weight_decay) * p
    m = m * c(h.beta1) + g * c(1.0 - h.beta1)
    v = v * c(h.beta2) + g * g * c(1.0 - h.beta2)
    step = c(h.lr / h.bias1)
    return np.asarray(p - step * (m / (np.sqrt(v) / c(h.bias2_sqrt) + c(h.eps)))), np.asarray(m), np.asarray(v)
