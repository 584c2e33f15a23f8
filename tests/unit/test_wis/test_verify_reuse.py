"""``verify(like=)`` judges a program under new dims as a whole ``verify`` would: every change that breaks a rule is found again."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.builder import Builder
from wis import views
from wis.dtypes import DType
from wis.errors import VerifyError
from wis.limits import LIMITS, Limits
from wis.program import Program
from wis.verify import verify

F32 = DType.F32


def two_copies(first: int = 8, second: int = 8, first_bytes: int | None = None) -> tuple[Program, bytes]:
    """Two instructions on the same two buffers; each number of elements is a dim of its own."""
    b = Builder()
    x, y = b.external(F32, (8,), nbytes=first_bytes), b.created(F32, (8,))
    b.emit("neg", views.narrow(y, 0, 0, first), [views.narrow(x, 0, 0, first)])
    b.emit("abs", views.narrow(y, 0, 0, second), [views.narrow(x, 0, 0, second)])
    program, dims, _ = b.finish()
    return program, dims


def refusal(program: Program, dims: bytes, limits: Limits = LIMITS) -> list[str]:
    with pytest.raises(VerifyError) as caught:
        verify(program, dims, limits)
    return [str(finding) for finding in caught.value.findings]


def refusal_like(program: Program, old: bytes, dims: bytes, limits: Limits = LIMITS) -> list[str]:
    like = verify(program, old, limits)
    with pytest.raises(VerifyError) as caught:
        verify(program, dims, limits, like=like)
    return [str(finding) for finding in caught.value.findings]


@pytest.mark.parametrize("changed", [8, 4], ids=["only the buffer", "the buffer and the other instruction"])
def test_a_smaller_buffer_is_checked_against_instructions_whose_dims_stay(changed: int) -> None:
    """The second instruction reads 32 bytes before and after; one byte less than that is one too few."""
    program, old = two_copies()
    for nbytes in (33, 32):
        verify(program, two_copies(changed, first_bytes=nbytes)[1], like=verify(program, old))
    dims = two_copies(changed, first_bytes=31)[1]
    found = refusal_like(program, old, dims)
    assert found == refusal(program, dims)
    assert "extent @ code 1 in 0: reaches bytes 0..32 of buffer 0, which has 31" in found


def test_a_smaller_written_buffer_is_checked_as_well() -> None:
    program, old = two_copies()
    numbers = np.frombuffer(old, "<i8").copy()
    numbers[1] = 31
    found = refusal_like(program, old, numbers.tobytes())
    assert found == refusal(program, numbers.tobytes())
    assert [text.split(":")[0] for text in found] == ["extent @ code 0 out 0", "extent @ code 1 out 0"]


def test_a_larger_buffer_is_accepted_up_to_the_limit() -> None:
    program, old = two_copies()
    limits = Limits(buffer_bytes_max=64)
    verified = verify(program, two_copies(first_bytes=64)[1], limits, like=verify(program, old, limits))
    assert verified.bound.nbytes == (64, 32)
    dims = two_copies(first_bytes=65)[1]
    assert refusal_like(program, old, dims, limits) == refusal(program, dims, limits)


def test_every_single_number_of_the_dims_is_judged_the_same_with_and_without_like() -> None:
    """One number moved by -1 or +1: either both accept with the same result, or both refuse with the same findings."""
    program, old = two_copies(first_bytes=32)
    like = verify(program, old)
    refused = 0
    for place in range(len(old) // 8):
        for step in (-1, 1):
            numbers = np.frombuffer(old, "<i8").copy()
            numbers[place] += step
            dims = numbers.tobytes()
            try:
                whole = verify(program, dims)
            except VerifyError as error:
                refused += 1
                with pytest.raises(VerifyError) as caught:
                    verify(program, dims, like=like)
                assert caught.value.findings == error.findings
            else:
                again = verify(program, dims, like=like)
                assert (again.bound, again.dims, again.dims_digest, again.zeroed) == (
                    whole.bound,
                    whole.dims,
                    whole.dims_digest,
                    whole.zeroed,
                )
    assert refused > 10


def test_unchanged_instructions_are_the_same_objects_and_changed_ones_are_new() -> None:
    program, old = two_copies()
    like = verify(program, old)
    changed = verify(program, two_copies(first=7)[1], like=like)
    assert changed.bound.code[1] is like.bound.code[1]
    assert changed.bound.code[0].outs[0].shape == (7,)


def test_other_limits_or_another_program_are_checked_from_the_start() -> None:
    program, old = two_copies()
    like = verify(program, old)
    with pytest.raises(VerifyError, match="2 instructions"):
        verify(program, old, Limits(instructions_max=1), like=like)
    b = Builder()
    b.emit("neg", b.created(F32, (3,)), [b.external(F32, (3,))])
    other, dims, _ = b.finish()
    assert verify(other, dims, like=like).bound.program == other
