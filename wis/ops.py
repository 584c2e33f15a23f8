"""The op table of the tensor tier: encoder, decoder, verifier, printer, interpreter and planner derive from it.

Codes are wire format: never renumber, only append.

Operands. An instruction writes ``outs`` (always buffers) from ``ins`` (buffers, or immediates where the op allows it) under
integer ``attrs``. Every buffer operand is (buffer, dtype, shape, strides, offset); strides and offset count *elements* and
strides may be 0 (broadcast) or negative. There is no implicit broadcasting and no implicit conversion.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final


class Kind(Enum):
    """The shape rule of an op (the verifier checks it, the planner chooses by it)."""

    MAP = "map"  # every operand has the shape of outs[0]
    IOTA = "iota"  # no buffer inputs
    REDUCE = "reduce"  # outs have the rank of ins[0], and size 1 wherever a dimension is reduced
    SCAN = "scan"  # outs have the shape of ins[0]
    MATMUL = "matmul"
    CONV = "conv"
    POOL = "pool"
    INDEX = "index"
    SORT = "sort"
    RANDOM = "random"
    LAUNCH = "launch"  # runs a kernel of the kernel tier
    COARSE = "coarse"  # has a decomposition into the kinds above (wis/decompose.py)


class Types(Enum):
    """The element type rule of an op."""

    SAME = "same"  # all operands one type, not bool
    SAME_ANY = "same_any"  # all operands one type, bool too
    FLOAT = "float"  # all operands one float or complex type
    REAL = "real"  # all operands one float type
    BITS = "bits"  # all operands one integer type, or all bool
    INT = "int"  # all operands one integer type
    COMPARE = "compare"  # ins one type, out bool
    TEST = "test"  # ins one float or complex type, out bool
    WHERE = "where"  # ins[0] bool, the others and out one type
    CAST = "cast"  # any to any
    PARTS = "parts"  # in complex, out the float type of its parts
    JOIN = "join"  # ins one float type, out the complex type of such parts
    ARG = "arg"  # in anything ordered, outs[0] i64
    WITH_ARG = "with_arg"  # outs[0] as ins[0], outs[1] i64
    INDEXED = "indexed"  # data operands one type, index operands i64 or u64
    LAUNCH = "launch"  # as the kernel's parameters say
    OWN = "own"  # stated in the op's doc and checked by its own rule


class ScatterMode(IntEnum):
    """What scatter and index_put do where they write."""

    SET = 0
    ADD = 1
    MUL = 2
    MAX = 3
    MIN = 4


class Dist(IntEnum):
    """Distributions of ``random``."""

    UNIFORM = 0  # [0, 1), all 2**24 (f32) or 2**53 (f64) multiples equally likely; f16/bf16 round the f32 draw down
    NORMAL = 1  # mean 0, variance 1: Box-Muller on (1 - uniform)
    BITS = 2  # i64: 63 random bits, never negative; i32: 31 random bits


@dataclass(frozen=True, slots=True)
class Op:
    """One operation."""

    code: int
    name: str
    kind: Kind
    types: Types
    #: (least, most); most -1: no bound
    n_ins: tuple[int, int]
    #: -1: as the kernel says
    n_outs: int
    attrs: tuple[str, ...]
    doc: str
    #: outs[0] is read as well as written
    rmw: bool = False


OPS: Final[list[Op]] = []
BY_NAME: Final[dict[str, Op]] = {}
BY_CODE: Final[dict[int, Op]] = {}


def _op(
    code: int,
    name: str,
    kind: Kind,
    types: Types,
    n_ins: int | tuple[int, int],
    doc: str,
    *,
    n_outs: int = 1,
    attrs: tuple[str, ...] = (),
    rmw: bool = False,
) -> None:
    span = (n_ins, n_ins) if isinstance(n_ins, int) else n_ins
    op = Op(code, name, kind, types, span, n_outs=n_outs, attrs=attrs, doc=doc, rmw=rmw)
    assert code not in BY_CODE and name not in BY_NAME, name
    OPS.append(op)
    BY_CODE[code] = op
    BY_NAME[name] = op


_M = Kind.MAP
# --- moving
_op(
    1,
    "cast",
    _M,
    Types.CAST,
    1,
    "out = in converted (same type: a copy). float->int truncates towards 0 and saturates, NaN gives 0; x->bool is x != 0",
)
_op(2, "where", _M, Types.WHERE, 3, "out = ins[0] ? ins[1] : ins[2]")
# --- unary
for _c, _n, _t, _d in (
    (10, "neg", Types.SAME, "-x; integers wrap"),
    (11, "abs", Types.SAME, "|x|; complex input is lowered through hypot"),
    (12, "sign", Types.SAME, "-1, 0 or 1; NaN gives 0"),
    (13, "not", Types.BITS, "bitwise complement; logical for bool"),
    (14, "exp", Types.FLOAT, "e**x"),
    (15, "exp2", Types.REAL, "2**x"),
    (16, "expm1", Types.REAL, "e**x - 1, accurate near 0"),
    (17, "log", Types.FLOAT, "natural logarithm"),
    (18, "log2", Types.REAL, "binary logarithm"),
    (19, "log10", Types.REAL, "decimal logarithm"),
    (20, "log1p", Types.REAL, "log(1 + x), accurate near 0"),
    (21, "sqrt", Types.FLOAT, "square root, correctly rounded for real types"),
    (22, "rsqrt", Types.REAL, "1 / sqrt(x)"),
    (23, "recip", Types.FLOAT, "1 / x"),
    (24, "sin", Types.FLOAT, "sine"),
    (25, "cos", Types.FLOAT, "cosine"),
    (26, "tan", Types.FLOAT, "tangent"),
    (27, "asin", Types.FLOAT, "arc sine"),
    (28, "acos", Types.FLOAT, "arc cosine"),
    (29, "atan", Types.FLOAT, "arc tangent"),
    (30, "sinh", Types.FLOAT, "hyperbolic sine"),
    (31, "cosh", Types.FLOAT, "hyperbolic cosine"),
    (32, "tanh", Types.FLOAT, "hyperbolic tangent"),
    (33, "asinh", Types.FLOAT, "inverse hyperbolic sine"),
    (34, "acosh", Types.FLOAT, "inverse hyperbolic cosine"),
    (35, "atanh", Types.FLOAT, "inverse hyperbolic tangent"),
    (36, "erf", Types.REAL, "error function"),
    (37, "erfc", Types.REAL, "1 - erf(x), accurate for large x"),
    (38, "erfinv", Types.REAL, "inverse of erf"),
    (39, "lgamma", Types.REAL, "log |gamma(x)|"),
    (40, "digamma", Types.REAL, "derivative of lgamma; poles give NaN, 0 an infinity of the opposite sign"),
    (41, "sigmoid", Types.FLOAT, "1 / (1 + exp(-x))"),
    (42, "floor", Types.REAL, "round towards -inf"),
    (43, "ceil", Types.REAL, "round towards +inf"),
    (44, "round", Types.REAL, "round to nearest, ties to even"),
    (45, "trunc", Types.REAL, "round towards 0"),
    (46, "conj", Types.FLOAT, "complex conjugate; identity for real types"),
):
    _op(_c, _n, _M, _t, 1, _d)
_op(47, "is_nan", _M, Types.TEST, 1, "true where x is NaN")
_op(48, "is_inf", _M, Types.TEST, 1, "true where x is +inf or -inf")
_op(49, "real", _M, Types.PARTS, 1, "real part")
_op(50, "imag", _M, Types.PARTS, 1, "imaginary part")
_op(51, "complex", _M, Types.JOIN, 2, "ins[0] + i * ins[1]")
_op(52, "sign_bit", _M, Types.OWN, 1, "out bool: the sign bit of a float, x < 0 for integers")
# --- binary
for _c, _n, _t, _d in (
    (60, "add", Types.SAME, "a + b; integers wrap"),
    (61, "sub", Types.SAME, "a - b; integers wrap"),
    (62, "mul", Types.SAME, "a * b; integers wrap"),
    (63, "div", Types.FLOAT, "a / b"),
    (64, "floor_div", Types.SAME, "a / b rounded towards -inf; integer division by 0 gives 0"),
    (65, "trunc_div", Types.SAME, "a / b rounded towards 0; integer division by 0 gives 0"),
    (66, "mod", Types.SAME, "remainder with the sign of b; integer modulo 0 gives 0"),
    (67, "fmod", Types.SAME, "remainder with the sign of a; integer modulo 0 gives 0"),
    (68, "pow", Types.SAME, "a ** b; integer a with negative b gives 0 unless a is 1 or -1"),
    (69, "atan2", Types.REAL, "angle of the point (b, a)"),
    (70, "min", Types.SAME_ANY, "lesser of a and b; NaN if either is NaN; bool: and"),
    (71, "max", Types.SAME_ANY, "greater of a and b; NaN if either is NaN; bool: or"),
    (72, "fmin", Types.SAME, "lesser; a NaN loses"),
    (73, "fmax", Types.SAME, "greater; a NaN loses"),
    (74, "and", Types.BITS, "bitwise and"),
    (75, "or", Types.BITS, "bitwise or"),
    (76, "xor", Types.BITS, "bitwise exclusive or"),
    (77, "shl", Types.INT, "a << b; b outside 0..width-1 gives 0"),
    (78, "shr", Types.INT, "a >> b, arithmetic for signed types; b outside 0..width-1 gives 0 (-1 for negative a)"),
    (79, "hypot", Types.REAL, "sqrt(a*a + b*b) without overflow"),
    (80, "copysign", Types.REAL, "|a| with the sign bit of b"),
    (81, "nextafter", Types.REAL, "the neighbour of a in the direction of b"),
):
    _op(_c, _n, _M, _t, 2, _d)
for _c, _n, _d in (
    (90, "eq", "a == b"),
    (91, "ne", "a != b"),
    (92, "lt", "a < b"),
    (93, "le", "a <= b"),
    (94, "gt", "a > b"),
    (95, "ge", "a >= b"),
):
    _op(_c, _n, _M, Types.COMPARE, 2, _d + "; complex types only eq and ne")
_op(96, "fma", _M, Types.REAL, 3, "a * b + c rounded once")
# --- generating
_op(
    100,
    "iota",
    Kind.IOTA,
    Types.OWN,
    2,
    "out[i] = ins[0] + ins[1] * i[dim]; both ins immediates; floats computed in f64, then rounded",
    attrs=("dim",),
)
_op(
    101,
    "random",
    Kind.RANDOM,
    Types.OWN,
    2,
    "Philox 4x32-10; ins: immediates i64 seed, i64 offset. Element with row-major index i uses word i % 4 of counter offset + i // 4 "
    "(f64, i64 and normal: words 2 * (i % 2) and the next of counter offset + i // 2)",
    attrs=("dist",),
)
# --- reductions. Order of sums: 32 lanes, lane l takes elements l, l+32, ... of the reduced index space in row-major order, then a binary tree over lanes
for _c, _n, _t, _d in (
    (110, "sum", Types.SAME, "sum; f16 and bf16 accumulate in f32; integers wrap; empty gives 0"),
    (111, "prod", Types.SAME, "product; empty gives 1"),
    (112, "reduce_max", Types.SAME_ANY, "greatest; NaN if any is NaN; empty is an error"),
    (113, "reduce_min", Types.SAME_ANY, "least; NaN if any is NaN; empty is an error"),
):
    _op(_c, _n, Kind.REDUCE, _t, 1, _d)
_op(114, "argmax", Kind.REDUCE, Types.ARG, 1, "first index of the greatest along dim; the first NaN wins", attrs=("dim",))
_op(115, "argmin", Kind.REDUCE, Types.ARG, 1, "first index of the least along dim; the first NaN wins", attrs=("dim",))
# --- scans along dim, sequential
_op(120, "cumsum", Kind.SCAN, Types.SAME, 1, "running sum; f16 and bf16 accumulate in f32", attrs=("dim",))
_op(121, "cumprod", Kind.SCAN, Types.SAME, 1, "running product; f16 and bf16 accumulate in f32", attrs=("dim",))
_op(122, "cummax", Kind.SCAN, Types.WITH_ARG, 1, "running greatest and its last index; NaN wins", n_outs=2, attrs=("dim",))
_op(123, "cummin", Kind.SCAN, Types.WITH_ARG, 1, "running least and its last index; NaN wins", n_outs=2, attrs=("dim",))
# --- contractions
_op(
    130,
    "matmul",
    Kind.MATMUL,
    Types.SAME,
    2,
    "[..., m, k] x [..., k, n] -> [..., m, n]; equal batch dimensions; f16 and bf16 accumulate in f32",
)
_CONV = ("groups", "*stride", "*pad", "*dilation")  # one of each starred attribute for every spatial dimension (1 to 3)
_op(131, "conv", Kind.CONV, Types.REAL, 2, "x [n, c, *s], w [o, c/groups, *k] -> [n, o, *t]; cross-correlation, zero padding", attrs=_CONV)
_op(
    132,
    "conv_dx",
    Kind.CONV,
    Types.REAL,
    2,
    "dy [n, o, *t], w [o, c/groups, *k] -> dx [n, c, *s]: gradient of conv by x; also transposed convolution",
    attrs=_CONV,
)
_op(133, "conv_dw", Kind.CONV, Types.REAL, 2, "dy [n, o, *t], x [n, c, *s] -> dw [o, c/groups, *k]: gradient of conv by w", attrs=_CONV)
# --- pooling over the last 1 to 3 dimensions of [n, c, *s]
_POOL = ("*kernel", "*stride", "*pad", "*dilation")
_op(
    140,
    "max_pool",
    Kind.POOL,
    Types.WITH_ARG,
    1,
    "greatest in each window and its flat index in *s; the last NaN wins, else the first greatest",
    n_outs=2,
    attrs=_POOL,
)
_op(
    141,
    "avg_pool",
    Kind.POOL,
    Types.REAL,
    1,
    "window sum / divisor; divisor attr 0: window size, clipped to the padded input if count_pad else to the input",
    attrs=("count_pad", "divisor", "*kernel", "*stride", "*pad"),
)
_op(
    142,
    "avg_pool_dx",
    Kind.POOL,
    Types.REAL,
    1,
    "gradient of avg_pool by its input",
    attrs=("count_pad", "divisor", "*kernel", "*stride", "*pad"),
)
# --- indexing. Index values are i64, of which a negative one counts from the end, or u64; outside: load gives 0, store is dropped, the run traps
_op(
    150,
    "gather",
    Kind.INDEX,
    Types.INDEXED,
    2,
    "x, idx -> out[i] = x[i with i[dim] replaced by idx[i]]; out has the shape of idx",
    attrs=("dim",),
)
_op(
    151,
    "scatter",
    Kind.INDEX,
    Types.INDEXED,
    2,
    "ins: src, idx (one shape; src may be an immediate): out[i with i[dim] replaced by idx[i]] = or op= src[i], in row-major order of i",
    attrs=("dim", "mode"),
    rmw=True,
)
_op(152, "index", Kind.INDEX, Types.INDEXED, (2, -1), "x, idx_1..idx_k (all of shape S) -> out[S, rest] = x[idx_1, .., idx_k, rest]")
_op(
    153,
    "index_put",
    Kind.INDEX,
    Types.INDEXED,
    (2, -1),
    "src [S, rest], idx_1..idx_k (shape S): out[idx_1, .., idx_k, rest] = or op= src, in row-major order",
    attrs=("mode",),
    rmw=True,
)
# --- order
_op(
    160,
    "sort",
    Kind.SORT,
    Types.WITH_ARG,
    1,
    "stable sort along dim, with the original indices; NaN is greatest",
    n_outs=2,
    attrs=("dim", "descending"),
)
_op(
    161,
    "topk",
    Kind.SORT,
    Types.WITH_ARG,
    1,
    "the k (size of out along dim) greatest or least along dim in order, and their indices; ties by lower index",
    n_outs=2,
    attrs=("dim", "largest"),
)
_op(
    162,
    "search_sorted",
    Kind.SORT,
    Types.OWN,
    2,
    "sorted [..., n], values [..., m] -> i64 [..., m]: first position where value <= sorted (right=0) or value < sorted (right=1)",
    attrs=("right",),
)
_op(
    163,
    "nonzero",
    Kind.SORT,
    Types.OWN,
    1,
    "in any type, shape S of rank r; outs: i64 [numel, r] rows of indices in row-major order (unused rows 0), i64 [1] their count",
    n_outs=2,
)
# --- coarse (each has a decomposition)
_C = Kind.COARSE
_op(200, "softmax", _C, Types.REAL, 1, "over the last dimension")
_op(201, "log_softmax", _C, Types.REAL, 1, "over the last dimension")
_op(202, "softmax_dx", _C, Types.REAL, 2, "ins: dy, y; gradient of softmax over the last dimension")
_op(203, "log_softmax_dx", _C, Types.REAL, 2, "ins: dy, y; gradient of log_softmax over the last dimension")
_op(
    204,
    "layer_norm",
    _C,
    Types.OWN,
    4,
    "ins: x [r, c], w [r, c] (row stride 0) or immediate 1, b likewise or immediate 0, eps immediate f64; outs: y, mean [r, 1], rstd [r, 1] in the accumulate type",
    n_outs=3,
)
_op(205, "layer_norm_dx", _C, Types.OWN, 5, "ins: dy [r, c], x [r, c], mean [r, 1], rstd [r, 1], w as in layer_norm; out dx")
_op(206, "layer_norm_dwb", _C, Types.OWN, 4, "ins: dy [r, c], x [r, c], mean [r, 1], rstd [r, 1]; outs: dw [1, c], db [1, c]", n_outs=2)
_op(207, "gelu", _C, Types.REAL, 1, "x * normal cdf(x); attr tanh=1: the tanh approximation", attrs=("tanh",))
_op(208, "gelu_dx", _C, Types.REAL, 2, "ins: dy, x; gradient of gelu", attrs=("tanh",))
_op(209, "silu", _C, Types.REAL, 1, "x * sigmoid(x)")
_op(210, "silu_dx", _C, Types.REAL, 2, "ins: dy, x; gradient of silu")
_op(
    211,
    "sdpa",
    _C,
    Types.OWN,
    (4, 5),
    "ins: q [b, h, m, d], k [b, h, n, d], v [b, h, n, e], scale immediate f64, optional additive mask [b, h, m, n]; attr causal (query i sees keys <= i); "
    "outs: o [b, h, m, e], lse [b, h, m] in the accumulate type; a fully masked row gives 0",
    n_outs=2,
    attrs=("causal",),
)
_op(
    212,
    "sdpa_dx",
    _C,
    Types.OWN,
    (7, 8),
    "ins: do, q, k, v, o, lse, scale immediate f64, optional mask; outs: dq, dk, dv",
    n_outs=3,
    attrs=("causal",),
)
_op(
    213,
    "adamw",
    _C,
    Types.OWN,
    8,
    "outs (read and written, one float type): p, m, v; ins: g, then immediates f64 lr, beta1, beta2, weight_decay, eps, bias1 = 1 - beta1**t, bias2_sqrt = sqrt(1 - beta2**t); "
    "attrs: decoupled (1: AdamW, 0: Adam with L2), maximize",
    n_outs=3,
    attrs=("decoupled", "maximize"),
    rmw=True,
)
# --- kernels
_op(
    220,
    "launch",
    Kind.LAUNCH,
    Types.LAUNCH,
    (3, -1),
    "runs kernel ``kernel`` of the program on a grid of blocks. outs: what its writable buffer parameters point to, in order; ins: immediates i64 grid x, y, z, "
    "then, for every other parameter in order, what a read-only buffer parameter points to, or an immediate of the scalar's type. A pointed-to region is u8 [n] with "
    "stride 1; regions may overlap in any way; an empty one is a null pointer",
    n_outs=-1,
    attrs=("kernel", "x", "y", "z", "dynamic"),
    rmw=True,
)
