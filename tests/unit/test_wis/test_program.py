"""Encoding, text, builder, views, cost, and the parts of the verifier that need no golden file."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tests.support.builder import Builder, flip
from wis import views
from wis.cost import count
from wis.dtypes import DType
from wis.encoding import decode_program, digest, encode_program
from wis.errors import BuildError, DecodeError, ParseError, VerifyError
from wis.limits import LIMITS, Limits
from wis.ops import BY_NAME, OPS, Kind
from wis.program import VERSION, Imm, Instr, Operand, Program, Ref, Scalar, bind, unbind
from wis.text import parse_program, print_program
from wis.verify import verify

F32 = DType.F32


def small() -> tuple[Program, bytes]:
    b = Builder()
    x, y = b.external(F32, (4, 8)), b.created(F32, (4, 1))
    b.emit("sum", y, [x])
    b.emit("mul", y, [y, b.const(0.5, F32)])
    program, dims, _ = b.finish()
    return program, dims


def test_the_encoding_is_frozen() -> None:
    """A recorded program stays readable: these bytes must decode for ever, and encode to themselves."""
    program, dims = small()
    data = bytes.fromhex("94019200010192946e91940001080291940000080290943e9194000108029294000108029301000890")
    assert decode_program(data) == program
    assert encode_program(program) == data
    assert digest(data).hex() == "0dc403aca882d63c87114c4c54b192aa80caa98d40436f440f131a1c1c5b9c53"
    assert np.frombuffer(dims, "<i8").tolist() == [128, 16, 4, 1, 1, 1, 0, 4, 8, 8, 1, 0, 4, 1, 1, 1, 0, 4, 1, 1, 1, 0]


def test_bind_and_unbind_are_inverse() -> None:
    program, dims = small()
    bound = bind(program, dims)
    assert unbind(program.buffers, bound.nbytes, bound.code, program.n_scalars) == (program, dims)
    with pytest.raises(ValueError, match="bytes"):
        bind(program, dims[:-8])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: b"",
        lambda d: d[:-1],
        lambda d: d + b"\x00",
        lambda d: b"\xc0",
        lambda d: d.replace(b"\x94\x01", b"\x94\x02", 1),  # another version
        lambda d: d.replace(b"\x94\x01", b"\x94\xcc\x01", 1),  # 1 in a longer form
        lambda d: msgspec.msgpack.encode([*msgspec.msgpack.decode(d), "more"]),
        lambda d: msgspec.msgpack.encode([VERSION, [0], 0.0, []]),
        lambda d: b"\x91" * 100_000,
    ],
)
def test_only_canonical_bytes_decode(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(DecodeError):
        decode_program(spoil(encode_program(small()[0])))


def test_more_instructions_than_any_program_has_are_not_read() -> None:
    """Each would be an object: what a node spends on reading is bounded."""
    data = msgspec.msgpack.encode((VERSION, (), 0, [(1, (), ())] * (LIMITS.instructions_max + 1)))
    with pytest.raises(DecodeError, match=f"length <= {LIMITS.instructions_max}"):
        decode_program(data)


def test_too_many_bytes_are_refused_before_decoding() -> None:
    data = encode_program(small()[0])
    with pytest.raises(DecodeError, match="at most 10"):
        decode_program(data, Limits(program_bytes_max=10))


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (Limits(instructions_max=1), "2 instructions"),
        (Limits(buffers_max=1), "2 buffers"),
        (Limits(scalars_max=0), "1 scalars"),
        (Limits(rank_max=1), "rank 2"),
        (Limits(buffer_bytes_max=100), "128 bytes"),
        (Limits(elements_max=10), "more than 10"),
    ],
)
def test_limits(limits: Limits, what: str) -> None:
    program, dims = small()
    verify(program, dims)
    with pytest.raises(VerifyError, match=what):
        verify(program, dims, limits)


def test_work_of_one_instruction_is_limited() -> None:
    b = Builder()
    x, y = b.external(F32, (4, 100), (0, 0)), b.external(F32, (100, 5), (0, 0))
    b.emit("matmul", b.created(F32, (4, 5)), [x, y])
    program, dims, _ = b.finish()
    verify(program, dims, Limits(work_max=4000))
    with pytest.raises(VerifyError, match="4000 element-instructions, at most 3999"):
        verify(program, dims, Limits(work_max=3999))


def test_findings_are_all_reported_up_to_a_limit_and_survive_pickling() -> None:
    program, dims = small()
    broken = msgspec.structs.replace(program, code=tuple(msgspec.structs.replace(i, op=9999) for i in program.code * 300))
    with pytest.raises(VerifyError) as caught:
        verify(broken, dims, Limits(findings_max=7))
    assert len(caught.value.findings) == 7
    assert str(caught.value).endswith("(and 6 more)")
    assert pickle.loads(pickle.dumps(caught.value)).findings == caught.value.findings
    assert str(caught.value.findings[3]) == "op @ code 3: there is no op with code 9999"


def test_dims_of_the_wrong_length() -> None:
    program, dims = small()
    for wrong in (dims[:-8], dims + bytes(8), dims[:-1], b""):
        with pytest.raises(VerifyError, match="dims @ dims"):
            verify(program, wrong)


def test_a_verified_program_names_itself() -> None:
    program, dims = small()
    verified = verify(program, dims)
    assert verified.digest == digest(encode_program(program))
    assert verified.dims_digest == digest(dims) and verified.dims == dims
    assert verified.zeroed == frozenset()


def test_zeroed_names_buffers_whose_zeros_can_be_seen() -> None:
    b = Builder()
    x = b.external(F32, (8,))
    full, half, unread, early = (b.created(F32, (8,)) for _ in range(4))
    partial, whole = b.temp(F32, (8,)), b.temp(F32, (8,))
    b.emit("neg", full, [x])
    b.emit("neg", views.narrow(half, 0, 0, 4), [views.narrow(x, 0, 0, 4)])
    b.emit("add", early, [early, x])
    b.emit("neg", views.narrow(partial, 0, 0, 4), [views.narrow(x, 0, 0, 4)])
    b.emit("neg", full, [partial])
    for start in (4, 0):
        b.emit("neg", views.narrow(whole, 0, start, 4), [views.narrow(x, 0, 0, 4)])
    b.emit("neg", full, [flip(whole, 0)])
    program, dims, _ = b.finish()
    assert verify(program, dims).zeroed == {half.buffer, unread.buffer, early.buffer, partial.buffer}


def test_empty_reads_of_an_unwritten_temp_are_harmless() -> None:
    """What has no elements is often not written at all; under other dims the same program is at fault."""
    b = Builder()
    t, out = b.temp(F32, (0, 3)), b.created(F32, (1, 3))
    b.emit("sum", out, [t])
    program, dims, _ = b.finish()
    empty = verify(program, dims)
    full = np.frombuffer(dims, "<i8").copy()
    full[0], full[7] = 12, 1  # the temp's bytes, and its first size
    for like in (None, empty):
        with pytest.raises(VerifyError, match="unwritten @ code 0 in 0"):
            verify(program, full.tobytes(), like=like)


def test_text_round_trip_with_and_without_dims() -> None:
    program, dims = small()
    assert parse_program(print_program(program, dims)) == (program, dims)
    assert parse_program(print_program(program)) == (program, None)
    commented = print_program(program, dims).replace("\n", "  ; words\n\n")
    assert parse_program(commented) == (program, dims)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 0, "starts with"),
        ("wis 1\n", 1, "starts with"),
        ("wit 1\nscalars 0", 1, "expected 'wis NUMBER'"),
        ("wis 1\nscalars x", 2, "not a whole number"),
        ("wis 1\nscalars 0\n%1 external 4", 3, "numbered in order"),
        ("wis 1\nscalars 0\n%0 outside 4", 3, "not a kind"),
        ("wis 1\nscalars 0\n%0 external 4\n%0:f32[1]{1}+0 = frob %0:f32[1]{1}+0", 4, "no op called 'frob'"),
        ("wis 1\nscalars 0\n%0 external 4\n%0:f31[1]{1}+0 = neg %0:f32[1]{1}+0", 4, "unknown element type"),
        ("wis 1\nscalars 0\n%0 external 4\n%0:f32[1]{1,1}+0 = neg %0:f32[1]{1}+0", 4, "1 sizes beside 2 strides"),
        ("wis 1\nscalars 0\n%0 external 4\n%0:f32[1]{1}+0 = neg %0:f32[?]", 4, "in some places"),
        ("wis 1\nscalars 0\n%0 external ?\n%0:f32[1] = neg %0:f32[?]", 4, "no strides"),
        ("wis 1\nscalars 0\n%0 external 4\n$0:f32 = neg %0:f32[1]{1}+0", 4, "cannot be an immediate"),
        ("wis 1\nscalars 0\n%0 external 4\n%0:f32[1]{1}+0 = neg %0:f32[1]{1}+0,", 4, "expected ', '"),
        ("wis 1\nscalars 0\n%0 external 4\n%0:i64[1]{1}+0 = argmax(axis=0) %0:f32[1]{1}+0", 4, "expected (dim)"),
        ("wis 1\nscalars 0\n%0 external 99999999999999999999", 3, "64 bits"),
        ("wis 1\nscalars 0\n%0 external 4\n%0:f32[1]{1}+0 = neg %0:f32[1]{1}+0\n%1 external 4", 5, "before instructions"),
        ("wis 1\nscalars 0\nhello", 3, "not '%number kind bytes'"),
    ],
)
def test_parse_errors_name_the_line(text: str, line: int, says: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    assert caught.value.line == line
    assert says in caught.value.text


def test_broken_programs_print_too() -> None:
    program = Program(9, (0, 77), -3, (Instr(9999, (Ref(5, 99, 2),), (Imm(-1, 98), Ref(-2, 8, 1 << 60)), (1, -2)), Instr(60, (), (), ())))
    assert parse_program(print_program(program)) == (program, None)


def test_codes_and_names_are_unique_and_every_kind_has_an_op() -> None:
    assert len({op.code for op in OPS}) == len({op.name for op in OPS}) == len(OPS)
    assert {op.kind for op in OPS} == set(Kind)


def test_builder_errors() -> None:
    b = Builder()
    with pytest.raises(BuildError, match="no op"):
        b.emit("frob", b.temp(F32, (1,)))
    with pytest.raises(BuildError, match="slot"):
        b.imm(0, F32)


X = Operand(0, F32, (4, 1, 6), (6, 6, 1), 2)


def test_views() -> None:
    assert views.permute(X, (2, 0, 1)) == replace(X, shape=(6, 4, 1), strides=(1, 6, 6))
    assert views.transpose(X, 0, -1) == replace(X, shape=(6, 1, 4), strides=(1, 6, 6))
    assert views.expand(X, (3, 4, 5, 6)) == replace(X, shape=(3, 4, 5, 6), strides=(0, 6, 0, 1))
    assert views.narrow(X, 2, 1, 3, 2) == replace(X, shape=(4, 1, 3), strides=(6, 6, 2), offset=3)
    assert views.unsqueeze(replace(X, shape=(4, 6), strides=(6, 1)), 1) == X
    assert flip(X, -1) == replace(X, strides=(6, 6, -1), offset=7)
    assert views.is_contiguous(X) and not views.is_contiguous(flip(X, 0))


@pytest.mark.parametrize(
    "bad",
    [
        lambda: views.permute(X, (0, 0, 1)),
        lambda: views.expand(X, (4, 1, 7)),
        lambda: views.expand(X, (6,)),
        lambda: views.narrow(X, 0, 2, 3),
        lambda: views.unsqueeze(X, 5),
        lambda: views.transpose(X, 0, 3),
    ],
)
def test_impossible_views(bad: Callable[[], Operand]) -> None:
    with pytest.raises(BuildError):
        bad()


def _instr_count(name: str, outs: list[tuple[int, ...]], ins: list[tuple[int, ...] | None], attrs: tuple[int, ...] = ()) -> int:
    b = Builder()
    make = [b.external(F32, shape) for shape in outs]
    b.emit(name, make, [Scalar(0, F32) if shape is None else b.external(F32, shape) for shape in ins], attrs)
    return count(b.bound())


@pytest.mark.parametrize(
    ("name", "outs", "ins", "attrs", "want"),
    [
        ("add", [(3, 4)], [(3, 4), None], (), 12),
        ("sum", [(3, 1)], [(3, 4)], (), 12),
        ("sum", [(3, 1)], [(3, 0)], (), 3),
        ("matmul", [(2, 3, 5)], [(2, 3, 4), (2, 4, 5)], (), 2 * 2 * 3 * 4 * 5),
        ("conv", [(2, 6, 4)], [(2, 4, 6), (6, 2, 3)], (2, 1, 0, 1), 2 * (2 * 6 * 4) * 2 * 3),
        ("conv_dx", [(2, 4, 6)], [(2, 6, 4), (6, 2, 3)], (2, 1, 0, 1), 2 * (2 * 6 * 4) * 2 * 3),
        ("conv_dw", [(6, 2, 3)], [(2, 6, 4), (2, 4, 6)], (2, 1, 0, 1), 2 * (2 * 6 * 4) * 2 * 3),
        ("max_pool", [(1, 2, 3), (1, 2, 3)], [(1, 2, 6)], (2, 2, 0, 1), 12),
        ("gather", [(5, 2)], [(9, 2), (5, 2)], (0,), 10),
        ("scatter", [(9, 2)], [(5, 2), (5, 2)], (0, 1), 10),
        ("index_put", [(9, 2)], [(5, 2), (5,)], (0,), 10),
        ("sort", [(3, 8), (3, 8)], [(3, 8)], (1, 0), 24 * 3),
        ("search_sorted", [(3, 2)], [(3, 8), (3, 2)], (0,), 6 * 4),
        ("softmax", [(3, 8)], [(3, 8)], (), 5 * 24),
        ("sdpa", [(1, 2, 3, 6), (1, 2, 3)], [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 6), None], (0,), 30 * (2 * 10 + 5)),
    ],
)  # fmt: skip
def test_cost(name: str, outs: list[tuple[int, ...]], ins: list[tuple[int, ...] | None], attrs: tuple[int, ...], want: int) -> None:
    assert BY_NAME[name].n_outs == len(outs)
    assert _instr_count(name, outs, ins, attrs) == want
