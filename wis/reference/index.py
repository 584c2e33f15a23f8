"""Semantics of indexing and ordering. Index values outside of a dimension: loads give 0, stores are dropped, the trap is reported.

Functions that may trap return the result and the key of its first trap within the instruction (``wis.traps``; NO_TRAP when there was none).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from wis.ops import ScatterMode
from wis.reference.access import Array
from wis.traps import NO_TRAP, index_key

_MODES: Final[dict[ScatterMode, np.ufunc]] = {
    ScatterMode.ADD: np.add,
    ScatterMode.MUL: np.multiply,
    ScatterMode.MAX: np.maximum,
    ScatterMode.MIN: np.minimum,
}


def _resolve(index: Array, size: int) -> tuple[Array, Array]:
    """Positions in 0..size-1 (0 where the index is outside) and where the index was inside. Only a signed index counts from the end."""
    signed = index.astype(np.int64)
    position = np.where(signed < 0, signed + size, signed) if index.dtype == np.int64 else signed
    inside = (position >= 0) & (position < size)
    return np.where(inside, position, 0), inside


def _trap(indices: Sequence[Array], shape: Sequence[int], dims: Sequence[int]) -> int:
    """The key of the first trap of ``indices``, which choose along ``dims`` of ``shape``."""
    for index, dim in zip(indices, dims, strict=True):
        outside = index[~_resolve(index, shape[dim])[1]]
        if outside.size:
            return index_key(dim, int(outside.astype(np.int64).min()))
    return NO_TRAP


def gather(x: Array, index: Array, dim: int) -> tuple[Array, int]:
    position, inside = _resolve(index, x.shape[dim])
    trap = _trap([index], x.shape, [dim])
    if x.shape[dim] == 0:
        return np.zeros(index.shape, x.dtype), trap
    x = x[tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(index.shape))]
    result = np.take_along_axis(x, position, axis=dim)
    return (result if inside.all() else np.where(inside, result, np.zeros((), x.dtype))), trap


def _flat(shape: tuple[int, ...], coordinates: Sequence[Array], inside: Array) -> Array:
    """Row-major positions, one for every element of ``inside`` (all coordinates broadcast to it)."""
    flat = np.zeros(inside.shape, np.int64)
    for size, line in zip(shape, coordinates, strict=True):
        flat = flat * size + line
    return flat


def _write(out: Array, flat: Array, src: Array, inside: Array, mode: ScatterMode) -> Array:
    """A copy of ``out`` with ``src`` stored at ``flat`` in row-major order of ``flat``."""
    result = np.array(out, order="C")
    line = result.reshape(-1)
    src = np.broadcast_to(src.astype(out.dtype), flat.shape)
    if not inside.all():
        flat, src = flat[inside], src[inside]
    else:
        flat, src = flat.reshape(-1), src.reshape(-1)
    if mode is ScatterMode.SET:
        line[flat] = src  # a position named twice keeps the last value
    else:
        _MODES[mode].at(line, flat, src)
    return result


def scatter(out: Array, src: Array, index: Array, dim: int, mode: ScatterMode) -> tuple[Array, int]:
    position, inside = _resolve(index, out.shape[dim])
    grid = [
        position if d == dim else np.arange(n, dtype=np.int64).reshape([-1 if e == d else 1 for e in range(index.ndim)])
        for d, n in enumerate(index.shape)
    ]
    flat = _flat(out.shape, grid, inside)
    return _write(out, flat, src, inside, mode), _trap([index], out.shape, [dim])


def _resolve_all(shape: tuple[int, ...], indices: Sequence[Array]) -> tuple[list[Array], Array]:
    positions = []
    inside = np.ones(indices[0].shape, np.bool_)
    for size, index in zip(shape, indices, strict=False):
        position, ok = _resolve(index, size)
        positions.append(position)
        inside &= ok
    return positions, inside


def take(x: Array, indices: Sequence[Array]) -> tuple[Array, int]:
    """out[S, rest] = x[indices..., rest]."""
    positions, inside = _resolve_all(x.shape, indices)
    trap = _trap(indices, x.shape, range(len(indices)))
    rest = x.shape[len(indices) :]
    if 0 in x.shape:
        return np.zeros((*inside.shape, *rest), x.dtype), trap
    result = x[tuple(positions)]
    if not inside.all():
        result = np.where(inside.reshape(inside.shape + (1,) * len(rest)), result, np.zeros((), x.dtype))
    return np.asarray(result), trap


def put(out: Array, src: Array, indices: Sequence[Array], mode: ScatterMode) -> tuple[Array, int]:
    """out[indices..., rest] = or op= src [S, rest]."""
    positions, inside = _resolve_all(out.shape, indices)
    k = len(indices)
    rest = out.shape[k:]
    n_rest = int(np.prod(rest, dtype=np.int64))
    rows = _flat(out.shape[:k], positions, inside).reshape(*inside.shape, 1)
    flat = rows * n_rest + np.arange(n_rest, dtype=np.int64)
    wide = np.broadcast_to(inside.reshape(*inside.shape, 1), flat.shape)
    return _write(out, flat, src.reshape(flat.shape), wide, mode), _trap(indices, out.shape, range(k))


def _order(x: Array, dim: int, descending: bool) -> Array:
    """Indices that sort stably along ``dim``; NaN is greatest."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    # Sorting the reversed line upwards and reversing the result keeps equal elements in their first order.
    backwards = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return np.asarray(x.shape[dim] - 1 - np.flip(backwards, dim))


def sort(x: Array, dim: int, descending: bool) -> tuple[Array, Array]:
    order = _order(x, dim, descending)
    return np.take_along_axis(x, order, axis=dim), order


def top(x: Array, dim: int, largest: bool, k: int) -> tuple[Array, Array]:
    order = _order(x, dim, largest)[tuple(slice(k) if d == dim else slice(None) for d in range(x.ndim))]
    return np.take_along_axis(x, order, axis=dim), order


def search_sorted(line: Array, values: Array, right: bool) -> Array:
    """First position where value <= line (or < line when ``right``); a NaN value is greater than everything."""
    n = line.shape[-1]
    low = np.zeros(values.shape, np.int64)
    high = np.full(values.shape, n, np.int64)
    for _ in range(n.bit_length()):
        middle = (low + high) // 2
        at = np.take_along_axis(line, np.minimum(middle, n - 1), axis=-1)
        open_ = low < high
        go_on = open_ & (~(at > values) if right else ~(at >= values))
        low, high = np.where(go_on, middle + 1, low), np.where(open_ & ~go_on, middle, high)
    return low


def nonzero(x: Array) -> tuple[Array, Array]:
    """Rows of indices in row-major order, filled up with zero rows to [numel, rank], and their count [1]."""
    rows = np.zeros((x.size, x.ndim), np.int64)
    found = np.argwhere(x) if x.ndim else np.zeros((int(bool(x)), 0), np.int64)
    rows[: len(found)] = found
    return rows, np.array([len(found)], np.int64)
