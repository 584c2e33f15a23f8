"""Functions that NumPy lacks, vectorised: erf, erfc, erfinv, lgamma and digamma in f64, and the fused multiply-add in f32 and f64.

Written out here because the definition of an instruction must not depend on another package's choice. Special functions are accurate to a
few 1e-15 (relative, except beside the zeros of lgamma and digamma: absolute).

a * b + c is rounded once. f32: the product is exact in f64; the sum is rounded to odd, so that the last rounding sees which side of a tie
it is on. f64: error-free transformations with the same rounding to odd; where those could overflow or lose low bits, exact rationals.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from wis.reference.access import Array

__all__ = ["erf", "erfc", "erfinv", "lgamma", "digamma", "fma"]

F64 = npt.NDArray[np.float64]

# Rational approximations of erf on four intervals (the classic msun tables).
_ERX = 8.45062911510467529297e-01
_PP = (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02, -5.77027029648944159157e-03,
       -2.37630166566501626084e-05)  # fmt: skip
_QQ = (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03, 1.32494738004321644526e-04,
       -3.96022827877536812320e-06)  # fmt: skip
_PA = (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01, 3.18346619901161753674e-01,
       -1.10894694282396677476e-01, 3.54783043256182359371e-02, -2.16637559486879084300e-03)  # fmt: skip
_QA = (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02, 1.26171219808761642112e-01,
       1.36370839120290507362e-02, 1.19844998467991074170e-02)  # fmt: skip
_RA = (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e01, -6.23753324503260060396e01,
       -1.62396669462573470355e02, -1.84605092906711035994e02, -8.12874355063065934246e01, -9.81432934416914548592e00)  # fmt: skip
_SA = (1.0, 1.96512716674392571292e01, 1.37657754143519042600e02, 4.34565877475229228821e02, 6.45387271733267880336e02,
       4.29008140027567833386e02, 1.08635005541779435134e02, 6.57024977031928170135e00, -6.04244152148580987438e-02)  # fmt: skip
_RB = (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e01, -1.60636384855821916062e02,
       -6.37566443368389627722e02, -1.02509513161107724954e03, -4.83519191608651397019e02)  # fmt: skip
_SB = (1.0, 3.03380607434824582924e01, 3.25792512996573918826e02, 1.53672958608443695994e03, 3.19985821950859553908e03,
       2.55305040643316442583e03, 4.74528541206955367215e02, -2.24409524465858183362e01)  # fmt: skip


def _poly(x: F64, coefficients: tuple[float, ...]) -> F64:
    """Horner's rule; the coefficient of x**0 comes first."""
    result = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result * x + c
    return result


def _tail(a: F64) -> F64:
    """erfc(a) for a >= 1.25; exp(-a*a) is split so that the square's rounding error does not reach the result."""
    s = 1.0 / (a * a)
    ratio = np.where(a < 1 / 0.35, _poly(s, _RA) / _poly(s, _SA), _poly(s, _RB) / _poly(s, _SB))
    z = (a.view(np.int64) & np.int64(-(1 << 32))).view(np.float64)
    return np.asarray(np.exp(-z * z - 0.5625) * np.exp((z - a) * (z + a) + ratio) / a)


def _erf_parts(x: F64) -> tuple[F64, F64, F64]:
    """|x| clipped to 28, erf(|x|) below 1.25, and erfc(|x|) from 1.25 on (each garbage outside of its interval)."""
    a = np.minimum(np.abs(x), 28.0)
    z = a * a
    near = a + a * (_poly(z, _PP) / _poly(z, _QQ))
    s = a - 1.0
    middle = _ERX + _poly(s, _PA) / _poly(s, _QA)
    return a, np.where(a < 0.84375, near, middle), _tail(np.maximum(a, 1.25))


def erf(x: F64) -> F64:
    """2 / sqrt(pi) * integral of exp(-t*t) from 0 to x."""
    x = np.asarray(x, np.float64)
    a, small, tail = _erf_parts(x)
    return np.where(np.isnan(x), x, np.copysign(np.where(a < 1.25, small, 1.0 - tail), x))


