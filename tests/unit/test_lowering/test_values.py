"""Metas as views: the same strides as torch gives, or the same refusal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wis.dtypes import DType
from wooly.device.lowering.dtypes import FROM_TORCH, TO_TORCH, promote, result_type
from wooly.device.lowering.trace import broadcast_shapes
from wooly.device.lowering.values import Meta, ScalarArg, Unsupported, contiguous_strides


def meta_of(t: torch.Tensor) -> Meta:
    return Meta(0, FROM_TORCH[t.dtype], tuple(t.shape), tuple(t.stride()), t.storage_offset())


def same(meta: Meta, t: torch.Tensor) -> None:
    """The same elements: shape and offset equal, strides equal wherever there is more than one element."""
    assert meta.shape == tuple(t.shape)
    assert meta.offset == t.storage_offset() or t.numel() == 0
    assert [s for s, n in zip(meta.strides, meta.shape, strict=True) if n > 1] == [
        s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1
    ]


@st.composite
def strided(draw: st.DrawFn) -> torch.Tensor:
    """A tensor permuted, sliced and expanded at random."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    t = torch.arange(int(torch.tensor(shape).prod())).reshape(shape)
    t = t.permute(draw(st.permutations(range(len(shape)))))
    for d in range(t.dim()):
        start = draw(st.integers(0, t.size(d) - 1))
        t = t.narrow(d, start, draw(st.integers(1, t.size(d) - start)))[(slice(None),) * d + (slice(None, None, draw(st.integers(1, 2))),)]
    if draw(st.booleans()):
        t = t.unsqueeze(0).expand(2, *t.shape)
    return t


@settings(deadline=None)  # first uses of torch are slow
@given(strided(), st.data())
def test_view_gives_the_strides_of_torch_or_none(t: torch.Tensor, data: st.DataObject) -> None:
    sizes = list(t.shape)
    cut = data.draw(st.integers(0, len(sizes)))
    target = [int(torch.tensor(sizes[:cut]).prod()) if cut else 1, *sizes[cut:]]
    if data.draw(st.booleans()):
        target = [1 if n == 1 else n for n in reversed(target)]
    try:
        expected = t.view(target)
    except RuntimeError:
        assert meta_of(t).view(target) is None
        return
    view = meta_of(t).view(target)
    assert view is not None
    same(view, expected)


@settings(deadline=None)  # first uses of torch are slow
@given(strided(), st.data())
def test_narrow_select_and_move_follow_torch(t: torch.Tensor, data: st.DataObject) -> None:
    dim = data.draw(st.integers(0, t.dim() - 1))
    index = data.draw(st.integers(0, t.size(dim) - 1))
    same(meta_of(t).select(dim, index), t.select(dim, index))
    same(meta_of(t).narrow(dim, index, t.size(dim) - index), t.narrow(dim, index, t.size(dim) - index))
    same(meta_of(t).move(dim, -1), t.movedim(dim, -1))
    same(meta_of(t).unsqueeze(dim), t.unsqueeze(dim))


def test_flip_reads_backwards_from_the_last_element() -> None:
    flipped = meta_of(torch.zeros(2, 5)).flip(1)
    assert (flipped.offset, flipped.strides) == (4, (5, -1))


def test_expand_uses_stride_zero_and_refuses_other_sizes() -> None:
    same(meta_of(torch.zeros(3, 1)).expand((2, 3, 4)), torch.zeros(3, 1).expand(2, 3, 4))
    with pytest.raises(ValueError, match="cannot expand"):
        meta_of(torch.zeros(3)).expand((4,))


def test_parts_of_a_complex_tensor_interleave() -> None:
    parts = meta_of(torch.zeros(4, 3, dtype=torch.complex64)[1:].t()).as_parts()
    expected = torch.view_as_real(torch.zeros(4, 3, dtype=torch.complex64)[1:].t())
    assert parts.dtype is DType.F32
    same(parts, expected)


def test_empty_tensors_view_as_anything_empty() -> None:
    view = meta_of(torch.zeros(0, 3)).view((5, 0))
    assert view is not None and view.strides == contiguous_strides((5, 0))


@settings(deadline=None)  # first uses of torch are slow
@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=3))
def test_broadcast_shapes_agrees_with_torch(shapes: list[list[int]]) -> None:
    try:
        expected = tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        with pytest.raises(ValueError, match="broadcast"):
            broadcast_shapes(*shapes)
        return
    assert broadcast_shapes(*shapes) == expected


_TYPES = [d for d in TO_TORCH if d not in (DType.U16, DType.U32, DType.U64)]


def check_promotion(values: list[Meta | ScalarArg | complex], expected: torch.dtype) -> None:
    if expected is torch.complex32:
        with pytest.raises(Unsupported):
            result_type(values)
    else:
        assert TO_TORCH[result_type(values)] == expected


@pytest.mark.parametrize("a", _TYPES)
@pytest.mark.parametrize("kinds", ["dims dims", "dims 0-d", "0-d 0-d"])
def test_promotion_of_tensors_is_that_of_torch(a: DType, kinds: str) -> None:
    shapes = [(2,) if kind == "dims" else () for kind in kinds.split()]
    for b in _TYPES:
        tensors = [torch.zeros(shape, dtype=TO_TORCH[d]) for shape, d in zip(shapes, (a, b), strict=True)]
        check_promotion([meta_of(t) for t in tensors], torch.result_type(*tensors))


@pytest.mark.parametrize("a", _TYPES)
@pytest.mark.parametrize("number", [True, 2, 2.5, 1j])
def test_promotion_with_numbers_is_that_of_torch(a: DType, number: complex) -> None:
    for shape in ((), (3,)):
        t = torch.zeros(shape, dtype=TO_TORCH[a])
        expected = torch.result_type(t, number)
        check_promotion([meta_of(t), number], expected)
        check_promotion([ScalarArg(0, type(number)), meta_of(t)], expected)


def test_a_cpu_scalar_tensor_promotes_as_a_zero_dim_tensor() -> None:
    assert result_type([meta_of(torch.zeros(2, dtype=torch.float32)), ScalarArg(0, float, DType.F64)]) is DType.F32
    assert result_type([meta_of(torch.zeros(2, dtype=torch.int32)), ScalarArg(0, float, DType.F64)]) is DType.F64


def test_types_without_promotion_are_unsupported() -> None:
    with pytest.raises(Unsupported):
        promote(DType.U32, DType.I8)
