"""Templates: what binding makes of a lowering's results, and what of them is a parameter."""

from __future__ import annotations

import cProfile
import math
import pstats

import numpy as np
import pytest
import torch

from tests.support.lowering_run import execute
from wis.dtypes import DType
from wis.ops import BY_CODE, Dist
from wooly.device.lowering import Expected, LoweringError, Meta, ScalarArg, Template, Trace, find, lower
from wooly.device.lowering.values import contiguous_strides

F32 = DType.F32


def tensor(slot: int, *shape: int, dtype: DType = F32) -> Meta:
    return Meta(slot, dtype, shape, contiguous_strides(shape))


def expected(*shape: int, dtype: DType = F32, strides: tuple[int, ...] | None = None) -> Expected:
    return Expected(dtype, shape, contiguous_strides(shape) if strides is None else strides)


def names(template: Template) -> list[str]:
    return [BY_CODE[instr.op].name for instr in template.code]


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32).view(np.uint8).copy()


def test_a_single_instruction_writes_its_output_directly() -> None:
    t = Trace(2, [expected(4)])
    template = t.finish(t.map("add", tensor(0, 4), tensor(1, 4)))
    assert names(template) == ["add"] and template.temps == ()
    assert template.code[0].outs[0].buffer == 2


def test_the_output_may_have_any_strides() -> None:
    t = Trace(1, [expected(2, 3, strides=(1, 2))])
    template = t.finish(t.map("neg", t.map("abs", tensor(0, 2, 3))))
    assert names(template) == ["abs", "neg"] and len(template.temps) == 1
    out = execute(template, [floats(*range(6))], ())[0]
    assert out is not None
    assert out.view(np.float32).tolist() == [0, -3, -1, -4, -2, -5]


def test_another_type_than_computed_costs_a_cast() -> None:
    t = Trace(1, [expected(4, dtype=DType.BF16)])
    template = t.finish(t.map("exp", tensor(0, 4)))
    assert names(template) == ["exp", "cast"]


def test_an_input_returned_as_it_is_gets_copied() -> None:
    t = Trace(1, [expected(4)])
    template = t.finish(tensor(0, 4))
    assert names(template) == ["cast"]


def test_a_view_of_a_result_that_fits_costs_nothing() -> None:
    t = Trace(1, [expected(2, 3)])
    flat = t.map("neg", tensor(0, 6))
    template = t.finish(t.reshape(flat, (2, 3)))
    assert names(template) == ["neg"]


def test_one_result_for_two_outputs_is_written_twice() -> None:
    t = Trace(1, [expected(4), expected(4)])
    value = t.map("neg", tensor(0, 4))
    template = t.finish([value, value])
    a, b = execute(template, [floats(1, 2, 3, 4)], ())
    assert a is not None and b is not None and a.tolist() == b.tolist()


def test_an_in_place_target_is_not_overwritten_before_its_last_use() -> None:
    """y = neg(x); z = y + x, into x: y may not take x's place."""
    x = tensor(0, 4)
    t = Trace(1, (), [x])
    product = t.map("mul", x, 2.0)
    t2 = t.map("add", product, x)
    template = t.finish(t2)
    buffer = floats(1, 2, 3, 4)
    execute(template, [buffer], template.scalars())
    assert buffer.view(np.float32).tolist() == [3, 6, 9, 12]


def test_an_aliased_target_is_written_last() -> None:
    """The result's first instruction writes while a later one still reads the target's memory: a temporary stays in between."""
    x = tensor(0, 4)
    t = Trace(1, (), [x])
    out = t.temp(F32, (4,))
    t.store(out.narrow(0, 0, 2), x.narrow(0, 2, 2))
    t.store(out.narrow(0, 2, 2), x.narrow(0, 0, 2))
    template = t.finish(out)
    buffer = floats(1, 2, 3, 4)
    execute(template, [buffer], ())
    assert buffer.view(np.float32).tolist() == [3, 4, 1, 2]
    assert len(template.temps) == 1


def test_reading_and_writing_a_copy_in_place_drops_the_copy() -> None:
    """scatter_ copies its input into its output first: in place there is nothing to copy."""
    entry = find("aten::scatter.value")
    assert entry is not None
    x, index = tensor(0, 4), tensor(1, 2, dtype=DType.I64)
    template = lower(entry, (x, 0, index, ScalarArg(0, float)), {}, 2, (), [x])
    assert names(template) == ["cast", "scatter"]  # the cast fills the source, it does not copy x
    buffer = floats(1, 2, 3, 4)
    execute(template, [buffer, np.array([3, 0]).view(np.uint8).copy()], [9.0])
    assert buffer.view(np.float32).tolist() == [9, 2, 3, 9]


