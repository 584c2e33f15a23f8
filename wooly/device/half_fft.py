"""Fourier transforms of half types: computed in f32, rounded once.

torch's own check (``promote_type_fft``) names the devices whose library transforms float16 and refuses it on every other, before an
operation is dispatched. Here the public transforms are taken over for float16 and complex32, for every length; other types take torch's
own composition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

__all__ = ["register"]

_WIDER: Final = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_NARROWER: Final = {torch.float32: torch.float16, torch.complex64: torch.complex32}

_TRANSFORMS: Final = [f"fft_{kind}{dims}" for dims in ("", "2", "n") for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")]

_KEYS: Final = ("PrivateUse1", "AutogradPrivateUse1", "FuncTorchBatched")


def _transform(name: str, overload: str) -> Callable[..., Any]:
    """The kernel of one transform: torch's composition, of the wider type where the input is of a half type."""

    def transform(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        transforms = getattr(torch.ops.aten, name)
        wider = _WIDER.get(x.dtype)
        if wider is None:
            return getattr(transforms, overload).decompose(x, *args, **kwargs)
        out = kwargs.pop("out", None)
        result = transforms.default(x.to(wider), *args, **kwargs)
        result = result.to(_NARROWER[result.dtype])
        if out is None:
            return result
        if out.dtype != result.dtype:
            raise RuntimeError(f"{name}: expected an out tensor of {result.dtype}, got {out.dtype}")
        if out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)

    return transform


def register(library: Any) -> None:
    """Take the transforms over."""
    for name in _TRANSFORMS:
        for key in _KEYS:
            library.impl(name, _transform(name, "default"), key)
            library.impl(f"{name}.out", _transform(name, "out"), key)
