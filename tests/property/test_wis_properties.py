"""What must hold for every program: round trips, stable names, no other error than ours, and nothing accepted that cannot run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.wis_programs import LIMITS, Pick, buffers_for, mutate_bytes, mutate_dims, random_program, scalars_for
from tests.support.wis_run import decompose
from wis.cost import count
from wis.dtypes import DType
from wis.encoding import decode_program, digest, encode_program
from wis.errors import DecodeError, ParseError, VerifyError
from wis.ops import OPS, Kind
from wis.program import VERSION, BufferKind, Imm, Instr, Program, Ref, unbind
from wis.reference import run, run_bound
from wis.text import parse_program, print_program
from wis.verify import Verified, verify

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
REFS = st.builds(Ref, I64 | st.integers(0, 5), I64 | st.sampled_from([int(d) for d in DType]), I64 | st.integers(0, 5))
IMMS = st.builds(Imm, I64 | st.integers(0, 3), I64 | st.sampled_from([int(d) for d in DType]))
OPERANDS = st.lists(REFS | IMMS, max_size=4).map(tuple)
INSTRS = st.builds(
    Instr,
    I64 | st.sampled_from([op.code for op in OPS]),
    st.lists(REFS, max_size=3).map(tuple),
    OPERANDS,
    st.lists(I64 | st.integers(-1, 3), max_size=8).map(tuple),
)
ANY_PROGRAM = st.builds(
    Program, st.just(VERSION), st.lists(I64 | st.integers(0, 2), max_size=5).map(tuple), I64, st.lists(INSTRS, max_size=4).map(tuple)
)


def picker(data: st.DataObject) -> Pick:
    return lambda low, high: data.draw(st.integers(low, high))


def accepted(program: Program, dims: bytes) -> Verified | None:
    try:
        return verify(program, dims, LIMITS)
    except VerifyError as error:
        assert error.findings
        assert print_program(program, dims, error.findings).count("; error: ") >= len(error.findings)
        return None


def runs(verified: Verified, seed: int) -> list[np.ndarray[tuple[int], np.dtype[np.uint8]] | None]:
    """Run the program with awkward values; return the buffers after it."""
    buffers = buffers_for(verified, seed)
    run(verified, scalars_for(verified.bound.program.n_scalars, seed), buffers)
    return buffers


@QUICK
@given(ANY_PROGRAM)
def test_any_structure_survives_encoding_and_text(program: Program) -> None:
    data = encode_program(program)
    assert decode_program(data) == program
    assert encode_program(decode_program(data)) == data
    assert digest(data) == digest(bytes(bytearray(data)))
    sized = bool(program.buffers) or any(isinstance(x, Ref) for i in program.code for x in (*i.outs, *i.ins))
    assert parse_program(print_program(program)) == (program, None if sized else b"")


@QUICK
@given(ANY_PROGRAM, st.binary(max_size=200))
def test_any_structure_is_judged_without_another_error(program: Program, dims: bytes) -> None:
    assert (verified := accepted(program, dims)) is None or runs(verified, 0) is not None


@QUICK
@given(st.data())
def test_valid_programs_are_accepted_and_run(data: st.DataObject) -> None:
    program, dims, scalars = random_program(picker(data))
    verified = verify(program, dims, LIMITS)
    assert parse_program(print_program(program, dims)) == (program, dims)
    assert decode_program(encode_program(program)) == program
    assert len(scalars) == program.n_scalars
    assert count(verified.bound) >= 0
    first, second = runs(verified, 1), runs(verified, 1)
    for a, b in zip(first, second, strict=True):
        assert (a is None and b is None) or (a is not None and b is not None and (a == b).all())


@QUICK
@given(st.data())
def test_programs_with_changed_dims_are_refused_or_run(data: st.DataObject) -> None:
    pick = picker(data)
    program, dims, _ = random_program(pick)
    verified = accepted(program, mutate_dims(pick, dims))
    if verified is not None:
        runs(verified, 2)


@QUICK
@given(st.data())
def test_verifying_like_an_earlier_one_finds_the_same(data: st.DataObject) -> None:
    pick = picker(data)
    program, dims, _ = random_program(pick)
    first = verify(program, dims, LIMITS)
    changed = mutate_dims(pick, dims)
    try:
        whole = verify(program, changed, LIMITS)
    except VerifyError as error:
        with pytest.raises(VerifyError) as caught:
            verify(program, changed, LIMITS, first)
        assert caught.value.findings == error.findings
        return
    again = verify(program, changed, LIMITS, first)
    assert again == whole
    for old, new in zip(first.bound.code, again.bound.code, strict=True):
        assert (old == new) == (old is new)


@QUICK
@given(st.data())
def test_programs_with_changed_structure_are_refused_or_run(data: st.DataObject) -> None:
    pick = picker(data)
    program, dims, _ = random_program(pick)
    place = pick(0, len(program.code) - 1)
    instr = program.code[place]
    changes: list[Callable[[], Instr]] = [
        lambda: msgspec.structs.replace(instr, op=OPS[pick(0, len(OPS) - 1)].code),
        lambda: msgspec.structs.replace(instr, attrs=tuple(a + pick(-3, 3) for a in instr.attrs)),
        lambda: msgspec.structs.replace(instr, attrs=tuple(a * (1 << pick(0, 31)) for a in instr.attrs)),
        lambda: msgspec.structs.replace(instr, outs=tuple(msgspec.structs.replace(x, dtype=pick(0, 14)) for x in instr.outs)),
        lambda: msgspec.structs.replace(instr, ins=tuple(msgspec.structs.replace(x, dtype=pick(0, 14)) for x in instr.ins)),
        lambda: msgspec.structs.replace(instr, outs=tuple(msgspec.structs.replace(x, buffer=pick(0, 6)) for x in instr.outs)),
    ]
    changed = changes[pick(0, len(changes) - 1)]()
    code = (*program.code[:place], changed, *program.code[place + 1 :])
    verified = accepted(msgspec.structs.replace(program, code=code), dims)
    if verified is not None:
        runs(verified, 3)


@QUICK
@given(st.data())
def test_changed_bytes_are_refused_or_run(data: st.DataObject) -> None:
    pick = picker(data)
    program, dims, _ = random_program(pick)
    try:
        decoded = decode_program(mutate_bytes(pick, encode_program(program)))
    except DecodeError:
        return
    verified = accepted(decoded, dims)
    if verified is not None:
        runs(verified, 4)


@QUICK
@given(st.binary(max_size=300))
def test_random_bytes_are_not_programs(data: bytes) -> None:
    try:
        program = decode_program(data)
    except DecodeError:
        return
    assert encode_program(program) == data


@QUICK
@given(st.data())
def test_changed_text_is_refused_or_parsed(data: st.DataObject) -> None:
    pick = picker(data)
    program, dims, _ = random_program(pick)
    text = mutate_bytes(pick, print_program(program, dims).encode()).decode("utf-8", "replace")
    try:
        parsed, parsed_dims = parse_program(text)
    except ParseError:
        return
    assert parse_program(print_program(parsed, parsed_dims)) == (parsed, parsed_dims)


COARSE = [op for op in OPS if op.kind is Kind.COARSE]
TOLERANCE = {DType.F16: 2e-2, DType.BF16: 1.5e-1, DType.F32: 1e-3, DType.F64: 1e-8}


@QUICK
@given(st.data())
def test_decompositions_agree_with_the_definition(data: st.DataObject) -> None:
    program, dims, scalars = random_program(picker(data), COARSE)
    verified = verify(program, dims, LIMITS)
    bound, constants = decompose(verified.bound)
    verify(*unbind(bound.program.buffers, bound.nbytes, bound.code, bound.program.n_scalars))
    assert all(instr.op.kind is not Kind.COARSE for instr in bound.code)
    rng = np.random.default_rng(5)
    whole = [np.zeros(n, np.uint8) for n in verified.bound.nbytes]
    # Only buffers that are read as one type can be filled with sensible numbers of it.
    for instr in verified.bound.code:
        for x in (*instr.outs, *instr.ins):
            if hasattr(x, "buffer") and program.buffers[x.buffer] == BufferKind.EXTERNAL and not whole[x.buffer].any():
                n = len(whole[x.buffer]) // x.dtype.itemsize
                whole[x.buffer][: n * x.dtype.itemsize] = (np.abs(rng.standard_normal(n)) + 0.1).astype(x.dtype.numpy).view(np.uint8)
    parts = [buffer.copy() for buffer in whole]
    run(verified, scalars, whole)
    run_bound(bound, [*scalars, *constants], [*parts, *[None] * (len(bound.nbytes) - len(parts))])
    for instr in verified.bound.code:
        for out in instr.outs:
            kind = out.dtype.numpy
            n = len(whole[out.buffer]) // kind.itemsize * kind.itemsize
            a, b = (side[out.buffer][:n].view(kind).astype(np.float64) for side in (whole, parts))
            tolerance = TOLERANCE[out.dtype]
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=instr.op.name)
