"""Compares a device's result with the CPU's: metadata always, values exactly, within a tolerance, or by their distance from the truth.

| type | rtol | atol | why |
|---|---|---|---|
| float16 | 1e-3 | 1e-5 | 1 ulp: one rounding of a result computed in float32 (CUDA's opmath type) |
| bfloat16 | 1.6e-2 | 1e-5 | 2 ulp of 8 bits, computed in float32 |
| float32 | 1.3e-6 | 1e-5 | 11 ulp: sums in another order |
| float64 | 1e-7 | 1e-7 | torch's own bound for its CPU and CUDA kernels |
| complex64, complex128 | as float32, float64 | | the parts of a complex number are rounded alone |
| integers, bool | 0 | 0 | exact |

They are the defaults of torch.testing. A floating-point result outside of them is compared with the *truth*: the CPU's result in
float64 (or complex128) from the same inputs. It is right when its error is at most twice the CPU's own largest error plus ``ULPS`` units
in the last place of the element and of the tensor's root mean square; for badly conditioned operators, plus twice what the truth moves by
when the inputs move by one unit; for unstable ones, plus twice the largest error of CPU results that round otherwise. So where the CPU
itself rounds intermediates to half, the device need not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Differs", "METHODS", "check", "check_metadata", "check_strides"]

METHODS = ("exact", "tolerance", "truth", "cast", "property", "metadata", "raised")
"""How a sample was compared; the last in this order that one of its tensors needed."""

ULPS = 4
"""Units in the last place allowed beside the CPU's own error."""

Truth = Callable[[], list[Any]]


class Differs(Exception):
    """The device's result is not the CPU's."""


def check(have: list[Any], want: list[Any], truth: Truth, *, cast: bool = False, shifted: Truth | None = None) -> str:
    """Compare the leaves of two results, fetched; the method that was needed, a name in METHODS.

    ``truth()`` gives the leaves in the widest type, or [] without a truth. ``cast``: ``want`` is the truth itself, because the CPU
    lacks the type: values are compared in the device's type. ``shifted()``: the truth for inputs one unit aside. Raises Differs.
    """
    if len(have) != len(want):
        raise Differs(f"{len(have)} results instead of {len(want)}")
    used = 0
    for i, (a, b) in enumerate(zip(have, want, strict=True)):
        if isinstance(b, torch.Tensor):
            used = max(used, METHODS.index(_check_tensor(a, b, i, truth, cast, shifted)))
        elif not _equal_plain(a, b, cast):
            raise Differs(f"{a!r} instead of {b!r}")
    return METHODS[used]


def check_metadata(have: Any, want: Any, *, cast: bool = False) -> None:
    """Shape, type and device of the device's own leaf ``have`` beside the CPU's ``want``. Raises Differs."""
    if not isinstance(want, torch.Tensor):
        return
    if not isinstance(have, torch.Tensor):
        raise Differs(f"{type(have).__name__} instead of a tensor")
    if want.device.type == "cpu" and (have.device.type, have.device.index) != ("cuda", 0):
        raise Differs(f"a result on {have.device}")
    if have.shape != want.shape:
        raise Differs(f"shape {tuple(have.shape)} instead of {tuple(want.shape)}")
    if have.dtype != want.dtype and not cast:
        raise Differs(f"{have.dtype} instead of {want.dtype}")


def check_strides(have: list[Any], want: list[Any], promised: Callable[[], list[Any]]) -> None:
    """Strides as on the CPU, where torch promises them: ``promised()`` are the results on the meta device, whose strides are torch's
    specification; where the CPU does not keep to it, either will do. Raises Differs."""
    pairs = [(a, b) for a, b in zip(have, want, strict=True) if isinstance(b, torch.Tensor)]
    if all(_strides(a) == _strides(b) for a, b in pairs):
        return
    for (a, b), rule in zip(pairs, [t for t in promised() if isinstance(t, torch.Tensor)], strict=False):
        if _strides(a) != _strides(b) and _strides(a) != _strides(rule) and _strides(b) == _strides(rule):
            raise Differs(f"strides {a.stride()} instead of {b.stride()} of shape {tuple(b.shape)}")


