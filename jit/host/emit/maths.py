"""Named functions as vector code: our own polynomials, strict (no fast-math), the same bits on every machine with a fused multiply-add.

Two families. ``single``: tuned f32 code for what models use most (exp, log, tanh, erf, sigmoid), at most 2 ulp. ``double``: f64 code for
everything; f32 arguments go through it when there is no single version and come out correctly rounded but for rare ties.

Sources of coefficients: Cephes (exp, log, atan), fdlibm (log in f64, sin, cos), minimax fits; all checked in the unit tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from jit.host.emit.code import Lanes

__all__ = ["SINGLE", "DOUBLE", "DOUBLE2"]

F, D = "float", "double"


def _poly(v: Lanes, t: str, x: str, coefficients: Sequence[float]) -> str:
    """Horner's rule, highest power first."""
    result = v.const(t, coefficients[0])
    for c in coefficients[1:]:
        result = v.fma(t, result, x, v.const(t, c))
    return result


def _nan_like(v: Lanes, t: str, x: str, result: str) -> str:
    return v.select(t, v.compare("fcmp uno", t, x, x), x, result)


def _abs(v: Lanes, t: str, x: str) -> str:
    return v.intrinsic("fabs", t, x)


def _copysign(v: Lanes, t: str, x: str, sign: str) -> str:
    return v.intrinsic("copysign", t, x, sign)


def _clamp(v: Lanes, t: str, x: str, low: float, high: float) -> str:
    lo, hi = v.const(t, low), v.const(t, high)
    x = v.select(t, v.compare("fcmp ogt", t, x, lo), x, lo)
    return v.select(t, v.compare("fcmp olt", t, x, hi), x, hi)


def _scale(v: Lanes, t: str, x: str, n: str) -> str:
    """x * 2**n for whole n, in two steps so that neither factor overflows."""
    i, bits, bias = ("i32", 23, 127) if t == F else ("i64", 52, 1023)
    whole = v.convert("fptosi", t, n, i)
    half = v.op("ashr", i, whole, v.const(i, 1))
    for part in (half, v.op("sub", i, whole, half)):
        power = v.op("shl", i, v.op("add", i, part, v.const(i, bias)), v.const(i, bits))
        x = v.op("fmul", t, x, v.convert("bitcast", i, power, t))
    return x


# --- f32
def _exp_single(v: Lanes, x: str) -> str:
    a = _clamp(v, F, x, -104.0, 89.0)
    n = v.intrinsic("rint", F, v.op("fmul", F, a, v.const(F, 1.44269504)))
    r = v.fma(F, n, v.const(F, -0.693145752), a)
    r = v.fma(F, n, v.const(F, -1.42860677e-6), r)
    p = _poly(v, F, r, [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1])
    p = v.op("fadd", F, v.fma(F, p, v.op("fmul", F, r, r), r), v.const(F, 1.0))
    return _nan_like(v, F, x, _scale(v, F, p, n))


def _log_single(v: Lanes, x: str) -> str:
    tiny = v.compare("fcmp olt", F, x, v.const(F, 2.0**-126))
    scaled = v.select(F, tiny, v.op("fmul", F, x, v.const(F, 2.0**25)), x)
    i = v.convert("bitcast", F, scaled, "i32")
    e = v.op("ashr", "i32", v.op("sub", "i32", i, v.const("i32", 0x3F3504F3)), v.const("i32", 23))
    m = v.convert("bitcast", "i32", v.op("sub", "i32", i, v.op("shl", "i32", e, v.const("i32", 23))), F)
    f = v.op("fsub", F, m, v.const(F, 1.0))
    k = v.convert("sitofp", "i32", v.op("sub", "i32", e, v.select("i32", tiny, v.const("i32", 25), v.const("i32", 0))), F)
    z = v.op("fmul", F, f, f)
    p = _poly(
        v, F, f,
        [7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
         2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1],
    )  # fmt: skip
    y = v.op("fmul", F, v.op("fmul", F, f, z), p)
    y = v.fma(F, k, v.const(F, -2.12194440e-4), y)
    y = v.fma(F, z, v.const(F, -0.5), y)
    y = v.fma(F, k, v.const(F, 0.693359375), v.op("fadd", F, f, y))
    return _log_edges(v, F, x, y)