def erfc(x: F64) -> F64:
    """1 - erf(x) without cancellation for large x."""
    x = np.asarray(x, np.float64)
    a, small, tail = _erf_parts(x)
    z = a * a
    y = _poly(z, _PP) / _poly(z, _QQ)
    small = np.where(a < 0.84375, np.where(x < 0.25, 1.0 - (x + x * y), 0.5 - ((x - 0.5) + x * y)), 1.0 - np.copysign(small, x))
    s = a - 1.0
    middle = 1.0 - _ERX - _poly(s, _PA) / _poly(s, _QA)
    small = np.where((a >= 0.84375) & (x > 0), middle, small)
    return np.where(np.isnan(x), x, np.where(a < 1.25, small, np.where(x < 0, 2.0 - tail, np.where(a >= 28.0, 0.0, tail))))


_GILES_CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                 -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_GILES_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
               0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def erfinv(x: F64) -> F64:
    """The y with erf(y) = x; +-1 give +-inf, outside gives NaN. Giles's start, then Halley steps on the side that does not cancel."""
    x = np.asarray(x, np.float64)
    a = np.abs(x)
    inside = np.where(a < 1.0, a, 0.5)
    w = -np.log((1.0 - inside) * (1.0 + inside))
    centre = _poly(w - 2.5, tuple(reversed(_GILES_CENTRE)))
    tail = _poly(np.sqrt(w) - 3.0, tuple(reversed(_GILES_TAIL)))
    far = -np.log((1.0 - inside) * np.sqrt(np.pi))  # leading term of erfc's expansion, where the polynomials end
    y = np.where(w < 16.0, np.where(w < 5.0, centre, tail) * inside, np.sqrt(np.abs(far - 0.5 * np.log(np.maximum(far, 1.0)))))
    for _ in range(3):
        # erf(y) - a, taken from erfc where erf is near 1 (1 - a is exact there).
        error = np.where(inside > 0.5, (1.0 - inside) - erfc(y), erf(y) - inside)
        step = error / (2.0 / np.sqrt(np.pi) * np.exp(-y * y))
        y = y - step / (1.0 + y * step)
    y = np.where(a < 1.0, y, np.where(a == 1.0, np.inf, np.nan))
    return np.asarray(np.copysign(y, x))


_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
_LANCZOS_G = 607.0 / 128.0
_LANCZOS = (
    0.99999999999999709182, 57.156235665862923517, -59.597960355475491248, 14.136097974741747174, -0.49191381609762019978,
    0.33994649984811888699e-4, 0.46523628927048575665e-4, -0.98374475304879564677e-4, 0.15808870322491248884e-3,
    -0.21026444172410488319e-3, 0.21743961811521264320e-3, -0.16431810653676389022e-3, 0.84418223983852743293e-4,
    -0.26190838401581408670e-4, 0.36899182659531622704e-5,
)  # fmt: skip


def _lgamma_positive(x: F64) -> F64:
    """log gamma for x >= 0.5: Lanczos below 10, Stirling's series from there."""
    small = np.minimum(x, 10.0)
    total = np.full_like(x, _LANCZOS[0])
    for i, c in enumerate(_LANCZOS[1:]):
        total = total + c / (small + i)
    t = small + (_LANCZOS_G - 0.5)
    lanczos = (small - 0.5) * np.log(t) - t + 0.91893853320467274178 + np.log(total)
    big = np.maximum(x, 10.0)
    inverse = 1.0 / big
    stirling = (big - 0.5) * np.log(big) - big + 0.91893853320467274178 + inverse * _poly(inverse * inverse, _STIRLING)
    result = np.where(x < 10.0, lanczos, stirling)
    return np.where((x == 1.0) | (x == 2.0), 0.0, np.where(np.isposinf(x), np.inf, result))


