"""Bessel functions of the first, second and third kind, order 0 and 1, and the Airy function, in f64.

Rational and Chebyshev approximations with the coefficients and regions of the Cephes Math Library (S. L. Moshier; j0.c, j1.c, k0.c, k1.c,
airy.c). torch's kernels leave out the leading 1 of those denominators that Cephes evaluates with one (errors up to 1e-6), and so does this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from wooly.device.lowering.registry import lowers
from wooly.device.lowering.special import bessel_series, in_f64, polynomial, rational, rounded
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Value

__all__: list[str] = []

_NEAR_ROOTS: Final = ((5.783185962946785, 30.471262343662087), (14.681970642123893, 49.2184563216946))
"""By order: the squares of the two least positive roots of J."""


def _squared(t: Trace, x: Meta) -> Meta:
    return t.map("mul", x, x)


def _wave(t: Trace, x: Meta, order: int, second: bool) -> Meta:
    """J, or Y for ``second``, of x > 5: two phase functions in 5 / x times sine and cosine."""
    p_top, p_bottom, q_top, q_bottom = (_PHASE_0, _PHASE_1)[order]
    ratio = t.map("div", 5.0, x)
    square = _squared(t, ratio)
    p = rational(t, square, (p_top, p_bottom))
    q = t.map("mul", ratio, rational(t, square, (q_top, q_bottom)))
    angle = t.map("sub", x, (0.25 + 0.5 * order) * math.pi)
    sine, cosine = t.map("sin", angle), t.map("cos", angle)
    if second:
        total = t.map("add", t.map("mul", p, sine), t.map("mul", q, cosine))
    else:
        total = t.map("sub", t.map("mul", p, cosine), t.map("mul", q, sine))
    return t.map("div", t.map("mul", total, math.sqrt(2 / math.pi)), t.map("sqrt", x))


def _j(t: Trace, x: Meta, order: int) -> Meta:
    """J of x >= 0."""
    square = _squared(t, x)
    top, bottom = (_J0, _J1)[order]
    near = rational(t, square, (top, bottom))
    for root in _NEAR_ROOTS[order]:
        near = t.map("mul", near, t.map("sub", square, root))
    if order == 1:
        near = t.map("mul", near, x)
    return t.where(t.map("le", x, 5.0), near, _wave(t, x, order, False))


@lowers("aten::special_bessel_j0")
def bessel_j0(t: Trace, x: Meta) -> Meta:
    return rounded(t, _j(t, t.map("abs", in_f64(t, x)), 0), x)


@lowers("aten::special_bessel_j1")
def bessel_j1(t: Trace, x: Meta) -> Meta:
    y = in_f64(t, x)
    size = _j(t, t.map("abs", y), 1)
    return rounded(t, t.where(t.map("lt", y, 0.0), t.map("neg", size), size), x)


def _y(t: Trace, x: Meta, order: int) -> Meta:
    """Y near 0: a rational function, and 2 / pi times J log(x), less 2 / (pi x) for order 1; -inf at 0, NaN below."""
    top, bottom = (_Y0, _Y1)[order]
    y = in_f64(t, x)
    near = rational(t, _squared(t, y), (top, bottom))
    pole = t.map("mul", _j(t, y, order), t.map("log", y))
    if order == 1:
        near, pole = t.map("mul", near, y), t.map("sub", pole, t.map("recip", y))
    near = t.map("add", near, t.map("mul", pole, 2 / math.pi))
    near = t.where(t.map("eq", y, 0.0), -math.inf, near, dtype=y.dtype)
    return rounded(t, t.where(t.map("le", y, 5.0), near, _wave(t, y, order, True)), x)


def _chebyshev(t: Trace, x: Meta, coefficients: tuple[float, ...]) -> Meta:
    """A Chebyshev series in x / 2 by Clenshaw's recurrence; the coefficient of the highest degree first, that of degree 0 counts half."""
    last: Value = 0.0
    before: Value = 0.0
    total: Value = coefficients[0]
    for coefficient in coefficients[1:]:
        before, last = last, total
        total = t.map("add", t.map("sub", t.map("mul", x, last), before, dtype=x.dtype), coefficient)
    return t.map("mul", t.map("sub", total, before, dtype=x.dtype), 0.5)