def _log_edges(v: Lanes, t: str, x: str, y: str) -> str:
    """log outside of the finite positive numbers: 0 gives -inf, inf gives inf, the others NaN."""
    zero, inf = v.const(t, 0.0), v.const(t, math.inf)
    y = v.select(t, v.compare("fcmp olt", t, x, inf), y, x)  # inf and NaN stand for themselves
    y = v.select(t, v.compare("fcmp olt", t, x, zero), v.const(t, math.nan), y)
    return v.select(t, v.compare("fcmp oeq", t, x, zero), v.const(t, -math.inf), y)


def _tanh_single(v: Lanes, x: str) -> str:
    a, s = _abs(v, F, x), v.op("fmul", F, x, x)
    e = _exp_single(v, v.op("fadd", F, a, a))
    two, one = v.const(F, 2.0), v.const(F, 1.0)
    far = v.op("fsub", F, one, v.op("fdiv", F, two, v.op("fadd", F, e, one)))
    p = _poly(v, F, s, [1.57394409e-2, -5.23025580e-2, 1.33152470e-1, -3.33327681e-1])
    near = v.fma(F, v.op("fmul", F, p, s), x, x)
    return _copysign(v, F, v.select(F, v.compare("fcmp ult", F, a, v.const(F, 0.599609375)), near, far), x)


def _erf_single(v: Lanes, x: str) -> str:
    a, s = _abs(v, F, x), v.op("fmul", F, x, x)
    t = v.select(F, v.compare("fcmp olt", F, a, v.const(F, 10.0)), a, v.const(F, 10.0))
    r = v.fma(F, v.const(F, -1.72853470e-5), t, v.const(F, 3.83197126e-4))
    u = v.fma(F, v.const(F, -3.88396438e-3), t, v.const(F, 2.42546219e-2))
    r = v.fma(F, r, v.op("fmul", F, t, t), u)
    for c in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = v.fma(F, r, t, v.const(F, c))
    r = v.fma(F, r, t, v.code.value(f"fneg {v.type(F)} {t}"))
    far = _copysign(v, F, v.op("fsub", F, v.const(F, 1.0), _exp_single(v, r)), x)
    p = _poly(v, F, s, [-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1])
    near = v.fma(F, p, x, x)
    return v.select(F, v.compare("fcmp ogt", F, a, v.const(F, 0.927734375)), far, near)


def _erfc_single(v: Lanes, x: str) -> str:
    """erfc(a) = p(q) exp(-a*a) / (1 + 2a), q = (a - 2) / (a + 2); the divisions and the square carry their rounding errors along."""
    two, one, half = v.const(F, 2.0), v.const(F, 1.0), v.const(F, 0.5)
    a = _abs(v, F, x)
    a = v.select(F, v.compare("fcmp olt", F, a, v.const(F, 11.0)), a, v.const(F, 11.0))
    minus = v.code.value(f"fneg {v.type(F)} {a}")
    r = v.op("fdiv", F, one, v.op("fadd", F, a, two))
    q = v.op("fmul", F, v.op("fsub", F, a, two), r)
    t = v.fma(F, v.op("fadd", F, q, one), v.const(F, -2.0), a)
    q = v.fma(F, r, v.fma(F, q, minus, t), q)
    p = _poly(
        v, F, q,
        [-4.01139259e-4, -1.23075210e-3, 1.31355342e-3, 8.63227434e-3, -8.05991981e-3, -5.42046614e-2, 1.64055392e-1, -1.66031361e-1,
         -9.27639827e-2, 2.76978403e-1],
    )  # fmt: skip
    r = v.op("fdiv", F, one, v.fma(F, two, a, one))
    q = v.fma(F, p, r, r)
    e = v.fma(F, v.fma(F, q, minus, half), two, v.op("fsub", F, p, q))
    r = v.fma(F, e, r, q)
    s = v.op("fmul", F, a, a)
    e = _exp_single(v, v.code.value(f"fneg {v.type(F)} {s}"))
    t = v.fma(F, minus, a, s)
    r = v.fma(F, r, e, v.op("fmul", F, v.op("fmul", F, r, e), t))
    r = v.select(F, v.compare("fcmp olt", F, x, v.const(F, 0.0)), v.op("fsub", F, two, r), r)
    return _nan_like(v, F, x, r)


