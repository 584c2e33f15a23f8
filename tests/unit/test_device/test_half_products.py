"""Sums of products of halves: as near to the truth as the CPU's where a factor would enlarge a rounded product's error."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("alpha", "beta"), [(2.03, -4.775), (1, 0.5), (3, 0)])
def test_factors_are_applied_before_rounding(dtype: torch.dtype, alpha: float, beta: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, a, b = (torch.randn(2, 32, 32, generator=generator).to(dtype) for _ in range(3))
    want = alpha * (a.double() @ b.double()) + beta * x.double()
    for found, cpu in (
        (torch.baddbmm(x.cuda(), a.cuda(), b.cuda(), alpha=alpha, beta=beta), torch.baddbmm(x, a, b, alpha=alpha, beta=beta)),
        (torch.addmm(x[0].cuda(), a[0].cuda(), b[0].cuda(), alpha=alpha, beta=beta), torch.addmm(x[0], a[0], b[0], alpha=alpha, beta=beta)),
    ):
        truth = want if cpu.dim() == 3 else want[0]
        assert found.dtype == dtype
        assert (found.cpu().double() - truth).abs().mean() <= 1.01 * (cpu.double() - truth).abs().mean()
