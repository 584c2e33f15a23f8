"""Strict forms: what they are made of, how near the truth they are, exceptional values, and equal bits however they are run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.property.strict_ulp import BOUNDS, TRUTH, distance, doubles, measure, pairs, patterns
from tests.support.strict_forms import evaluate, native
from wis.dtypes import DType
from wis.kernel.model import Block, BufferParam, Function, Kernel, Op, RegType, Ret
from wis.kernel.ops import BY_CODE, BY_NAME, NAMED
from wis.kernel.strict import STRICT_FORMS, strict_form
from wis.kernel.verify import verify_kernel

Array = npt.NDArray[Any]
INF, NAN = float("inf"), float("nan")

_F32 = sorted(name for name, type_ in STRICT_FORMS if type_ is RegType.F32)
_ALL = sorted(STRICT_FORMS, key=str)
_EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e-45, -1e-45, 1.1754944e-38, 1e-30, 3.4028235e38, -3.4028235e38, INF, -INF, NAN, 88.72284,
     -103.97208, 0.99999994, 1.0000001, 0.7853982, 3.1415927, 1e10, 16777216.0, 8388609.0],
    np.float32,
)  # fmt: skip


def form_of(name: str, type_: RegType = RegType.F32) -> Function:
    form = strict_form(name, type_)
    assert form is not None, name
    return form


def arguments(form: Function, count: int, seed: int) -> tuple[Array, ...]:
    """Half random patterns, half ordinary numbers, then the edges (all pairs of them for two arguments)."""
    rng = np.random.default_rng(seed)
    wide = form.regs[form.ins[0]] == RegType.F64
    kind, raw = (np.float64, np.uint64) if wide else (np.float32, np.uint32)
    edges = np.meshgrid(*[_EDGES.astype(kind)] * len(form.ins))
    columns = []
    for edge in edges:
        random = rng.integers(0, np.iinfo(raw).max, count, raw, endpoint=True).view(kind)
        columns.append(np.concatenate([random, rng.normal(0, 10, count).astype(kind), edge.reshape(-1)]))
    return tuple(columns)


def same_bits(a: Array, b: Array) -> bool:
    """Equal patterns; any NaN equals any other, as payloads are not part of the contract."""
    raw = f"u{a.dtype.itemsize}"
    return bool(np.all((a.view(raw) == b.view(raw)) | (np.isnan(a) & np.isnan(b))))


def test_every_function_has_a_form_in_f32() -> None:
    assert set(_F32) == NAMED
    assert {name for name, type_ in STRICT_FORMS if type_ is RegType.F64} >= {"exp", "log", "tanh", "sigmoid", "rsqrt"}
    assert strict_form("exp", RegType.F16) is None


@pytest.mark.parametrize(("name", "type_"), _ALL)
def test_form_is_a_straight_line_of_core_ops(name: str, type_: RegType) -> None:
    form = form_of(name, type_)
    (block,) = form.blocks
    assert isinstance(block.end, Ret)
    assert len(form.ins) == BY_NAME[name].n_ins and len(form.outs) == 1
    written = [r for op in block.code for r in op.outs]
    assert not set(written) & set(form.ins), "arguments are not written"
    # The result may then stand in a register where an argument did.
    assert written.count(form.outs[0]) == 1 and written[-1] == form.outs[0]
    for op in block.code:
        row = BY_CODE[op.op]
        assert row.core and not row.named, row.name
        assert row.name == "const" or not row.attrs, "no memory, parameters or special values"


@pytest.mark.parametrize(("name", "type_"), _ALL)
def test_form_passes_the_verifier_as_a_kernel(name: str, type_: RegType) -> None:
    """Types, registers and that each is written before it is read."""
    form = form_of(name, type_)
    index = len(form.regs)
    dtype = int(DType.F32 if type_ is RegType.F32 else DType.F64)
    loads = [Op(BY_NAME["ld"].code, (r,), (index,), (0, i, dtype)) for i, r in enumerate(form.ins)]
    code = (
        Op(BY_NAME["const"].code, (index,), (), (0,)),
        *loads,
        *form.blocks[0].code,
        Op(BY_NAME["st"].code, (), (index, form.outs[0]), (0, len(form.ins), dtype)),
    )
    params = (*(BufferParam(dtype, 1) for _ in form.ins), BufferParam(dtype, 2))
    verify_kernel(Kernel(1, "strict", 0, 32, params, (), (*form.regs, int(RegType.I64)), (Block(code, Ret()),)))


@pytest.mark.parametrize("name", _F32)
def test_distance_from_the_truth(name: str) -> None:
    """Sampled; docs/strict-math.md has the exhaustive figures and the command."""
    chunks = patterns(4099) if BY_NAME[name].n_ins == 1 else pairs(1 << 21, seed=7)
    worst, where, _ = measure(form_of(name), chunks)
    assert worst <= BOUNDS[name] <= 2.0, f"{worst} ulp at {where}"


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="the platform has no float longer than f64")
@pytest.mark.parametrize("name", sorted(name for name, type_ in STRICT_FORMS if type_ is RegType.F64))
def test_distance_from_the_truth_in_f64(name: str) -> None:
    worst, where, _ = measure(form_of(name, RegType.F64), doubles(1 << 18, seed=7))
    assert worst <= 2.0, f"{worst} ulp at {where}"


@pytest.mark.parametrize(("name", "type_"), _ALL)
def test_numpy_and_machine_code_give_the_same_bits(name: str, type_: RegType) -> None:
    form = form_of(name, type_)
    given = arguments(form, 20_000 if type_ is RegType.F32 else 4_000, seed=3)
    assert same_bits(evaluate(form, *given), native(form)(*given))


@pytest.mark.parametrize(
    "name", sorted({"expm1", "log1p", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "erfinv"} & set(_F32))
)
def test_odd_functions_keep_the_sign_of_zero(name: str) -> None:
    form = form_of(name)
    zeros = np.array([0.0, -0.0], np.float32)
    assert same_bits(native(form)(zeros), zeros)
    tiny = np.array([1e-45, -1e-45, 1.1754942e-38, -3e-39], np.float32)
    if name != "erf" and name != "erfinv":  # whose slope at 0 is not 1
        assert same_bits(native(form)(tiny), tiny)


@pytest.mark.parametrize("name", sorted({"sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "cos", "cosh"} & set(_F32)))
def test_symmetry(name: str) -> None:
    form = form_of(name)
    x = np.abs(arguments(form, 50_000, seed=5)[0])
    up, down = native(form)(x), native(form)(-x)
    assert same_bits(up, down if name in ("cos", "cosh") else -down)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_that_are_hard_to_reduce(name: str) -> None:
    """The f32 nearest to a multiple of pi / 2, and those nearest to the middle between two."""
    hard = [
        "0x1.f37acp+18",
        "0x1.abb4b0p+88",
        "0x1.628d4cp+39",
        "0x1.5d13f4p+54",
        "0x1.921fb6p+0",
        "0x1.921fb6p-1",
        "0x1.921fb4p-1",
        "0x1.fffffep+127",
    ]
    x = np.array([float.fromhex(word) for word in hard], np.float32)
    assert distance(native(form_of(name))(x), TRUTH[name](x.astype(np.float64))).max() <= BOUNDS[name]


def test_pow_where_its_logarithm_is_least_accurate() -> None:
    """The f32 beside the limits of the reduction, to powers whose results are nearly the largest and least."""
    rng = np.random.default_rng(9)
    x = np.concatenate([rng.uniform(a, b, 200_000) for a, b in ((0.875, 0.9), (1.11, 1.125), (1.38, 1.39))]).astype(np.float32)
    exponents = rng.uniform(118, 128, len(x)) * rng.choice([-1, 1], len(x))
    y = (np.clip(exponents, -126, 128) / np.log2(x.astype(np.float64))).astype(np.float32)
    far = distance(native(form_of("pow"))(x, y), np.power(x.astype(np.float64), y.astype(np.float64)))
    assert far.max() <= BOUNDS["pow"]


VALUES: list[tuple[str, tuple[float, ...], float]] = [
    ("exp", (0.0,), 1.0), ("exp", (-0.0,), 1.0), ("exp", (INF,), INF), ("exp", (-INF,), 0.0), ("exp", (89.0,), INF),
    ("exp", (-104.0,), 0.0), ("exp2", (10.0,), 1024.0), ("exp2", (-149.0,), 1e-45), ("exp2", (-126.0,), 2.0**-126),
    ("exp2", (127.0,), 2.0**127), ("exp2", (128.0,), INF), ("exp10", (0.0,), 1.0), ("exp10", (2.0,), 100.0), ("exp10", (39.0,), INF),
    ("exp10", (-46.0,), 0.0), ("expm1", (-INF,), -1.0), ("expm1", (INF,), INF), ("expm1", (-200.0,), -1.0), ("log", (1.0,), 0.0),
    ("log", (0.0,), -INF), ("log", (-0.0,), -INF), ("log", (-1.0,), NAN), ("log", (INF,), INF), ("log", (-INF,), NAN),
    ("log2", (1.0,), 0.0), ("log2", (8.0,), 3.0), ("log2", (1e-45,), -149.0), ("log2", (0.0,), -INF), ("log2", (-2.0,), NAN),
    ("log10", (1.0,), 0.0), ("log10", (1000.0,), 3.0), ("log10", (INF,), INF), ("log10", (-0.0,), -INF), ("log1p", (-1.0,), -INF),
    ("log1p", (-1.5,), NAN), ("log1p", (INF,), INF), ("log1p", (-INF,), NAN), ("sin", (INF,), NAN), ("cos", (-INF,), NAN),
    ("cos", (0.0,), 1.0), ("cos", (1e-45,), 1.0), ("tan", (INF,), NAN), ("tanh", (INF,), 1.0), ("tanh", (-INF,), -1.0),
    ("tanh", (40.0,), 1.0), ("sinh", (INF,), INF), ("sinh", (-90.0,), -INF), ("cosh", (0.0,), 1.0), ("cosh", (-INF,), INF),
    ("sigmoid", (0.0,), 0.5), ("sigmoid", (INF,), 1.0), ("sigmoid", (-INF,), 0.0), ("sigmoid", (-200.0,), 0.0), ("rsqrt", (4.0,), 0.5),
    ("rsqrt", (0.0,), INF), ("rsqrt", (-0.0,), -INF), ("rsqrt", (INF,), 0.0), ("rsqrt", (-1.0,), NAN), ("erf", (INF,), 1.0),
    ("erf", (-INF,), -1.0), ("erf", (5.0,), 1.0), ("erfc", (INF,), 0.0), ("erfc", (-INF,), 2.0), ("erfc", (0.0,), 1.0),
    ("erfc", (11.0,), 0.0), ("asin", (1.0,), 1.5707964), ("asin", (1.0000001,), NAN), ("acos", (1.0,), 0.0), ("acos", (-1.0,), 3.1415927),
    ("acos", (-INF,), NAN), ("atan", (INF,), 1.5707964), ("atan", (-INF,), -1.5707964), ("asinh", (INF,), INF), ("acosh", (1.0,), 0.0),
    ("acosh", (0.99999994,), NAN), ("acosh", (INF,), INF), ("acosh", (-INF,), NAN), ("atanh", (1.0,), INF), ("atanh", (-1.0,), -INF),
    ("atanh", (1.0000001,), NAN), ("hypot", (INF, NAN), INF), ("hypot", (NAN, -INF), INF), ("hypot", (3.0, -4.0), 5.0),
    ("hypot", (1e-45, 0.0), 1e-45), ("hypot", (1.0, NAN), NAN), ("hypot", (0.0, -0.0), 0.0), ("atan2", (0.0, 0.0), 0.0),
    ("atan2", (-0.0, 0.0), -0.0), ("atan2", (0.0, -0.0), 3.1415927), ("atan2", (-0.0, -1.0), -3.1415927),
    ("atan2", (INF, INF), 0.7853982), ("atan2", (-INF, -INF), -2.3561945), ("atan2", (1.0, INF), 0.0),
    ("atan2", (-1.0, -INF), -3.1415927), ("atan2", (1.0, 0.0), 1.5707964), ("atan2", (NAN, 0.0), NAN), ("atan2", (0.0, NAN), NAN),
    ("pow", (NAN, 0.0), 1.0), ("pow", (NAN, -0.0), 1.0), ("pow", (1.0, NAN), 1.0), ("pow", (1.0, INF), 1.0), ("pow", (-1.0, INF), 1.0),
    ("pow", (-1.0, -INF), 1.0), ("pow", (-1.0, NAN), NAN), ("pow", (0.0, -1.0), INF), ("pow", (-0.0, -1.0), -INF),
    ("pow", (-0.0, -2.0), INF), ("pow", (-0.0, 3.0), -0.0), ("pow", (-0.0, 2.5), 0.0), ("pow", (0.0, -INF), INF),
    ("pow", (-0.0, INF), 0.0), ("pow", (0.5, INF), 0.0), ("pow", (2.0, INF), INF), ("pow", (2.0, -INF), 0.0), ("pow", (0.5, -INF), INF),
    ("pow", (INF, 0.5), INF), ("pow", (INF, -0.5), 0.0), ("pow", (-INF, 3.0), -INF), ("pow", (-INF, -3.0), -0.0),
    ("pow", (-INF, 0.5), INF), ("pow", (-INF, -0.5), 0.0), ("pow", (-8.0, 0.5), NAN), ("pow", (-2.0, 3.0), -8.0),
    ("pow", (-2.0, 16777216.0), INF), ("pow", (-1.0, 16777215.0), -1.0), ("pow", (-1.0, 16777216.0), 1.0), ("pow", (2.0, -149.0), 1e-45),
    ("pow", (3.0, 2.0), 9.0), ("pow", (2.0, 0.5), 1.4142135), ("pow", (1.0000001, 1e30), INF), ("erfinv", (1.0,), INF),
    ("erfinv", (-1.0,), -INF), ("erfinv", (1.0000001,), NAN),
    ("lgamma", (1.0,), 0.0), ("lgamma", (2.0,), 0.0), ("lgamma", (0.0,), INF), ("lgamma", (-0.0,), INF), ("lgamma", (-3.0,), INF),
    ("lgamma", (-INF,), INF), ("lgamma", (INF,), INF), ("lgamma", (3.0,), 0.6931472), ("lgamma", (-0.5,), 1.2655121),
    ("lgamma", (-1e20,), INF), ("lgamma", (3e38,), INF),
    ("digamma", (0.0,), -INF), ("digamma", (-0.0,), INF), ("digamma", (-1.0,), NAN), ("digamma", (-INF,), NAN), ("digamma", (INF,), INF),
    ("digamma", (1.0,), -0.5772157), ("digamma", (-1e20,), NAN), ("digamma", (0.5,), -1.9635100),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "expected"), [row for row in VALUES if row[0] in _F32])
def test_exceptional_values(name: str, given: tuple[float, ...], expected: float) -> None:
    """Whole numbers, infinities and NaN exactly; angles and the like within the function's bound."""
    with np.errstate(over="ignore"):
        columns = tuple(np.array([x], np.float32) for x in given)
    got, wanted = native(form_of(name))(*columns), np.array([expected], np.float32)
    if np.isnan(wanted[0]) or wanted[0] == np.rint(wanted[0]):
        assert same_bits(got, wanted), got
    else:
        assert distance(got, wanted.astype(np.float64))[0] <= BOUNDS[name], got


@pytest.mark.parametrize(("name", "type_"), _ALL)
def test_nan_in_gives_nan_out(name: str, type_: RegType) -> None:
    form = form_of(name, type_)
    patterns_f32 = np.array([0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFF800001], np.uint32)
    patterns_f64 = np.array([0x7FF8 << 48, 0xFFF8 << 48, (1 << 63) - 1, (0xFFF << 52) + 1], np.uint64)
    nan = patterns_f32.view(np.float32) if type_ is RegType.F32 else patterns_f64.view(np.float64)
    two = np.full_like(nan, 2.0)
    for k in range(len(form.ins)):
        given = [nan if i == k else two for i in range(len(form.ins))]
        assert np.isnan(native(form)(*given)).all()