def _sigmoid(v: Lanes, t: str, x: str, exp: Callable[[Lanes, str], str]) -> str:
    """By exp(-|x|), which cannot overflow, so that very negative arguments keep their accuracy."""
    e = exp(v, v.code.value(f"fneg {v.type(t)} {_abs(v, t, x)}"))
    one = v.const(t, 1.0)
    top = v.select(t, v.compare("fcmp olt", t, x, v.const(t, 0.0)), e, one)
    return v.op("fdiv", t, top, v.op("fadd", t, one, e))


# --- f64
_LN2_HI, _LN2_LO = 6.93147180369123816490e-01, 1.90821492927058770002e-10


def _exp(v: Lanes, x: str) -> str:
    a = _clamp(v, D, x, -746.0, 710.0)
    n = v.intrinsic("rint", D, v.op("fmul", D, a, v.const(D, 1.4426950408889634)))
    r = v.fma(D, n, v.const(D, -_LN2_HI), a)
    r = v.fma(D, n, v.const(D, -_LN2_LO), r)
    p = _poly(v, D, r, [1.0 / math.factorial(k) for k in range(13, 1, -1)])
    p = v.op("fadd", D, v.fma(D, p, v.op("fmul", D, r, r), r), v.const(D, 1.0))
    return _nan_like(v, D, x, _scale(v, D, p, n))


_LG = [1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
       2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01]  # fmt: skip


def _log_parts(v: Lanes, x: str) -> tuple[str, str, str]:
    """(k, f, tail) with x = 2**k * (1 + f) and log(1 + f) = f - tail."""
    tiny = v.compare("fcmp olt", D, x, v.const(D, 2.0**-1022))
    scaled = v.select(D, tiny, v.op("fmul", D, x, v.const(D, 2.0**54)), x)
    i = v.convert("bitcast", D, scaled, "i64")
    e = v.op("ashr", "i64", v.op("sub", "i64", i, v.const("i64", 0x3FE6A09E667F3BCD)), v.const("i64", 52))
    m = v.convert("bitcast", "i64", v.op("sub", "i64", i, v.op("shl", "i64", e, v.const("i64", 52))), D)
    f = v.op("fsub", D, m, v.const(D, 1.0))
    k = v.convert("sitofp", "i64", v.op("sub", "i64", e, v.select("i64", tiny, v.const("i64", 54), v.const("i64", 0))), D)
    half = v.op("fmul", D, v.op("fmul", D, f, f), v.const(D, 0.5))
    s = v.op("fdiv", D, f, v.op("fadd", D, f, v.const(D, 2.0)))
    z = v.op("fmul", D, s, s)
    r = v.op("fmul", D, _poly(v, D, z, _LG), z)
    tail = v.op("fsub", D, half, v.op("fmul", D, s, v.op("fadd", D, half, r)))
    return k, f, tail


def _log(v: Lanes, x: str) -> str:
    k, f, tail = _log_parts(v, x)
    y = v.op("fsub", D, tail, v.op("fmul", D, k, v.const(D, _LN2_LO)))
    y = v.fma(D, k, v.const(D, _LN2_HI), v.op("fsub", D, f, y))
    return _log_edges(v, D, x, y)


def _log2(v: Lanes, x: str) -> str:
    k, f, tail = _log_parts(v, x)
    y = v.fma(D, v.op("fsub", D, f, tail), v.const(D, 1.4426950408889634), k)
    return _log_edges(v, D, x, y)


def _log10(v: Lanes, x: str) -> str:
    return v.op("fmul", D, _log(v, x), v.const(D, 0.4342944819032518))


def _log1p(v: Lanes, x: str) -> str:
    one = v.const(D, 1.0)
    u = v.op("fadd", D, x, one)
    lost = v.op("fdiv", D, v.op("fsub", D, x, v.op("fsub", D, u, one)), u)
    y = v.op("fadd", D, _log(v, u), lost)
    plain = v.compare("fcmp olt", D, _abs(v, D, x), v.const(D, 1e300))
    y = v.select(D, plain, y, _log(v, x))  # inf has no usable correction
    y = v.select(D, v.compare("fcmp oeq", D, u, v.const(D, 0.0)), v.const(D, -math.inf), y)
    return v.select(D, v.compare("fcmp olt", D, _abs(v, D, x), v.const(D, 1e-16)), x, y)


