"""What the comparison finds: each check of the operator database with a result that it must refuse, and one that it must let pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.conformance.compare import Differs, check, check_metadata, check_strides
from tests.conformance.draws import compare_draws


def _values(have: torch.Tensor, want: torch.Tensor, truth: torch.Tensor | None = None) -> str:
    return check([have], [want], lambda: [] if truth is None else [truth])


def test_values_within_the_tolerance_of_their_type() -> None:
    x = torch.linspace(0.1, 1.0, 50, dtype=torch.float16)
    assert _values(x, x) == "tolerance"
    assert _values(torch.arange(3), torch.arange(3)) == "exact"
    with pytest.raises(Differs, match="1 of 3 elements; at \\[1\\]"):
        _values(torch.tensor([0, 2, 2]), torch.arange(3))
    with pytest.raises(Differs):
        _values(x * 1.01, x, x.double())
    with pytest.raises(Differs):
        _values(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0]))


def test_an_imprecise_cpu_result_leaves_as_much_room_as_its_own_error() -> None:
    truth = torch.linspace(1, 2, 20, dtype=torch.float64)
    cpu = (truth * 1.02).to(torch.float16)
    assert _values(truth.to(torch.float16), cpu, truth) == "truth"
    with pytest.raises(Differs, match="truth"):
        _values((truth * 1.06).to(torch.float16), cpu, truth)


def test_a_result_cast_from_a_wider_type() -> None:
    want = torch.linspace(1, 2, 20, dtype=torch.float64)
    assert check([want.to(torch.bfloat16)], [want], list, cast=True) == "cast"
    with pytest.raises(Differs):
        check([(want * 1.2).to(torch.bfloat16)], [want], list, cast=True)


def test_metadata() -> None:
    want = torch.zeros(2, 3)
    with pytest.raises(Differs, match="a result on cpu"):
        check_metadata(torch.zeros(2, 3), want)
    meta = torch.zeros(2, 3, device="meta")
    check_strides([meta], [want], lambda: [meta])
    with pytest.raises(Differs, match="strides"):
        check_strides([meta.t().contiguous().t()], [want], lambda: [meta])


def _drawn(there: Callable[[], torch.Tensor]) -> None:
    """Compare what ``there`` draws with a dropout of 200 elements on the CPU, of which the first is masked."""

    def draw(device: str, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [there() if device == "cuda" else _dropout()]

    compare_draws(draw, list)


def _dropout(p: float = 0.3, scale: float | None = None) -> torch.Tensor:
    x = torch.linspace(0, 1, 200)
    return x * (torch.rand(200) >= p) * (1 / (1 - p) if scale is None else scale)


def _with_first(value: float) -> torch.Tensor:
    out = _dropout()
    out[0] = value
    return out


def _one_draw_for_all_elements() -> torch.Tensor:
    return torch.linspace(0, 1, 200) * (torch.rand(1) >= 0.3) / 0.7


def test_draws_of_the_same_distribution_pass() -> None:
    _drawn(_dropout)


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (lambda: torch.empty(200).cauchy_(), lambda: torch.empty(200).cauchy_()),
        (lambda: (torch.rand(200) < 0.5) * 1e-30, lambda: (torch.rand(200) < 0.5) * 1e-30),
        (lambda: (torch.rand(200) < 0.5) * 7.0000005, lambda: (torch.rand(200) < 0.5) * 7.0),
    ],
    ids=["without moments", "tiny", "rounded otherwise"],
)
def test_draws_that_are_hard_to_compare_pass(there: Callable[[], torch.Tensor], here: Callable[[], torch.Tensor]) -> None:
    def draw(device: str, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [there() if device == "cuda" else here()]

    compare_draws(draw, list)


def test_results_without_any_tensor_draw_nothing() -> None:
    compare_draws(lambda device, seed: [], list)


def test_a_badly_conditioned_result_may_move_as_much_as_its_inputs_make_it() -> None:
    want, truth = torch.tensor([8303.4834]), torch.tensor([8303.4842], dtype=torch.float64)
    with pytest.raises(Differs):
        check([want - 0.1], [want], lambda: [truth])
    assert check([want - 0.1], [want], lambda: [truth], shifted=lambda: [truth + 0.06]) == "truth"
    with pytest.raises(Differs):
        check([want - 0.2], [want], lambda: [truth], shifted=lambda: [truth + 0.06])


_last = [torch.zeros(200)]


def _alternating() -> torch.Tensor:
    """Every other draw is the one before it."""
    if torch.initial_seed() % 2:
        _last[0] = _dropout()
    return _last[0]


@pytest.mark.parametrize(
    ("there", "what"),
    [
        (lambda: torch.zeros(200), "same numbers"),
        (lambda: _dropout(p=0.4), "elements|whole draws"),
        (lambda: _dropout(scale=1.0), "elements|whole draws"),
        (lambda: _with_first(1.0), "never changes"),
        (_one_draw_for_all_elements, "whole draws"),
        (_alternating, "correlated"),
        (lambda: torch.rand(200, generator=torch.Generator().manual_seed(torch.Generator().seed() % 1000)), "same seed|elements"),
    ],
    ids=["zeros", "another share", "no scale", "mask ignored", "one draw for all", "draws repeated", "seed ignored"],
)
def test_draws_of_another_distribution_do_not(there: Callable[[], torch.Tensor], what: str) -> None:
    with pytest.raises(Differs, match=what):
        _drawn(there)
