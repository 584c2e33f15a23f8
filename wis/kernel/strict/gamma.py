"""lgamma in f32, by f64 arithmetic: its zeros would need two parts of everything. May live here: functions of the gamma family. May not:
tables.

Polynomials are those through the Chebyshev nodes, as in ``double``.
"""

from __future__ import annotations

from typing import Final

from wis.kernel.model import RegType
from wis.kernel.strict.double import log_finite
from wis.kernel.strict.parts import INF, horner, numbers
from wis.kernel.strict.trace import Value, sel

__all__ = ["lgamma"]

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