def _expm1(v: Lanes, x: str) -> str:
    """Below 0.35 the series itself, elsewhere exp(x) - 1, which loses less than two bits there."""
    series = _poly(v, D, x, [1.0 / math.factorial(k) for k in range(14, 0, -1)])
    near = v.op("fmul", D, series, x)
    far = v.op("fsub", D, _exp(v, x), v.const(D, 1.0))
    return v.select(D, v.compare("fcmp olt", D, _abs(v, D, x), v.const(D, 0.35)), near, far)


def _exp2(v: Lanes, x: str) -> str:
    a = _clamp(v, D, x, -1080.0, 1025.0)
    n = v.intrinsic("rint", D, a)
    r = v.op("fmul", D, v.op("fsub", D, a, n), v.const(D, 0.6931471805599453))
    p = _poly(v, D, r, [1.0 / math.factorial(k) for k in range(13, -1, -1)])
    return _nan_like(v, D, x, _scale(v, D, p, n))


_PIO2 = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
_TRIG_MAX = 2.0**29
_SIN = [1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06, -1.98412698298579493134e-04,
        8.33333333332248946124e-03, -1.66666666666666324348e-01]  # fmt: skip
_COS = [-1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07, 2.48015872894767294178e-05,
        -1.38888888888741095749e-03, 4.16666666666666019037e-02]  # fmt: skip


def _sin_cos(v: Lanes, x: str) -> tuple[str, str, str]:
    """(sin r, cos r, quadrant) with x = quadrant * pi/2 + r, |r| <= pi/4, for |x| < 2**29. The first fma is exact there."""
    n = v.intrinsic("rint", D, v.op("fmul", D, x, v.const(D, 2.0 / math.pi)))
    minus = v.code.value(f"fneg {v.type(D)} {n}")
    r = x
    for part in _PIO2:
        r = v.fma(D, minus, v.const(D, part), r)
    inside = v.compare("fcmp olt", D, _abs(v, D, n), v.const(D, 2.0**31))
    q = v.convert("fptosi", D, v.select(D, inside, n, v.const(D, 0.0)), "i64")
    z = v.op("fmul", D, r, r)
    sine = v.fma(D, v.op("fmul", D, _poly(v, D, z, _SIN), z), r, r)
    cosine = v.fma(D, _poly(v, D, z, _COS), v.op("fmul", D, z, z), v.fma(D, z, v.const(D, -0.5), v.const(D, 1.0)))
    return sine, cosine, q


def _far_lanes(v: Lanes, name: str, x: str, result: str) -> str:
    """Where |x| >= 2**29, which no model meets in earnest: the C library's function, lane by lane, behind one branch."""
    c = v.code
    far = v.compare("fcmp oge", D, _abs(v, D, x), v.const(D, _TRIG_MAX))
    some = far if v.n == 1 else c.call("i1", f"llvm.vector.reduce.or.v{v.n}i1", (v.type("i1"), far))
    slow, done, before = c.fresh("slow"), c.fresh("done"), c.block
    c.fork(some, slow, done)
    c.label(slow)
    exact = "poison"
    for lane in range(v.n):
        if v.n == 1:
            exact = c.call(D, name, (D, x))
        else:
            one = c.call(D, name, (D, c.value(f"extractelement {v.type(D)} {x}, i32 {lane}")))
            exact = c.value(f"insertelement {v.type(D)} {exact}, {D} {one}, i32 {lane}")
    merged = v.select(D, far, exact, result)
    c.branch(done)
    c.label(done)
    return c.value(f"phi {v.type(D)} [ {result}, %{before} ], [ {merged}, %{slow} ]")


def _turn(v: Lanes, q: str, sine: str, cosine: str) -> str:
    """sin(r + q * pi/2)."""
    odd = v.convert("trunc", "i64", q, "i1")
    y = v.select(D, odd, cosine, sine)
    sign = v.op("shl", "i64", v.op("and", "i64", q, v.const("i64", 2)), v.const("i64", 62))
    return v.convert("bitcast", "i64", v.op("xor", "i64", v.convert("bitcast", D, y, "i64"), sign), D)


