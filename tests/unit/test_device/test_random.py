"""Random numbers: own streams, the same numbers for the same script."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F


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
