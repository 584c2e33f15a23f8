"""Shapes of instructions, judged against a signature: a letter stands for one size, and equal letters must be equal sizes.

The table is written from the text of each op. From it: the sizes as they stand are accepted; a letter changed everywhere is accepted; a
size changed in one place by one, below or above, is refused unless its letter stands nowhere else. Element types are judged likewise: every
type in every place, against the pattern of the signature.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from tests.support.builder import Builder
from wis.dtypes import DType
from wis.errors import VerifyError
from wis.ops import BY_NAME, OPS, Kind, Op, Types
from wis.program import Operand, Scalar
from wis.verify import verify

F32, F64, I64, BOOL = DType.F32, DType.F64, DType.I64, DType.BOOL
SIZES = {"a": 6, "b": 2, "c": 5, "d": 9, "e": 8, "h": 3, "k": 11, "m": 4, "n": 7, "1": 1}
"""Size of each letter; ``1`` is a size of one that nothing may change. Letters marked ``~`` (rows that one row serves) have stride 0."""


@dataclass(frozen=True)
class Signature:
    """``outs`` and ``ins``: one word an operand, one letter a dimension; ``#`` an immediate, ``.`` no dimensions."""

    op: str
    outs: str
    ins: str
    attrs: tuple[int, ...] = ()
    types: str = ""  # one letter an operand, outs first (TYPES); default: all T
    domain: str = "number"  # what T may be (DOMAINS)

    def __str__(self) -> str:
        return f"{self.op}: {self.ins} -> {self.outs}"


SIGNATURES = [
    Signature("add", "mn", "mn mn"),
    Signature("add", "mn", "mn #"),
    Signature("neg", "mnk", "mnk"),
    Signature("where", "mn", "mn mn mn", types="TbTT", domain="any"),
    Signature("lt", "mn", "mn mn", types="bTT", domain="ordered"),
    Signature("argmax", "m1k", "mnk", (1,), "iT", "ordered"),
    Signature("argmin", "1n", "mn", (0,), "iT", "ordered"),
    Signature("argmax", "m1", "mn", (1,), "iT", "ordered"),
    Signature("cumsum", "mn", "mn", (0,)),
    Signature("cumprod", "mn", "mn", (1,)),
    Signature("cummax", "mn mn", "mn", (1,), "TiT", "ordered"),
    Signature("cummin", "mn mn", "mn", (0,), "TiT", "ordered"),
    Signature("matmul", "mn", "mk kn"),
    Signature("matmul", "bhmn", "bhmk bhkn"),
    Signature("gather", "mn", "kn mn", (0,), "TTx", "any"),  # of the data there may be more beside ``dim``
    Signature("index", "mnk", "ak mn", (), "TTx", "any"),
    Signature("index", "mk", "abk m m", (), "TTxx", "any"),
    Signature("index_put", "ak", "mnk mn", (0,), "TTx", "any"),
    Signature("index_put", "ab", "m m m", (0,), "TTxx", "any"),
    Signature("sort", "mn mn", "mn", (1, 0), "TiT", "ordered"),
    Signature("sort", "mn mn", "mn", (0, 1), "TiT", "ordered"),
    Signature("search_sorted", "mn", "mk mn", (0,), "iTT", "ordered"),
    Signature("search_sorted", "bmn", "bmk bmn", (1,), "iTT", "ordered"),
    Signature("softmax", "mn", "mn", domain="real"),
    Signature("log_softmax", "mn", "mn", domain="real"),
    Signature("softmax_dx", "mn", "mn mn", domain="real"),
    Signature("log_softmax_dx", "mn", "mn mn", domain="real"),
    Signature("layer_norm", "mn m1 m1", "mn ~n ~n #", types="TAATwwd", domain="real"),
    Signature("layer_norm", "mn m1 m1", "mn # # #", types="TAATwwd", domain="real"),
    Signature("layer_norm_dx", "mn", "mn mn m1 m1 ~n", types="TTTAAw", domain="real"),
    Signature("layer_norm_dwb", "1n 1n", "mn mn m1 m1", types="wwTTAA", domain="real"),
    Signature("gelu", "mn", "mn", (0,), domain="real"),
    Signature("gelu_dx", "mn", "mn mn", (1,), domain="real"),
    Signature("silu", "mn", "mn", domain="real"),
    Signature("silu_dx", "mn", "mn mn", domain="real"),
    Signature("sdpa", "bhme bhm", "bhmd bhnd bhne #", (0,), "TATTTd", "real"),
    Signature("sdpa", "bhme bhm", "bhmd bhnd bhne # bhmn", (1,), "TATTTdT", "real"),
    Signature("sdpa_dx", "bhmd bhnd bhne", "bhme bhmd bhnd bhne bhme bhm #", (0,), "TTTTTTTTAd", "real"),
    Signature("sdpa_dx", "bhmd bhnd bhne", "bhme bhmd bhnd bhne bhme bhm # bhmn", (1,), "TTTTTTTTAdT", "real"),
    Signature("adamw", "mn mn mn", "mn # # # # # # #", (1, 0), "TTTTddddddd", "real"),
]
REAL = {DType.F16, DType.BF16, DType.F32, DType.F64}
PARTS = {DType.C64: DType.F32, DType.C128: DType.F64}
WIDER = {DType.F16: DType.F32, DType.BF16: DType.F32}
INT = {dtype for dtype in DType if dtype.text[0] in "iu"}
DOMAINS = {
    "any": set(DType), "number": set(DType) - {BOOL}, "ordered": set(DType) - set(PARTS),
    "ordered number": set(DType) - set(PARTS) - {BOOL},
    "real": REAL, "float": REAL | set(PARTS), "int": INT, "bits": INT | {BOOL}, "complex": set(PARTS), "real or int": REAL | INT,
}  # fmt: skip


