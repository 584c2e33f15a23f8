"""Functions that make tensors from numbers: out= tensors of other types, sequences in integer types, bounds that are tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.device import same


def _out(dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.zeros(0, dtype=dtype, device=device)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float16, torch.float64])
@pytest.mark.parametrize(
    "line",
    ["ones(3", "zeros(2, 2", "full((3,), 7", "eye(3", "eye(2, 3", "arange(0.0, 5.0, 1.5", "linspace(7.9, 0, 5", "logspace(0.0, 2.0, 3"],
)
def test_a_factory_makes_what_its_out_tensor_holds(line: str, dtype: torch.dtype) -> None:
    result, expected = (eval(f"torch.{line}, out=out)", {"torch": torch, "out": _out(dtype, device)}) for device in ("cuda", "cpu"))
    assert result.dtype == dtype
    same(result, expected)


def test_a_factory_with_an_out_tensor_inside_of_a_device_context() -> None:
    with torch.device("cuda"):
        assert torch.ones(3, out=torch.empty(3, dtype=torch.int32)).tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="does not match"):
        torch.ones(3, out=torch.empty(3), device="cuda")


@pytest.mark.parametrize(
    "line",
    [
        "arange(0.0, -8.000001, -4.0, dtype=torch.uint8",
        "arange(1.9, 7.0, 2.9, dtype=torch.int32",
        "linspace(4.3, 0, 50, dtype=torch.uint8",
        "logspace(1, 1.2, 2, dtype=torch.int64",
        "logspace(0, 4, 5, base=5, dtype=torch.int32",
    ],
)
def test_bounds_of_integer_sequences_are_rounded_first(line: str) -> None:
    result, expected = (eval(f"torch.{line}, device='{device}')", {"torch": torch}) for device in ("cuda", "cpu"))
    same(result, expected)


@pytest.mark.parametrize("make", [torch.linspace, torch.logspace])
def test_vmap_over_a_bound(make: Callable[..., torch.Tensor]) -> None:
    def spaced(device: str, first: bool) -> torch.Tensor:
        bounds = torch.tensor([1.0, 2.0], device=device)
        return torch.vmap(lambda bound: make(bound, 3.0, 4, device=device) if first else make(0.5, bound, 4, device=device))(bounds)

    for first in (True, False):
        ours, expected = spaced("cuda", first), spaced("cpu", first)
        assert ours.device.type == "cuda"
        torch.testing.assert_close(ours.cpu(), expected, check_stride=False)