def lgamma(x: F64) -> F64:
    """log |gamma(x)|; +inf at 0, -1, -2, ... and at both infinities."""
    x = np.asarray(x, np.float64)
    reflected = x < 0.5
    positive = _lgamma_positive(np.where(reflected, 1.0 - x, x))
    # gamma(x) gamma(1 - x) = pi / sin(pi x); the fraction is taken first so that sin stays exact for large |x|.
    sine = np.abs(np.sin(np.pi * (x - np.round(x))))
    result = np.where(reflected, np.log(np.pi) - np.log(sine) - positive, positive)
    pole = (x <= 0) & (x == np.floor(x))
    return np.where(np.isnan(x), x, np.where(pole | np.isinf(x), np.inf, result))


_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


def digamma(x: F64) -> F64:
    """Derivative of lgamma; NaN at -1, -2, ... and -inf; at 0 infinite with the sign opposite to the zero's."""
    x = np.asarray(x, np.float64)
    reflected = x < 0.5
    y = np.where(reflected, 1.0 - x, x)
    total = np.zeros_like(x)
    for _ in range(10):  # the series below is exact to f64 from 10 on
        low = y < 10.0
        total = np.where(low, total - 1.0 / np.where(low, y, 1.0), total)
        y = np.where(low, y + 1.0, y)
    inverse = 1.0 / (y * y)
    value = total + np.log(y) - 0.5 / y - inverse * _poly(inverse, _DIGAMMA)
    fraction = x - np.round(x)
    value = np.where(reflected, value - np.pi / np.tan(np.pi * fraction), value)
    value = np.where((x < 0) & (fraction == 0) | np.isneginf(x), np.nan, value)
    value = np.where(x == 0, np.copysign(np.inf, -x), value)
    return np.where(np.isposinf(x), np.inf, value)


def fma(a: Array, b: Array, c: Array) -> Array:
    """Operands of one type, f32 or f64."""
    if a.dtype == np.float32:
        return _round_to_odd(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)).astype(np.float32)
    x, y, z = (np.array(v) for v in np.broadcast_arrays(a, b, c))
    return _fma_f64(x, y, z)


def _two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _round_to_odd(a: F64, b: F64) -> F64:
    """a + b with an inexact result's last bit forced to 1."""
    s, error = _two_sum(a, b)
    bits = np.atleast_1d(s).view(np.int64).reshape(s.shape)
    fix = (error != 0) & np.isfinite(s) & ((bits & 1) == 0)
    away = (error > 0) == (s > 0)
    return np.asarray(np.where(fix, np.where(away, bits + 1, bits - 1), bits)).view(np.float64)


def _split(x: F64) -> tuple[F64, F64]:
    t = x * 134217729.0  # 2**27 + 1
    high = t - (t - x)
    return high, x - high


def _fma_f64(a: F64, b: F64, c: F64) -> F64:
    product = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    low = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    uh, ul = _two_sum(c, low)
    th, tl = _two_sum(product, uh)
    result = np.asarray(th + _round_to_odd(tl, ul))
    # Outside of these magnitudes a step above may overflow or underflow.
    risky = np.zeros(result.shape, np.bool_)
    for value, low_bound, high_bound in ((a, 1e-140, 1e140), (b, 1e-140, 1e140), (c, 1e-250, 1e280)):
        size = np.abs(value)
        risky |= ((size < low_bound) & (size != 0)) | (size > high_bound)
    special = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)) | (a == 0) | (b == 0)
    # The product of finite numbers is finite, however large: against an infinity it does not count.
    plain = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, a * b + c)
    result = np.where(special, plain, result)
    for at in np.argwhere(risky & ~special):
        index = tuple(at)
        result[index] = _exact(float(a[index]), float(b[index]), float(c[index]))
    return result


def _exact(a: float, b: float, c: float) -> float:
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return a * b + c  # the sign of zero follows from the exact signs
    try:
        return float(total)  # rounds to nearest, ties to even
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")