def choices(letter: str, common: DType, *, immediate: bool) -> set[DType]:
    """The types that ``letter`` stands for where T is ``common``: T itself (an immediate may also have the type that T computes in), A that
    type, w either, P the type of a complex T's parts, x of an
    index, i i64, d f64, b bool."""
    wider = WIDER.get(common, common)
    match letter:
        case "T":
            return {common, wider} if immediate else {common}
        case "w":
            return {common, wider}
        case "A":
            return {wider}
        case "P":
            return {PARTS[common]}
        case "x":
            return {I64, DType.U64}
    return {{"i": I64, "d": F64, "b": BOOL}[letter]}


def dtypes_of(signature: Signature, common: DType) -> list[DType]:
    """The types of all operands where T is ``common``."""
    words = [*signature.outs.split(), *signature.ins.split()]
    return [min(choices(letter, common, immediate=False)) for letter in signature.types or "T" * len(words)]


def judge(
    signature: Signature,
    sizes: dict[str, int],
    change: tuple[int, int, int] | None = None,
    attrs: tuple[int, ...] | None = None,
    dtypes: list[DType] | None = None,
    rules: frozenset[str] = frozenset({"shape", "attr range"}),
) -> bool:
    """Whether the instruction is accepted; ``change``: (operand, dimension, step) of one size that differs. A refusal is for ``rules``."""
    b = Builder()
    words = [*signature.outs.split(), *signature.ins.split()]
    n_outs = len(signature.outs.split())
    operands: list[Operand | Scalar] = []
    for number, (word, dtype) in enumerate(zip(words, dtypes or dtypes_of(signature, F32), strict=True)):
        if word == "#":
            operands.append(b.const(1, dtype))
            continue
        shape = [sizes["m"] if letter == "~" else sizes[letter] for letter in word]
        if change is not None and change[0] == number:
            shape[change[1]] += change[2]
        strides = (0, 1) if word[0] == "~" else None
        operands.append(b.external(dtype, shape, strides))
    outs, ins = [x for x in operands[:n_outs] if isinstance(x, Operand)], operands[n_outs:]
    b.emit(signature.op, outs, ins, signature.attrs if attrs is None else attrs)
    program, dims, _ = b.finish()
    try:
        verify(program, dims)
    except VerifyError as error:
        assert {finding.rule for finding in error.findings} <= rules, error
        return False
    return True


@pytest.mark.parametrize("signature", SIGNATURES, ids=str)
def test_equal_letters_are_equal_sizes(signature: Signature) -> None:
    assert judge(signature, SIZES)
    words = [*signature.outs.split(), *signature.ins.split()]
    letters = Counter(letter.replace("~", "m") for word in words if word != "#" for letter in word)
    for letter in letters.keys() - {"1"}:
        for step in (-1, 1):
            assert judge(signature, SIZES | {letter: SIZES[letter] + step}), (letter, step)
    for number, word in enumerate(words):
        for dim, letter in enumerate(word if word != "#" else ""):
            for step in (-1, 1):
                accepted = letters[letter.replace("~", "m")] == 1 and letter != "1"
                accepted |= signature.op == "gather" and (number, dim, step) == (1, 1, 1)
                assert judge(signature, SIZES, (number, dim, step)) == accepted, (number, dim, step)


