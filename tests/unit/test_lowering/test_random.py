"""Random lowerings: where their numbers lie, how they are spread, and that every use takes new ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.support.lowering_run import run_lowering

N = 20_000


def draw(name: str, args: tuple[Any, ...], like: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    (result,) = run_lowering(f"aten::{name}", args, {}, [torch.empty(N) if like is None else like], **options)
    assert result is not None
    return result


def test_uniform_fills_its_interval() -> None:
    x = draw("uniform", (torch.empty(N), -2.0, 6.0))
    assert -2 <= x.min() < -1.99 and 5.99 < x.max() <= 6
    assert abs(x.mean() - 2) < 0.05 and abs(x.std() - 8 / math.sqrt(12)) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_rand_stays_below_one(dtype: torch.dtype) -> None:
    x = draw("rand", ([N],), torch.empty(N, dtype=dtype))
    assert x.dtype is dtype and x.min() >= 0 and x.max() < 1 and abs(x.float().mean() - 0.5) < 0.02


@pytest.mark.parametrize(
    ("name", "args", "mean", "std"),
    [
        ("randn", ([N],), 0.0, 1.0),
        ("normal.float_float", (3.0, 2.0, [N]), 3.0, 2.0),
        ("normal_functional", (torch.empty(N), 3.0, 2.0), 3.0, 2.0),
        ("exponential", (torch.empty(N), 2.0), 0.5, 0.5),
        ("geometric", (torch.empty(N), 0.25), 4.0, math.sqrt(0.75) / 0.25),
        ("log_normal", (torch.empty(N), 0.0, 0.25), math.exp(0.03125), math.exp(0.03125) * math.sqrt(math.exp(0.0625) - 1)),
        ("bernoulli.p", (torch.empty(N), 0.3), 0.3, math.sqrt(0.21)),
        ("bernoulli", (torch.full((N,), 0.3),), 0.3, math.sqrt(0.21)),
    ],
)
def test_mean_and_spread(name: str, args: tuple[Any, ...], mean: float, std: float) -> None:
    x = draw(name, args)
    assert abs(x.mean() - mean) < 6 * std / math.sqrt(N)
    assert abs(x.std() - std) < 0.05 * std + 0.01


def test_normal_takes_tensors_of_parameters() -> None:
    mean, std = torch.tensor([0.0, 100.0]).repeat(N // 2), torch.tensor([1.0, 0.0]).repeat(N // 2)
    x = draw("normal.Tensor_Tensor", (mean, std))
    assert (x[1::2] == 100).all() and abs(x[::2].std() - 1) < 0.05


def test_exponential_is_never_zero() -> None:
    """A zero would make the choice of a sampled token divide by zero."""
    assert draw("exponential", (torch.empty(N), 1.0)).min() > 0


def test_complex_normal_has_variance_one() -> None:
    x = draw("randn", ([N],), torch.empty(N, dtype=torch.complex64))
    assert abs(x.abs().pow(2).mean() - 1) < 0.05 and abs(x.mean()) < 0.05


@pytest.mark.parametrize(("name", "args"), [("randint.low", (-3, 4, [N])), ("random.from", (torch.empty(N, dtype=torch.int64), -3, 4))])
def test_integers_take_every_value_alike(name: str, args: tuple[Any, ...]) -> None:
    x = draw(name, args, torch.empty(N, dtype=torch.int64))
    counts = torch.bincount(x + 3)
    assert counts.numel() == 7 and counts.min() > 0.9 * N / 7


def test_random_without_bounds_fills_the_type() -> None:
    assert draw("random", (torch.empty(N, dtype=torch.uint8),), torch.empty(N, dtype=torch.uint8)).unique().numel() == 256
    x = draw("random", (torch.empty(N, dtype=torch.int64),), torch.empty(N, dtype=torch.int64))
    assert x.min() >= 0 and x.max() > 1 << 62


def test_randperm_is_a_permutation_but_not_the_identity() -> None:
    x = draw("randperm", (100,), torch.empty(100, dtype=torch.int64))
    assert x.sort().values.tolist() == list(range(100)) and x.tolist() != list(range(100))


def test_dropout_keeps_its_mask_and_scale() -> None:
    y, mask = run_lowering("aten::native_dropout", (torch.ones(N), 0.25, True), {}, [torch.empty(N), torch.empty(N, dtype=torch.bool)])
    assert y is not None and mask is not None
    assert abs(mask.float().mean() - 0.75) < 0.02
    assert torch.equal(y, mask / 0.75)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything(p: float) -> None:
    y, mask = run_lowering("aten::native_dropout", (torch.ones(8), p, True), {}, [torch.empty(8), torch.empty(8, dtype=torch.bool)])
    assert y is not None and mask is not None
    assert y.tolist() == [1.0 - p] * 8 and mask.tolist() == [p == 0.0] * 8


def test_multinomial_follows_its_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0])
    x = draw("multinomial", (weights, N, True), torch.empty(N, dtype=torch.int64))
    counts = torch.bincount(x, minlength=4)
    assert counts[0] == counts[3] == 0 and abs(counts[2] / N - 0.75) < 0.02


def test_multinomial_without_replacement_takes_each_once() -> None:
    x = draw("multinomial", (torch.rand(50, 6), 6), torch.empty(50, 6, dtype=torch.int64))
    assert (x.sort(1).values == torch.arange(6)).all()


def test_a_later_offset_gives_other_numbers_and_the_same_offset_the_same() -> None:
    first, again, later = (draw("rand", ([N],), offset=offset) for offset in (0, 0, N // 4))
    assert torch.equal(first, again) and not (first == later).any()
