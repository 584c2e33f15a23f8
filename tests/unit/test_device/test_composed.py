"""Sums of flags, losses, distances, segments, pooling and resampling: cases that torch's operator database leaves out, against the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.unit.test_device.test_special import check

_aten = torch.ops.aten


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` and the gradient of a weighted sum of its (first) result by its first argument."""

    def call(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        x = x.detach().requires_grad_()
        y = function(x, *args, **kwargs)
        y = y[0] if isinstance(y, tuple) else y
        weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape).to(y.device)
        return y.detach(), *torch.autograd.grad((y * weights).sum(), x)

    return call


@pytest.mark.parametrize("include_self", [True, False])
def test_bools_that_are_added_or_multiplied_by_index(include_self: bool) -> None:
    torch.manual_seed(0)
    x, source, index = torch.rand(5, 4) > 0.5, torch.rand(7, 4) > 0.6, torch.randint(0, 5, (7, 4))
    for reduce in ("sum", "prod", "amax", "amin"):
        check(torch.scatter_reduce, x, 0, index, source, reduce, include_self=include_self)
    check(torch.scatter_add, x, 0, index, source)
    for alpha in (True, False, 2):
        check(torch.index_add, x, 0, index[:, 0], source, alpha=alpha)
    check(torch.index_put, x, (index[:, 0],), source, accumulate=True)
    check(torch.index_put, x, (source[:5],), torch.tensor(True), accumulate=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_multilabel_margin_loss(reduction: str) -> None:
    torch.manual_seed(0)
    x, target = torch.randn(3, 5), torch.tensor([[1, 2, -1, 0, 3], [-1, 1, 1, 1, 1], [4, 4, 0, 1, 2]])
    check(with_gradient(F.multilabel_margin_loss), x, target, reduction=reduction)
    check(with_gradient(F.multilabel_margin_loss), x[0], target[0], reduction=reduction)
    check(_aten.multilabel_margin_loss_forward, x, target, 1)


@pytest.mark.parametrize("p", [1, 2])
def test_the_gradient_of_multi_margin_loss(p: int) -> None:
    torch.manual_seed(0)
    for weight in (None, torch.rand(5)):
        check(with_gradient(F.multi_margin_loss), torch.randn(3, 5), torch.tensor([0, 4, 2]), p=p, weight=weight)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_pdist(p: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    x[2], x[3, 1] = x[1], x[1, 1]
    check(with_gradient(F.pdist), x, p)
    for empty in (x[:1], x[:0], x[:, :0]):
        check(F.pdist, empty, p)


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segment_reduce(reduce: str, initial: float | None) -> None:
    """With empty segments, and with zeros and NaN in segments."""
    torch.manual_seed(0)
    x = torch.randn(7, 3)
    x[1, 0] = x[2, 1] = x[3, 1] = 0
    x[5, 2], x[6, 1] = math.nan, x[5, 1]
    check(with_gradient(torch.segment_reduce), x, reduce, lengths=torch.tensor([2, 0, 3, 2]), initial=initial)
    check(with_gradient(torch.segment_reduce), x, reduce, offsets=torch.tensor([0, 2, 2, 5, 7]), initial=initial)
    lengths = torch.tensor([[2, 0, 3, 2], [7, 0, 0, 0], [1, 2, 3, 1]])
    check(with_gradient(torch.segment_reduce), x.t().contiguous(), reduce, lengths=lengths, axis=1, initial=initial)
    check(torch.segment_reduce, x, reduce, lengths=torch.tensor([2, 1]), unsafe=True, initial=initial)


@pytest.mark.parametrize("lengths", [[2, 1], [8, -1]])
def test_lengths_that_do_not_fit_are_refused(lengths: list[int]) -> None:
    with pytest.raises(RuntimeError, match="lengths"):
        torch.segment_reduce(torch.ones(7, device="cuda"), "sum", lengths=torch.tensor(lengths, device="cuda"))


@pytest.mark.parametrize("output", [(4, 5, 3), (1, 1, 1), (5, 6, 4)])
def test_fractional_max_pool(output: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, samples = torch.randn(2, 3, 7, 9, 6), torch.rand(2, 3, 3)
    check(with_gradient(_aten.fractional_max_pool3d.default), x, [2, 3, 2], output, samples)
    check(_aten.fractional_max_pool3d.default, x[0], [2, 3, 2], output, samples[:1])
    check(with_gradient(_aten.fractional_max_pool2d.default), x[..., 0], [2, 3], output[:2], samples[..., :2])
    check(_aten.fractional_max_pool2d.default, x[0, ..., 0], [2, 3], output[:2], samples[:1, :, :2])


def test_windows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RuntimeError, match="too large"):
        _aten.fractional_max_pool2d(torch.ones(1, 1, 4, 4, device="cuda"), [3, 3], [4, 4], torch.ones(1, 1, 2, device="cuda"))


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("size", [(3, 4), (9, 12), (7, 9), (1, 1), (20, 2)])
def test_resizing_with_a_filter(size: tuple[int, int], align_corners: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 9)
    resize = _aten._upsample_bilinear2d_aa.default
    check(with_gradient(resize), x, size, align_corners)
    check(resize, x.contiguous(memory_format=torch.channels_last), size, align_corners)
    check(resize, x.double(), (3, 4), align_corners, 0.5, 0.45)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_the_gradients_of_grid_sample(mode: str, padding_mode: str, align_corners: bool) -> None:
    """At borders, on elements, far outside, and in images one element high."""

    def gradients(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, grid = x.detach().requires_grad_(), grid.detach().requires_grad_()
        y = F.grid_sample(x, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners)
        weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape).to(y.device)
        return torch.autograd.grad((y * weights).sum(), (x, grid))

    torch.manual_seed(0)
    x, grid = torch.randn(2, 3, 5, 6, dtype=torch.float64), torch.randn(2, 4, 7, 2, dtype=torch.float64) * 1.2
    grid[0, 0, :, 0] = grid[0, 1, :, 1] = torch.tensor([-1.0, 1.0, 0.0, -3.0, 3.0, 0.5, 2.0])
    grid[1, 1, 1, 1] = 1e5
    check(gradients, x, grid)
    check(gradients, x[:, :, :1], grid)
    if mode != "bicubic":
        check(gradients, torch.randn(2, 3, 4, 5, 6), torch.randn(2, 4, 3, 2, 3) * 1.2)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex_numbers_with_halves_as_parts() -> None:
    x = torch.complex(torch.arange(6.0), -torch.arange(6.0)).reshape(2, 3).to(torch.complex32)
    for number in (2 + 1j, 3, True):
        check(torch.full_like, x, number)
    check(torch.full_like, torch.ones(2), 1 + 2j, dtype=torch.complex32)
    for given in (x, x.t(), x[:, 1:]):
        check(torch.clone, given)
        check(lambda x: x.conj().clone(), given)
    for dim in (0, 1, -1):
        check(torch.cat, [x, x, x], dim)
    check(lambda x: torch.cat([x.conj(), x]), x)


def test_uniform_complex_numbers() -> None:
    x = torch.empty(1000, dtype=torch.complex64, device="cuda").uniform_(2, 3).cpu()
    for part in (x.real, x.imag):
        assert part.min() >= 2 and part.max() < 3 and part.std() > 0.2
    assert not torch.equal(x.real, x.imag)
