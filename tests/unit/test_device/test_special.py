"""Special functions, orthogonal polynomials and common divisors: beyond what torch's operator database samples, against the CPU."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch

import wooly

_RANGE = [x / 64 for x in range(-769, 770)]
_ENDS = [0.0, -0.0, 1e-310, 1e-300, 1e-20, 1e-5, -1e-10, 5.0, 5.0000001, 2.0, 2.09, -2.09, 2.1, 8.4, 103.8, 104.0, 700.0, 750.0, 1e4, -1e4]
_POINTS = torch.tensor([*_RANGE, *_ENDS, 1e8, 1e300, inf, -inf, nan], dtype=torch.float64)

_FUNCTIONS = [
    *(f"bessel_{kind}{order}" for kind in "jy" for order in (0, 1)),
    *(f"{scaled}modified_bessel_k{order}" for scaled in ("", "scaled_") for order in (0, 1)),
    "spherical_bessel_j0",
    "airy_ai",
]


def on_both(function: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """What ``function`` returns on the device, fetched, and on the CPU; fails if any of it was computed on the CPU instead."""
    before = dict(wooly.stats()["fallbacks"])
    given = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.cuda(), (args, kwargs))
    ours = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.cpu(), function(*given[0], **given[1]))
    assert wooly.stats()["fallbacks"] == before
    return ours, function(*args, **kwargs)


def check(function: Any, *args: Any, **kwargs: Any) -> None:
    ours, theirs = on_both(function, *args, **kwargs)
    torch.testing.assert_close(ours, theirs, equal_nan=True, check_stride=True)


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_functions_over_their_whole_range(name: str) -> None:
    check(getattr(torch.special, name), _POINTS)


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_functions_of_other_types(name: str) -> None:
    function = getattr(torch.special, name)
    for x in (
        torch.tensor([[-3, 0], [1, 100]]),
        torch.tensor([True, False]),
        torch.tensor(2.5),
        torch.empty(0, 3),
        _POINTS[:99].float()[::3],
    ):
        check(function, x)
    with pytest.raises(RuntimeError):
        function(torch.ones(2, dtype=torch.float16, device="cuda"))


_ORDERS = [-1.0, 0.0, 0.5, 1.0, 1 + 1e-10, 1.1, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 11.3, 50.0, 51.0, 200.0, 1e3, 1e20, inf, -inf, nan]
_SHIFTS = [x / 8 for x in range(-97, 98)] + [-0.0, 1e-300, -1e-20, 1e-10, -1e-10, 100.25, -100.25, -1000.3, 1e10, 1e300, inf, -inf, nan]


def test_zeta() -> None:
    orders, shifts = torch.tensor(_ORDERS, dtype=torch.float64)[:, None], torch.tensor(_SHIFTS, dtype=torch.float64)
    odd = orders % 2 == 1  # the sum then cancels at -1/2, -3/2 and so on, down to what comes after 0: there the CPU has no digit left
    check(torch.special.zeta, orders, torch.where(odd & (shifts < 0) & (shifts % 1 == 0.5), 0.25, shifts))
    check(torch.special.zeta, 3.0, shifts.float()[::2])
    check(torch.special.zeta, orders, 2)
    check(torch.special.zeta, torch.tensor([1, 2, 3]), torch.tensor([-1, 5, 2]))


def test_zeta_where_its_terms_cancel() -> None:
    """zeta(21, -4.5) = zeta(21, 5.5): the terms at -k - 1/2 and k + 1/2 are each other's opposites."""
    ours = torch.special.zeta(torch.tensor(21.0, device="cuda", dtype=torch.float64), -4.5)
    torch.testing.assert_close(ours.cpu(), torch.special.zeta(torch.tensor(21.0, dtype=torch.float64), 5.5), rtol=1e-7, atol=0)


@pytest.mark.parametrize("n", [2, 3, 4, 33, 171])
def test_polygamma_of_higher_order(n: int) -> None:
    x = torch.tensor(_SHIFTS, dtype=torch.float64)
    x = x[~((x < 0) & (x % 1 == 0.5))]
    for given in (x, x.float(), torch.tensor([1, 2, -3])):
        check(torch.polygamma, n, given)


def test_the_gradient_of_polygamma() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        return torch.autograd.grad(torch.polygamma(2, x).sum(), x)[0]

    check(gradient, torch.tensor([-2.25, 0.25, 3.0], dtype=torch.float64))


_POLYNOMIALS = [
    *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
]  # fmt: skip