def _k(t: Trace, x: Meta, order: int, scaled: bool) -> Meta:
    """K, times e**x for ``scaled``; an infinity at 0, NaN below."""
    y = in_f64(t, x)
    small, large = (_K0, _K1)[order]
    near = _chebyshev(t, t.map("sub", _squared(t, y), 2.0), small)
    pole = t.map("mul", t.map("log", t.map("mul", y, 0.5)), bessel_series(t, y, order, 14))
    near = t.map("sub", near, pole) if order == 0 else t.map("add", t.map("div", near, y), pole)
    near = t.where(t.map("eq", y, 0.0), math.inf, near, dtype=y.dtype)
    far = t.map("div", _chebyshev(t, t.map("sub", t.map("div", 8.0, y), 2.0), large), t.map("sqrt", y))
    if scaled:
        near = t.map("mul", near, t.map("exp", y))
    else:
        far = t.map("mul", far, t.map("exp", t.map("neg", y)))
    return rounded(t, t.where(t.map("le", y, 2.0), near, far), x)


def _register(name: str, function: Callable[..., Meta], *which: Any) -> None:
    """The lowering of ``name``: ``function`` of a tensor and ``which``."""
    lowers(f"aten::special_{name}")(lambda t, x: function(t, x, *which))


for _order in (0, 1):
    _register(f"bessel_y{_order}", _y, _order)
    _register(f"modified_bessel_k{_order}", _k, _order, False)
    _register(f"scaled_modified_bessel_k{_order}", _k, _order, True)


@lowers("aten::special_spherical_bessel_j0")
def spherical_bessel_j0(t: Trace, x: Meta) -> Meta:
    """sin(x) / x, by its power series near 0."""
    y = in_f64(t, x)
    series = polynomial(t, _squared(t, y), [(-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(7))])
    value = t.where(t.map("lt", t.map("abs", y), 0.5), series, t.map("div", t.map("sin", y), y))
    return rounded(t, t.where(t.map("is_inf", y), 0.0, value, dtype=y.dtype), x)


# --- Airy function

_AIRY_FAR: Final = 2.09
_AIRY_SERIES: Final = (
    (0.355028053887817239260, [math.prod(range(1, 3 * k, 3)) / math.factorial(3 * k) for k in reversed(range(18))]),
    (-0.258819403792806798405, [math.prod(range(2, 3 * k, 3)) / math.factorial(3 * k + 1) for k in reversed(range(18))]),
)
"""Ai(0) and Ai'(0) times power series in x**3 (DLMF 9.4.1); the first term left out is below 1e-17 up to 2.09."""


@lowers("aten::special_airy_ai")
def airy_ai(t: Trace, x: Meta) -> Meta:
    """Power series between -2.09 and 2.09, beyond them decay and oscillation in 2/3 |x|**1.5; NaN at the infinities, as torch has it."""
    y = in_f64(t, x)
    size = t.map("abs", y)
    root = t.map("sqrt", size)
    power = t.map("mul", t.map("mul", size, root), 2 / 3)
    inverse = t.map("recip", power)
    height = t.map("div", 1 / math.sqrt(math.pi), t.map("sqrt", root))
    falling = t.map("mul", t.map("mul", height, 0.5), rational(t, inverse, _AIRY_FALLING))
    falling = t.map("div", falling, t.map("exp", power))
    square, angle = _squared(t, inverse), t.map("add", power, math.pi / 4)
    cosine = t.map("mul", inverse, rational(t, square, _AIRY_COSINE))
    sine = t.map("add", t.map("mul", square, rational(t, square, _AIRY_SINE)), 1.0)
    wave = t.map("sub", t.map("mul", t.map("sin", angle), sine), t.map("mul", t.map("cos", angle), cosine))
    cube = t.map("mul", _squared(t, y), y)
    even, odd = (t.map("mul", polynomial(t, cube, terms), factor) for factor, terms in _AIRY_SERIES)
    value = t.where(t.map("le", size, _AIRY_FAR), t.map("add", even, t.map("mul", odd, y)), falling)
    value = t.where(t.map("lt", y, -_AIRY_FAR), t.map("mul", height, wave), value)
    return rounded(t, t.where(t.map("is_inf", y), math.nan, value, dtype=y.dtype), x)


