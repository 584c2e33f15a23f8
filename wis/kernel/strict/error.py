"""erf in f32. May live here: functions of the normal distribution. May not: tables."""

from __future__ import annotations

from typing import Final

from wis.kernel.strict.exponential import power_of_two_normal
from wis.kernel.strict.parts import horner, numbers
from wis.kernel.strict.trace import Value, fma, sel

__all__ = ["erf"]

_ERF: Final = numbers("0x1.06eba6p-3 -0x1.8126e6p-2 0x1.ce1a4cp-4 -0x1.b687ecp-6 0x1.4721d8p-8 -0x1.399e76p-11")
"""erf(x) / x - 1 in x**2 on [0, 0.925], relative to erf(x): 2^-25.9."""
_TAIL: Final = numbers("0x1.2effd4p-12 0x1.a07a32p+0 0x1.d6af42p-1 0x1.32ff5ep-3 -0x1.0687dap-5 0x1.1f697cp-8 -0x1.27e37ep-12")
"""-log2(1 - erf(x)) on [0.923, 3.95], weighted by its effect on erf(x): 2^-29.3."""


def erf(x: Value) -> Value:
    """Error function: from 0.925 on 1 - 2**-p(|x|), below x + x p(x**2)."""
    a = abs(x)
    b = sel(a > 3.94, a.like(3.94), a)
    s = a * a
    y = sel(a < 0.925, fma(horner(s, _ERF), a, a), 1.0 - power_of_two_normal(-horner(b, _TAIL)))
    return y.copysign(x)
