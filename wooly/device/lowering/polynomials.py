"""Orthogonal polynomials of an order given as a tensor: three-term recurrences as many steps as the greatest order asks for, in closed form
between the ends of the interval for Chebyshev polynomials of higher order, as torch's kernels have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from wooly.device.lowering.registry import composite
from wooly.device.lowering.values import Unsupported

__all__: list[str] = []

_STEPS_MAX: Final = 512
"""The most steps that are recorded; greater orders are computed on the CPU."""

_HERMITE_MAX: Final = {torch.float32: 128, torch.float64: 512}
"""Greater orders give NaN."""


@dataclass(frozen=True, slots=True)
class _Family:
    """A family P of polynomials with P_0 = 1."""

    #: P_1 of x
    first: Callable[[Tensor], Tensor]
    #: P_(k + 1) of x, k, P_k, P_(k - 1)
    following: Callable[[Tensor, int, Tensor, Tensor], Tensor]
    #: of x and the order: where P is known, and what it is there
    known: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _as_tensors(x: Any, n: Any) -> tuple[Tensor, Tensor]:
    """``x`` in the type of the result, and the order as int64: rounded towards 0, negative where that type does not hold it."""
    device = (x if isinstance(x, Tensor) else n).device
    dtype = torch.result_type(x, n)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    order = torch.as_tensor(n, device=device)
    if order.is_floating_point():
        order = torch.where(order.abs() < 2.0**63, order, -1.0).to(torch.int64)
    return torch.as_tensor(x, dtype=dtype, device=device), order.to(torch.int64)


def _evaluated(family: _Family, x: Tensor, n: Tensor) -> Tensor:
    """P_n(x), 0 for n < 0."""
    laid_out = x + n
    x, n = torch.ops.aten.broadcast_tensors([x, n])
    known, value = family.known(x, n)
    open_ = torch.where(known, 0, n)
    steps = int(open_.max().item()) if n.numel() else 0
    if steps > _STEPS_MAX:
        raise Unsupported(f"polynomials in {steps} steps")
    before, last = torch.ones_like(x), family.first(x)
    for k in range(1, steps):
        before, last = last, torch.where(open_ > k, family.following(x, k, last, before), last)
    result = torch.where(n == 0, 1.0, torch.where(known, value, last))
    return laid_out.copy_(torch.where(n < 0, 0.0, result))


def _register(name: str, family: _Family, shifted: bool = False) -> None:
    """``shifted``: the polynomial of 2x - 1."""

    def polynomial(x: Any, n: Any) -> Tensor:
        values, order = _as_tensors(x, n)
        return _evaluated(family, values + values - 1 if shifted else values, order)

    composite(f"aten::{name}", f"aten::{name}.x_scalar", f"aten::{name}.n_scalar")(polynomial)


# --- Chebyshev polynomials


def _sign(n: Tensor) -> Tensor:
    """(-1)**n"""
    return 1 - 2 * (n % 2)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Chebyshev polynomials of one kind."""

    first: Callable[[Tensor], Tensor]
    #: of arccos(x) and the order
    closed: Callable[[Tensor, Tensor], Tensor]
    #: of the order: at 1, and without its sign at -1
    ends: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
    #: greater orders are computed in closed form, also those of the shifted polynomials
    limits: tuple[int, int]


_CHEBYSHEV: Final = {
    "t": _Kind(lambda x: x, lambda a, n: torch.cos(n * a), (torch.ones_like, torch.ones_like), (6, 6)),
    "u": _Kind(lambda x: x + x, lambda a, n: torch.sin((n + 1) * a) / torch.sin(a), (lambda n: n + 1, lambda n: n + 1), (8, 6)),
    "v": _Kind(
        lambda x: x + x - 1, lambda a, n: torch.cos((n + 0.5) * a) / torch.cos(a / 2), (torch.ones_like, lambda n: n + n + 1), (8, 6)
    ),
    "w": _Kind(
        lambda x: x + x + 1, lambda a, n: torch.sin((n + 0.5) * a) / torch.sin(a / 2), (lambda n: n + n + 1, torch.ones_like), (8, 4)
    ),
}


def _chebyshev(kind: _Kind, shifted: bool) -> _Family:
    def known(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        size, order = x.abs(), n.double()
        closed = kind.closed(torch.arccos(x.double()), order)
        one, minus_one = (end(order) for end in kind.ends)
        ends = torch.where(x > 0, one, minus_one * _sign(n))
        return (size == 1) | ((size < 1) & (n > kind.limits[shifted])), torch.where(size == 1, ends, closed)

    return _Family(kind.first, lambda x, k, last, before: (x + x) * last - before, known)


for _name, _kind in _CHEBYSHEV.items():
    _register(f"special_chebyshev_polynomial_{_name}", _chebyshev(_kind, False))
    _register(f"special_shifted_chebyshev_polynomial_{_name}", _chebyshev(_kind, True), shifted=True)

# --- Hermite, Laguerre and Legendre polynomials


def _too_great(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    return n > _HERMITE_MAX[x.dtype], torch.full_like(x, math.nan)


def _legendre_ends(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    return x.abs() == 1, torch.where(x > 0, 1, _sign(n)).to(x.dtype)


_register("special_hermite_polynomial_h", _Family(lambda x: x + x, lambda x, k, q, p: (x + x) * q - 2 * k * p, _too_great))
_register("special_hermite_polynomial_he", _Family(lambda x: x, lambda x, k, q, p: x * q - k * p, _too_great))
_register(
    "special_laguerre_polynomial_l",
    _Family(lambda x: 1 - x, lambda x, k, q, p: ((2 * k + (1 - x)) * q - k * p) / (k + 1), lambda x, n: (x == 0, torch.ones_like(x))),
)
_register("special_legendre_polynomial_p", _Family(lambda x: x, lambda x, k, q, p: ((2 * k + 1) * x * q - k * p) / (k + 1), _legendre_ends))
