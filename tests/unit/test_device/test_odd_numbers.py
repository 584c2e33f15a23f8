"""Python numbers that torch refuses for a type or their value: refused at the same calls, with the same class and words as on the CPU."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

DTYPES = [torch.float32, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64]
NUMBERS = [0, 1, -1, -1.0, 2.5, True, 1e300, math.inf, math.nan, 300, 70000, 2**63, -(2**63) - 1, 1j, 1 + 0j]

DIFFERENT = {
    *((name, torch.uint8, "-1.0") for name in ("addcmul", "addmm, beta", "baddbmm, alpha", "linspace")),
    ("linspace", torch.complex64, "True"),
}
"""Accepted or refused otherwise than on the CPU (docs/differences.md)."""

Call = Callable[[torch.Tensor, Any], Any]


def first(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([0], device=x.device)


CALLS: dict[str, Call] = {
    "full": lambda x, s: torch.full((2,), s, dtype=x.dtype, device=x.device),
    "full_like": torch.full_like,
    "new_full": lambda x, s: x.new_full((2,), s),
    "scalar_tensor": lambda x, s: torch.scalar_tensor(s, dtype=x.dtype, device=x.device),
    "fill_": lambda x, s: x.fill_(s),
    "x[0] = s": lambda x, s: x.__setitem__(0, s),
    "x[mask] = s": lambda x, s: x.__setitem__(x == x, s),
    "masked_fill": lambda x, s: x.masked_fill(x == x, s),
    "index_fill_": lambda x, s: x.index_fill_(0, first(x), s),
    "scatter": lambda x, s: x.scatter(0, first(x), s),
    "add, alpha": lambda x, s: torch.add(x, x, alpha=s),
    "add_, alpha": lambda x, s: x.add_(x, alpha=s),
    "sub, alpha": lambda x, s: torch.sub(x, x, alpha=s),
    "rsub, alpha": lambda x, s: torch.rsub(x, x, alpha=s),
    "pow": lambda x, s: x**s,
    "clamp": lambda x, s: x.clamp(s, s),
    "clamp_, min": lambda x, s: x.clamp_(min=s),
    "where": lambda x, s: torch.where(x == x, x, s),
    "addcmul": lambda x, s: torch.addcmul(x, x, x, value=s),
    "addcdiv_": lambda x, s: x.addcdiv_(x, x, value=s),
    "addmm, beta": lambda x, s: torch.addmm(torch.ones(2, 2, dtype=x.dtype, device=x.device), x.view(2, 1), x.view(1, 2), beta=s),
    "baddbmm, alpha": lambda x, s: torch.baddbmm(x.view(1, 1, 2), x.view(1, 1, 2)[..., :1], x.view(1, 1, 2), alpha=s),
    "threshold": lambda x, s: F.threshold(x, 1, s),
    "hardtanh": lambda x, s: F.hardtanh(x, -2, s),
    "leaky_relu": F.leaky_relu,
    "softplus": F.softplus,
    "celu": F.celu,
    "hardshrink": F.hardshrink,
    "linspace": lambda x, s: torch.linspace(0, s, 3, dtype=x.dtype, device=x.device),
    "pad": lambda x, s: F.pad(x, (1, 1), value=s),
    "fill_diagonal_": lambda x, s: torch.ones(2, 2, dtype=x.dtype, device=x.device).fill_diagonal_(s),
    "heaviside": lambda x, s: torch.heaviside(x, torch.tensor(s, device=x.device)),
    "_foreach_mul_": lambda x, s: torch._foreach_mul_([x], s),
    "std": lambda x, s: torch.std(x, correction=s),
    "normal_": lambda x, s: x.normal_(0, s),
    "uniform_, from": lambda x, s: x.uniform_(s, 1),
    "bernoulli_": lambda x, s: x.bernoulli_(s),
    "random_": lambda x, s: x.random_(s, 1000),
    "smooth_l1_loss": lambda x, s: F.smooth_l1_loss(x, x, beta=s, reduction="none"),
}


def outcome(call: Call, x: torch.Tensor, number: Any) -> tuple[type[BaseException], str] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(x, number)
    except Exception as error:
        return type(error), str(error).splitlines()[0].replace("_cpu", "_cuda")
    return None


def kernels_lack_it(said: tuple[type[BaseException], str] | None) -> bool:
    """Types for which the CPU has no kernel, and integer division by 0: these differ between devices in torch too."""
    return said is not None and ("not implemented for" in said[1] or said[1] == "ZeroDivisionError")


@pytest.mark.parametrize("name", CALLS)
def test_numbers_are_refused_as_on_the_cpu(name: str) -> None:
    call = CALLS[name]
    different = []
    for again in (False, True):  # a call of a kind that was met before takes a shorter way
        for dtype in DTYPES:
            for number in NUMBERS:
                on_cpu, ours = (outcome(call, torch.ones(2).to(dtype).to(device), number) for device in ("cpu", "cuda"))
                if (
                    (name, dtype, repr(number)) not in DIFFERENT
                    and ours != on_cpu
                    and not kernels_lack_it(on_cpu)
                    and not kernels_lack_it(ours)
                ):
                    different.append((again, dtype, number, on_cpu, ours))
    assert not different, "\n".join(map(str, different[:10]))
