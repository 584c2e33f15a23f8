"""The op table of the kernel tier: encoder, verifier, printer and interpreter derive from it.

Two classes of arithmetic. *Exact* ops have one result bit by bit on every back end (no contraction: only ``fma`` fuses). *Named* functions
are evaluated by the kernel's math policy. f16 and bf16 registers are loaded, stored, moved and converted; arithmetic is in f32 and f64.
Codes are wire format: never renumber, only append.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


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
    COUNT = "count"  # T integer -> i32
    FIELD = "field"  # T, i32 position, i32 length -> T; T i32 or i64
    INSERT = "insert"  # T field, T into, i32 position, i32 length -> T; T i32 or i64
    WORD3 = "word3"  # i32, i32, i32 -> i32; one attribute
    ROUNDED = "rounded"  # T f32 or f64; attr: a Rounding
    CVT_ROUNDED = "cvt_rounded"  # float -> another float type; attr: a Rounding
    INT_FLOAT_ROUNDED = "int_float_rounded"  # integer -> f32 or f64; attr: a Rounding
    BYTES_LOAD = "bytes_load"  # i32 (unsigned) or i64 byte offset -> ``count`` values
    BYTES_STORE = "bytes_store"  # byte offset, ``count`` values ->
    ADDRESS = "address"  # -> i64; attrs: space, which
    ATOM = "atom"  # byte offset, value (CAS: expected, new) -> the old value
    RED = "red"  # the same without a result
    FENCE = "fence"  # attr: a Scope
    RAISE = "raise"
    WARPSYNC = "warpsync"  # i32 member mask ->
    SHFL = "shfl"  # T (i32 or f32), i32 b, i32 c, i32 member mask -> T, pred; attr: a Shuffle
    VOTE = "vote"  # pred, i32 member mask -> pred; attr: a Vote
    BALLOT = "ballot"  # pred, i32 member mask -> i32
    MATCH_ANY = "match_any"  # T (i32 or i64), i32 member mask -> i32
    MATCH_ALL = "match_all"  # T (i32 or i64), i32 member mask -> i32, pred
    ACTIVEMASK = "activemask"  # -> i32
    MMA = "mma"  # 3 x i32, 4 x T -> 4 x T; T f32, of bytes i32; attr: a Matrix
    MMA_F64 = "mma_f64"  # 4 x f64 -> 2 x f64
    REDUX = "redux"  # i32, i32 member mask -> i32; attrs: an Atomic (ADD MIN MAX AND OR XOR), signed 0 or 1


@dataclass(frozen=True, slots=True)
class KernelOp:
    """One op."""

    code: int
    name: str
    sig: Sig
    #: -1: as many as the attributes say
    n_ins: int
    #: -1: as many as the attributes say
    n_outs: int
    attrs: tuple[str, ...]
    doc: str
    #: evaluated by the kernel's math policy
    named: bool = False
    #: back ends implement it; other ops are rewritten to core ops (wis.kernel.expand)
    core: bool = True


KERNEL_OPS: Final[list[KernelOp]] = []
BY_CODE: Final[dict[int, KernelOp]] = {}
BY_NAME: Final[dict[str, KernelOp]] = {}


def _op(
    code: int,
    name: str,
    sig: Sig,
    n_ins: int,
    doc: str,
    *,
    n_outs: int = 1,
    attrs: tuple[str, ...] = (),
    named: bool = False,
    core: bool = True,
) -> None:
    op = KernelOp(code, name, sig, n_ins, n_outs, attrs=attrs, doc=doc, named=named, core=core)
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
    (27, "rem", Sig.FLOAT, 2, "exact remainder of a / b rounded towards 0, with the sign of a; by 0 gives NaN"),
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
_BYTES: Final = ("space", "which", "dtype", "count", "displacement", "flags")
_op(71, "st", Sig.STORE, 2, "stores the value at the index; outside: nothing, and the trap bit is set", n_outs=0, attrs=_MEMORY)
# Byte-addressed memory: the place is offset + displacement, in bytes. ``count`` 1, 2, 4 or 8 elements (at most 16 bytes together) side by side;
# ``flags`` bit 0: volatile (never merged, moved or left out).
_op(
    72,
    "load",
    Sig.BYTES_LOAD,
    1,
    "elements at the byte offset; outside or misaligned (to count elements): all 0, and a trap",
    n_outs=-1,
    attrs=_BYTES,
)
_op(
    73,
    "store",
    Sig.BYTES_STORE,
    -1,
    "stores elements at the byte offset; outside or misaligned: nothing, and a trap",
    n_outs=0,
    attrs=_BYTES,
)
_op(74, "addr", Sig.ADDRESS, 0, "the address of a memory's first byte in the space ARENA", attrs=("space", "which"))
_ATOMIC: Final = ("space", "which", "dtype", "function", "displacement")
_op(
    75,
    "atom",
    Sig.ATOM,
    -1,
    "read, modify, write as one step, relaxed order; outside or misaligned: gives 0, changes nothing, traps",
    attrs=_ATOMIC,
)
_op(76, "red", Sig.RED, -1, "as atom, without the old value", n_outs=0, attrs=_ATOMIC)
_op(77, "fence", Sig.FENCE, 0, "accesses before it are seen before accesses after it", n_outs=0, attrs=("scope",))
_op(78, "raise", Sig.RAISE, 0, "a trap of kind RAISED; the thread goes on", n_outs=0)
_op(79, "warpsync", Sig.WARPSYNC, 1, "nothing: lanes of a warp that can be together are", n_outs=0)
# Warp ops see the lanes that execute them together: those of the warp at this op, blocks of code with lesser numbers running first. A lane is a
# *member* when it is there and its bit is set in the executing lane's mask.
_op(
    80,
    "shfl",
    Sig.SHFL,
    4,
    "another lane's value, and whether it was in range; from a lane not there or out of range: its own, false",
    n_outs=2,
    attrs=("mode",),
)
_op(81, "vote", Sig.VOTE, 2, "whether any / all / equal among members", attrs=("mode",))
_op(82, "ballot", Sig.BALLOT, 2, "bit l: lane l is a member and its predicate holds")
_op(83, "match_any", Sig.MATCH_ANY, 2, "bit l: lane l is a member and has this lane's value")
_op(84, "match_all", Sig.MATCH_ALL, 2, "the members and true when all have one value, else 0 and false", n_outs=2)
_op(85, "activemask", Sig.ACTIVEMASK, 0, "bit l: lane l is there")
_op(
    87,
    "mma",
    Sig.MMA,
    7,
    "the warp's product of a 16-row and an 8-column matrix (wis.kernel.matrix): a0, a1, b, c0 to c3",
    n_outs=4,
    attrs=("elements",),
)
_op(88, "mma_f64", Sig.MMA_F64, 4, "the same of 8 rows, f64: a, b, c0, c1", n_outs=2)
_op(86, "redux", Sig.REDUX, 2, "fold of the members' values", attrs=("function", "signed"))
for _c, _n, _d in ((45, "popc", "number of bits set"), (46, "clz", "number of leading zero bits; the width for 0")):
    _op(_c, _n, Sig.COUNT, 1, _d)
_op(47, "brev", Sig.INT, 1, "bits in reverse order")
_op(48, "mul_hi_s", Sig.INT, 2, "high half of the signed product of twice the width")
_op(49, "mul_hi_u", Sig.INT, 2, "high half of the unsigned product of twice the width")
_op(90, "bfe_s", Sig.FIELD, 3, "bit field, sign-extended; position and length mod 256, as PTX's bfe.s", core=False)
_op(91, "bfe_u", Sig.FIELD, 3, "bit field, zero-extended; as PTX's bfe.u", core=False)
_op(92, "bfi", Sig.INSERT, 4, "bit field put into a value; as PTX's bfi", core=False)
_op(93, "lop3", Sig.WORD3, 3, "any function of three bits, bit by bit; attr: its truth table, 0 to 255", attrs=("table",), core=False)
_op(
    94,
    "prmt",
    Sig.WORD3,
    3,
    "bytes of (a, b) chosen by c; attr: mode 0 (plain), 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16, as PTX's prmt",
    attrs=("mode",),
    core=False,
)
_op(95, "shf_l", Sig.WORD3, 3, "high word of (b:a) << c; attr: 0 clamp (c at most 32), 1 wrap (c mod 32)", attrs=("wrap",), core=False)
_op(96, "shf_r", Sig.WORD3, 3, "low word of (b:a) >> c; attr as shf_l", attrs=("wrap",), core=False)
_op(97, "bfind_s", Sig.COUNT, 1, "position of the highest bit that differs from the sign; -1 when there is none", core=False)
_op(98, "bfind_u", Sig.COUNT, 1, "position of the highest set bit; -1 for 0", core=False)
_ROUNDING: Final = ("rounding",)
_op(130, "add_r", Sig.ROUNDED, 2, "a + b rounded as said", attrs=_ROUNDING, core=False)
_op(131, "mul_r", Sig.ROUNDED, 2, "a * b rounded as said", attrs=_ROUNDING, core=False)
_op(132, "fma_r", Sig.ROUNDED, 3, "a * b + c rounded once, as said", attrs=_ROUNDING, core=False)
_op(133, "div_r", Sig.ROUNDED, 2, "a / b rounded as said", attrs=_ROUNDING, core=False)
_op(134, "sqrt_r", Sig.ROUNDED, 1, "square root rounded as said", attrs=_ROUNDING, core=False)
_op(135, "cvt_r", Sig.CVT_ROUNDED, 1, "another float type, rounded once, as said (f64 to f16 too)", attrs=_ROUNDING, core=False)
_op(136, "s2f_r", Sig.INT_FLOAT_ROUNDED, 1, "signed integer, rounded as said", attrs=_ROUNDING, core=False)
_op(137, "u2f_r", Sig.INT_FLOAT_ROUNDED, 1, "unsigned integer, rounded as said", attrs=_ROUNDING, core=False)
for _c, _n, _a in (
    (100, "exp", 1), (101, "exp2", 1), (102, "expm1", 1), (103, "log", 1), (104, "log2", 1), (105, "log10", 1), (106, "log1p", 1),
    (107, "rsqrt", 1), (108, "sin", 1), (109, "cos", 1), (110, "tan", 1), (111, "asin", 1), (112, "acos", 1), (113, "atan", 1),
    (114, "sinh", 1), (115, "cosh", 1), (116, "tanh", 1), (117, "asinh", 1), (118, "acosh", 1), (119, "atanh", 1), (120, "erf", 1),
    (121, "erfc", 1), (122, "erfinv", 1), (123, "lgamma", 1), (124, "digamma", 1), (125, "sigmoid", 1), (126, "pow", 2), (127, "atan2", 2),
    (128, "hypot", 2), (129, "exp10", 1),
):  # fmt: skip
    _op(_c, _n, Sig.FLOAT, _a, "as the tensor op of this name", named=True)

NAMED: Final = frozenset(op.name for op in KERNEL_OPS if op.named)


def codes_of(*sigs: Sig) -> frozenset[int]:
    """The codes of all ops of these rules."""
    return frozenset(op.code for op in KERNEL_OPS if op.sig in sigs)
