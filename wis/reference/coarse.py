"""Semantics of the coarse ops, directly from their formulas, in the type that the operands compute in; and of matmul, of convolution with
its two gradients, and of pooling.

Agreement with the decomposition (wis/decompose.py) and with back ends is within the tolerance of the type.

The order of the sums of products and pooling is not part of the definition: back ends agree within the tolerance of the type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from wis.reference import numeric
from wis.reference.access import Array
from wis.reference.elementwise import wide
from wis.windows import Window

__all__ = [
    "AdamW", "adamw", "avg_pool", "avg_pool_dx", "conv", "conv_dw", "conv_dx", "gelu", "gelu_dx", "layer_norm", "layer_norm_dwb",
    "layer_norm_dx", "log_softmax", "log_softmax_dx", "matmul", "max_pool", "sdpa", "sdpa_dx", "silu", "silu_dx", "softmax", "softmax_dx",
]  # fmt: skip


def matmul(a: Array, b: Array) -> Array:
    return np.asarray(np.matmul(a, b))


def _columns(x: Array, window: Window, counts: tuple[int, ...]) -> Array:
    """x [c, *s] -> [c * positions, prod(counts)]: what each window sees, 0 in the padding."""
    columns = np.zeros((x.shape[0], window.n_positions, *counts), x.dtype)
    for number, at in enumerate(window.positions()):
        tap = window.tap(at, x.shape[1:], counts)
        if tap is not None:
            columns[:, number][(slice(None), *tap[0])] = x[(slice(None), *tap[1])]
    return columns.reshape(x.shape[0] * window.n_positions, -1)


def conv(x: Array, w: Array, groups: int, window: Window, counts: tuple[int, ...]) -> Array:
    """x [n, c, *s], w [o, c/groups, *k] -> [n, o, *counts]."""
    out = np.zeros((x.shape[0], w.shape[0], *counts), x.dtype)
    if 0 in out.shape or 0 in x.shape:
        return out
    c_group, o_group = x.shape[1] // groups, w.shape[0] // groups
    for g in range(groups):
        rows, channels = slice(g * o_group, (g + 1) * o_group), slice(g * c_group, (g + 1) * c_group)
        weights = w[rows].reshape(o_group, -1)
        for i in range(x.shape[0]):  # one image at a time bounds the memory of the columns
            out[i, rows] = (weights @ _columns(x[i, channels], window, counts)).reshape(o_group, *counts)
    return out


def conv_dx(dy: Array, w: Array, groups: int, window: Window, size: tuple[int, ...]) -> Array:
    """dy [n, o, *t], w [o, c/groups, *k] -> [n, c, *size]."""
    n, o, counts = dy.shape[0], dy.shape[1], dy.shape[2:]
    c_group, o_group = w.shape[1], o // groups
    dx = np.zeros((n, c_group * groups, *size), dy.dtype)
    if 0 in dx.shape or 0 in dy.shape:
        return dx
    for g in range(groups):
        weights = w[g * o_group : (g + 1) * o_group]
        part = dy[:, g * o_group : (g + 1) * o_group]
        taps = weights.reshape(o_group, c_group, -1)
        for number, at in enumerate(window.positions()):
            tap = window.tap(at, size, counts)
            if tap is None:
                continue
            seen = part[(slice(None), slice(None), *tap[0])]
            share = np.matmul(taps[:, :, number].T, seen.reshape(n, o_group, -1))
            dx[(slice(None), slice(g * c_group, (g + 1) * c_group), *tap[1])] += share.reshape(n, c_group, *seen.shape[2:])
    return dx


def conv_dw(dy: Array, x: Array, groups: int, window: Window) -> Array:
    """dy [n, o, *t], x [n, c, *s] -> [o, c/groups, *k]."""
    counts = dy.shape[2:]
    c_group, o_group = x.shape[1] // groups, dy.shape[1] // groups
    dw = np.zeros((dy.shape[1], c_group, *window.kernel), x.dtype)
    if 0 in dy.shape or 0 in x.shape:
        return dw
    for g in range(groups):
        rows, channels = slice(g * o_group, (g + 1) * o_group), slice(g * c_group, (g + 1) * c_group)
        for i in range(x.shape[0]):
            columns = _columns(x[i, channels], window, counts)
            dw[rows] += (dy[i, rows].reshape(o_group, -1) @ columns.T).reshape(o_group, c_group, *window.kernel)
    return dw


Index = tuple[slice, ...]


def _taps(window: Window, size: tuple[int, ...], counts: tuple[int, ...]) -> Iterator[tuple[Index, Index]]:
    """(windows, inputs) for every kernel position that meets the input, as indices into [n, c, *counts] and [n, c, *size]."""
    for at in window.positions():
        tap = window.tap(at, size, counts)
        if tap is not None:
            yield (slice(None), slice(None), *tap[0]), (slice(None), slice(None), *tap[1])


def max_pool(x: Array, window: Window, counts: tuple[int, ...]) -> tuple[Array, Array]:
    """The greatest of each window and its flat index in *s; the last NaN wins, else the first greatest.

    A window wholly in the padding gives the type's lowest value and index 0.
    """
    size = x.shape[2:]
    lowest = -np.inf if x.dtype.kind == "f" else (False if x.dtype.kind == "b" else np.iinfo(x.dtype).min)
    best = np.full((*x.shape[:2], *counts), lowest, x.dtype)
    index = np.zeros(best.shape, np.int64)
    seen = np.zeros((1, 1, *counts), np.bool_)
    flat = np.arange(np.prod(size), dtype=np.int64).reshape(1, 1, *size)
    for windows, inputs in _taps(window, size, counts):
        value = x[inputs]
        better = (value > best[windows]) | ~seen[windows]
        if x.dtype.kind == "f":
            better |= np.isnan(value)
        best[windows] = np.where(better, value, best[windows])
        index[windows] = np.where(better, flat[inputs], index[windows])
        seen[windows] = True
    return best, index


def _divisors(window: Window, counts: tuple[int, ...], size: tuple[int, ...], count_pad: bool, divisor: int) -> Array:
    """What each window's sum is divided by (shape ``counts``); 1 for windows that see no element."""
    if divisor:
        return np.full(counts, divisor, np.int64)
    total = np.ones(counts, np.int64)
    for d, n in enumerate(counts):
        start = np.arange(n, dtype=np.int64) * window.stride[d] - window.pad[d]
        end = np.minimum(start + window.kernel[d], size[d] + window.pad[d])
        if not count_pad:
            start, end = np.maximum(start, 0), np.minimum(end, size[d])
        total = total * np.maximum(end - start, 0).reshape([-1 if e == d else 1 for e in range(len(counts))])
    return np.maximum(total, 1)