@pytest.mark.parametrize("name", _POLYNOMIALS)
def test_polynomials(name: str) -> None:
    ends = [-0.0, 1e-300, 1 - 1e-9, -1 + 1e-9, 1 + 1e-9, 100.25, -100.25, 1e10, 1e300, inf, -inf, nan]
    x = torch.tensor([x / 8 for x in range(-24, 25)] + ends, dtype=torch.float64)
    n = torch.tensor([-3, -1, 0, 0.9, 1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9, 11, 40, 127, 129, 300, inf, -inf, nan], dtype=torch.float64)
    function = getattr(torch.special, name)
    check(function, x[:, None], n)
    whole = torch.arange(-3, 4)
    for args in ((whole, 3), (2, whole), (whole, 2.5), (whole.float(), whole.double()), (whole.bool(), whole), (torch.tensor(2), 3.0)):
        check(function, *args)
    check(function, torch.rand(4, 5).t()[::2], torch.arange(4))
    check(function, torch.empty(0), torch.empty(0))
    out = torch.empty(0, device="cuda", dtype=torch.float64)
    torch.testing.assert_close(function(x.cuda(), 4, out=out).cpu(), function(x, 4), equal_nan=True)


def test_polynomials_of_very_high_order() -> None:
    """In closed form inside of the interval, on the CPU where that many steps would be recorded."""
    x = torch.tensor([-0.75, 0.125], dtype=torch.float64)
    check(torch.special.chebyshev_polynomial_t, x, 100_000)
    with pytest.warns(UserWarning, match="CPU"):
        ours = torch.special.legendre_polynomial_p(x.cuda(), 2000)
    torch.testing.assert_close(ours.cpu(), torch.special.legendre_polynomial_p(x, 2000))


def test_shifted_chebyshev_polynomials_just_below_one() -> None:
    """2n + 1 at 1; torch's kernels give -1 just below it, in f32."""
    below = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    ours = torch.special.shifted_chebyshev_polynomial_w(below.cuda(), 5)
    torch.testing.assert_close(ours.cpu(), torch.special.shifted_chebyshev_polynomial_w(below.double(), 5).float())


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_common_divisors(dtype: torch.dtype) -> None:
    """The least number, whose magnitude the type does not hold, and consecutive Fibonacci numbers, which take the most steps."""
    info = torch.iinfo(dtype)
    fibonacci = [1, 2]
    while sum(fibonacci[-2:]) <= info.max:
        fibonacci.append(sum(fibonacci[-2:]))
    numbers = {0, 1, 2, 6, 12, 99, 100, info.max, info.max - 1, info.min + 1, *fibonacci[-3:]} | ({-1, -6, -100} if info.min else set())
    x = torch.tensor([*numbers, info.min], dtype=dtype)
    check(torch.gcd, x[:, None], x)
    x = x if info.bits < 32 else x[:-1]  # of which torch's CPU kernel divides by -1, and the process ends
    check(torch.lcm, x[:, None], x)
    check(torch.lcm, x, torch.tensor(9))


_LEVELS = [0.0, 1e-300, 1e-10, 1e-3, 0.1, 0.5, 0.9, 1.0, 1.5, 3.3, 15.0, 60.0, 99.0, 100.0, 100.5, 200.0, 1e3, 1e6, 1e9, -1.0, inf, nan]
_ARGUMENTS = [
    *(x / 4 for x in range(800)), 1e-300, 1e-20, 1e-5, 450.0, 500.0, 550.0, 900.0, 1e3, 1100.0, 1e6, 1.001e6, 1e9, 1e300, -1.0, inf, nan
]  # fmt: skip


@pytest.mark.parametrize("function", [torch.igamma, torch.igammac])
def test_incomplete_gamma_functions(function: Any) -> None:
    order, x = torch.tensor(_LEVELS, dtype=torch.float64).unsqueeze(1), torch.tensor(_ARGUMENTS, dtype=torch.float64)
    check(function, order, x)
    check(function, order.float(), x.float())
    check(function, order[:, :0], x[:0])
    check(function, torch.tensor(2.5), torch.tensor([0.5, 3.0]))
    for device in ("cpu", "cuda"):
        with pytest.raises(RuntimeError):
            function(torch.ones(2, dtype=torch.int64, device=device), torch.ones(2, dtype=torch.int64, device=device))


def test_the_derivative_of_draws_of_the_gamma_distribution() -> None:
    order = torch.tensor([1e-3, 0.3, 0.9, 1, 2, 7.9, 8.1, 9, 20, 100, 1e4], dtype=torch.float64).unsqueeze(1)
    near = torch.tensor([0, 1e-10, 1e-3, 0.1, 0.5, 0.89, 0.9, 0.95, 0.999, 1.05, 1.1, 1.11, 1.3, 2, 4], dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        drawn = (order * near).to(dtype)
        check(torch._standard_gamma_grad, order.expand(drawn.shape).to(dtype), drawn)