# --- coefficients, those of numerator and denominator; the highest power first

_PHASE_0: Final = (
    (0.0007969367292973471, 0.08283523921074408, 1.239533716464143, 5.447250030587687, 8.74716500199817, 5.303240382353949, 1.0),
    (0.0009244088105588637, 0.08562884743544745, 1.2535274390105895, 5.470977403304171, 8.761908832370695, 5.306052882353947, 1.0),
    (-0.011366383889846916, -1.2825271867050931, -19.553954425773597, -93.20601521237683, -177.68116798048806, -147.07750515495118,
     -51.41053267665993, -6.050143506007285),
    (64.3178256118178, 856.4300259769806, 3882.4018360540163, 7240.467741956525, 5930.727011873169, 2062.0933166032783,
     242.0057402402914),
)  # fmt: skip
_J0: Final = (
    (-4794432209.782018, 1956174919465.5657, -249248344360967.72, 9708622510473064.0),
    (499.563147152651, 173785.4016763747, 48440965.83399621, 11185553704.535683, 2112775201154.892, 310518229857422.56,
     3.1812195594320496e+16, 1.7108629408104315e+18),
)  # fmt: skip
_Y0: Final = (
    (15592.436785523574, -14663929.59039716, 5435264770.518765, -982136065717.9115, 87590639439536.7, -3466283033847297.0,
     4.4273326857256984e+16, -1.8495080043698668e+16),
    (1041.2835366425984, 626107.330137135, 268919633.39381415, 86400248710.3935, 20297961275010.555, 3171577528429750.5,
     2.5059625617265306e+17),
)  # fmt: skip
_PHASE_1: Final = (
    (0.0007621256162081731, 0.07313970569409176, 1.1271960812968493, 5.112079511468076, 8.424045901417724, 5.214515986823615, 1.0),
    (0.0005713231280725487, 0.06884559087544954, 1.105142326340617, 5.073863861286015, 8.399855543276042, 5.209828486823619, 1.0),
    (0.05108625947501766, 4.982138729512334, 75.82382841325453, 366.7796093601508, 710.8563049989261, 597.4896124006136,
     211.68875710057213, 25.207020585802372),
    (74.23732770356752, 1056.4488603826283, 4986.410583376536, 9562.318924047562, 7997.041604473507, 2826.1927851763908,
     336.0936078106983),
)  # fmt: skip
_J1: Final = (
    (-899971225.7055594, 452228297998.19403, -72749424522181.83, 3682957328638529.0),
    (620.8364781180543, 256987.25675774884, 83514679.14319493, 22151159547.97925, 4749141220799.914, 784369607876235.9,
     8.952223361846274e+16, 5.322786203326801e+18),
)  # fmt: skip
_Y1: Final = (
    (1263204747.9017804, -647355876379.1603, 114509511541823.73, -8127702555013251.0, 2.024394757135949e+17, -7.788771962659501e+17),
    (594.3015923461282, 235564.09294306856, 73481194.44597217, 18760131610.870617, 3882312774962.3857, 620557727146953.8,
     6.871410873553005e+16, 3.9727060811656064e+18),
)  # fmt: skip
_K0: Final = (
    (1.374465435613523e-16, 4.25981614279661e-14, 1.0349695257633842e-11, 1.904516377220209e-09, 2.5347910790261494e-07,
     2.286212103119452e-05, 0.001264615411446926, 0.0359799365153615, 0.3442898999246285, -0.5353273932339028),
    (5.300433772686263e-18, -1.6475804301524212e-17, 5.2103915050390274e-17, -1.678231096805412e-16, 5.512055978524319e-16,
     -1.848593377343779e-15, 6.3400764774050706e-15, -2.2275133269916698e-14, 8.032890775363575e-14, -2.9800969231727303e-13,
     1.140340588208475e-12, -4.514597883373944e-12, 1.8559491149547177e-11, -7.957489244477107e-11, 3.577397281400301e-10,
     -1.69753450938906e-09, 8.574034017414225e-09, -4.660489897687948e-08, 2.766813639445015e-07, -1.8317555227191195e-06,
     1.39498137188765e-05, -0.00012849549581627802, 0.0015698838857300533, -0.0314481013119645, 2.4403030820659555),
)  # fmt: skip
_K1: Final = (
    (-7.023863479386288e-18, -2.427449850519366e-15, -6.666901694199329e-13, -1.4114883926335278e-10, -2.213387630734726e-08,
     -2.4334061415659684e-06, -0.0001730288957513052, -0.006975723859639864, -0.12261118082265715, -0.3531559607765449,
     1.5253002273389478),
    (-5.756744483665017e-18, 1.7940508731475592e-17, -5.689462558442859e-17, 1.838093544366639e-16, -6.057047248373319e-16,
     2.038703165624334e-15, -7.019837090418314e-15, 2.4771544244813043e-14, -8.976705182324994e-14, 3.3484196660784293e-13,
     -1.2891739609510289e-12, 5.13963967348173e-12, -2.1299678384275683e-11, 9.218315187605006e-11, -4.1903547593418965e-10,
     2.015049755197033e-09, -1.0345762465678097e-08, 5.7410841254500495e-08, -3.5019606030878126e-07, 2.406484947837217e-06,
     -1.936197974166083e-05, 0.00019521551847135162, -0.002857816859622779, 0.10392373657681724, 2.7206261904844427),
)  # fmt: skip
_AIRY_FALLING: Final = (
    (0.346538101525629, 12.007595273964581, 76.27960536152345, 168.08922493463058, 159.75639135016442, 70.53609068404442,
     14.026469116338967, 1.0),
    (0.5675945326387702, 14.75625625848472, 84.51389701414746, 177.31808814540045, 164.2346928715297, 71.47784008255756,
     14.095913560783403, 1.0),
)  # fmt: skip
_AIRY_SINE: Final = (
    (-0.1316963234183318, -0.6264565444319123, -0.6931580360369335, -0.2797799815451191, -0.04919001326095003, -0.004062659235948854,
     -0.0001592764962392621, -2.776491081552329e-06, -1.6778769848911465e-08),
    (13.356042070655324, 32.682503279522464, 26.736704094149957, 9.187074029072596, 1.4752914677166642, 0.11568717379518804,
     0.004402916416152112, 7.547203482874142e-05, 4.5185009297058035e-07),
)  # fmt: skip
_AIRY_COSINE: Final = (
    (0.01973399320916857, 0.39110302961568827, 1.0657989759959559, 0.9391692298166502, 0.35146565610554764, 0.06338889196289255,
     0.005858041130483885, 0.000282851600836737, 6.98793669997261e-06, 8.117892395543892e-08, 3.415517847659236e-10),
    (9.30892908077442, 19.835292871831214, 15.564662893286462, 5.476860694229755, 0.9542936116189619, 0.08645808263523921,
     0.004126565238242226, 0.00010125908511650914, 1.1716673321441352e-06, 4.9183457006293e-09),
)  # fmt: skip
