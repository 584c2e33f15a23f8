"""Limits, references, places and overlaps in programs: the last number that is accepted and the first that is not."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.builder import Builder
from wis.dtypes import DType
from wis.encoding import encode_program
from wis.errors import VerifyError
from wis.limits import Limits
from wis.ops import BY_NAME
from wis.program import Imm, Instr, Operand, Program, Ref
from wis.verify import verify

F32, F64, I64, U8 = DType.F32, DType.F64, DType.I64, DType.U8


def findings(program: Program, dims: bytes, limits: Limits | None = None) -> list[str]:
    try:
        verify(program, dims, limits or Limits())
    except VerifyError as error:
        return [str(finding) for finding in error.findings]
    return []


def copied(x: Operand | None = None, out: Operand | None = None, **more: Any) -> tuple[Program, bytes]:
    """``out = neg x``; both of 4 elements unless given, each in a buffer of its own, of ``x_bytes`` and ``out_bytes``."""
    b = Builder()
    source, target = b.external(F32, (4,), nbytes=more.get("x_bytes", 16)), b.external(F32, (4,), nbytes=more.get("out_bytes", 16))
    x, out = x or Operand(0, F32, (4,), (1,), 0), out or Operand(1, F32, (4,), (1,), 0)
    b.emit("neg", at_buffer_of(out, target), [at_buffer_of(x, source)])
    program, dims, _ = b.finish()
    return program, dims


def at_buffer_of(x: Operand, buffer: Operand) -> Operand:
    return Operand(buffer.buffer, x.dtype, x.shape, x.strides, x.offset)


def raw(instr: Instr, *, n_buffers: int = 2, n_scalars: int = 1, buffers: tuple[int, ...] | None = None, version: int = 1) -> list[str]:
    """Findings for a program of this one instruction."""
    program = Program(version, buffers or (0,) * n_buffers, n_scalars, (instr,))
    refs = [x for x in (*instr.outs, *instr.ins) if isinstance(x, Ref)]
    numbers = [64] * len(program.buffers) + [n for ref in refs for n in ([1] * max(0, ref.rank) + [1] * max(0, ref.rank) + [0])]
    return findings(program, np.array(numbers, "<i8").tobytes())


NEG, ADD = BY_NAME["neg"].code, BY_NAME["add"].code
F = int(F32)


# -- structure -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("buffer", "good"), [(-1, False), (0, True), (1, True), (2, False)])
def test_buffers_that_exist(buffer: int, good: bool) -> None:
    assert raw(Instr(NEG, (Ref(0, F, 1),), (Ref(buffer, F, 1),))) == ([] if good else [f"buffer @ code 0 in 0: buffer {buffer} of 2"])
    assert raw(Instr(NEG, (Ref(buffer, F, 1),), (Ref(0, F, 1),))) == ([] if good else [f"buffer @ code 0 out 0: buffer {buffer} of 2"])


@pytest.mark.parametrize(("slot", "good"), [(-1, False), (0, True), (1, True), (2, False)])
def test_scalars_that_exist(slot: int, good: bool) -> None:
    found = raw(Instr(ADD, (Ref(0, F, 1),), (Ref(0, F, 1), Imm(slot, F))), n_scalars=2)
    assert found == ([] if good else [f"scalar slot @ code 0 in 1: slot {slot} of 2"])


@pytest.mark.parametrize(("rank", "good"), [(-1, False), (0, True), (1, True), (16, True), (17, False)])
def test_ranks(rank: int, good: bool) -> None:
    found = raw(Instr(NEG, (Ref(0, F, rank),), (Ref(1, F, rank),)))
    assert found == ([] if good else [f"rank @ code 0 {place} 0: rank {rank}, at most 16 is accepted" for place in ("out", "in")])


@pytest.mark.parametrize(("kind", "good"), [(-1, False), (0, True), (1, True), (2, True), (3, False)])
def test_kinds_of_buffers(kind: int, good: bool) -> None:
    found = raw(Instr(NEG, (Ref(1, F, 1),), (Ref(0, F, 1),)), buffers=(0, kind))
    assert found == ([] if good else [f"buffer kind @ buffer 1: {kind} is not a kind of buffer"])


def test_element_types_that_exist() -> None:
    known = {int(dtype) for dtype in DType}
    for code in range(-1, max(known) + 2):
        found = raw(Instr(BY_NAME["cast"].code, (Ref(0, F, 1),), (Ref(1, code, 1),)))
        assert found == ([] if code in known else [f"dtype @ code 0 in 0: {code} is not an element type"])


@pytest.mark.parametrize(("version", "good"), [(0, False), (1, True), (2, False)])
def test_versions(version: int, good: bool) -> None:
    found = raw(Instr(NEG, (Ref(0, F, 1),), (Ref(1, F, 1),)), version=version)
    assert found == ([] if good else [f"version @ program: version {version} is not 1"])


ATTR_MAX = (1 << 31) - 1


@pytest.mark.parametrize(("value", "good"), [(ATTR_MAX, True), (-ATTR_MAX, True), (ATTR_MAX + 1, False), (-ATTR_MAX - 1, False)])
def test_attributes_fit_32_bits(value: int, good: bool) -> None:
    found = raw(Instr(BY_NAME["cumsum"].code, (Ref(0, F, 1),), (Ref(1, F, 1),), (value,)))
    assert [text.split(" ")[0] for text in found] == (["attr"] if good else ["attrs"])


@pytest.mark.parametrize(
    ("name", "counts"),
    [("neg", {0}), ("cumsum", {1}), ("sort", {2}), ("conv", {4, 7, 10}), ("max_pool", {4, 8, 12}), ("avg_pool", {5, 8, 11})],
)
def test_numbers_of_attributes(name: str, counts: set[int]) -> None:
    """Starred attributes come once for each of 1 to 3 spatial dimensions."""
    op = BY_NAME[name]
    for count in range(14):
        instr = Instr(op.code, (Ref(0, F, 1),) * op.n_outs, (Ref(1, F, 1),) * op.n_ins[0], (1,) * count)
        assert any(text.startswith("attrs @") for text in raw(instr)) == (count not in counts), count


@pytest.mark.parametrize("name", ["neg", "add", "fma", "sdpa", "index", "layer_norm", "cummax"])
def test_numbers_of_operands(name: str) -> None:
    op = BY_NAME[name]
    least, most = op.n_ins
    for count in range(70):
        found = [text for text in raw(Instr(op.code, (Ref(0, F, 1),) * op.n_outs, (Ref(1, F, 1),) * count)) if "arity" in text]
        assert bool(found) == (not least <= count <= (most if most >= 0 else 64)), count
    for count in range(5):
        found = [text for text in raw(Instr(op.code, (Ref(0, F, 1),) * count, (Ref(1, F, 1),) * least)) if "arity" in text]
        assert found == ([] if count == op.n_outs else [f"arity @ code 0: {name} has {op.n_outs} outputs, not {count}"])


IMMEDIATES = {
    "iota": "##", "random": "##", "layer_norm": "x??#", "layer_norm_dx": "xxxx?", "layer_norm_dwb": "xxxx", "sdpa": "xxx#x",
    "sdpa_dx": "xxxxxx#x", "adamw": "x#######", "scatter": "?x", "gather": "xx", "index_put": "xx", "matmul": "xx", "softmax": "x",
    "sum": "x", "add": "??", "where": "???", "neg": "?", "sort": "x", "conv": "xx", "nonzero": "x", "search_sorted": "xx",
}  # fmt: skip
"""Inputs of an op: ``x`` a buffer, ``#`` an immediate, ``?`` either."""


