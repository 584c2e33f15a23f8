"""Random numbers: own streams, the same numbers for the same script."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import wooly


def draws() -> list[torch.Tensor]:
    x = torch.ones(100, device="cuda")
    values = [torch.rand(5, device="cuda"), torch.randn(5, device="cuda"), F.dropout(x), torch.randint(0, 10, (5,), device="cuda")]
    values += [torch.empty(5, device="cuda").uniform_(2, 3), torch.bernoulli(x * 0.5), torch.randperm(6, device="cuda")]
    values += [torch.multinomial(x, 4), x.exponential_()]
    return [v.cpu() for v in values]


def test_a_seed_repeats_everything_and_another_does_not() -> None:
    torch.manual_seed(3)
    first = draws()
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(first, draws(), strict=True))
    torch.manual_seed(4)
    assert not any(torch.equal(a, b) for a, b in zip(first[:3], draws()[:3], strict=True))


def test_draws_follow_each_other() -> None:
    torch.manual_seed(5)
    a, b = torch.rand(8, device="cuda"), torch.rand(8, device="cuda")
    assert not torch.equal(a.cpu(), b.cpu())


def test_a_generator_has_its_own_stream() -> None:
    g, h = torch.Generator("cuda").manual_seed(1), torch.Generator("cuda").manual_seed(1)
    a = torch.rand(4, device="cuda", generator=g)
    torch.rand(4, device="cuda")
    assert torch.equal(a.cpu(), torch.rand(4, device="cuda", generator=h).cpu())
    assert not torch.equal(a.cpu(), torch.rand(4, device="cuda", generator=g).cpu())


@pytest.mark.parametrize(
    "call",
    [
        "uniform_(3, -1)", "normal_(0, -1)", "log_normal_(0, 0)", "exponential_(-1)", "cauchy_(0, -1)", "geometric_(1.5)",
        "bernoulli_(1.5)", "random_(4, 2)", "random_(0)",
    ],
)  # fmt: skip
def test_parameters_that_a_distribution_does_not_have(call: str) -> None:
    """Refused at the call in torch's words, also when the same call with good parameters was recorded before."""
    for device in ("cpu", "cuda"):
        x = torch.ones(4, device=device)
        good = [0.5] if call.startswith(("geometric", "bernoulli", "exponential")) else [1, 2]
        getattr(x, call.partition("(")[0])(*good)
        with pytest.raises(RuntimeError, match="expects"):
            eval(f"x.{call}", {"x": x})
    x = torch.ones(3, device="cuda")
    assert torch.normal(x, x, out=x.clone()).shape == (3,)
    with pytest.raises(RuntimeError, match="expects std"):
        torch.normal(x, -1.0)


def test_distributions_are_what_they_say() -> None:
    torch.manual_seed(0)
    uniform, normal = torch.rand(20000, device="cuda").cpu(), torch.randn(20000, device="cuda").cpu()
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01
    assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03
    kept = (F.dropout(torch.ones(20000, device="cuda"), 0.25) > 0).float().mean().item()
    assert abs(kept - 0.75) < 0.02


def test_a_mean_shifts_both_parts_of_complex_numbers() -> None:
    """As torch's CPU and CUDA kernels do where the mean is a number; a tensor of means is added as it is."""
    torch.manual_seed(0)
    z = torch.empty(20000, dtype=torch.complex64, device="cuda").normal_(-2, 0.5).cpu()
    made = torch.normal(-2.0, 0.5, (20000,), dtype=torch.complex64, device="cuda").cpu()
    added = torch.normal(torch.full((20000,), -2 + 1j, device="cuda"), 0.5).cpu()
    for part, mean in ((z.real, -2), (z.imag, -2), (made.real, -2), (made.imag, -2), (added.real, -2), (added.imag, 1)):
        assert abs(part.mean() - mean) < 0.02 and abs(part.std() - 0.5 / 2**0.5) < 0.02


_N = 4000