def _odd_at_zero(v: Lanes, x: str, y: str) -> str:
    """``y``, or ``x`` where that is 0: the range reduction loses the sign of -0."""
    return v.select(D, v.compare("fcmp oeq", D, x, v.const(D, 0.0)), x, y)


def _sin(v: Lanes, x: str) -> str:
    sine, cosine, q = _sin_cos(v, x)
    return _far_lanes(v, "sin", x, _odd_at_zero(v, x, _turn(v, q, sine, cosine)))


def _cos(v: Lanes, x: str) -> str:
    sine, cosine, q = _sin_cos(v, x)
    return _far_lanes(v, "cos", x, _turn(v, v.op("add", "i64", q, v.const("i64", 1)), sine, cosine))


def _tan(v: Lanes, x: str) -> str:
    sine, cosine, q = _sin_cos(v, x)
    top = _turn(v, q, sine, cosine)
    bottom = _turn(v, v.op("add", "i64", q, v.const("i64", 1)), sine, cosine)
    return _far_lanes(v, "tan", x, _odd_at_zero(v, x, v.op("fdiv", D, top, bottom)))


_ATAN_P = [-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1, -1.228866684490136173410e2,
           -6.485021904942025371773e1]  # fmt: skip
_ATAN_Q = [1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2,
           1.945506571482613964425e2]  # fmt: skip


def _atan(v: Lanes, x: str) -> str:
    a, one, zero = _abs(v, D, x), v.const(D, 1.0), v.const(D, 0.0)
    big = v.compare("fcmp ogt", D, a, v.const(D, 2.41421356237309504880))
    middle = v.compare("fcmp ogt", D, a, v.const(D, 0.66))
    top = v.select(D, big, v.const(D, -1.0), v.select(D, middle, v.op("fsub", D, a, one), a))
    bottom = v.select(D, big, a, v.select(D, middle, v.op("fadd", D, a, one), one))
    base = v.select(D, big, v.const(D, math.pi / 2), v.select(D, middle, v.const(D, math.pi / 4), zero))
    low = v.select(D, big, v.const(D, 6.123233995736765886130e-17), v.select(D, middle, v.const(D, 3.061616997868383e-17), zero))
    r = v.op("fdiv", D, top, bottom)
    z = v.op("fmul", D, r, r)
    p = v.op("fdiv", D, v.op("fmul", D, z, _poly(v, D, z, _ATAN_P)), _poly(v, D, z, _ATAN_Q))
    y = v.op("fadd", D, base, v.op("fadd", D, v.fma(D, r, p, r), low))
    return _nan_like(v, D, x, _copysign(v, D, y, x))


def _atan2(v: Lanes, y: str, x: str) -> str:
    """The quadrant by signs; the ratio of the lesser to the greater, so that infinities and zeros need no tables."""
    ay, ax, zero = _abs(v, D, y), _abs(v, D, x), v.const(D, 0.0)
    steep = v.compare("fcmp ogt", D, ay, ax)
    top, bottom = v.select(D, steep, ax, ay), v.select(D, steep, ay, ax)
    r = v.op("fdiv", D, top, bottom)
    r = v.select(D, v.compare("fcmp oeq", D, bottom, zero), zero, r)
    r = v.select(D, v.compare("fcmp oeq", D, top, v.const(D, math.inf)), v.const(D, 1.0), r)
    angle = _atan(v, r)
    angle = v.select(D, steep, v.op("fsub", D, v.const(D, math.pi / 2), angle), angle)
    left = v.compare("icmp slt", "i64", v.convert("bitcast", D, x, "i64"), v.const("i64", 0))
    angle = v.select(D, left, v.op("fsub", D, v.const(D, math.pi), angle), angle)
    angle = _copysign(v, D, angle, y)
    nan = v.compare("fcmp uno", D, x, y)
    return v.select(D, nan, v.op("fadd", D, x, y), angle)


def _asin(v: Lanes, x: str) -> str:
    one = v.const(D, 1.0)
    side = v.intrinsic("sqrt", D, v.op("fmul", D, v.op("fsub", D, one, x), v.op("fadd", D, one, x)))
    return _atan2(v, x, side)


