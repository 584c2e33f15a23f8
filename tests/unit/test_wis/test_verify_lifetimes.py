"""Initial zeros: which buffers a back end must clear, and reads of temporaries before a write."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builder import Builder
from wis import views
from wis.dtypes import DType
from wis.errors import VerifyError
from wis.program import BufferKind, Operand
from wis.verify import verify
from wis.views import contiguous_strides

F32, I64 = DType.F32, DType.I64


def zeroed(b: Builder) -> frozenset[int]:
    program, dims, _ = b.finish()
    return verify(program, dims).zeroed


def make(b: Builder, kind: BufferKind, n: int) -> Operand:
    return b.created(F32, (n,)) if kind == BufferKind.CREATED else b.temp(F32, (n,))


def show(b: Builder, x: Operand, n: int) -> None:
    """Read the first ``n`` elements into a buffer that outlives the program."""
    b.emit("neg", b.created(F32, (n,)), [views.narrow(x, 0, 0, n)])


@pytest.mark.parametrize("rmw", ["scatter", "index_put"])
def test_what_reads_its_output_sees_the_initial_zeros(rmw: str) -> None:
    """Scatter and index_put change some elements and keep the others: a created buffer has to be cleared, an unwritten temp is refused."""
    for kind, written, want in (
        (BufferKind.CREATED, 0, "zeroed"), (BufferKind.CREATED, 7, "zeroed"), (BufferKind.CREATED, 8, ""),
        (BufferKind.TEMP, 0, "refused"), (BufferKind.TEMP, 7, "zeroed"), (BufferKind.TEMP, 8, ""),
    ):  # fmt: skip
        b = Builder()
        x, index = b.external(F32, (8,)), b.external(I64, (8,))
        y = make(b, kind, 8)
        if written:
            b.emit("neg", views.narrow(y, 0, 0, written), [views.narrow(x, 0, 0, written)])
        b.emit(rmw, y, [x, index], (0, 0) if rmw == "scatter" else (0,))
        if want == "refused":
            with pytest.raises(VerifyError, match="unwritten @ code 0 out 0"):
                zeroed(b)
        else:
            assert (y.buffer in zeroed(b)) == (want == "zeroed"), (kind, written)


@pytest.mark.parametrize("kind", [BufferKind.CREATED, BufferKind.TEMP])
@pytest.mark.parametrize("read", [3, 4, 5])
@pytest.mark.parametrize("written", [3, 4, 5])
def test_a_partial_write_covers_exactly_its_own_bytes(kind: BufferKind, written: int, read: int) -> None:
    b = Builder()
    x, y = b.external(F32, (8,)), make(b, kind, 8)
    b.emit("neg", views.narrow(y, 0, 0, written), [views.narrow(x, 0, 0, written)])
    show(b, y, read)
    assert (y.buffer in zeroed(b)) == (kind == BufferKind.CREATED or read > written)


@pytest.mark.parametrize(("step", "shows"), [(1, False), (2, True)])
def test_a_write_with_gaps_leaves_zeros_between_its_elements(step: int, shows: bool) -> None:
    """Elements 0, 2, 4, 6 span 28 of 32 bytes and write 16 of them."""
    b = Builder()
    x, y = b.external(F32, (4,)), b.temp(F32, (8,))
    b.emit("neg", views.narrow(y, 0, 0, 4, step), [x])
    show(b, y, 4)
    assert (y.buffer in zeroed(b)) == shows


@pytest.mark.parametrize(
    ("pieces", "covered"),
    [
        ([(0, 4), (4, 8)], True),
        ([(4, 8), (0, 4)], True),
        ([(0, 3), (4, 8)], False),
        ([(0, 5), (3, 8)], True),
        ([(0, 2), (6, 8), (2, 6)], True),
        ([(0, 2), (6, 8), (3, 6)], False),
        ([(0, 2), (6, 8), (2, 5)], False),
        ([(2, 6), (1, 7), (0, 1), (7, 8)], True),
        ([(1, 7), (2, 6), (0, 1)], False),
        ([(1, 7), (2, 6), (7, 8)], False),
    ],
)
@pytest.mark.parametrize("kind", [BufferKind.CREATED, BufferKind.TEMP])
def test_pieces_that_together_write_every_byte_need_no_clearing(kind: BufferKind, pieces: list[tuple[int, int]], covered: bool) -> None:
    b = Builder()
    x, y = b.external(F32, (8,)), make(b, kind, 8)
    for low, high in pieces:
        b.emit("neg", views.narrow(y, 0, low, high - low), [views.narrow(x, 0, low, high - low)])
    show(b, y, 8)
    assert (y.buffer in zeroed(b)) == (not covered)


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "lengths", "lost"),
    [
        ((1, 4, 8, 6), (3, 1, 2), None),
        ((2, 4, 8, 6), (3, 1, 2), None),
        ((2, 4, 8, 6), (3, 1, 2), 1),
        ((2, 1, 1, 6), (1, 5), None),
        ((3, 2, 2, 2), (1, 1), 0),
    ],
)
def test_a_join_along_any_dimension_needs_no_clearing(
    dim: int, shape: tuple[int, ...], lengths: tuple[int, ...], lost: int | None
) -> None:  # fmt: skip
    """Parts along an inner dimension have gaps, which the other parts fill."""
    b = Builder()
    whole = (*shape[:dim], sum(lengths), *shape[dim + 1 :])
    y, at = b.created(F32, whole), 0
    for number, length in enumerate(lengths):
        part = views.narrow(y, dim, at, length)
        if number != lost:
            b.emit("neg", part, [b.external(F32, part.shape)])
        at += length
    assert (y.buffer in zeroed(b)) == (lost is not None)


@given(st.data())
def test_what_is_not_cleared_was_written_to_the_last_byte(data: st.DataObject) -> None:
    """Random views of one buffer, and the bytes they write, marked one by one."""
    n = data.draw(st.integers(1, 24))
    b = Builder()
    x, y = b.external(F32, (24,)), b.created(F32, (n,))
    written = np.zeros(n, np.bool_)
    for _ in range(data.draw(st.integers(1, 5))):
        shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
        strides = tuple(data.draw(st.integers(-6, 8)) for _ in shape)
        offset = data.draw(st.integers(0, n - 1))
        places = offset + sum(
            (np.arange(size) * stride).reshape([-1 if at == dim else 1 for at in range(len(shape))])
            for dim, (size, stride) in enumerate(zip(shape, strides, strict=True))
        )
        assert isinstance(places, np.ndarray)
        if places.min() < 0 or places.max() >= n or len(np.unique(places)) < places.size or places.size > 24:
            continue
        written[places.ravel()] = True
        b.emit("neg", replace(y, shape=shape, strides=strides, offset=offset), [replace(x, shape=shape, strides=contiguous_strides(shape))])
    if y.buffer not in zeroed(b):
        assert written.all()


def test_a_write_after_the_read_comes_too_late() -> None:
    b = Builder()
    x, y = b.external(F32, (8,)), b.created(F32, (8,))
    show(b, y, 1)
    b.emit("neg", y, [x])
    assert zeroed(b) == {y.buffer}


def test_an_instruction_that_reads_and_writes_one_buffer_reads_first() -> None:
    b = Builder()
    x, y = b.external(F32, (8,)), b.created(F32, (8,))
    b.emit("add", y, [x, y])
    assert zeroed(b) == {y.buffer}


def test_a_buffer_without_bytes_and_a_read_without_elements_show_nothing() -> None:
    b = Builder()
    x, empty, y = b.external(F32, (8,)), b.created(F32, (0,)), b.created(F32, (8,))
    b.emit("neg", b.created(F32, (0,)), [views.narrow(y, 0, 3, 0)])
    b.emit("neg", y, [x])
    assert empty.buffer not in zeroed(b) and y.buffer not in zeroed(b)


@pytest.mark.parametrize("writer", [0, 1, 2])
def test_a_temp_is_read_only_after_the_instruction_that_writes_it(writer: int) -> None:
    """The temp is written by instruction ``writer`` and read by instruction 1."""
    b = Builder()
    x, t, out = b.external(F32, (4,)), b.temp(F32, (4,)), b.created(F32, (4,))
    for place in range(3):
        if place == 1:
            b.emit("add", t if writer == 1 else out, [x, t])
        elif place == writer:
            b.emit("neg", t, [x])
        else:
            b.emit("neg", b.created(F32, (4,)), [x])
    program, dims, _ = b.finish()
    if writer == 0:
        verify(program, dims)
    else:
        with pytest.raises(VerifyError, match="unwritten @ code 1 in 1"):
            verify(program, dims)


def test_every_unwritten_temp_is_named() -> None:
    b = Builder()
    x, s, t, out = b.external(F32, (4,)), b.temp(F32, (4,)), b.temp(F32, (4,)), b.created(F32, (4,))
    b.emit("neg", s, [x])
    b.emit("add", out, [s, t])
    b.emit("add", out, [t, s])
    program, dims, _ = b.finish()
    with pytest.raises(VerifyError) as caught:
        verify(program, dims)
    assert [finding.place for finding in caught.value.findings] == ["code 1 in 1", "code 2 in 0"]
