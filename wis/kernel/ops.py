"""The op table of the kernel tier: encoder, verifier, printer and interpreter derive from it.

Two classes of arithmetic. *Exact* ops have one result bit by bit on every back end (no contraction: only ``fma`` fuses). *Named* functions
are evaluated by the kernel's math policy. f16 and bf16 registers are loaded, stored, moved and converted; arithmetic is in f32 and f64.
May live here: what an op is. May not: how anything computes it. Codes are wire format: never renumber, only append.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["Sig", "KernelOp", "KERNEL_OPS", "BY_CODE", "BY_NAME", "NAMED"]


class Sig(Enum):
    """The rule for an op's registers. T is one type for all unless said otherwise."""

    CONST = "const"  # out T; attr: the value's bits
    MOV = "mov"  # T -> T
    SPECIAL = "special"  # -> i32; attr: which
    PARAM = "param"  # -> the scalar parameter's type; attr: its number
    NUMBER = "number"  # T integer, f32 or f64
    FLOAT = "float"  # T f32 or f64
    INT = "int"  # T integer
    BITS = "bits"  # T integer or pred
    EQUAL = "equal"  # T, T -> pred
    ORDER_FLOAT = "order_float"  # T, T -> pred; T f32 or f64
    ORDER_INT = "order_int"  # T, T -> pred; T integer
    SELECT = "select"  # pred, T, T -> T
    WIDEN = "widen"  # integer -> wider integer
    NARROW = "narrow"  # integer -> narrower integer
    FLOAT_FLOAT = "float_float"  # float -> another float type
    INT_FLOAT = "int_float"  # integer -> f32 or f64
    FLOAT_INT = "float_int"  # f32 or f64 -> integer
    REINTERPRET = "reinterpret"  # a type -> another of the same width
    LOAD = "load"  # i64 index -> value; attrs: space, which, element type
    STORE = "store"  # i64 index, value ->; attrs: space, which, element type


@dataclass(frozen=True, slots=True)
class KernelOp:
    """One op. ``named``: evaluated by the kernel's math policy."""

    code: int
    name: str
    sig: Sig
    n_ins: int
    n_outs: int
    attrs: tuple[str, ...]
    doc: str
    named: bool = False


KERNEL_OPS: Final[list[KernelOp]] = []
BY_CODE: Final[dict[int, KernelOp]] = {}
BY_NAME: Final[dict[str, KernelOp]] = {}


def _op(code: int, name: str, sig: Sig, n_ins: int, doc: str, *, n_outs: int = 1, attrs: tuple[str, ...] = (), named: bool = False) -> None:
    op = KernelOp(code, name, sig, n_ins, n_outs, attrs, doc, named)
    assert code not in BY_CODE and name not in BY_NAME, name
    KERNEL_OPS.append(op)
    BY_CODE[code] = op
    BY_NAME[name] = op


_MEMORY: Final = ("space", "which", "dtype")