ELEMENTWISE = [op for op in OPS if op.kind is Kind.MAP and op.types in (Types.SAME, Types.FLOAT, Types.REAL, Types.SAME_ANY)]


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_elementwise_operands_have_the_shape_of_the_output(op: Op) -> None:
    signature = Signature(op.name, "mn", " ".join(["mn"] * op.n_ins[0]))
    assert judge(signature, SIZES)
    for number in range(1 + op.n_ins[0]):
        for dim in (0, 1):
            for step in (-1, 1):
                assert not judge(signature, SIZES, (number, dim, step))


@pytest.mark.parametrize("signature", [s for s in SIGNATURES if "dim" in BY_NAME[s.op].attrs], ids=str)
def test_dim_names_a_dimension_of_the_data(signature: Signature) -> None:
    rank = len(signature.ins.split()[0])
    for dim in (-1, rank):
        assert not judge(signature, SIZES, attrs=(dim, *signature.attrs[1:]))


CHOICES = [("gelu", 0, 2), ("gelu_dx", 0, 2), ("sdpa", 0, 2), ("sdpa_dx", 0, 2), ("adamw", 0, 2), ("adamw", 1, 2), ("sort", 1, 2),
           ("search_sorted", 0, 2), ("index_put", 0, 5)]  # fmt: skip


@pytest.mark.parametrize(("name", "number", "count"), CHOICES)
def test_flags_and_modes_are_those_that_exist(name: str, number: int, count: int) -> None:
    signature = next(s for s in SIGNATURES if s.op == name)
    for value in range(-1, count + 1):
        attrs = list(signature.attrs)
        attrs[number] = value
        assert judge(signature, SIZES, attrs=tuple(attrs)) == (0 <= value < count), value


@pytest.mark.parametrize(
    ("op", "out", "x", "good"),
    [
        ("sum", (1, 7), (4, 7), True), ("sum", (4, 1), (4, 7), True), ("sum", (1, 1), (4, 7), True), ("sum", (4, 7), (4, 7), True),
        ("sum", (2, 7), (4, 7), False), ("sum", (4, 2), (4, 7), False), ("sum", (0, 7), (4, 7), False), ("sum", (7,), (4, 7), False),
        ("sum", (1, 4, 7), (4, 7), False), ("sum", (1, 7), (0, 7), True), ("prod", (1, 7), (0, 7), True), ("prod", (0, 1), (0, 7), True),
        ("reduce_max", (1, 7), (0, 7), False), ("reduce_min", (1, 7), (0, 7), False), ("reduce_max", (0, 1), (0, 7), True),
        ("reduce_min", (1, 7), (1, 7), True), ("reduce_max", (1, 0), (1, 0), True),
    ],
)  # fmt: skip
def test_reductions(op: str, out: tuple[int, ...], x: tuple[int, ...], good: bool) -> None:
    b = Builder()
    b.emit(op, b.created(F32, out), [b.external(F32, x)])
    program, dims, _ = b.finish()
    if good:
        verify(program, dims)
    else:
        with pytest.raises(VerifyError):
            verify(program, dims)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize(("n", "good"), [(0, False), (1, True)])
def test_the_place_of_an_extreme_needs_an_element(op: str, n: int, good: bool) -> None:
    b = Builder()
    b.emit(op, b.created(I64, (3, 1)), [b.external(F32, (3, n))], (1,))
    program, dims, _ = b.finish()
    if good:
        verify(program, dims)
    else:
        with pytest.raises(VerifyError, match="empty @ code 0 in 0"):
            verify(program, dims)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("op", ["gather", "scatter"])
def test_indices_reach_as_far_as_the_data_beside_dim(op: str, dim: int) -> None:
    """Along ``dim`` there may be any number of indices, along the other dimension as many as the data has; the data has 4 x 4."""
    for along, beside in ((9, 3), (9, 4), (9, 5), (0, 4), (1, 0)):
        shape = (along, beside) if dim == 0 else (beside, along)
        b = Builder()
        data, index, picked = b.external(F32, (4, 4)), b.external(I64, shape), b.external(F32, shape)
        if op == "gather":
            b.emit("gather", picked, [data, index], (dim,))
        else:
            b.emit("scatter", data, [picked, index], (dim, 0))
        program, dims, _ = b.finish()
        if beside <= 4:
            verify(program, dims)
        else:
            with pytest.raises(VerifyError, match=f"exceeds .* beside dimension {dim}"):
                verify(program, dims)