def _acos(v: Lanes, x: str) -> str:
    one = v.const(D, 1.0)
    top = v.intrinsic("sqrt", D, v.op("fsub", D, one, x))
    bottom = v.intrinsic("sqrt", D, v.op("fadd", D, one, x))
    return v.op("fmul", D, v.const(D, 2.0), _atan2(v, top, bottom))


def _sinh(v: Lanes, x: str) -> str:
    a = _abs(v, D, x)
    e, one, half = _expm1(v, a), v.const(D, 1.0), v.const(D, 0.5)
    y = v.op("fmul", D, half, v.op("fadd", D, e, v.op("fdiv", D, e, v.op("fadd", D, e, one))))
    h = _exp(v, v.op("fmul", D, half, a))  # exp(a) alone overflows before sinh does
    y = v.select(D, v.compare("fcmp ogt", D, a, v.const(D, 30.0)), v.op("fmul", D, v.op("fmul", D, half, h), h), y)
    return _copysign(v, D, y, x)


def _cosh(v: Lanes, x: str) -> str:
    h = _exp(v, v.op("fmul", D, v.const(D, 0.5), _abs(v, D, x)))
    half = v.op("fmul", D, v.const(D, 0.5), h)
    e = v.op("fmul", D, h, h)
    return v.op("fadd", D, v.op("fmul", D, half, h), v.op("fdiv", D, v.const(D, 0.5), e))


def _tanh(v: Lanes, x: str) -> str:
    a = _clamp(v, D, x, -30.0, 30.0)
    e = _expm1(v, v.op("fadd", D, a, a))
    y = v.op("fdiv", D, e, v.op("fadd", D, e, v.const(D, 2.0)))
    return _nan_like(v, D, x, _odd_at_zero(v, x, y))


def _asinh(v: Lanes, x: str) -> str:
    a, one = _abs(v, D, x), v.const(D, 1.0)
    huge = v.compare("fcmp ogt", D, a, v.const(D, 1e150))
    b = v.select(D, huge, one, a)
    square = v.op("fmul", D, b, b)
    root = v.intrinsic("sqrt", D, v.op("fadd", D, square, one))
    y = _log1p(v, v.op("fadd", D, b, v.op("fdiv", D, square, v.op("fadd", D, one, root))))
    far = v.op("fadd", D, _log(v, a), v.const(D, math.log(2.0)))
    return _copysign(v, D, v.select(D, huge, far, _nan_like(v, D, x, y)), x)


def _acosh(v: Lanes, x: str) -> str:
    one = v.const(D, 1.0)
    huge = v.compare("fcmp ogt", D, x, v.const(D, 1e150))
    t = v.op("fsub", D, v.select(D, huge, one, x), one)
    root = v.intrinsic("sqrt", D, v.fma(D, t, t, v.op("fadd", D, t, t)))
    y = _log1p(v, v.op("fadd", D, t, root))
    far = v.op("fadd", D, _log(v, x), v.const(D, math.log(2.0)))
    # Far below 1 the root exists again: only the comparison says that there is no result (and that NaN stays NaN).
    return v.select(D, v.compare("fcmp oge", D, x, one), v.select(D, huge, far, y), v.const(D, math.nan))


def _atanh(v: Lanes, x: str) -> str:
    a, one = _abs(v, D, x), v.const(D, 1.0)
    r = v.op("fdiv", D, v.op("fadd", D, a, a), v.op("fsub", D, one, a))
    return _copysign(v, D, v.op("fmul", D, v.const(D, 0.5), _log1p(v, r)), x)


