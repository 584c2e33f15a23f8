"""Semantics of matmul and of convolution with its two gradients.

The order of these sums is not part of the definition: back ends agree within the tolerance of the type.
"""

from __future__ import annotations

import numpy as np

from wis.reference.access import Array
from wis.windows import Window

__all__ = ["matmul", "conv", "conv_dx", "conv_dw"]


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
