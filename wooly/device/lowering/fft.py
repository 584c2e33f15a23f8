"""Discrete Fourier transforms as products with the matrix of roots of unity.

Quadratic in the length, and exact in its angles (j * k is reduced modulo n as integers); long transforms are left to the CPU.

Transforms of half types are computed in f32 and rounded once (``register``). torch's own check (``promote_type_fft``) names the devices
whose library transforms float16 and refuses it on every other, before an operation is dispatched. So the public transforms are taken over
for float16 and complex32, for every length; other types take torch's own composition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from wis.dtypes import COMPLEX, DType
from wooly.device.lowering.dtypes import real_of
from wooly.device.lowering.linear import matmul
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.unary import complex_parts, join
from wooly.device.lowering.values import Meta, Unsupported

__all__ = ["register"]

_LENGTH_MAX: Final = 1024
_BY_ROOT: Final = 1
_BY_LENGTH: Final = 2


def _factor(normalization: int, length: int) -> float:
    return {_BY_ROOT: 1 / math.sqrt(length), _BY_LENGTH: 1 / length}.get(normalization, 1.0) if length else 1.0


def _roots(t: Trace, rows: int, columns: int, length: int, forward: bool, part: DType) -> tuple[Meta, Meta]:
    """cos and sin of -+2 pi j k / length, [rows, columns]; angles in f64."""
    if length > _LENGTH_MAX:
        raise Unsupported(f"a Fourier transform of length {length}")
    turns = t.map("mod", t.map("mul", t.iota(rows).unsqueeze(1), t.iota(columns).unsqueeze(0)), length)
    angle = t.map("mul", t.cast(turns, DType.F64), (-2 if forward else 2) * math.pi / length)
    return t.cast(t.map("cos", angle), part), t.cast(t.map("sin", angle), part)


def _product(t: Trace, x: Meta, matrix: Meta, dim: int) -> Meta:
    """x @ matrix along ``dim``."""
    rows = x.move(dim, -1)
    out = matmul(t, t.reshape(rows, (rows.numel // max(rows.shape[-1], 1), rows.shape[-1])), matrix)
    return t.reshape(out, (*rows.shape[:-1], matrix.shape[1])).move(-1, dim)


def _transform(t: Trace, x: Meta, dim: int, forward: bool, columns: int | None = None) -> Meta:
    """One dimension of a complex tensor; ``columns``: only so many of the results."""
    n = x.shape[dim]
    real, imag = _roots(t, n, n if columns is None else columns, n, forward, real_of(x.dtype))
    return _product(t, x, join(t, real, imag), dim)


def _scaled(t: Trace, x: Meta, factor: float) -> Meta:
    return x if factor == 1.0 else t.map("mul", x, factor, dtype=x.dtype)


def _length(x: Meta, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims)


def _check(x: Meta) -> None:
    if real_of(x.dtype) not in (DType.F32, DType.F64):
        raise Unsupported(f"a Fourier transform in {x.dtype.text}")
    if x.numel == 0:
        raise Unsupported("a Fourier transform of nothing")


@lowers("aten::_fft_c2c")
def fft_c2c(t: Trace, x: Meta, dim: Sequence[int], normalization: int, forward: bool) -> Meta:
    _check(x)
    out = x
    for d in dim:
        out = _transform(t, out, d % x.ndim, forward)
    return _scaled(t, out, _factor(normalization, _length(x, dim)))


@lowers("aten::_fft_r2c")
def fft_r2c(t: Trace, x: Meta, dim: Sequence[int], normalization: int, onesided: bool) -> Meta:
    """The last of ``dim`` goes from real to complex, with half of the results when ``onesided``."""
    _check(x)
    last, n = dim[-1] % x.ndim, x.shape[dim[-1]]
    columns = n // 2 + 1 if onesided else n
    real, imag = _roots(t, n, columns, n, True, x.dtype)
    out = join(t, t.contiguous(_product(t, x, real, last)), t.contiguous(_product(t, x, imag, last)))
    for d in dim[:-1]:
        out = _transform(t, out, d % x.ndim, True)
    return _scaled(t, out, _factor(normalization, _length(x, dim)))


@lowers("aten::_fft_c2r")
def fft_c2r(t: Trace, x: Meta, dim: Sequence[int], normalization: int, last_dim_size: int) -> Meta:
    """Inverse of ``_fft_r2c``: of each missing coefficient the conjugate is there, so all but the first and the middle count twice."""
    _check(x)
    if x.dtype not in COMPLEX:
        raise Unsupported("an inverse real transform of a real tensor")
    out = x
    for d in dim[:-1]:
        out = _transform(t, out, d % x.ndim, False)
    last, n = dim[-1] % x.ndim, last_dim_size
    used = n // 2 + 1
    out = out.narrow(last, 0, used)
    cosine, sine = _roots(t, used, n, n, False, real_of(x.dtype))
    single = t.map("eq", t.map("mod", t.map("mul", t.iota(used), 2), n), 0)
    weight = t.where(single, 1.0, 2.0, dtype=cosine.dtype).unsqueeze(1)
    real, imag = complex_parts(t, t.contiguous(out))
    first = _product(t, real, t.map("mul", cosine, weight), last)
    second = _product(t, imag, t.map("mul", sine, weight), last)
    lengths = _length(x, dim[:-1]) * n
    return _scaled(t, t.map("sub", first, second), _factor(normalization, lengths))


_WIDER: Final = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_NARROWER: Final = {torch.float32: torch.float16, torch.complex64: torch.complex32}

_TRANSFORMS: Final = [f"fft_{kind}{dims}" for dims in ("", "2", "n") for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")]

_KEYS: Final = ("PrivateUse1", "AutogradPrivateUse1", "FuncTorchBatched")


def _half(name: str, overload: str) -> Callable[..., Any]:
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
    """Take the public transforms over."""
    for name in _TRANSFORMS:
        for key in _KEYS:
            library.impl(name, _half(name, "default"), key)
            library.impl(f"{name}.out", _half(name, "out"), key)
