"""Random operators, compared by properties of many draws with many of the CPU's.

- *repeatability*: the same seed gives the same bits; another seed gives others where the CPU's differ too.
- *support*: what is constant over the CPU's draws (masked or impossible elements) has the same value in every draw of the device, and
  no value leaves the CPU's range by more than its width.
- *distribution*: of every element mean, second moment and a bounded transform; of whole draws the shares of zeros and below the
  quartiles and the products of neighbours agree with the CPU's within ``SIGMAS`` standard errors.
- *independence*: one draw and the next are uncorrelated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations

from tests.conformance.compare import Differs

__all__ = ["DRAWS", "ROUNDED_ON_CPU", "is_undefined", "is_random", "compare_draws", "unseeded"]

_NO_VALUES = {
    "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted",
}  # fmt: skip
"""Operators whose values are not defined: shape, strides, type and device are compared."""

_RANDOM = frozenset(
    """
    bernoulli normal multinomial rand_like randn randn_like randint randint_like uniform cauchy exponential geometric log_normal
    nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout
    nn.functional.feature_alpha_dropout nn.functional.rrelu nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
    """.split()
)
ROUNDED_ON_CPU = {"nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d"}
"""Operators whose CPU kernels round positions to half types, CUDA's do not: draws in half types are compared with the widest type's."""
_WITH_DROPOUT = {"nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention"}
"""Operators that draw only where their dropout is not zero."""

DRAWS = 64
"""Draws of the device; the CPU makes CPU_FACTOR times as many."""
CPU_FACTOR = 4
SIGMAS = 7.0


_LOW_RANK = {"svd_lowrank", "pca_lowrank"}


def is_undefined(name: str, kind: str, kwargs: dict[str, Any], *, grad: bool) -> bool:
    """Are the values of this call of the operator ``name`` not defined? Factors of low rank are where the matrix has that rank: their
    product and the singular values are the matrix's own; other matrices are approximated, by draws."""
    if name in _LOW_RANK:
        return grad or kind == "expanded" or kwargs.get("M") is not None
    return name in _NO_VALUES


def is_random(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Does this call of the operator ``name`` draw numbers?"""
    if name in _WITH_DROPOUT:
        drops = kwargs.get("dropout_p", 0.0), kwargs.get("training", True)
        return any(isinstance(v, float) and v > 0.0 for v in (*args, drops[0])) and bool(drops[1])
    return name in _RANDOM


@contextmanager
def unseeded() -> Iterator[None]:
    """Inside, operators of the database draw from the seed that is set; theirs sets its own before every call."""
    kept = common_methods_invocations.wrapper_set_seed
    common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    try:
        yield
    finally:
        common_methods_invocations.wrapper_set_seed = kept


Draw = Callable[[str, int], list[torch.Tensor]]
"""(device, seed) -> the tensors of one result, on that device."""


def compare_draws(draw: Draw, fetch: Callable[[list[Any]], list[Any]]) -> None:
    """Compare the distributions of a call's results on the device and on the CPU. Raises Differs."""
    seeds = range(1, DRAWS + 1)
    there = [draw("cuda", seed) for seed in (*seeds, 1)]
    width = len(there[0])
    if not width:
        return  # no argument has a gradient
    here = fetch([t for result in there for t in result])
    rows = [here[i : i + width] for i in range(0, len(here), width)]
    cpu = [draw("cpu", seed) for seed in range(1, CPU_FACTOR * DRAWS + 1)]
    for i in range(width):
        ours = torch.stack([_numbers(row[i]) for row in rows])
        theirs = torch.stack([_numbers(result[i]) for result in cpu])
        if not torch.equal(ours[0].nan_to_num(), ours[-1].nan_to_num()):
            raise Differs("the same seed gave other numbers")
        _same_distribution(ours[:-1], theirs, _rounding(there[0][i].dtype))


def _rounding(dtype: torch.dtype) -> float:
    """How far, relatively, equal values of two sides lie apart."""
    return max(1e-4, 4 * torch.finfo(dtype).eps) if dtype.is_floating_point or dtype.is_complex else 0.0


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).to(torch.float64).flatten()


