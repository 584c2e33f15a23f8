"""conv and its two gradients against a sum over window points in f64."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from wis.dtypes import DType

# name, n, c, o, sizes, window, groups, stride, pad, dilation
CASES: list[Any] = [
    ("plain", 2, 3, 4, (7, 9), (3, 3), 1, (1, 1), (1, 1), (1, 1)),
    ("many small images", 40, 3, 8, (4, 4), (3, 3), 1, (1, 1), (1, 1), (1, 1)),
    ("whole planes, dilated", 9, 4, 6, (7, 5), (3, 3), 2, (1, 1), (2, 2), (2, 2)),
    ("whole planes, wide window", 3, 2, 5, (6, 9), (3, 5), 1, (1, 1), (0, 2), (1, 1)),
    ("strided", 2, 4, 6, (9, 20), (3, 3), 1, (2, 3), (1, 2), (1, 1)),
    ("dilated groups", 3, 4, 6, (9, 11), (2, 3), 2, (1, 1), (2, 0), (2, 3)),
    ("depthwise", 2, 6, 6, (8, 19), (3, 3), 6, (1, 1), (1, 1), (1, 1)),
    ("depthwise multiplier", 2, 3, 6, (8, 19), (3, 3), 3, (2, 1), (1, 1), (1, 1)),
    ("point", 2, 5, 7, (8, 9), (1, 1), 1, (1, 1), (0, 0), (1, 1)),
    ("point groups", 2, 4, 6, (8, 9), (1, 1), 2, (1, 1), (0, 0), (1, 1)),
    ("small point", 3, 5, 7, (2, 3), (1, 1), 1, (1, 1), (0, 0), (1, 1)),
    ("strided point", 3, 5, 7, (5, 6), (1, 1), 1, (2, 2), (0, 0), (1, 1)),
    ("padded point", 3, 5, 7, (5, 6), (1, 1), 1, (1, 1), (1, 1), (1, 1)),
    ("line", 3, 4, 5, (33,), (5,), 1, (2,), (2,), (1,)),
    ("line wider than a vector", 2, 1, 2, (70,), (3,), 1, (1,), (1,), (1,)),
    ("line in pieces", 2, 150, 3, (6000,), (5,), 1, (2,), (2,), (1,)),
    ("volume", 2, 2, 3, (4, 5, 6), (2, 3, 2), 1, (1, 2, 1), (1, 1, 0), (1, 1, 2)),
    ("window past the edge", 1, 2, 2, (3, 3), (5, 5), 1, (1, 1), (4, 4), (1, 1)),
    ("one filter", 2, 3, 1, (6, 6), (3, 3), 1, (1, 1), (0, 0), (1, 1)),
    ("rows in several tiles", 2, 64, 4, (40, 40), (3, 3), 1, (1, 1), (1, 1), (1, 1)),
    ("rows in several tiles, strided", 1, 64, 4, (80, 40), (3, 3), 1, (2, 1), (1, 1), (1, 1)),
]
TOLERANCE = {DType.F32: 3e-5, DType.F64: 1e-12, DType.F16: 3e-3, DType.BF16: 2e-2}


def windows(x: Any, w_shape: Any, t: Any, stride: Any, pad: Any, dilation: Any) -> Any:
    """(window point, the slice of the padded input that the outputs see there)."""
    for point in product(*(range(k) for k in w_shape[2:])):
        yield point, tuple(slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, n, s in zip(point, dilation, t, stride, strict=True))


class Case:
    def __init__(self, rng: Any, case: Any, dtype: DType) -> None:
        _, n, c, o, size, k, groups, stride, pad, dilation = case
        self.groups, self.stride, self.pad, self.dilation = groups, stride, pad, dilation
        t = tuple((s + 2 * p - d * (w - 1) - 1) // st + 1 for s, p, d, w, st in zip(size, pad, dilation, k, stride, strict=True))
        self.x = rng.standard_normal((n, c, *size)).astype(dtype.numpy)
        self.w = rng.standard_normal((o, c // groups, *k)).astype(dtype.numpy)
        self.dy = rng.standard_normal((n, o, *t)).astype(dtype.numpy)
        self.attrs = [groups, *stride, *pad, *dilation]
        self.y, self.dx, self.dw = self._reference()

    def _reference(self) -> Any:
        g, (n, o, *t) = self.groups, self.dy.shape
        c = self.x.shape[1]
        x = np.pad(self.x.astype(np.float64), [(0, 0), (0, 0), *((p, p) for p in self.pad)])
        w = self.w.astype(np.float64).reshape(g, o // g, c // g, *self.w.shape[2:])
        dy = self.dy.astype(np.float64).reshape(n, g, o // g, *t)
        y, dx, dw = np.zeros((n, g, o // g, *t)), np.zeros_like(x), np.zeros_like(w)
        xs, dxs = x.reshape(n, g, c // g, *x.shape[2:]), dx.reshape(n, g, c // g, *x.shape[2:])
        for point, at in windows(x, self.w.shape, t, self.stride, self.pad, self.dilation):
            seen, weight = xs[(slice(None),) * 3 + at], w[(slice(None),) * 3 + point]
            y += np.einsum("ngc...,goc->ngo...", seen, weight)
            dxs[(slice(None),) * 3 + at] += np.einsum("ngo...,goc->ngc...", dy, weight)
            dw[(slice(None),) * 3 + point] += np.einsum("ngox,ngcx->goc", dy.reshape(*dy.shape[:3], -1), seen.reshape(*seen.shape[:3], -1))
        inner = (slice(None), slice(None), *(slice(p, s - p) for p, s in zip(self.pad, x.shape[2:], strict=True)))
        return y.reshape(self.dy.shape), dx[inner], dw.reshape(self.w.shape)


def close(got: Any, want: Any, dtype: DType) -> None:
    assert np.abs(got.astype(np.float64) - want).max() <= TOLERANCE[dtype] * (np.abs(want).max() + 1)


def channels_last(array: Any) -> list[int]:
    return [0, *range(2, array.ndim), 1]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_all_three(bench: Any, case: Any, last: bool) -> None:
    c = Case(bench.rng, case, DType.F32)

    def place(array: Any) -> Any:
        return bench.dense(array, channels_last(array) if last else None, offset=2)

    def room(array: Any) -> Any:
        return bench.like(array.shape, DType.F32, channels_last(array) if last else None)

    x, w, dy = place(c.x), place(c.w), place(c.dy)
    close(bench.run("conv", [room(c.y)], [x, w], c.attrs)[0], c.y, DType.F32)
    close(bench.run("conv_dx", [room(c.x)], [dy, w], c.attrs)[0], c.dx, DType.F32)
    close(bench.run("conv_dw", [room(c.w)], [dy, x], c.attrs)[0], c.dw, DType.F32)


@pytest.mark.parametrize("dtype", [DType.F64, DType.F16, DType.BF16])
@pytest.mark.parametrize("case", CASES[1:9], ids=[case[0] for case in CASES[1:9]])
def test_types(bench: Any, case: Any, dtype: DType) -> None:
    c = Case(bench.rng, case, dtype)
    x, w, dy = bench.dense(c.x), bench.dense(c.w), bench.dense(c.dy)
    close(bench.run("conv", [bench.like(c.y.shape, dtype)], [x, w], c.attrs)[0], c.y, dtype)
    close(bench.run("conv_dx", [bench.like(c.x.shape, dtype)], [dy, w], c.attrs)[0], c.dx, dtype)
    close(bench.run("conv_dw", [bench.like(c.w.shape, dtype)], [dy, x], c.attrs)[0], c.dw, dtype)


def test_gradient_larger_than_the_windows_reach(bench: Any) -> None:
    """Transposed convolution with output padding: rows that no window touches are 0."""
    dy = bench.rng.standard_normal((2, 3, 4, 4)).astype(np.float32)
    w = bench.rng.standard_normal((3, 2, 2, 2)).astype(np.float32)
    [got] = bench.run("conv_dx", [bench.like((2, 2, 12, 12), DType.F32)], [bench.dense(dy), bench.dense(w)], [1, 3, 3, 0, 0, 1, 1])
    want = np.zeros((2, 2, 12, 12))
    for i, j in product(range(2), range(2)):
        want[:, :, i : i + 10 : 3, j : j + 10 : 3] += np.einsum("nohw,oc->nchw", dy, w[:, :, i, j])
    close(got, want, DType.F32)


@pytest.mark.parametrize("stride", [1 << 28, 1 << 30, (1 << 31) - 1])
def test_long_strides(bench: Any, stride: int) -> None:
    """Lanes behind the last output lie gigabytes away, and read nothing."""
    x, w = bench.rng.standard_normal((1, 2, 8)).astype(np.float32), bench.rng.standard_normal((2, 1, 1)).astype(np.float32)
    [got] = bench.run("conv", [bench.like((1, 2, 1), DType.F32)], [bench.dense(x), bench.dense(w)], [2, stride, 0, 1])
    close(got, x[:, :, :1] * w[:, 0], DType.F32)


def test_no_images(bench: Any) -> None:
    x, w = np.zeros((0, 2, 5, 5), np.float32), np.ones((3, 2, 3, 3), np.float32)
    dy = np.zeros((0, 3, 3, 3), np.float32)
    attrs = [1, 1, 1, 0, 0, 1, 1]
    assert bench.run("conv", [bench.like((0, 3, 3, 3), DType.F32)], [bench.dense(x), bench.dense(w)], attrs)[0].size == 0
    [dw] = bench.run("conv_dw", [bench.like(w.shape, DType.F32)], [bench.dense(dy), bench.dense(x)], attrs)
    assert not dw.any()
