"""Building blocks that several strict functions share.

Coefficients of every polynomial of this package, unless its docstring says otherwise: the minimax fit of the stated function on the
stated interval under the stated weight, found by Lawson's iteration (weighted least squares on 600 Chebyshev nodes, weights multiplied by
the error until it is level), each coefficient from the lowest on rounded to the form's type and the rest fitted again. "2^-28" then is
the largest weighted error of the rounded polynomial.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wis.kernel.strict.trace import Value, bits, fma, real

__all__ = ["INF", "NAN", "SIGN", "horner", "numbers", "with_sign"]

INF: Final = float("inf")
NAN: Final = float("nan")
SIGN: Final = -(1 << 31)


def numbers(text: str) -> tuple[float, ...]:
    """Coefficients in C's hexadecimal form, lowest power first."""
    return tuple(float.fromhex(word) for word in text.split())


def horner(x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial with these coefficients, lowest power first, by fma."""
    result: Value | float = coefficients[-1]
    for c in coefficients[-2::-1]:
        result = fma(x, result, c)
    assert isinstance(result, Value)
    return result


def with_sign(y: Value, sign: Value) -> Value:
    """``y`` (f32) negated where the integer ``sign`` has its top bit; other bits of ``sign`` must be 0."""
    return real(bits(y) ^ sign)