@pytest.mark.parametrize(("k", "good"), [(0, True), (6, True), (7, True), (8, False)])
def test_topk_gives_at_most_all_elements(k: int, good: bool) -> None:
    for dim in (0, 1):
        b = Builder()
        shape, data = ((k, 4), (7, 4)) if dim == 0 else ((4, k), (4, 7))
        b.emit("topk", [b.created(F32, shape), b.created(I64, shape)], [b.external(F32, data)], (dim, 1))
        program, dims, _ = b.finish()
        if good:
            verify(program, dims)
        else:
            with pytest.raises(VerifyError, match="cut along dimension"):
                verify(program, dims)


@pytest.mark.parametrize(("values", "places"), [((3, 4), (3, 4)), ((3, 5), (4, 5)), ((3, 4), (3, 5))])
def test_topk_outputs_agree_beside_dim_and_with_each_other(values: tuple[int, int], places: tuple[int, int]) -> None:
    b = Builder()
    b.emit("topk", [b.created(F32, values), b.created(I64, places)], [b.external(F32, (7, 4))], (0, 0))
    program, dims, _ = b.finish()
    if values == places == (3, 4):
        verify(program, dims)
    else:
        with pytest.raises(VerifyError, match="shape"):
            verify(program, dims)


ORDERED_MAPS = {"abs", "sign", "floor_div", "trunc_div", "mod", "fmod", "min", "max", "fmin", "fmax"}
MAP_TYPES = {
    Types.SAME: ("T", "number"), Types.SAME_ANY: ("T", "any"), Types.FLOAT: ("T", "float"), Types.REAL: ("T", "real"),
    Types.BITS: ("T", "bits"), Types.INT: ("T", "int"), Types.COMPARE: ("b", "any"), Types.TEST: ("b", "float"),
}  # fmt: skip
"""The letter of the output, and what the inputs may be."""


def typed_maps() -> list[Signature]:
    found = []
    for op in OPS:
        if op.kind is Kind.MAP and op.types in MAP_TYPES:
            out, domain = MAP_TYPES[op.types]
            if op.name in ORDERED_MAPS | {"lt", "le", "gt", "ge"}:
                domain = {"number": "ordered number", "any": "ordered"}[domain]
            n = op.n_ins[0]
            found.append(Signature(op.name, "mn", " ".join(["mn"] * n), (), out + "T" * n, domain))
            if n == 2:
                found.append(Signature(op.name, "mn", "mn #", (), out + "T" * n, domain))
    return found


TYPED = [
    *(s for s in SIGNATURES if BY_NAME[s.op].kind is not Kind.MAP or s.op == "where"),
    *typed_maps(),
    Signature("sign_bit", "mn", "mn", (), "bT", "real or int"),
    Signature("real", "mn", "mn", (), "PT", "complex"),
    Signature("imag", "mn", "mn", (), "PT", "complex"),
    Signature("complex", "mn", "mn mn", (), "TPP", "complex"),
    Signature("sum", "1n", "mn"),
    Signature("prod", "m1", "mn"),
    Signature("reduce_max", "1n", "mn", (), "TT", "ordered"),
    Signature("reduce_min", "m1", "mn", (), "TT", "ordered"),
    Signature("topk", "mn mn", "mn", (0, 1), "TiT", "ordered"),
    Signature("scatter", "mn", "mn mn", (0, 0), "TTx", "any"),
    Signature("scatter", "mn", "mn mn", (1, 3), "TTx", "ordered"),
    Signature("scatter", "mn", "mn mn", (1, 4), "TTx", "ordered"),
    Signature("index_put", "ak", "mnk mn", (3,), "TTx", "ordered"),
    Signature("index_put", "ak", "mnk mn", (2,), "TTx", "any"),
    Signature("conv", "bmk", "bmk mm1", (1, 1, 0, 1), "TTT", "real"),
    Signature("max_pool", "bmk bmk", "bmk", (1, 1, 0, 1), "TiT", "ordered"),
    Signature("avg_pool", "bmk", "bmk", (0, 0, 1, 1, 0), "TT", "real"),
]
RULES = frozenset({"type"})