def _same_distribution(ours: torch.Tensor, theirs: torch.Tensor, rounding: float) -> None:
    """Both (draws, elements); ``rounding``: relative distance of equal values."""
    if not ours.shape[1]:
        return
    if ours.isfinite().logical_not().any() or theirs.isfinite().logical_not().any():
        if not torch.equal(ours.isnan().all(0), theirs.isnan().all(0)):
            raise Differs("not a number in other elements than on the CPU")
        ours, theirs = ours.nan_to_num(), theirs.nan_to_num()
    constant = (theirs == theirs[0]).all(0)
    if not torch.allclose(ours[:, constant], theirs[0, constant].expand(len(ours), -1), rtol=2e-2, atol=1e-5):
        raise Differs("an element that never changes on the CPU has another value")
    if not constant.all() and (ours == ours[0]).all():
        raise Differs("other seeds gave the same numbers")
    for name, transform in (("mean", lambda x: x), ("second moment", torch.square), ("bounded mean", torch.tanh)):
        _agree(f"{name} of elements", transform(ours), transform(theirs))
    middle = theirs.mean(0)
    scale = _positive(theirs.std(0))
    quartiles = _quartiles(theirs)
    whole = middle, scale, quartiles, rounding * quartiles.abs()
    _agree("whole draws", _summary(ours, *whole), _summary(theirs, *whole))
    varied = ours[:, ~constant & (ours != ours[0]).any(0)]
    if varied.shape[1] and len(ours) > 2:
        centred = (varied - varied.mean(0)) / _positive(varied.std(0))  # by the sample's own moments, which some distributions lack
        products = (centred[:-1] * centred[1:]).mean(1)
        expected = -1.0 / len(ours)
        error = products.std() / len(products) ** 0.5
        if abs(float(products.mean()) - expected) > SIGMAS * float(error) + 1e-3:
            raise Differs(f"one draw is correlated with the next by {float(products.mean()):.3f}")


def _positive(spread: torch.Tensor) -> torch.Tensor:
    return torch.where(spread > 0, spread, 1.0)


def _quartiles(theirs: torch.Tensor) -> torch.Tensor:
    flat = theirs.flatten()
    flat = flat[:: max(1, flat.numel() // 100_000)]
    return torch.quantile(flat, torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64))


def _summary(x: torch.Tensor, middle: torch.Tensor, scale: torch.Tensor, quartiles: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
    """(draws, statistics) of whole draws; ``near``: what of a quartile's value is rounding."""
    parts = [x.mean(1), x.square().mean(1), x.abs().mean(1), torch.tanh(x).mean(1), (x == 0).double().mean(1)]
    parts += [(x <= q + e).double().mean(1) for q, e in zip(quartiles, near, strict=True)]
    parts += [(x < q - e).double().mean(1) for q, e in zip(quartiles, near, strict=True)]
    centred = ((x - middle) / scale).clamp(-10, 10)
    if x.shape[1] > 1:
        parts.append((centred[:, :-1] * centred[:, 1:]).mean(1))
    return torch.stack(parts, 1)


def _agree(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Means over draws, column by column, within SIGMAS standard errors (the larger of both samples' own spreads)."""
    spread = torch.maximum(theirs.std(0), ours.std(0))
    error = spread * (1 / len(ours) + 1 / len(theirs)) ** 0.5
    rare = (theirs.amax(0) - theirs.amin(0)) * SIGMAS / len(ours)
    far = (ours.mean(0) - theirs.mean(0)).abs() > SIGMAS * error + rare + 2e-2 * theirs.mean(0).abs() + 1e-6
    if far.any():
        i = int(far.nonzero()[0])
        raise Differs(f"{what}: {float(ours.mean(0)[i]):.4g} (draws {len(ours)}) instead of {float(theirs.mean(0)[i]):.4g}, column {i}")
