"""erf, erfc and erfinv in f32."""

from __future__ import annotations

from typing import Final

from wis.kernel.model import RegType
from wis.kernel.strict.double import exp_near, log_near
from wis.kernel.strict.exponential import power_of_two_normal
from wis.kernel.strict.parts import INF, NAN, horner, numbers
from wis.kernel.strict.trace import Value, fma, sel

__all__ = ["erf", "erfc", "erfinv"]

_ERF: Final = numbers("0x1.06eba6p-3 -0x1.8126e6p-2 0x1.ce1a4cp-4 -0x1.b687ecp-6 0x1.4721d8p-8 -0x1.399e76p-11")
"""erf(x) / x - 1 in x**2 on [0, 0.925], relative to erf(x): 2^-25.9."""
_TAIL: Final = numbers("0x1.2effd4p-12 0x1.a07a32p+0 0x1.d6af42p-1 0x1.32ff5ep-3 -0x1.0687dap-5 0x1.1f697cp-8 -0x1.27e37ep-12")
"""-log2(1 - erf(x)) on [0.923, 3.95], weighted by its effect on erf(x): 2^-29.3."""

_ERFC: Final = numbers(
    "0x1.20df474a80301p-1 0x1.b1033bd9d3600p+0 0x1.357adc108dd54p+2 0x1.7aec5e4e8f105p+3 0x1.571351c8faca3p+5 -0x1.8dbec664d39e8p+5 "
    "0x1.d25cc7e659e20p+9 -0x1.d820b3dff5804p+11 0x1.a2917a314b60cp+13 -0x1.cc362472a8664p+14 0x1.00d2e5a54c0fep+15 -0x1.cb3019d15f9f4p+13"
)
"""erfc(x) e**(x**2) / r in r = 1 / (x + 3), x from 0 to 10.2, relative: 2^-33.4 (f64, through the Chebyshev nodes)."""

_INVERSE: Final = numbers(
    "0x1.805c5d250add4p+0 0x1.f91e89e353ec5p-3 -0x1.11c505c813111p-8 -0x1.48650b88b4c67p-10 0x1.c9e96f22d3fa3p-13 -0x1.4db1851123b88p-18 "
    "-0x1.d0eda0a443e8cp-19 0x1.f6a6f712a661ep-22 0x1.90e8ab4aaed61p-26 -0x1.32e60d3c53520p-27"
)
"""erfinv(x) / x in w - 2.5 for w = -log(1 - x**2) from 0 to 5, relative: 2^-27.2 (f64, through the Chebyshev nodes)."""
_INVERSE_TAIL: Final = numbers(
    "0x1.6a9efbcd4bcbcp+1 0x1.006dc6f10186ep+0 0x1.3584a465d9725p-7 -0x1.f4a37c5285a1fp-8 0x1.746b8667f015ap-8 -0x1.d6431ecb1741ap-9 "
    "0x1.887ce6d7433e2p-10 -0x1.3ef7d00c8a520p-14 -0x1.4f77a98ecd232p-12 0x1.0f0a2382853abp-13"
)
"""The same in sqrt(w) - 3 for w from 5 to 16: 2^-27.2."""


def erf(x: Value) -> Value:
    """Error function: from 0.925 on 1 - 2**-p(|x|), below x + x p(x**2)."""
    a = abs(x)
    b = sel(a > 3.94, a.like(3.94), a)
    s = a * a
    y = sel(a < 0.925, fma(horner(s, _ERF), a, a), 1.0 - power_of_two_normal(-horner(b, _TAIL)))
    return y.copysign(x)


def erfc(x: Value) -> Value:
    """1 - erf(x), in f64: that costs less than to keep e**-(x**2) in two parts. Beyond 11 it is 0."""
    a = abs(x).to("cvt", RegType.F64)
    a = sel(a > 11.0, 11.0, a)
    r = 1.0 / (a + 3.0)
    y = exp_near(-(a * a)) * (r * horner(r, _ERFC))
    return sel(x < 0.0, 2.0 - y, y).to("cvt", RegType.F32)


def erfinv(x: Value) -> Value:
    """Inverse of erf, in f64, where 1 - x**2 is exact."""
    a = x.to("cvt", RegType.F64)
    w = -log_near(fma(-a, a, 1.0))
    p = sel(w < 5.0, horner(w - 2.5, _INVERSE), horner(w.sqrt() - 3.0, _INVERSE_TAIL))
    y = (a * p).to("cvt", RegType.F32)
    size = abs(x)
    return sel(size < 1.0, y, sel(size.equals(1.0), x.like(INF).copysign(x), NAN))