def avg_pool(x: Array, window: Window, counts: tuple[int, ...], count_pad: bool, divisor: int) -> Array:
    """Each window's sum, kernel positions in row-major order, over its divisor."""
    total = np.zeros((*x.shape[:2], *counts), x.dtype)
    for windows, inputs in _taps(window, x.shape[2:], counts):
        total[windows] += x[inputs]
    return np.asarray(total / _divisors(window, counts, x.shape[2:], count_pad, divisor).astype(x.dtype))


def avg_pool_dx(dy: Array, window: Window, size: tuple[int, ...], count_pad: bool, divisor: int) -> Array:
    """dy [n, c, *t] -> [n, c, *size]: each window hands its share back to the elements it saw."""
    counts = dy.shape[2:]
    share = dy / _divisors(window, counts, size, count_pad, divisor).astype(dy.dtype)
    dx = np.zeros((*dy.shape[:2], *size), dy.dtype)
    for windows, inputs in _taps(window, size, counts):
        dx[inputs] += share[windows]  # strides are at least 1: within one kernel position no element is met twice
    return dx


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
    return np.asarray(0.5 * x * numeric.erfc(-x * _SQRT_HALF))


@wide
def _gelu_tanh_dx(dy: Array, x: Array) -> Array:
    t = np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x * x * x))
    slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBE * x * x)
    return np.asarray(dy * slope)


@wide
def _gelu_erf_dx(dy: Array, x: Array) -> Array:
    slope = 0.5 * numeric.erfc(-x * _SQRT_HALF) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
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
