"""Runs operator samples on the device and on the CPU, and says how each operator is carried out.

An operator is *native* when every sample ran on the device and agreed with the CPU, *fallback* when some sample was computed on this
machine (counted by ``wooly.stats()``), *refused* when some sample raised although the CPU computed it, *wrong* when some result differed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

from tests.support.loopback import LoopbackLink
from wooly.counters import COUNTERS
from wooly.device.recorder import RECORDER

__all__ = ["CLASSES", "Outcome", "forward", "backward", "op_name", "RANDOM"]

CLASSES = ("native", "fallback", "refused", "wrong")
DEVICE = "cuda"

_UNCOMPARABLE = """
    normal multinomial rand_like randn randn_like
    randint randint_like empty empty_like new_empty new_empty_strided empty_strided empty_permuted
    uniform cauchy exponential geometric log_normal svd_lowrank pca_lowrank nn.functional.dropout nn.functional.dropout2d
    nn.functional.dropout3d nn.functional.alpha_dropout nn.functional.feature_alpha_dropout nn.functional.rrelu
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.functional.multi_head_attention_forward
    nn.functional.scaled_dot_product_attention
"""
RANDOM: dict[str, tuple[float, float] | None] = {**dict.fromkeys(_UNCOMPARABLE.split()), "bernoulli": (0.0, 1.0)}
"""Operators whose values cannot be compared (the device has its own numbers): shape, type and, where given, range are."""

_RANDOM_ONLY_WITH_DROPOUT = {"nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention"}

_CPU_ARGUMENTS = {"tensor_split"}
"""Operators that want their tensor arguments on the CPU, on CUDA too."""

_TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


@dataclass
class Outcome:
    """How one operator did. ``note``: of the first failure, else the operations that fell back."""

    name: str
    samples: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0))
    note: str = ""
    fallbacks: set[str] = field(default_factory=set)
    seconds: float = 0.0

    @property
    def result(self) -> str:
        """The worst of the samples; an operator without any is ``skipped``."""
        return next((c for c in reversed(CLASSES) if self.counts[c]), "skipped")


def op_name(op: OpInfo) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


class _Differs(Exception):
    """The device's result is not the CPU's."""


def _leaves(value: Any) -> list[Any]:
    leaves: list[Any] = tree_flatten(value)[0]
    return leaves


def _moved(value: Any, device: str, *, grad: bool) -> Any:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            moved = leaf.detach().to(device).clone() if grad else leaf.detach().to(device)
            return moved.requires_grad_(leaf.requires_grad and grad)
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    return tree_map(move, value)


def _run(op: OpInfo, sample: SampleInput, device: str) -> Any:
    there = "cpu" if op.name in _CPU_ARGUMENTS else device
    args, kwargs = _moved(sample.args, there, grad=False), _moved(sample.kwargs, there, grad=False)
    given = _moved(sample.input, device, grad=False)
    if device == "cpu":
        given = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, given)
    if "device" in kwargs:
        kwargs["device"] = device
    torch.manual_seed(0)
    return _compared(sample.output_process_fn_grad, op.op(given, *args, **kwargs))


def _compared(process: Callable[[Any], Any] | None, out: Any) -> Any:
    """What of a result is determined: decompositions are compared by what their samples say is comparable."""
    return out if process is None else process(out)


def _run_backward(op: OpInfo, sample: SampleInput, device: str) -> list[Any]:
    there = "cpu" if op.name in _CPU_ARGUMENTS else device
    given = _moved(sample.input, device, grad=True)
    args, kwargs = _moved(sample.args, there, grad=True), _moved(sample.kwargs, there, grad=True)
    torch.manual_seed(0)
    out = op.op(given, *args, **kwargs)
    if sample.output_process_fn_grad is not None:
        out = sample.output_process_fn_grad(out)
    outs = [t for t in _leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    loss = sum(t.abs().sum() for t in outs)
    wanted = [t for t in _leaves((given, args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    return list(torch.autograd.grad(loss, wanted, allow_unused=True))


def _is_random(op: OpInfo, sample: SampleInput) -> bool:
    if op.name in _RANDOM_ONLY_WITH_DROPOUT:
        return any(isinstance(v, float) and v > 0.0 for v in (*sample.args, sample.kwargs.get("dropout_p", 0.0)))
    return op.name in RANDOM


def _check(op: OpInfo, random: bool, device: Any, cpu: Any) -> None:
    have, want = _leaves(device), _leaves(cpu)
    if len(have) != len(want):
        raise _Differs(f"{len(have)} results instead of {len(want)}")
    for a, b in zip(have, want, strict=True):
        if isinstance(b, torch.Tensor):
            if not isinstance(a, torch.Tensor):
                raise _Differs(f"{type(a).__name__} instead of a tensor")
            _check_tensor(a, b, RANDOM.get(op.name) if random else None, random)
        elif not random and a != b and not (a != a and b != b):
            if not (isinstance(b, float) and abs(a - b) <= 1e-4 + 1e-3 * abs(b)) and not isinstance(b, torch.device):
                raise _Differs(f"{a!r} instead of {b!r}")


def _check_tensor(a: torch.Tensor, b: torch.Tensor, span: tuple[float, float] | None, random: bool) -> None:
    if random:
        if a.shape != b.shape or a.dtype != b.dtype:
            raise _Differs(f"{tuple(a.shape)} {a.dtype} instead of {tuple(b.shape)} {b.dtype}")
        here = a.cpu()
        if span is not None and here.numel() and not (span[0] <= here.min() and here.max() <= span[1]):
            raise _Differs(f"outside of {span}")
        return
    try:
        torch.testing.assert_close(a.cpu(), b, equal_nan=True, check_stride=False, **_TOLERANCE)
    except AssertionError as error:
        raise _Differs(" ".join(str(error).split())) from None


def _samples(op: OpInfo, limit: int | None, *, grad: bool) -> Iterator[SampleInput]:
    for i, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=grad)):
        if limit is not None and i >= limit:
            return
        yield sample


def forward(op: OpInfo, limit: int | None = None) -> Outcome:
    """Every sample's result, computed on both."""
    return _outcome(op, _samples(op, limit, grad=False), _run)