@pytest.mark.parametrize("name", IMMEDIATES)
def test_where_immediates_stand(name: str) -> None:
    op, pattern = BY_NAME[name], IMMEDIATES[name]
    for number, immediate in product(range(len(pattern)), (False, True)):
        ins = [Imm(0, F) if letter == "#" else Ref(1, F, 1) for letter in pattern]
        ins[number] = Imm(0, F) if immediate else Ref(1, F, 1)
        found = [text for text in raw(Instr(op.code, (Ref(0, F, 1),) * op.n_outs, tuple(ins))) if text.startswith("immediate")]
        if pattern[number] == "?" or (pattern[number] == "#") == immediate:
            assert found == []
        else:
            assert found == [f"immediate @ code 0 in {number}: {name} takes {'a buffer' if immediate else 'an immediate'} here"]


def counted(n: int) -> tuple[Program, bytes]:
    """``n`` instructions, ``n + 1`` buffers, ``n`` scalars."""
    b = Builder()
    x = b.external(F32, (1,))
    for i in range(n):
        b.emit("add", b.created(F32, (1,)), [x, b.const(float(i), F32)])
    program, dims, _ = b.finish()
    return program, dims


@pytest.mark.parametrize(
    ("name", "count", "what"), [("instructions_max", 3, "instructions"), ("buffers_max", 4, "buffers"), ("scalars_max", 3, "scalars")]
)
def test_counts_of_a_program(name: str, count: int, what: str) -> None:
    program, dims = counted(3)
    assert findings(program, dims, Limits(**{name: count})) == []
    assert findings(program, dims, Limits(**{name: count - 1})) == [f"limit @ program: {count} {what}, at most {count - 1} are accepted"]
    negative = msgspec.structs.replace(program, n_scalars=-1)
    assert findings(negative, dims) == ["limit @ program: -1 scalars, at most 100000 are accepted"]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5])
