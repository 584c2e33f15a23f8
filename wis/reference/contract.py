"""Semantics of matmul, of convolution with its two gradients, and of pooling.

The order of these sums is not part of the definition: back ends agree within the tolerance of the type.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wis.reference.access import Array
from wis.windows import Window

__all__ = ["matmul", "conv", "conv_dx", "conv_dw", "max_pool", "avg_pool", "avg_pool_dx"]


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