def backward(op: OpInfo, limit: int | None = 4) -> Outcome:
    """Every sample's gradients, computed on both."""
    return _outcome(op, _samples(op, limit, grad=True), _run_backward)


def _outcome(op: OpInfo, samples: Iterable[SampleInput], run: Callable[[OpInfo, SampleInput, str], Any]) -> Outcome:
    outcome = Outcome(op_name(op))
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples:
            try:
                want = run(op, sample, "cpu")
            except Exception:  # the sample is not for this build of torch; there is nothing to compare with
                continue
            outcome.samples += 1
            result, note = _one(op, sample, run, want, outcome)
            outcome.counts[result] += 1
            if note and result in ("refused", "wrong") and not (result == "refused" and outcome.counts["wrong"]):
                outcome.note = outcome.note if outcome.counts[result] > 1 else note
    outcome.seconds = time.perf_counter() - start
    return outcome


def recover() -> None:
    """Get rid of what a failed sample left behind, so that the next one starts clean."""
    link = RECORDER.link()
    try:
        RECORDER.synchronize()
    except Exception:  # the failed sample's own error, met again
        pass
    assert isinstance(link, LoopbackLink), "conformance runs through the loopback link"
    link.forget_fault()


def _one(op: OpInfo, sample: SampleInput, run: Callable[[OpInfo, SampleInput, str], Any], want: Any, outcome: Outcome) -> tuple[str, str]:
    before = dict(COUNTERS.fallbacks)
    try:
        have = run(op, sample, DEVICE)
        _check(op, _is_random(op, sample), have, want)
    except _Differs as error:
        return "wrong", str(error)[:300]
    except Exception as error:  # whatever the device raises where the CPU does not is a refusal
        recover()
        return "refused", f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    used = {name for name, count in COUNTERS.fallbacks.items() if count != before.get(name, 0)}
    outcome.fallbacks |= used
    return ("fallback" if used else "native"), ""