_op(1, "const", Sig.CONST, 0, "the value whose bits are the attribute (sign-extended from the type's width)", attrs=("bits",))
_op(2, "mov", Sig.MOV, 1, "x")
_op(3, "special", Sig.SPECIAL, 0, "a value the thread is given", attrs=("which",))
_op(4, "param", Sig.PARAM, 0, "a scalar parameter", attrs=("number",))
_op(5, "sel", Sig.SELECT, 3, "p ? a : b")
for _c, _n, _s, _a, _d in (
    (10, "add", Sig.NUMBER, 2, "a + b; integers wrap"),
    (11, "sub", Sig.NUMBER, 2, "a - b; integers wrap"),
    (12, "mul", Sig.NUMBER, 2, "a * b; integers wrap"),
    (13, "neg", Sig.NUMBER, 1, "-x; integers wrap"),
    (14, "abs", Sig.NUMBER, 1, "|x|, signed; integers wrap"),
    (15, "div", Sig.FLOAT, 2, "a / b, correctly rounded"),
    (16, "fma", Sig.FLOAT, 3, "a * b + c rounded once"),
    (17, "sqrt", Sig.FLOAT, 1, "square root, correctly rounded"),
    (18, "min", Sig.FLOAT, 2, "lesser; NaN if either is"),
    (19, "max", Sig.FLOAT, 2, "greater; NaN if either is"),
    (20, "fmin", Sig.FLOAT, 2, "lesser; a NaN loses"),
    (21, "fmax", Sig.FLOAT, 2, "greater; a NaN loses"),
    (22, "rint", Sig.FLOAT, 1, "to nearest whole, ties to even"),
    (23, "floor", Sig.FLOAT, 1, "towards -inf"),
    (24, "ceil", Sig.FLOAT, 1, "towards +inf"),
    (25, "trunc", Sig.FLOAT, 1, "towards 0"),
    (26, "copysign", Sig.FLOAT, 2, "|a| with the sign bit of b"),
    (30, "div_s", Sig.INT, 2, "signed quotient towards 0; by 0 gives 0"),
    (31, "div_u", Sig.INT, 2, "unsigned quotient; by 0 gives 0"),
    (32, "rem_s", Sig.INT, 2, "signed remainder with the sign of a; by 0 gives 0"),
    (33, "rem_u", Sig.INT, 2, "unsigned remainder; by 0 gives 0"),
    (34, "min_s", Sig.INT, 2, "lesser, signed"),
    (35, "min_u", Sig.INT, 2, "lesser, unsigned"),
    (36, "max_s", Sig.INT, 2, "greater, signed"),
    (37, "max_u", Sig.INT, 2, "greater, unsigned"),
    (38, "shl", Sig.INT, 2, "a << b; b (unsigned) past the width gives 0"),
    (39, "shr_s", Sig.INT, 2, "a >> b, arithmetic; b (unsigned) past the width gives 0 or -1"),
    (40, "shr_u", Sig.INT, 2, "a >> b, logical; b (unsigned) past the width gives 0"),
    (41, "and", Sig.BITS, 2, "bitwise and"),
    (42, "or", Sig.BITS, 2, "bitwise or"),
    (43, "xor", Sig.BITS, 2, "bitwise exclusive or"),
    (44, "not", Sig.BITS, 1, "bitwise complement"),
    (50, "eq", Sig.EQUAL, 2, "a == b; false for NaN"),
    (51, "ne", Sig.EQUAL, 2, "a != b; true for NaN"),
    (52, "lt", Sig.ORDER_FLOAT, 2, "a < b; false for NaN"),
    (53, "le", Sig.ORDER_FLOAT, 2, "a <= b; false for NaN"),
    (54, "lt_s", Sig.ORDER_INT, 2, "a < b, signed"),
    (55, "lt_u", Sig.ORDER_INT, 2, "a < b, unsigned"),
    (56, "le_s", Sig.ORDER_INT, 2, "a <= b, signed"),
    (57, "le_u", Sig.ORDER_INT, 2, "a <= b, unsigned"),
    (60, "sext", Sig.WIDEN, 1, "sign-extended"),
    (61, "zext", Sig.WIDEN, 1, "zero-extended"),
    (62, "narrow", Sig.NARROW, 1, "low bits"),
    (63, "cvt", Sig.FLOAT_FLOAT, 1, "rounded to nearest even; f64 to f16 and bf16 through f32"),
    (64, "s2f", Sig.INT_FLOAT, 1, "signed integer, rounded to nearest even"),
    (65, "u2f", Sig.INT_FLOAT, 1, "unsigned integer, rounded to nearest even"),
    (66, "f2s", Sig.FLOAT_INT, 1, "towards 0, saturated to the signed range; NaN gives 0"),
    (67, "f2u", Sig.FLOAT_INT, 1, "towards 0, saturated to the unsigned range; NaN gives 0"),
    (68, "reinterpret", Sig.REINTERPRET, 1, "the same bits as another type"),
):
    _op(_c, _n, _s, _a, _d)
_op(70, "ld", Sig.LOAD, 1, "the element at the index; outside: 0, and the trap bit is set", attrs=_MEMORY)
_op(71, "st", Sig.STORE, 2, "stores the value at the index; outside: nothing, and the trap bit is set", n_outs=0, attrs=_MEMORY)
for _c, _n, _a in (
    (100, "exp", 1), (101, "exp2", 1), (102, "expm1", 1), (103, "log", 1), (104, "log2", 1), (105, "log10", 1), (106, "log1p", 1),
    (107, "rsqrt", 1), (108, "sin", 1), (109, "cos", 1), (110, "tan", 1), (111, "asin", 1), (112, "acos", 1), (113, "atan", 1),
    (114, "sinh", 1), (115, "cosh", 1), (116, "tanh", 1), (117, "asinh", 1), (118, "acosh", 1), (119, "atanh", 1), (120, "erf", 1),
    (121, "erfc", 1), (122, "erfinv", 1), (123, "lgamma", 1), (124, "digamma", 1), (125, "sigmoid", 1), (126, "pow", 2), (127, "atan2", 2),
    (128, "hypot", 2),
):  # fmt: skip
    _op(_c, _n, Sig.FLOAT, _a, "as the tensor op of this name", named=True)

NAMED: Final = frozenset(op.name for op in KERNEL_OPS if op.named)
