"""Named functions of strict kernels as straight lines of exact ops: every back end computes the same bits, by construction.

Each is written once, on values of a Trace; its form is a Function of one block (core ops, then ret). Largest errors over all inputs, and
the command that measures them: docs/strict-math.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from wis.kernel.model import Function, RegType
from wis.kernel.ops import BY_NAME
from wis.kernel.strict import circular, double, exponential, logarithm, special
from wis.kernel.strict.trace import Value, trace

__all__ = ["STRICT_FORMS", "strict_form"]

_F32: Final[tuple[Callable[..., Value], ...]] = (
    *(exponential.exp, exponential.exp2, exponential.exp10, exponential.expm1, exponential.sigmoid),
    *(exponential.sinh, exponential.cosh, exponential.tanh),
    *(logarithm.log, logarithm.log2, logarithm.log10, logarithm.log1p),
    *(circular.sin, circular.cos, circular.tan),
    *(exponential.pow, exponential.rsqrt, exponential.hypot),
    *(circular.asin, circular.acos, circular.atan, circular.atan2, circular.asinh, circular.acosh, circular.atanh),
    *(special.erf, special.erfc, special.erfinv, special.lgamma, special.digamma),
)
_F64: Final[tuple[Callable[..., Value], ...]] = (
    *(double.exp, double.exp2, double.sigmoid, double.tanh, double.log, double.log2),
    exponential.rsqrt,
)
STRICT_FORMS: Final[dict[tuple[str, RegType], Callable[..., Value]]] = {
    **{(f.__name__, RegType.F32): f for f in _F32},
    **{(f.__name__, RegType.F64): f for f in _F64},
}
"""How each is written, by name and type."""


@cache
def strict_form(name: str, type_: RegType) -> Function | None:
    """The form of a named function: one block of core ops, ended by ret, or None when it has no strict form in this type.

    ``ins`` are its arguments, which it does not write; ``outs`` is one register, written by the last op only, so it may be an argument's
    when the form is put in place. All other registers are temporaries.
    """
    rule = STRICT_FORMS.get((name, type_))
    return None if rule is None else trace(name, rule, (type_,) * BY_NAME[name].n_ins)