def test_findings_are_reported_up_to_their_limit(most: int) -> None:
    b = Builder()
    x = b.external(F32, (1,), nbytes=0)
    for _ in range(4):
        b.emit("neg", b.external(F32, (1,)), [x])
    program, dims, _ = b.finish()
    assert len(findings(program, dims, Limits(findings_max=most))) == min(4, most)


def test_findings_stand_in_the_order_of_the_text() -> None:
    b = Builder()
    x, y = b.external(F32, (1,), nbytes=0), b.external(F32, (1,), nbytes=-1)
    for _ in range(11):
        b.emit("neg", b.external(F32, (1,)), [x])
    b.emit("neg", b.external(F32, (1,)), [y])
    program, dims, _ = b.finish()
    places = [text.split(" @ ")[1].split(":")[0] for text in findings(program, dims)]
    assert places == ["buffer 1", *(f"code {i} in 0" for i in range(12))]


# -- places ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [U8, DType.I16, F32, F64, DType.C128], ids=lambda d: d.text)
@pytest.mark.parametrize(
    ("shape", "strides"), [((3,), (1,)), ((3,), (2,)), ((3,), (-1,)), ((2, 3), (3, 1)), ((2, 3), (-4, 1)), ((3, 2), (0, -2)), ((), ())]
)
def test_elements_lie_inside_to_the_byte(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Every offset around the first that fits, and buffers one byte too small, right, and one byte larger."""
    places = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in product(*map(range, shape))]
    for offset in range(-min(places) - 2, -min(places) + 3):
        needed = (max(places) + offset + 1) * dtype.itemsize
        for nbytes in {max(0, needed - 1), max(0, needed), max(0, needed) + 1}:
            b = Builder()
            buffer = b.external(dtype, (0,), nbytes=nbytes).buffer
            b.emit("cast", b.created(F32, shape), [Operand(buffer, dtype, shape, strides, offset)])
            program, dims, _ = b.finish()
            fits = offset + min(places) >= 0 and needed <= nbytes
            low, high = (min(places) + offset) * dtype.itemsize, needed
            said = [] if fits else [f"extent @ code 0 in 0: reaches bytes {low}..{high} of buffer {buffer}, which has {nbytes}"]
            assert findings(program, dims) == said


def test_operands_without_elements_point_anywhere_sensible() -> None:
    for offset in (-5, 0, 5, 1 << 48, -(1 << 48)):
        assert findings(*copied(Operand(0, F32, (0,), (9,), offset), Operand(1, F32, (0,), (-9,), offset))) == []
    most = 1 << 48
    for offset in (most + 1, -most - 1):
        assert findings(*copied(Operand(0, F32, (0,), (1,), offset), Operand(1, F32, (0,), (1,), 0))) == [
            f"stride @ code 0 in 0: strides (1,) and offset {offset} must not exceed {most}"
        ]


@pytest.mark.parametrize("offset", [1 << 48, -(1 << 48)])
def test_the_farthest_offset_is_outside_of_the_buffer_and_not_beyond_sense(offset: int) -> None:
    assert findings(*copied(Operand(0, F32, (1,), (1,), offset), Operand(1, F32, (1,), (1,), 0))) == [
        f"extent @ code 0 in 0: reaches bytes {4 * offset}..{4 * offset + 4} of buffer 0, which has 16"
    ]


@pytest.mark.parametrize(("stride", "good"), [(1 << 48, True), (-(1 << 48), True), ((1 << 48) + 1, False), (-(1 << 48) - 1, False)])
def test_strides_are_bounded(stride: int, good: bool) -> None:
    found = findings(*copied(Operand(0, F32, (1,), (stride,), 0), Operand(1, F32, (1,), (1,), 0)))
    assert found == ([] if good else [f"stride @ code 0 in 0: strides ({stride},) and offset 0 must not exceed {1 << 48}"])


@pytest.mark.parametrize(
    ("shape", "good"),
    [
        ((10,), True),
        ((11,), False),
        ((2, 5), True),
        ((2, 6), False),
        ((0, 10), True),
        ((11, 0), False),
        ((-1,), False),
        ((3, -1, 2), False),
    ],
)
def test_elements_are_counted_with_repeats_and_beside_a_size_of_nothing(shape: tuple[int, ...], good: bool) -> None:
    b = Builder()
    b.emit("cast", b.external(F32, shape, nbytes=64), [Operand(b.external(F32, (1,)).buffer, F32, shape, (0,) * len(shape), 0)])
    program, dims, _ = b.finish()
    found = [text for text in findings(program, dims, Limits(elements_max=10)) if text.startswith("size @ code 0 in 0")]
    assert bool(found) == (not good)


@pytest.mark.parametrize(("nbytes", "good"), [(-1, False), (0, True), (100, True), (101, False)])
def test_sizes_of_buffers(nbytes: int, good: bool) -> None:
    b = Builder()
    b.external(F32, (0,), nbytes=nbytes)
    b.emit("neg", b.external(F32, (1,)), [b.external(F32, (1,))])
    program, dims, _ = b.finish()
    found = findings(program, dims, Limits(buffer_bytes_max=100))
    assert found == ([] if good else [f"buffer size @ buffer 0: {nbytes} bytes, accepted is 0 to 100"])


@pytest.mark.parametrize(("window", "good"), [((4, 1), True), ((5, 1), False), ((2, 2), True), ((2, 3), False)])
def test_positions_of_a_window(window: tuple[int, int], good: bool) -> None:
    b = Builder()
    shape = (1, 1, *window)
    b.emit("avg_pool", b.created(F32, (1, 1, 1, 1)), [b.external(F32, shape)], (0, 0, *window, 1, 1, 0, 0))
    program, dims, _ = b.finish()
    assert bool(findings(program, dims, Limits(window_max=4))) == (not good)


# -- overlaps --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (3, 1), (1, 1), (2, 2, 2), (2, 0)])
def test_an_output_writes_every_element_once(sizes: tuple[int, ...]) -> None:
    """All strides from -4 to 4: accepted when no two elements have one place, counted one by one."""
    for strides in (
        product(range(-4, 5), repeat=len(sizes)) if len(sizes) < 3 else [(4, 2, 1), (4, 1, 2), (3, 2, 1), (5, -2, 1), (2, 2, 1), (6, 3, 2)]
    ):
        places = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in product(*map(range, sizes))]
        offset = -min(places, default=0)
        b = Builder()
        out = Operand(b.external(F32, (0,), nbytes=256).buffer, F32, sizes, strides, offset)
        b.emit("neg", out, [b.external(F32, sizes)])
        program, dims, _ = b.finish()
        found = findings(program, dims)
        assert bool(found) == (len(set(places)) < len(places)), strides
        assert all("overlap @ code 0 out 0" in text for text in found)


@pytest.mark.parametrize("step", [1, 2])
def test_two_outputs_share_no_element(step: int) -> None:
    """Sorted values and their places, i64 both, at every distance in one buffer."""
    for distance in range(-9, 10):
        b = Builder()
        buffer = b.external(I64, (0,), nbytes=512).buffer
        first = {20 + i * step for i in range(4)}
        second = {20 + distance + i * step for i in range(4)}
        outs = [Operand(buffer, I64, (4,), (step,), 20), Operand(buffer, I64, (4,), (step,), 20 + distance)]
        b.emit("sort", outs, [b.external(I64, (4,))], (0, 0))
        program, dims, _ = b.finish()
        found = findings(program, dims)
        assert found == (["overlap @ code 0 out 1: shares elements with output 0"] if first & second else [])


def test_outputs_of_two_widths_share_no_range_of_bytes() -> None:
    for start in range(14):
        b = Builder()
        buffer = b.external(F32, (0,), nbytes=128).buffer
        outs = [Operand(buffer, F32, (4,), (1,), start), Operand(buffer, I64, (4,), (1,), 2)]  # bytes 4s..4s + 16 beside 16..48
        b.emit("sort", outs, [b.external(F32, (4,))], (0, 0))
        program, dims, _ = b.finish()
        apart = 4 * start + 16 <= 16 or 4 * start >= 48
        assert (findings(program, dims) == []) == apart, start


def test_outputs_in_two_buffers_or_without_elements_never_meet() -> None:
    for n, same in ((4, False), (0, True)):
        b = Builder()
        first, other = b.external(I64, (0,), nbytes=128).buffer, b.external(I64, (0,), nbytes=128).buffer
        outs = [Operand(first, I64, (n,), (1,), 0), Operand(first if same else other, I64, (n,), (1,), 0)]
        b.emit("sort", outs, [b.external(I64, (n,))], (0, 0))
        program, dims, _ = b.finish()
        assert findings(program, dims) == []


def test_digests_are_of_the_encoded_program_and_kept_for_another_run() -> None:
    program, dims = counted(2)
    verified = verify(program, dims)
    again = verify(program, dims, like=verified)
    assert (again.digest, again.dims_digest, again.zeroed) == (verified.digest, verified.dims_digest, verified.zeroed)
    assert encode_program(verified.bound.program) == encode_program(program)