@pytest.mark.parametrize("signature", TYPED, ids=str)
def test_element_types_follow_the_pattern(signature: Signature) -> None:
    """Every type in place of T; and then, one operand at a time, every other type."""
    words = [*signature.outs.split(), *signature.ins.split()]
    letters = signature.types or "T" * len(words)
    domain = DOMAINS[signature.domain]
    for common in DType:
        if common not in domain and "P" in letters:
            continue
        assert judge(signature, SIZES, dtypes=dtypes_of(signature, common), rules=RULES) == (common in domain), common.text
    for common in sorted(domain & {DType.F16, F32, F64, DType.U8, I64, DType.C64, BOOL}):
        for number in range(len(words)):
            for other in DType:
                given = dtypes_of(signature, common)
                given[number] = other
                fits = any(
                    all(d in choices(a, t, immediate=w == "#") for d, a, w in zip(given, letters, words, strict=True)) for t in domain
                )
                assert judge(signature, SIZES, dtypes=given, rules=RULES) == fits, (common.text, number, other.text)


@pytest.mark.parametrize("out", list(DType), ids=lambda d: d.text)
def test_cast_takes_anything(out: DType) -> None:
    for given in DType:
        assert judge(Signature("cast", "mn", "mn"), SIZES, dtypes=[out, given])


def generated(op: str, out: DType, ins: list[DType], attr: int) -> bool:
    b = Builder()
    b.emit(op, b.created(out, (4,)), [b.const(1, dtype) for dtype in ins], (attr,))
    program, dims, _ = b.finish()
    try:
        verify(program, dims)
    except VerifyError as error:
        assert {finding.rule for finding in error.findings} <= {"type", "attr range"}
        return False
    return True


@pytest.mark.parametrize("out", list(DType), ids=lambda d: d.text)
def test_types_of_iota_and_random(out: DType) -> None:
    """Iota counts in integers for integers and in floats for floats. Seeds and offsets of random are i64; bits are i32 or i64."""
    for first in DType:
        for second in (I64, F32, first):
            family = INT if out in INT else REAL if out in REAL else set()
            assert generated("iota", out, [first, second], 0) == (first in family and second in family)
            for dist in (0, 1, 2):
                wanted = {DType.I32, I64} if dist == 2 else REAL
                assert generated("random", out, [first, second], dist) == (out in wanted and first is second is I64)


@pytest.mark.parametrize(
    ("op", "attr", "good"), [("iota", -1, False), ("iota", 1, False), ("random", -1, False), ("random", 3, False), ("iota", 0, True)]
)
def test_attributes_of_iota_and_random(op: str, attr: int, good: bool) -> None:
    assert generated(op, F32, [F32, F32] if op == "iota" else [I64, I64], attr) == good


def found(op: str, outs: list[tuple[DType, tuple[int, ...]]], ins: list[tuple[int, ...]], attrs: tuple[int, ...]) -> list[str]:
    b = Builder()
    b.emit(op, [b.created(dtype, shape) for dtype, shape in outs], [b.external(F32, shape) for shape in ins], attrs)
    program, dims, _ = b.finish()
    try:
        verify(program, dims)
    except VerifyError as error:
        return [str(finding) for finding in error.findings]
    return []


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("op", ["max_pool", "avg_pool", "avg_pool_dx"])
def test_pooling_needs_an_element_to_pool_over(op: str, size: int) -> None:
    """A window of one over a spatial size of nothing has no position to begin at."""
    data, pooled = (1, 1, size), (1, 1, size)
    attrs = (1, 1, 0, 1) if op == "max_pool" else (0, 0, 1, 1, 0)
    outs = [(F32, pooled), (I64, pooled)] if op == "max_pool" else [(F32, pooled)]
    assert found(op, outs, [data], attrs) == (["empty @ code 0: pooling over spatial size 0"] if size == 0 else [])


@pytest.mark.parametrize(("pad", "good"), [(0, True), (1, True), (2, False)])
def test_pads_of_pooling_are_at_most_half_a_window(pad: int, good: bool) -> None:
    """Windows of three over six elements, and of two that are one apart, which reach as far."""
    for kernel, dilation in ((3, 1), (2, 2)):
        count = 6 + 2 * pad - 2
        said = found("max_pool", [(F32, (1, 1, count)), (I64, (1, 1, count))], [(1, 1, 6)], (kernel, 1, pad, dilation))
        assert said == ([] if good else ["attr range @ code 0 attr pad: 2 is more than half a window of 3"])


