"""Semantics of pooling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wis.reference.access import Array
from wis.windows import Window

__all__ = ["max_pool", "avg_pool", "avg_pool_dx"]

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