@pytest.mark.parametrize(
    ("size", "step", "code"), [(4, 4, []), (4, 6, []), (4096, 1024, ["add"] * 4), (5, 2, ["add"] * 3), (3, 1, ["add"] * 3)]
)
def test_overlapping_windows_are_added_a_step_at_a_time(size: int, step: int, code: list[str]) -> None:
    """The overlap-add of an inverse Fourier transform has thousands of elements a window."""
    entry, count = find("aten::unfold_backward"), 3
    length = (count - 1) * step + size
    assert entry is not None
    template = lower(entry, (tensor(0, count, size), [length], 0, size, step), {}, 1, [expected(length)])
    assert [name for name in names(template) if name == "add"] == code and len(names(template)) <= 2 + len(code)
    given = torch.randn(count, size, generator=torch.Generator().manual_seed(0))
    buffers = [given.numpy().view(np.uint8).ravel().copy(), np.zeros(4 * length, np.uint8)]
    execute(template, buffers, [])
    wanted = torch.ops.aten.unfold_backward(given, [length], 0, size, step)
    assert torch.equal(torch.from_numpy(buffers[1].view(np.float32)), wanted)


def test_unused_results_are_dropped() -> None:
    t = Trace(1, [expected(4), None])
    template = t.finish([t.map("neg", tensor(0, 4)), t.map("exp", tensor(0, 4))])
    assert names(template) == ["neg"]


def test_numbers_are_parameters_not_structure() -> None:
    """The learning rate may change every step without making another program."""
    entry = find("aten::add.Tensor")
    assert entry is not None
    args = (tensor(0, 4), tensor(1, 4), ScalarArg(0, float))
    template = lower(entry, args, {}, 2, [expected(4)])
    assert template.scalars([0.25]) == [0.25] and template.scalars([-3.0]) == [-3.0]


def test_equal_constants_share_a_slot_and_signed_zeros_do_not() -> None:
    t = Trace(1, [expected(4)])
    x = t.map("mul", t.map("add", tensor(0, 4), 0.0), 2.0)
    x = t.map("add", t.map("mul", x, 2.0), -0.0)
    template = t.finish(x)
    assert [math.copysign(1, v.real) for v in template.scalars()] == [1, 1, -1]


def test_derived_numbers_follow_their_arguments() -> None:
    entry = find("aten::native_dropout_backward")
    assert entry is not None
    t = Trace(1, [expected(4)])
    factor = t.derive(lambda p: 1 / (1 - p), ScalarArg(0, float))
    template = t.finish(t.map("mul", tensor(0, 4), factor))
    assert template.scalars([0.5]) == [2.0] and template.scalars([0.75]) == [4.0]


def test_plain_numbers_are_derived_at_once() -> None:
    assert Trace(0).derive(lambda a, b: a - b, 3, 1) == 2


def test_draws_follow_each_other_in_the_stream() -> None:
    t = Trace(0, [expected(10), expected(10)])
    template = t.finish([t.random((10,), F32, Dist.UNIFORM), t.random((10,), F32, Dist.NORMAL)])
    assert template.rng_counters == 3 + 5
    assert sorted(template.scalars((), seed=7, offset=100)) == [7, 100, 103]


def test_lazy_conjugates_are_resolved_on_the_way_in_and_out() -> None:
    entry = find("aten::neg")
    assert entry is not None
    x = Meta(0, DType.C64, (2,), (1,), 0, conj=True)
    template = lower(entry, (x,), {}, 1, (), [x])
    buffer = np.array([1 + 2j, 3 - 4j], np.complex64).view(np.uint8).copy()
    execute(template, [buffer], ())
    assert buffer.view(np.complex64).tolist() == [-1 - 2j, -3 + 4j]


def test_an_empty_result_needs_no_instruction() -> None:
    t = Trace(1, [expected(0, 3)])
    assert t.finish(t.map("exp", tensor(0, 0, 3))).code == ()


def test_a_temporary_that_is_read_has_a_writer_even_when_it_is_empty() -> None:
    """Searching in nothing: the verifier wants every temporary written before it is read."""
    t = Trace(2, [expected(3, dtype=DType.I64)])
    boundaries = t.cast(tensor(0, 0, dtype=DType.I32), F32)
    out = t.temp(DType.I64, (3,))
    t.emit("search_sorted", [out], [boundaries, tensor(1, 3)], (0,))
    found = execute(t.finish(out), [np.zeros(0, np.uint8), floats(1, 2, 3)], ())[0]
    assert found is not None and found.view(np.int64).tolist() == [0, 0, 0]


def test_results_and_outputs_must_match() -> None:
    t = Trace(1, [expected(4), expected(4)])
    with pytest.raises(LoweringError, match="1 results for 2 outputs"):
        t.finish(t.map("neg", tensor(0, 4)))
    t = Trace(1, [expected(3)])
    with pytest.raises(LoweringError, match="shape"):
        t.finish(t.map("neg", tensor(0, 4)))


def test_binding_thousands_of_results_does_not_look_at_every_step_for_each() -> None:
    t = Trace(2_000, [expected(4)] * 2_000)
    results = [t.map("neg", t.map("abs", tensor(i, 4))) for i in range(2_000)]
    with cProfile.Profile() as profile:
        template = t.finish(results)
    assert names(template) == ["abs", "neg"] * 2_000
    assert pstats.Stats(profile).total_calls < 2_000 * 200  # type: ignore[attr-defined]  # not in typeshed