@pytest.mark.parametrize("count", range(1, 6))
def test_windows_of_pooling_are_those_that_fit_or_one_more(count: int) -> None:
    """Six elements, windows of three, two apart: two fit, a third begins inside."""
    said = found("avg_pool", [(F32, (1, 1, count))], [(1, 1, 6)], (0, 0, 3, 2, 0))
    assert said == ([] if count in (2, 3) else [f"shape @ code 0: {count} windows along spatial dimension 0, expected 2 or 3"])


def test_what_is_wrong_is_said_of_the_operand_that_has_it() -> None:
    assert found("argmax", [(I64, (2, 2))], [(2, 3)], (1,)) == ["shape @ code 0 out 0: (2, 2), expected (2, 1)"]
    assert found("cumsum", [(F32, (3,))], [(4,)], (0,)) == ["shape @ code 0 out 0: (3,), expected (4,)"]
    assert found("matmul", [(F32, (2, 5))], [(2, 3), (4, 5)], ()) == ["shape @ code 0 in 1: (4, 5), expected (3, 5)"]
    assert found("matmul", [(F32, (2, 4))], [(2, 3), (3, 5)], ()) == ["shape @ code 0 out 0: (2, 4), expected (2, 5)"]
    assert found("add", [(F32, (2,))], [(2,), (3,)], ()) == ["shape @ code 0 in 1: (3,), expected (2,)"]
    assert found("nonzero", [(I64, (6, 3)), (I64, (1,))], [(2, 3)], ()) == ["shape @ code 0 out 0: (6, 3), expected (6, 2)"]
    assert found("nonzero", [(I64, (6, 2)), (I64, (2,))], [(2, 3)], ()) == ["shape @ code 0 out 1: (2,), expected (1,)"]
    assert found("nonzero", [(I64, (6, 2)), (I64, (1,))], [(2, 3)], ()) == []


CONV = [
    # outs, x, w, attrs (groups, stride, pad, dilation), accepted
    ((2, 6, 4), (2, 4, 6), (6, 2, 3), (2, 1, 0, 1), True),
    ((2, 6, 4), (2, 4, 6), (6, 2, 3), (1, 1, 0, 1), False),
    ((2, 6, 4), (2, 4, 6), (6, 4, 3), (1, 1, 0, 1), True),
    ((2, 5, 4), (2, 4, 6), (5, 2, 3), (2, 1, 0, 1), False),
    ((2, 6, 4), (2, 4, 6), (6, 2, 3), (0, 1, 0, 1), False),
    ((2, 6, 4), (2, 4, 6), (6, 2, 3), (-2, 1, 0, 1), False),
    ((3, 6, 4), (2, 4, 6), (6, 2, 3), (2, 1, 0, 1), False),
    ((2, 7, 4), (2, 4, 6), (6, 2, 3), (2, 1, 0, 1), False),
    ((2, 6, 3), (2, 4, 6), (6, 2, 3), (2, 1, 0, 1), False),
    ((2, 6, 5), (2, 4, 6), (6, 2, 3), (2, 1, 0, 1), False),
    ((2, 6, 2), (2, 4, 6), (6, 2, 3), (2, 2, 0, 1), True),
    ((2, 6, 2), (2, 4, 6), (6, 2, 3), (2, 0, 0, 1), False),
    ((2, 6, 6), (2, 4, 6), (6, 2, 3), (2, 1, 1, 1), True),
    ((2, 6, 2), (2, 4, 6), (6, 2, 3), (2, 1, -1, 1), False),
    ((2, 6, 2), (2, 4, 6), (6, 2, 3), (2, 1, 0, 2), True),
    ((2, 6, 4), (2, 4, 6), (6, 2, 3), (2, 1, 0, 0), False),
    ((2, 6, 0), (2, 4, 6), (6, 2, 7), (2, 1, 0, 1), True),
    ((2, 6, 4, 1), (2, 4, 6), (6, 2, 3), (2, 1, 0, 1), False),
    ((2, 6, 7), (2, 4, 6), (6, 2, 0), (2, 1, 0, 1), False),
]


@pytest.mark.parametrize(("y", "x", "w", "attrs", "good"), CONV)
def test_convolutions_and_their_gradients_have_one_rule(
    y: tuple[int, ...], x: tuple[int, ...], w: tuple[int, ...], attrs: tuple[int, ...], good: bool
) -> None:
    for op, out, ins in (("conv", y, [x, w]), ("conv_dx", x, [y, w]), ("conv_dw", w, [y, x])):
        assert (found(op, [(F32, out)], ins, attrs) == []) == good, op
