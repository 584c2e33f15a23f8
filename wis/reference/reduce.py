"""Semantics of reductions and scans, with the exact order of sums."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wis.reference.access import Array

LANES: Final = 32

_FOLDS: Final[dict[str, tuple[np.ufunc, int]]] = {"sum": (np.add, 0), "prod": (np.multiply, 1)}
_EXTREMES: Final[dict[str, Any]] = {"reduce_max": np.max, "reduce_min": np.min}


def fold(name: str, x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` reduced to ``shape`` (same rank; size 1 where reduced), in the type of ``x``."""
    axes = tuple(d for d, (have, want) in enumerate(zip(x.shape, shape, strict=True)) if have != want)
    if name in _EXTREMES:
        return np.asarray(_EXTREMES[name](x, axis=axes, keepdims=True))
    ufunc, start = _FOLDS[name]
    return _lanes(ufunc, start, x, axes).reshape(shape)


def _lanes(ufunc: np.ufunc, start: int, x: Array, axes: tuple[int, ...]) -> Array:
    """Lane l folds elements l, l + 32, ... of the reduced index space in order, from ``start``; then l with l + 16, l + 8, ..., l + 1.

    The reduced dimensions go first or last, whichever keeps memory order; the arithmetic is the same.
    """
    kept = tuple(d for d in range(x.ndim) if d not in axes)
    n = int(np.prod([x.shape[d] for d in axes], dtype=np.int64))
    outer = int(np.prod([x.shape[d] for d in kept], dtype=np.int64))
    rows = -(-n // LANES)
    last = bool(axes) and min(axes, key=lambda d: abs(x.strides[d])) == min(range(x.ndim), key=lambda d: abs(x.strides[d]))
    if last:
        lanes = _padded(x.transpose(kept + axes).reshape(outer, n), n, rows, start, axis=1).reshape(outer, rows, LANES)
        acc = np.moveaxis(_sequential(ufunc, lanes, start, axis=1), 1, 0)
    else:
        lanes = _padded(x.transpose(axes + kept).reshape(n, outer), n, rows, start, axis=0).reshape(rows, LANES, outer)
        acc = _sequential(ufunc, lanes, start, axis=0)
    for half in (16, 8, 4, 2, 1):
        acc = ufunc(acc[:half], acc[half : 2 * half])
    return np.asarray(acc[0])


def _padded(x: Array, n: int, rows: int, start: int, axis: int) -> Array:
    if n == rows * LANES:
        return x
    widths = [(0, 0), (0, 0)]
    widths[axis] = (0, rows * LANES - n)
    return np.pad(x, widths, constant_values=start)


def _sequential(ufunc: np.ufunc, lanes: Array, start: int, axis: int) -> Array:
    """Fold rows one after the other: NumPy adds along an axis that is not the innermost in order (it pairs only along the innermost)."""
    first = np.asarray(start, lanes.dtype)
    if lanes.shape[axis] == 0:
        return np.full(lanes.shape[:axis] + lanes.shape[axis + 1 :], first)
    if lanes.shape[-1] == 1:  # a size-1 innermost axis would be merged away and the fold would become the innermost one
        folded = np.take(ufunc.accumulate(lanes, axis=axis, dtype=lanes.dtype), -1, axis)
    else:
        folded = ufunc.reduce(lanes, axis=axis, dtype=lanes.dtype)
    return np.asarray(ufunc(first, folded))  # 0 + -0 is 0: the fold starts from ``start``


def arg(name: str, x: Array, dim: int) -> Array:
    """First index of the extreme along ``dim``, which stays with size 1; the first NaN wins."""
    f = np.argmax if name == "argmax" else np.argmin
    return np.asarray(f(x, axis=dim, keepdims=True))


def accumulate(name: str, x: Array, dim: int) -> Array:
    """Running sum or product along ``dim``, one element after the other."""
    ufunc = np.add if name == "cumsum" else np.multiply
    return np.asarray(ufunc.accumulate(x, axis=dim, dtype=x.dtype))


def running_extreme(name: str, x: Array, dim: int) -> tuple[Array, Array]:
    """Running greatest or least along ``dim`` and the last index where it was met; from the first NaN on, NaN and its last index."""
    ufunc = np.maximum if name == "cummax" else np.minimum
    best = ufunc.accumulate(x, axis=dim)
    hit = x == best
    if x.dtype.kind == "f":
        hit |= np.isnan(x)
    steps = np.arange(x.shape[dim], dtype=np.int64).reshape([-1 if d == dim else 1 for d in range(x.ndim)])
    index = np.maximum.accumulate(np.where(hit, steps, 0), axis=dim)
    return np.take_along_axis(x, index, axis=dim), index
