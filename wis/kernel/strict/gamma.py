"""lgamma and digamma in f32, by f64 arithmetic: their zeros would need two parts of everything.

Polynomials are those through the Chebyshev nodes, as in ``double``.
"""

from __future__ import annotations

from typing import Final

from wis.kernel.model import RegType
from wis.kernel.strict.double import log_finite
from wis.kernel.strict.parts import INF, NAN, horner, numbers
from wis.kernel.strict.trace import Value, sel

__all__ = ["lgamma", "digamma"]

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
