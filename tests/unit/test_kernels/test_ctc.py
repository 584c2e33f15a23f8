"""CTC loss by its two kernels: as torch's on the CPU, with lengths that differ in a batch, and the module is what its source says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import wooly.kernels.library
from wooly.counters import COUNTERS
from wooly.kernels.library import kernel
from wooly.kernels.raw import RawModule

FOLDER = Path(wooly.kernels.library.__file__).parent


def case(classes: int, inputs: list[int], lengths: list[int], *, packed: bool, seed: int = 0) -> tuple[Any, ...]:
    """Log probabilities, targets, lengths."""
    random = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(max(max(inputs), 1), len(inputs), classes, generator=random, dtype=torch.float64).log_softmax(2)
    shape = (sum(lengths),) if packed else (len(lengths), max(lengths) + 1)
    return log_probs, torch.randint(1, classes, shape, generator=random), torch.tensor(inputs), torch.tensor(lengths)


def losses(given: tuple[Any, ...], device: str, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs, targets, inputs, lengths = given
    x = log_probs.to(device, dtype).requires_grad_()
    loss = F.ctc_loss(x, targets.to(device), inputs, lengths, reduction="none", **options)
    (loss * torch.arange(1.0, len(inputs) + 1, dtype=dtype, device=device)).sum().backward()
    assert x.grad is not None
    return loss.detach().cpu(), x.grad.cpu()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("classes", "inputs", "lengths", "options"),
    [
        (20, [50, 41, 50, 3], [10, 7, 0, 1], {}),
        (3, [30, 25], [12, 9], {}),  # repeated labels
        (5, [20, 20], [4, 4], {"blank": 3}),
        (4, [2, 6], [5, 2], {}),  # no alignment of the first
        (4, [2, 6], [5, 2], {"zero_infinity": True}),
        (4, [0, 6, 0], [2, 2, 0], {"zero_infinity": True}),  # nothing to read
        (4, [7, 5], [0, 0], {}),
    ],
)
def test_losses_and_gradients_are_those_of_the_cpu(
    classes: int, inputs: list[int], lengths: list[int], options: dict[str, Any], packed: bool
) -> None:
    given = case(classes, inputs, lengths, packed=packed)
    given[1][given[1] == options.get("blank")] = 0  # a target has no blanks
    fallbacks = len(COUNTERS.fallbacks)
    for found, want in zip(losses(given, "cuda", **options), losses(given, "cpu", **options), strict=True):
        torch.testing.assert_close(found, want, equal_nan=True)
    assert len(COUNTERS.fallbacks) == fallbacks


@pytest.mark.parametrize(
    "given", [case(12, [40, 33], [9, 12], packed=False), case(200, [142], [140], packed=False)], ids=["few", "many positions"]
)
def test_single_precision(given: tuple[Any, ...]) -> None:
    """Also of more positions than a block has threads."""
    for found, want in zip(losses(given, "cuda", torch.float32), losses(given, "cpu", torch.float64), strict=True):
        torch.testing.assert_close(found.double(), want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({2: torch.tensor([4, 9])}, "Expected input_lengths to have value at most 6"),
        ({3: torch.tensor([2, 9])}, "Expected tensor to have size at least"),
        ({2: torch.tensor([4])}, "input_lengths must be of size batch_size"),
        ({0: torch.randn(6, 2, 5).half()}, "not implemented for 'Half'"),
    ],
)
def test_what_torch_refuses_is_refused_in_its_words(change: dict[int, Any], message: str) -> None:
    given = list(case(5, [6, 6], [2, 3], packed=False))
    for place, value in change.items():
        given[place] = value
    with pytest.raises(RuntimeError, match=message):
        F.ctc_loss(given[0].cuda(), given[1].cuda(), given[2], given[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_module_is_made_of_its_source(dtype: torch.dtype) -> None:
    source = RawModule(path=FOLDER / "ctc.cu")
    name = {torch.float32: "float", torch.float64: "double"}[dtype]
    emitted = torch.randn(3, 8, 7, dtype=dtype, device="cuda")
    skips = torch.rand(3, 7, device="cuda") < 0.5
    skips[:, :2] = False
    times, last = torch.tensor([8, 5, 0], device="cuda"), torch.tensor([6, 4, 2], device="cuda")
    for entry, args in (("forwards", (emitted, skips)), ("backwards", (emitted, skips, times, last))):
        made, given = torch.zeros_like(emitted), torch.zeros_like(emitted)
        source.get_function(f"{entry}_{name}")(3, 32, (*args, made, 8, 7))
        kernel("ctc", f"{entry}_{name}")(3, 32, (*args, given, 8, 7))
        assert torch.equal(made, given), entry
