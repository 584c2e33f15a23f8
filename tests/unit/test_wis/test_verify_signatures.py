"""Shapes of instructions, judged against a signature: a letter stands for one size, and equal letters must be equal sizes.

The table is written from the text of each op. From it: the sizes as they stand are accepted; a letter changed everywhere is accepted; a
size changed in one place by one, below or above, is refused unless its letter stands nowhere else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from wis.builder import Builder
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
    dtypes: str = ""  # one letter an operand, outs first: f f32, d f64, i i64, b bool; default: all f

    def __str__(self) -> str:
        return f"{self.op}: {self.ins} -> {self.outs}"


SIGNATURES = [
    Signature("add", "mn", "mn mn"),
    Signature("add", "mn", "mn #"),
    Signature("neg", "mnk", "mnk"),
    Signature("where", "mn", "mn mn mn", dtypes="fbff"),
    Signature("lt", "mn", "mn mn", dtypes="bff"),
    Signature("argmax", "m1k", "mnk", (1,), "if"),
    Signature("argmin", "1n", "mn", (0,), "if"),
    Signature("argmax", "m1", "mn", (1,), "if"),
    Signature("cumsum", "mn", "mn", (0,)),
    Signature("cumprod", "mn", "mn", (1,)),
    Signature("cummax", "mn mn", "mn", (1,), "fif"),
    Signature("cummin", "mn mn", "mn", (0,), "fif"),
    Signature("matmul", "mn", "mk kn"),
    Signature("matmul", "bhmn", "bhmk bhkn"),
    Signature("gather", "mn", "kn mn", (0,), "ffi"),  # of the data there may be more beside ``dim``
    Signature("index", "mnk", "ak mn", (), "ffi"),
    Signature("index", "mk", "abk m m", (), "ffii"),
    Signature("index_put", "ak", "mnk mn", (0,), "ffi"),
    Signature("index_put", "ab", "m m m", (0,), "ffii"),
    Signature("sort", "mn mn", "mn", (1, 0), "fif"),
    Signature("sort", "mn mn", "mn", (0, 1), "fif"),
    Signature("search_sorted", "mn", "mk mn", (0,), "iff"),
    Signature("search_sorted", "bmn", "bmk bmn", (1,), "iff"),
    Signature("softmax", "mn", "mn"),
    Signature("log_softmax", "mn", "mn"),
    Signature("softmax_dx", "mn", "mn mn"),
    Signature("log_softmax_dx", "mn", "mn mn"),
    Signature("layer_norm", "mn m1 m1", "mn ~n ~n #", dtypes="ffffffd"),
    Signature("layer_norm", "mn m1 m1", "mn # # #", dtypes="ffffffd"),
    Signature("layer_norm_dx", "mn", "mn mn m1 m1 ~n"),
    Signature("layer_norm_dwb", "1n 1n", "mn mn m1 m1"),
    Signature("gelu", "mn", "mn", (0,)),
    Signature("gelu_dx", "mn", "mn mn", (1,)),
    Signature("silu", "mn", "mn"),
    Signature("silu_dx", "mn", "mn mn"),
    Signature("sdpa", "bhme bhm", "bhmd bhnd bhne #", (0,), "fffffd"),
    Signature("sdpa", "bhme bhm", "bhmd bhnd bhne # bhmn", (1,), "fffffdf"),
    Signature("sdpa_dx", "bhmd bhnd bhne", "bhme bhmd bhnd bhne bhme bhm #", (0,), "fffffffffd"),
    Signature("sdpa_dx", "bhmd bhnd bhne", "bhme bhmd bhnd bhne bhme bhm # bhmn", (1,), "fffffffffdf"),
    Signature("adamw", "mn mn mn", "mn # # # # # # #", (1, 0), "ffffddddddd"),
]
TYPES = {"f": F32, "d": F64, "i": I64, "b": BOOL}


def judge(
    signature: Signature, sizes: dict[str, int], change: tuple[int, int, int] | None = None, attrs: tuple[int, ...] | None = None
) -> bool:
    """Whether the instruction is accepted; ``change``: (operand, dimension, step) of one size that differs."""
    b = Builder()
    words = [*signature.outs.split(), *signature.ins.split()]
    n_outs = len(signature.outs.split())
    operands: list[Operand | Scalar] = []
    for number, word in enumerate(words):
        dtype = TYPES[signature.dtypes[number]] if signature.dtypes else F32
        if word == "#":
            operands.append(b.const(1.0, dtype))
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
        assert {finding.rule for finding in error.findings} <= {"shape", "attr range"}, error
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