def _strides(tensor: torch.Tensor) -> list[int]:
    """Of the dimensions that have more than one element: the others mean nothing."""
    if tensor.layout != torch.strided or not tensor.numel():
        return []
    return [stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True) if size > 1]


def _equal_plain(a: Any, b: Any, cast: bool) -> bool:
    if isinstance(b, torch.device):
        return isinstance(a, torch.device)
    if isinstance(b, float | complex) and isinstance(a, float | complex):
        return a == b or (a != a and b != b) or abs(a - b) <= 1e-5 + (1e-2 if cast else 1.3e-6) * abs(b)
    return type(a) is type(b) and bool(a == b)


def _check_tensor(a: torch.Tensor, b: torch.Tensor, i: int, truth: Truth, cast: bool, shifted: Truth | None) -> str:
    a, b = a.detach().resolve_conj().resolve_neg(), b.detach().resolve_conj().resolve_neg()
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if not (a.is_floating_point() or a.is_complex()):
        if not torch.equal(a, b.to(a.dtype)):
            wrong = (a != b.to(a.dtype)).nonzero()
            raise Differs(f"{len(wrong)} of {a.numel()} elements; at {_at(wrong)}: {_shown(a, wrong)} instead of {_shown(b, wrong)}")
        return "cast" if cast else "exact"
    if cast:
        _near_truth(a, None, b)
        return "cast"
    try:
        torch.testing.assert_close(a, b, equal_nan=True, check_stride=False)
    except AssertionError:
        wide = truth()
        _near_truth(a, b, wide[i] if i < len(wide) else b, shifted()[i] if shifted is not None else None)
        return "truth"
    return "tolerance"


def _near_truth(a: torch.Tensor, cpu: torch.Tensor | None, truth: torch.Tensor, shifted: torch.Tensor | None = None) -> None:
    if truth.shape != a.shape:
        raise Differs(f"shape {tuple(a.shape)}, in a wider type {tuple(truth.shape)}")
    truth = truth.detach().resolve_conj().resolve_neg()
    ours, right = _parts(a), _parts(truth)
    own = ours if cpu is None else _parts(cpu)
    info = torch.finfo(a.dtype)
    rounded = _parts(truth.to(a.dtype))
    same = (ours == own) | (ours == rounded) | (ours.isnan() & (own.isnan() | right.isnan())) if cpu is not None else ours == rounded
    same |= ours.isnan() & right.isnan()
    finite = own.isfinite() & right.isfinite() if cpu is not None else right.isfinite()
    mean_square = float(right[finite].square().mean().sqrt()) if finite.any() else 0.0
    error = float((own - right)[finite].abs().max()) if cpu is not None and finite.any() else 0.0
    step = ULPS * info.eps
    bound = 2 * error + step * (right.abs() + (mean_square if math.isfinite(mean_square) else 0.0)) + 4 * info.smallest_normal * info.eps
    if shifted is not None:
        bound += 2 * (_parts(shifted) - right).abs()
    near = (ours - right).abs() <= bound
    near |= (ours.isinf() & (ours.sign() == right.sign())) & (right.abs() * (1 + step) >= info.max)
    wrong = (~(same | near)).nonzero()
    if len(wrong):
        cpu_text = "" if cpu is None else f", CPU {_shown(own, wrong)}"
        raise Differs(
            f"{len(wrong)} of {ours.numel()} {a.dtype} elements; at {_at(wrong)}: {_shown(ours, wrong)}{cpu_text}, "
            f"truth {_shown(right, wrong)}, bound {_shown(bound, wrong)}"
        )


def _parts(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers as float64; of complex ones the parts in a last dimension."""
    wide = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return wide.to(torch.float64)


def _at(wrong: torch.Tensor) -> list[int]:
    where: list[int] = wrong[0].tolist()
    return where


def _shown(tensor: torch.Tensor, wrong: torch.Tensor) -> Any:
    value = tensor[tuple(wrong[0])] if wrong[0].numel() else tensor
    return value.item()


def fetched(values: list[Any]) -> list[Any]:
    """``values`` with device tensors brought here, one wait for all of them."""
    from wooly.device import transfer

    kept = [v.detach() if isinstance(v, torch.Tensor) else v for v in values]
    return list(transfer.fetch_all(kept))