def _distance(values: torch.Tensor, cumulative: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Kolmogorov and Smirnov's statistic: the greatest distance of two cumulative distributions, in standard errors; above 2.2 with a
    chance of 1e-4."""
    places, counts = values.double().unique(return_counts=True)
    return float((counts.cumsum(0) / values.numel() - cumulative(places)).abs().max()) * values.numel() ** 0.5


def _drawn(function: Callable[..., torch.Tensor], *parameters: float, dtype: torch.dtype) -> torch.Tensor:
    """Draws on the device, after checks that a seed repeats them, that the next differ, and that none were made on the CPU."""
    before = dict(wooly.stats()["fallbacks"])
    given = [torch.full((_N,), p, dtype=dtype, device="cuda") for p in parameters]
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(function(*given).cpu())
    assert wooly.stats()["fallbacks"] == before
    assert torch.equal(results[0], results[1]) and (not torch.equal(results[0], results[2]) or results[0].unique().numel() == 1)
    assert results[0].dtype is dtype
    return results[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("order", [0.05, 0.5, 1.0, 3.0, 50.0, 1e4])
def test_gamma_draws(order: float, dtype: torch.dtype) -> None:
    x = _drawn(torch._standard_gamma, order, dtype=dtype)
    assert x.min() > 0
    assert _distance(x, lambda at: torch.special.gammainc(torch.tensor(order, dtype=torch.float64), at)) < 2.2


@pytest.mark.parametrize("rate", [0.1, 2.0, 9.99, 10.0, 30.0, 1e3, 1e7])
def test_poisson_draws(rate: float) -> None:
    x = _drawn(torch.poisson, rate, dtype=torch.float64)
    assert torch.equal(x, x.round()) and x.min() >= 0
    assert _distance(x, lambda at: torch.special.gammaincc(at + 1, torch.tensor(rate, dtype=torch.float64))) < 2.2


def test_what_poisson_draws_of_nothing_and_below() -> None:
    assert not _drawn(torch.poisson, 0.0, dtype=torch.float32).any()
    assert torch.poisson(torch.empty(0, 3, device="cuda")).shape == (0, 3)
    assert torch.poisson(torch.full((50,), 5.0, dtype=torch.bfloat16, device="cuda")).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("count", "chance"), [(1, 0.5), (10, 0.3), (10, 0.9), (100, 0.05), (100, 0.3), (100, 0.95), (1000, 0.999), (10**6, 0.2)]
)
def test_binomial_draws(count: int, chance: float) -> None:
    x = _drawn(torch.binomial, float(count), chance, dtype=torch.float64)
    k = torch.arange(count + 1, dtype=torch.float64)
    ways = torch.lgamma(torch.tensor(count + 1.0, dtype=torch.float64)) - torch.lgamma(k + 1) - torch.lgamma(count - k + 1)
    cumulative = (ways + k * math.log(chance) + (count - k) * math.log1p(-chance)).exp().cumsum(0)
    assert torch.equal(x, x.round()) and 0 <= x.min() and x.max() <= count
    assert _distance(x, lambda at: cumulative[at.long()]) < 2.2


def test_what_is_certain_of_binomial_draws() -> None:
    for count, chance, expected in ((0.0, 0.3, 0.0), (-1.0, 0.3, 0.0), (5.0, 0.0, 0.0), (5.0, 1.0, 5.0)):
        assert (_drawn(torch.binomial, count, chance, dtype=torch.float32) == expected).all()
    assert torch.binomial(torch.tensor([5.0], device="cuda"), torch.tensor([math.nan], device="cuda")).isnan().all()


def test_dirichlet_draws() -> None:
    before = dict(wooly.stats()["fallbacks"])
    torch.manual_seed(0)
    orders = torch.tensor([0.5, 1.0, 4.0])
    x = torch._sample_dirichlet(orders.repeat(_N, 1).cuda()).cpu()
    torch.testing.assert_close(x.sum(1), torch.ones(_N))
    mean = orders / orders.sum()
    spread = (mean * (1 - mean) / (orders.sum() + 1)).sqrt()
    assert ((x.mean(0) - mean).abs() < 4 * spread / _N**0.5).all() and ((x.std(0) / spread - 1).abs() < 0.05).all()
    assert _distance(x[:, 1], lambda at: 1 - (1 - at) ** 4.5) < 2.2
    assert torch._sample_dirichlet(torch.ones(0, 3, device="cuda")).shape == (0, 3)
    assert wooly.stats()["fallbacks"] == before
