"""Complex tensors: made from parts, from polar form, and taken apart."""

from __future__ import annotations

from wis.views import broadcast_shapes
from wooly.device.lowering.dtypes import complex_of
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta

__all__: list[str] = []


@lowers("aten::complex")
def complex_(t: Trace, real: Meta, imag: Meta) -> Meta:
    shape = broadcast_shapes(real.shape, imag.shape)
    out = t.temp(complex_of(real.dtype), shape)
    t.emit("complex", [out], [real.expand(shape), imag.expand(shape)])
    return out


@lowers("aten::polar")
def polar(t: Trace, size: Meta, angle: Meta) -> Meta:
    return complex_(t, t.map("mul", size, t.map("cos", angle)), t.map("mul", size, t.map("sin", angle)))
