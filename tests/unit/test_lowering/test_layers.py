"""Layers whose options the operator database samples too thinly: every option, forward and backward, call by call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.support.lowering_run import Mirror

torch.set_num_threads(1)


def check(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    """Value and gradients of ``function`` under a mirror; every call must have a lowering and agree with torch."""
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    mode = Mirror()
    with mode:
        y = function(*leaves)
        if y.requires_grad:
            torch.autograd.grad(y, [x for x in leaves if x.requires_grad], torch.rand_like(y), allow_unused=True)
    assert mode.wrong == []
    assert not mode.missing


@pytest.mark.parametrize("size", [{"size": (5, 3)}, {"scale_factor": 2.0}, {"scale_factor": 0.6}, {"size": (1, 9)}], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "area", "bilinear", "bicubic"])
def test_resizing(mode: str, size: dict[str, Any]) -> None:
    check(lambda x: F.interpolate(x, mode=mode, **size), torch.randn(2, 3, 4, 6))


@pytest.mark.parametrize(
    ("mode", "shape"), [("linear", (1, 2, 5)), ("bilinear", (1, 2, 5, 4)), ("trilinear", (1, 2, 3, 4, 5)), ("bicubic", (1, 2, 5, 4))]
)
def test_resizing_with_aligned_corners(mode: str, shape: tuple[int, ...]) -> None:
    check(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode, align_corners=True), torch.randn(shape))


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resizing_in_double_precision(mode: str, align_corners: bool) -> None:
    """Positions and weights are as precise as the image."""
    check(lambda x: F.interpolate(x, (7, 11), mode=mode, align_corners=align_corners), torch.randn(1, 2, 5, 6, dtype=torch.float64))


@pytest.mark.parametrize("pad", [(1, 2), (0, 3, 2, 0), (2, 1, 0, 0), (-1, 2, 1, -1)], ids=str)
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_padding(mode: str, pad: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, 5) if len(pad) == 2 else torch.randn(2, 3, 5, 6)
    check(lambda x: F.pad(x, pad, mode=mode), x)


@pytest.mark.parametrize(
    "options", [{}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"stride": 3, "padding": 1, "ceil_mode": True}], ids=str
)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pooling(rank: int, options: dict[str, Any]) -> None:
    x = torch.randn(2, 3, *(7, 6, 5)[:rank])
    check(lambda x: getattr(F, f"max_pool{rank}d")(x, 2, **options), x)
    check(lambda x: getattr(F, f"avg_pool{rank}d")(x, 2, **options, count_include_pad=False), x)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_adaptive_pooling(rank: int, count: int) -> None:
    x = torch.randn(2, 3, *(6, 7, 5)[:rank])
    check(lambda x: getattr(F, f"adaptive_avg_pool{rank}d")(x, count), x)
    if count**rank <= 64:
        check(lambda x: getattr(F, f"adaptive_max_pool{rank}d")(x, count), x)


@pytest.mark.parametrize(
    "options", [{}, {"stride": 2}, {"padding": 1, "stride": 2, "output_padding": 1}, {"groups": 2}, {"dilation": 2}], ids=str
)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolution(rank: int, options: dict[str, Any]) -> None:
    x, w = torch.randn(2, 4, *(4, 3, 5)[:rank]), torch.randn(4, 2, *(3, 2, 3)[:rank])
    bias = torch.randn(2 * options.get("groups", 1))
    check(lambda x, w, b: getattr(F, f"conv_transpose{rank}d")(x, w, b, **options), x, w, bias)


def test_output_padding_beyond_the_stride() -> None:
    """torch allows it where the dilation is larger: then the output reaches further than any window."""
    check(
        lambda x, w: F.conv_transpose2d(x, w, stride=1, dilation=3, padding=1, output_padding=2),
        torch.randn(1, 2, 4, 4),
        torch.randn(2, 3, 2, 2),
    )


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"groups": 2}, {"padding": "same"}], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution(rank: int, options: dict[str, Any]) -> None:
    x, w = torch.randn(2, 4, *(6, 7, 5)[:rank]), torch.randn(6, 4 // options.get("groups", 1), *(3, 3, 2)[:rank])
    check(lambda x, w, b: getattr(F, f"conv{rank}d")(x, w, b, **options), x, w, torch.randn(6))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 4}, {"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=str)
def test_embedding(options: dict[str, Any]) -> None:
    ids = torch.tensor([[1, 2, 4, 4], [4, 3, 2, 9]])
    if "max_norm" in options:
        with torch.no_grad():
            check(lambda w: F.embedding(ids, w, **options), torch.randn(10, 4))
    else:
        check(lambda w: F.embedding(ids, w, **options), torch.randn(10, 4))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 4}, {"include_last_offset": True}], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode: str, options: dict[str, Any]) -> None:
    """The second bag is empty."""
    ids = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])
    check(lambda w: F.embedding_bag(ids, w, torch.tensor([0, 4, 4, 6, 8][: 4 + len(options)]), mode=mode, **options), torch.randn(10, 4))


def test_weighted_bags() -> None:
    ids, offsets = torch.tensor([1, 2, 4, 5, 4]), torch.tensor([0, 2])
    check(lambda w, s: F.embedding_bag(ids, w, offsets, mode="sum", per_sample_weights=s), torch.randn(10, 4), torch.rand(5))


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 4), (2, 3, 4, 5)], ids=str)
def test_normalisation(shape: tuple[int, ...]) -> None:
    x, w, b = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])
    check(lambda x, w, b: F.layer_norm(x, shape[-1:], w, b), x, w, b)
    check(lambda x, w: F.rms_norm(x, shape[-1:], w), x, w)
    check(lambda x: F.layer_norm(x.transpose(0, 1), (shape[0],) if len(shape) == 2 else shape[2:]), x)
    if len(shape) > 2:
        check(lambda x: F.instance_norm(x), x)
    check(lambda x, m, v: F.batch_norm(x, m.detach(), v.detach().abs(), training=False), x, torch.randn(shape[1]), torch.rand(shape[1]))
    check(lambda x: F.batch_norm(x, None, None, training=True), x)


INDEXED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rows": lambda x, i: x[i],
    "columns": lambda x, i: x[:, i],
    "pairs": lambda x, i: x[i, i],
    "apart": lambda x, i: x[i, :, i],
    "broadcast": lambda x, i: x[i[:, None], i],
    "negative": lambda x, i: x[-1 - i],
    "mask": lambda x, i: x[x[:, 0, 0] > 0],
    "mask of all": lambda x, i: x[x > 0],
    "mask and index": lambda x, i: x[i[:2], x[0, :, 0] > -9],
    "slice and index": lambda x, i: x[1:, i, ::2],
}


@pytest.mark.parametrize("name", INDEXED)
def test_indexing(name: str) -> None:
    x = torch.randn(4, 4, 4)
    x[0, :2, 0] = torch.tensor([1.0, 1.0])
    i = torch.tensor([0, 3, 1, 1]) if name != "mask and index" else torch.tensor([[0], [2]])
    check(lambda x: INDEXED[name](x, i), x)


ASSIGNED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "rows": lambda x, i: x.__setitem__(i, 2.0),
    "rows by tensor": lambda x, i: x.__setitem__(i[1:3], torch.ones(2, 4, 4)),
    "mask by number": lambda x, i: x.__setitem__(x > 0, -1.0),
    "mask by tensor": lambda x, i: x.__setitem__(x > 0, torch.arange(float((x > 0).sum()))),
    "row mask by rows": lambda x, i: x.__setitem__(x[:, 0, 0] > -9, torch.randn(4, 1, 4)),
    "accumulate": lambda x, i: x.index_put_((i, i), torch.ones(4, 4), accumulate=True),
    "mask accumulate": lambda x, i: x.index_put_((x > 0,), torch.tensor(3.0), accumulate=True),
    "into a slice": lambda x, i: x[:, 1:].__setitem__((slice(None), i[:2] % 3), 5.0),
}


@pytest.mark.parametrize("name", ASSIGNED)
def test_assignment_by_index(name: str) -> None:
    x = torch.randn(4, 4, 4)

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.detach().clone()
        ASSIGNED[name](y, torch.tensor([0, 3, 1, 1]))
        return y

    check(run, x)
