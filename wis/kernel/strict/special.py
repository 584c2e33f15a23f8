"""erf, erfc, erfinv, lgamma and digamma in f32. The last two compute in f64: their zeros would need two parts of everything.

Polynomials are those through the Chebyshev nodes, as in ``double``.
"""

from __future__ import annotations

from typing import Final

from wis.kernel.model import RegType
from wis.kernel.strict.double import exp_near, log_finite, log_near
from wis.kernel.strict.exponential import power_of_two_normal
from wis.kernel.strict.trace import INF, NAN, Value, fma, horner, numbers, sel

_HALF_LOG_2_PI: Final = float.fromhex("0x1.d67f1c864beb5p-1")
_NEAR: Final = numbers(
    "0x1.ccf151e1706b5p-2 -0x1.e965863242e1cp-4 0x1.6cb620993c6fap-5 -0x1.382e1293c8be2p-6 0x1.1f97829b1ead1p-7 -0x1.14f9e978b3ba3p-8 "
    "0x1.1257744c2774ep-9 -0x1.15aba2a068064p-10 0x1.2412e7503b3d9p-11 -0x1.2fdb5157498d0p-12 0x1.f0abb7bcc2489p-14 "
    "-0x1.04dc64ced81f0p-14 0x1.408c52b7753cep-14 -0x1.5834515b80a4ep-15"
)
"""lgamma(1 + w) / (w (w - 1)) in w - 0.75 for w from 0 to 1.5, relative: 2^-32.7."""
_FAR: Final = numbers(
    "0x1.5555555555555p-4 -0x1.6c16c16bf7cb7p-9 0x1.a019ffd52a4e3p-11 -0x1.381110a525e59p-11 0x1.b7ced2e6fa741p-11 -0x1.be6731e3e5d40p-10"
)
"""y (lgamma(y) - Stirling's formula) in 1 / y**2 for y from 9 on, its effect on lgamma: 2^-59.2."""
_SINE: Final = numbers(
    "0x1.921fb54442d18p+1 -0x1.4abbce625be52p+2 0x1.466bc6775aa7dp+1 -0x1.32d2cce627c86p-1 0x1.5078348551854p-4 -0x1.e3074dfaf87afp-8 "
    "0x1.e8f3675ee37ddp-12 -0x1.6f7acdb8f6580p-16 0x1.9d462020fcc78p-21"
)
"""sin(pi r) / r in r**2 for |r| <= 1/2, relative: 2^-54.5."""

_COSINE: Final = numbers(
    "0x1.0p+0 -0x1.3bd3cc9be45dbp+2 0x1.03c1f081b5992p+2 -0x1.55d3c7e3bfbf5p+0 0x1.e1f506813a321p-3 -0x1.a6d1efc8c38bep-6 "
    "0x1.f9d254582ac30p-10 -0x1.b6957b54dd389p-14 0x1.1678f9078a9b3p-18"
)
"""cos(pi r) in r**2 for |r| <= 1/2: 2^-53.2."""
_SLOPE: Final = numbers(
    "0x1.55555555554b8p-4 -0x1.1111110cd4044p-7 0x1.04102df343728p-8 -0x1.110143605cb9fp-8 0x1.ea7b4fa7c7783p-8 -0x1.14119d44c72a0p-6"
)
"""(log(y) - 1 / (2 y) - digamma(y)) y**2 in 1 / y**2 for y from 7 on, its effect on digamma: 2^-54.5."""
_PRODUCT: Final = (720.0, 1764.0, 1624.0, 735.0, 175.0, 21.0, 1.0)  # z (z + 1) ... (z + 6) over z


def lgamma(x: Value) -> Value:
    """log |gamma(x)|; infinite at whole numbers from 0 down.

    z = x, or 1 - x for negative x, where lgamma(x) = log(pi / |sin(pi x)|) - lgamma(z). lgamma(z) = base - log(over): a polynomial in z - 1
    for z < 2.5 (and for z < 1 in z, over = z), else Stirling's formula at z + 7 and over = z (z + 1) ... (z + 6).
    """
    v = x.to("cvt", RegType.F64)
    mirrored = v < 0.0
    z = sel(mirrored, 1.0 - v, v)
    low, near = z < 1.0, z < 2.5
    w = sel(low, z, z - 1.0)
    small = (w * (w - 1.0)) * horner(w - 0.75, _NEAR)
    y = z + 7.0
    back = 1.0 / y
    far = (y - 0.5) * (log_finite(y) - 1.0) + (horner(back * back, _FAR) * back + (_HALF_LOG_2_PI - 0.5))
    product = z
    for k in range(1, 7):
        product = product * (z + float(k))
    over = sel(near, sel(low, z, 1.0), product)
    base = sel(near, small, far)
    r = v - v.rint()
    sine = abs(r * horner(r * r, _SINE))
    over = sel(mirrored, over * (1.0 / sine) * float.fromhex("0x1.921fb54442d18p+1"), over)
    more = log_finite(over)
    result = sel(mirrored, more - base, base - more) + 0.0  # lgamma(1) = +0
    pole = (x <= 0.0) & x.rint().equals(x)
    return sel(pole | abs(x).equals(INF), INF, result.to("cvt", RegType.F32))


def digamma(x: Value) -> Value:
    """Slope of lgamma; NaN at -1, -2, ... and -inf; at 0 infinite with the sign opposite to the zero's.

    z = x, or 1 - x below 1/2, where digamma(x) = digamma(z) - pi cot(pi x). The series at z + 7, from which 1 / z + ... + 1 / (z + 6) is
    taken: the slope of z (z + 1) ... (z + 6) over the product itself.
    """
    v = x.to("cvt", RegType.F64)
    mirrored = v < 0.5
    z = sel(mirrored, 1.0 - v, v)
    y = z + 7.0
    back = 1.0 / y
    square = back * back
    steps = horner(z, [k * c for k, c in enumerate(_PRODUCT, 1)]) / (z * horner(z, _PRODUCT))
    value = ((log_finite(y) - back * 0.5) - square * horner(square, _SLOPE)) - steps
    whole = v.rint()
    r = v - whole
    turn = horner(r * r, _COSINE) * float.fromhex("0x1.921fb54442d18p+1") / (r * horner(r * r, _SINE))
    value = sel(mirrored, value - turn, value)
    value = sel((v < 0.0) & whole.equals(v), NAN, value)
    value = sel(v.equals(0.0), value.like(INF).copysign(-v), value)
    return sel(v.equals(INF), INF, value).to("cvt", RegType.F32)


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