def _pow(v: Lanes, a: str, b: str) -> str:
    """exp(b * log|a|) with the logarithm and the product as sums of two, so that large exponents cost a few ulp. Edges as IEEE 754 says."""
    zero, one = v.const(D, 0.0), v.const(D, 1.0)
    x = _abs(v, D, a)
    k, f, tail = _log_parts(v, x)
    small = v.op("fsub", D, f, v.fma(D, k, v.const(D, -_LN2_LO), tail))
    large = v.op("fmul", D, k, v.const(D, _LN2_HI))  # exact: the constant has 32 bits
    high = v.op("fadd", D, large, small)
    low = v.op("fsub", D, small, v.op("fsub", D, high, large))
    p = v.op("fmul", D, b, high)
    lost = v.fma(D, b, low, v.fma(D, b, high, v.code.value(f"fneg {v.type(D)} {p}")))
    y = _exp(v, p)
    normal = v.compare("fcmp olt", D, _abs(v, D, p), v.const(D, 700.0))
    y = v.select(D, normal, v.fma(D, y, lost, y), y)
    edge = v.op("or", "i1", v.compare("fcmp oeq", D, x, zero), v.compare("fcmp oeq", D, x, v.const(D, math.inf)))
    y = v.select(D, edge, _exp(v, v.op("fmul", D, b, _log(v, x))), y)
    endless_b = v.compare("fcmp oeq", D, _abs(v, D, b), v.const(D, math.inf))
    y = v.select(D, endless_b, _exp(v, v.op("fmul", D, b, _log(v, x))), y)
    whole = v.compare("fcmp oeq", D, v.intrinsic("trunc", D, b), b)
    half = v.op("fmul", D, b, v.const(D, 0.5))
    odd = v.op("and", "i1", whole, v.compare("fcmp one", D, v.intrinsic("trunc", D, half), half))
    y = v.select(D, odd, _copysign(v, D, y, a), y)
    negative = v.compare("fcmp olt", D, a, zero)
    finite = v.compare("fcmp one", D, _abs(v, D, a), v.const(D, math.inf))
    bad = v.op("and", "i1", v.op("and", "i1", negative, finite), v.op("xor", "i1", whole, v.const("i1", 1)))
    y = v.select(D, bad, v.const(D, math.nan), y)
    # 1**b and (-1)**(+-inf) are 1; a NaN on either side gives NaN otherwise, and anything to the 0 is 1
    unit = v.compare("fcmp oeq", D, _abs(v, D, a), one)
    endless = v.compare("fcmp oeq", D, _abs(v, D, b), v.const(D, math.inf))
    y = v.select(D, v.op("and", "i1", unit, endless), one, y)
    y = v.select(D, v.compare("fcmp uno", D, a, b), v.op("fadd", D, a, b), y)
    y = v.select(D, v.compare("fcmp oeq", D, a, one), one, y)
    return v.select(D, v.compare("fcmp oeq", D, b, zero), one, y)


def _hypot(v: Lanes, a: str, b: str) -> str:
    """Scaled by the greater of the two; infinity wins over NaN."""
    x, y = _abs(v, D, a), _abs(v, D, b)
    swap = v.compare("fcmp olt", D, x, y)
    high, low = v.select(D, swap, y, x), v.select(D, swap, x, y)
    r = v.op("fdiv", D, low, v.select(D, v.compare("fcmp oeq", D, high, v.const(D, 0.0)), v.const(D, 1.0), high))
    result = v.op("fmul", D, high, v.intrinsic("sqrt", D, v.fma(D, r, r, v.const(D, 1.0))))
    inf = v.const(D, math.inf)
    some = v.op("or", "i1", v.compare("fcmp oeq", D, x, inf), v.compare("fcmp oeq", D, y, inf))
    return v.select(D, some, inf, result)


Unary = Callable[[Lanes, str], str]

SINGLE: Final[dict[str, Unary]] = {
    "exp": _exp_single,
    "log": _log_single,
    "tanh": _tanh_single,
    "erf": _erf_single,
    "erfc": _erfc_single,
    "sigmoid": lambda v, x: _sigmoid(v, F, x, _exp_single),
}
DOUBLE: Final[dict[str, Unary]] = {
    "exp": _exp, "exp2": _exp2, "expm1": _expm1, "log": _log, "log2": _log2, "log10": _log10, "log1p": _log1p, "sin": _sin, "cos": _cos,
    "tan": _tan, "asin": _asin, "acos": _acos, "atan": _atan, "sinh": _sinh, "cosh": _cosh, "tanh": _tanh, "asinh": _asinh,
    "acosh": _acosh, "atanh": _atanh, "sigmoid": lambda v, x: _sigmoid(v, D, x, _exp),
}  # fmt: skip
DOUBLE2: Final[dict[str, Callable[[Lanes, str, str], str]]] = {"atan2": _atan2, "hypot": _hypot, "pow": _pow}
"""Functions of two arguments."""
