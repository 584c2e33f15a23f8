"""What the planner decides: which instructions share a kernel, what is dropped, and when new dims are patched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from jit.engine import Engine
from jit.host.calls import Call
from jit.host.engine import HostEngine
from jit.host.schedule import levels_of
from jit.plan.access import Access
from jit.plan.arena import lay_out, size_class
from jit.plan.calls import ArgBlock
from jit.plan.planner import PlanOptions
from tests.support.builder import Builder
from tests.unit.test_jit.conftest import Check, checker
from tests.unit.test_jit.programs import random_program
from wis.dtypes import DType
from wis.program import Operand
from wis.verify import verify
from wis.views import expand

F = DType.F32


def names(host: Engine, b: Builder) -> list[str]:
    """What is called for a program, in order."""
    program, dims, _ = b.finish()
    plan = cast(HostEngine, host).prepare(verify(program, dims)).plan
    return [call.name if isinstance(call, Call) else f"reference {call.instr.op.name}" for call in plan.calls]


def test_softmax_is_one_kernel(host: Engine) -> None:
    b = Builder()
    x, y = b.external(F, (8, 100)), b.created(F, (8, 100))
    scaled = b.temp(F, (8, 100))
    b.emit("mul", scaled, [x, b.const(0.125, F)])
    b.emit("softmax", y, [scaled])
    assert names(host, b) == ["rows[mul+reduce_max+sub+exp+sum+div+cast]"]


def test_an_optimiser_step_is_one_kernel_a_parameter(host: Engine) -> None:
    b = Builder()
    for shape in ((64, 32), (64,)):
        p, m, v, g = (b.external(F, shape) for _ in range(4))
        b.emit("adamw", [p, m, v], [g, *(b.const(c, DType.F64) for c in (1e-3, 0.9, 0.999, 0.01, 1e-8, 0.1, 0.03))], (1, 0))
    found = names(host, b)
    assert len(found) == 2 and all(name.startswith("flat[") for name in found)


def test_a_step_of_many_parameters_at_once_is_one_kernel_a_parameter(host: Engine) -> None:
    """As optimisers have it by default: each operation for all parameters before the next one. 48 are more than are looked back at."""
    b = Builder()
    shapes = [(64, n + 1) for n in range(48)]
    params, means, grads = ([b.external(F, shape) for shape in shapes] for _ in range(3))
    steps = [b.temp(F, shape) for shape in shapes]
    for m in means:
        b.emit("mul", m, [m, b.const(0.9, F)])
    for m, g in zip(means, grads, strict=True):
        b.emit("add", m, [m, g])
    for x, g in zip(steps, grads, strict=True):
        b.emit("mul", x, [g, g])
    for x in steps:
        b.emit("sqrt", x, [x])
    for x, m in zip(steps, means, strict=True):
        b.emit("div", x, [m, x])
    for p, x in zip(params, steps, strict=True):
        b.emit("sub", p, [p, x])
    found = names(host, b)
    assert len(found) == 48 and len(set(found)) == 1, found


def test_an_instruction_stays_behind_one_far_back_that_it_depends_on(check: Check, host: Engine) -> None:
    """It may join a group that is further back still only if nothing in between uses what it writes."""
    b = Builder()
    x, y, z = (b.external(F, (40, 7)) for _ in range(3))
    others = [b.external(F, (40, n + 1)) for n in range(40) if n != 6]
    b.emit("mul", x, [x, b.const(3, F)])
    b.emit("sum", b.created(F, (1, 1)), [y])  # reads what is written below
    for other in others:
        b.emit("add", other, [other, b.const(1, F)])
    b.emit("add", y, [x, z])
    inputs = {o.buffer: np.arange(o.numel, dtype=np.float32) for o in (x, y, z, *others)}
    check(b, inputs)


def test_batch_statistics_are_taken_in_one_kernel_over_the_outer_and_inner_dimensions(host: Engine) -> None:
    b = Builder()
    x, y = b.external(F, (4, 8, 7, 7)), b.created(F, (4, 8, 7, 7))
    total = b.temp(F, (1, 8, 1, 1))
    b.emit("sum", total, [x])
    mean = b.temp(F, (1, 8, 1, 1))
    b.emit("mul", mean, [total, b.const(1 / 196, F)])
    b.emit("sub", y, [x, expand(mean, (4, 8, 7, 7))])
    assert names(host, b) == ["rows[sum+mul+sub]"]


def test_unread_work_is_dropped(host: Engine) -> None:
    b = Builder()
    x, y = b.external(F, (100,)), b.created(F, (100,))
    unused = b.temp(F, (100,))
    b.emit("exp", unused, [x])
    b.emit("log", b.temp(F, (100,)), [unused])
    b.emit("neg", y, [x])
    assert names(host, b) == ["flat[neg]"]


def test_a_shifted_copy_onto_itself_is_not_fused(check: Check, host: Engine) -> None:
    """All elements are read before any is written, which no loop over elements does."""
    b = Builder()
    x = b.external(F, (101,))
    b.emit("cast", b.operand(x, F, (100,), offset=1), [b.operand(x, F, (100,))])
    assert names(host, b) == ["reference cast"]
    check(b, {x.buffer: np.arange(101, dtype=np.float32)})


def test_kernels_are_shared_between_shapes(host: Engine) -> None:
    engine = cast(HostEngine, host)

    def softmax(rows: int, columns: int) -> None:
        b = Builder()
        b.emit("softmax", b.created(F, (rows, columns)), [b.external(F, (rows, columns))])
        names(host, b)

    softmax(8, 100)
    before = engine.kernels
    for shape in ((8, 101), (300, 77), (1000, 64)):
        softmax(*shape)
    assert engine.kernels == before
    softmax(300, 7)
    assert engine.kernels == before + 1, "rows of less than a vector have a kernel of their own"
    softmax(20, 31)
    assert engine.kernels == before + 1


def cache_step(length: int) -> tuple[Builder, Operand, list[Operand]]:
    """One token's attention: a cache of ``length`` rows grows by one, scores over it, softmax, mix."""
    b = Builder()
    old, new, q = b.external(F, (4, length, 16)), b.external(F, (4, 1, 16)), b.external(F, (4, 1, 16))
    grown = b.created(F, (4, length + 1, 16))
    steps = ((length + 1) * 16, 16, 1)
    b.emit("cast", b.operand(grown, F, (4, length, 16), steps), [old])
    b.emit("cast", b.operand(grown, F, (4, 1, 16), steps, offset=length * 16), [new])
    scores = b.temp(F, (4, 1, length + 1))
    b.emit("matmul", scores, [q, b.operand(grown, F, (4, 16, length + 1), (steps[0], 1, 16))])
    p = b.temp(F, (4, 1, length + 1))
    b.emit("softmax", p, [scores])
    y = b.created(F, (4, 1, 16))
    b.emit("matmul", y, [p, grown])
    return b, y, [old, new, q]


def test_a_growing_cache_is_patched_into_the_first_plan(check: Check, host: Engine) -> None:
    rng = np.random.default_rng(0)
    for length in range(5, 40):
        b, y, sources = cache_step(length)
        check(b, {x.buffer: rng.standard_normal(x.shape).astype(np.float32) for x in sources}, [(y, 4096.0)])
    program, dims, _ = cache_step(40)[0].finish()
    planner = cast(HostEngine, host).planner(verify(program, dims).digest)
    assert planner.full == 1 and planner.patched == 34


def test_dims_that_make_disjoint_parts_overlap_are_planned_anew(check: Check, host: Engine) -> None:
    """Two writes that were apart, in any order, now hit the same bytes: the second one has to win."""
    for offset in (64, 32):
        b = Builder()
        x, y = b.external(F, (64,)), b.external(F, (128,))
        b.emit("sort", [b.operand(y, F, (64,)), b.temp(DType.I64, (64,))], [x], (0, 0))
        b.emit("neg", b.operand(y, F, (64,), offset=offset), [x])
        check(b, {x.buffer: np.arange(64, 0, -1, dtype=np.float32)})
        program, dims, _ = b.finish()
        planner = cast(HostEngine, host).planner(verify(program, dims).digest)
    assert planner.full == 2


def test_fusion_does_not_change_a_bit(host: Engine, host_alone: Engine) -> None:
    engine = cast(HostEngine, host_alone)
    engine.forget()
    engine.options = PlanOptions(fusion=False)
    check = checker(engine, host)
    try:
        for seed in range(20):
            check(*random_program(seed, 18))
    finally:
        engine.options = PlanOptions()
        engine.forget()


def stacked_constants(places: Sequence[int], *, size: int = 4, read: int | None = None) -> tuple[Builder, Operand]:
    """One-element fills, each copied to its place in one temporary, which is read whole, or at one place."""
    b = Builder()
    stack, y = b.temp(F, (size,)), b.created(F, (size if read is None else 1,))
    for number, place in enumerate(places):
        fill = b.temp(F, (1,))
        b.emit("cast", fill, [b.const(number + 1.5, F)])
        b.emit("cast", b.operand(stack, F, (1,), offset=place), [fill])
    b.emit("mul", y, [stack if read is None else b.operand(stack, F, (1,), offset=read), b.const(2.0, F)])
    return b, y


@pytest.mark.parametrize("places", [(0, 1), (0, 1, 2, 3), (3, 0), (1, 1), (0, 1, 0), (2,)])
def test_constants_that_meet_in_one_temporary_keep_their_values(check: Check, places: tuple[int, ...]) -> None:
    b, _ = stacked_constants(places)
    check(b, {})
    for place in set(places):
        check(stacked_constants(places, read=place)[0], {})


def test_a_constant_that_is_overwritten_in_part_keeps_its_other_bytes(check: Check) -> None:
    b = Builder()
    t, y = b.temp(DType.I32, (2,)), b.created(DType.I32, (2,))
    b.emit("cast", b.operand(t, DType.I32, (1,)), [b.const(0x01020304, DType.I32)])
    b.emit("cast", b.operand(t, DType.U8, (1,), offset=2), [b.const(0x7F, DType.U8)])
    b.emit("add", y, [t, b.const(0, DType.I32)])
    check(b, {})


@pytest.mark.parametrize("op", ["cast", "sort"])
def test_a_constant_among_elements_that_are_written_together_survives(check: Check, op: str) -> None:
    """The write spans the constant's place and has a hole there."""
    b = Builder()
    x, t, y = b.external(F, (2,)), b.temp(F, (3,)), b.created(F, (3,))
    b.emit("cast", b.operand(t, F, (1,), offset=1), [b.const(5.0, F)])
    columns = b.operand(t, F, (2,), (2,))
    if op == "cast":
        b.emit("cast", columns, [x])
    else:
        b.emit("sort", [columns, b.temp(DType.I64, (2,))], [x], (0, 0))
    b.emit("neg", y, [t])
    check(b, {x.buffer: np.array([2.0, 1.0], np.float32)})


def test_other_dims_with_which_an_overwritten_constant_survives_are_planned_anew(check: Check) -> None:
    for places in ((1, 1), (0, 1), (1, 1), (2, 0)):
        check(stacked_constants(places)[0], {})
    for place in (0, 1, 2):
        b = Builder()
        x, t, y = b.external(F, (2,)), b.temp(F, (4,)), b.created(F, (4,))
        b.emit("cast", b.operand(t, F, (1,), offset=1), [b.const(5.0, F)])
        b.emit("exp", b.operand(t, F, (2,), offset=place), [x])
        b.emit("neg", y, [t])
        check(b, {x.buffer: np.array([1.0, 2.0], np.float32)}, [(y, 4.0)])


@pytest.mark.parametrize(
    ("first", "second"), [(("add", ()), ("sub", ())), (("cumsum", (0,)), ("cumprod", (0,))), (("cumsum", (0,)), ("cumsum", (1,)))]
)
def test_steps_of_equal_operands_and_another_meaning_are_not_taken_for_each_other(
    check: Check, first: tuple[str, tuple[int, ...]], second: tuple[str, tuple[int, ...]]
) -> None:
    """Neither inside of one program nor in two."""
    for steps in ((first, second), (second, first), (first,), (second,)):
        b = Builder()
        inputs = {}
        for number, (name, attrs) in enumerate(steps):
            sources = [b.external(F, (6, 6)) for _ in range(2 if name in ("add", "sub") else 1)]
            b.emit(name, b.created(F, (6, 6)), sources, attrs)
            inputs |= {x.buffer: np.arange(36, dtype=np.float32).reshape(6, 6) % 5 + number for x in sources}
        check(b, inputs)


def test_any_of_several_disjoint_pairs_may_come_to_overlap(check: Check, host: Engine) -> None:
    """Three buffers, each written in two places; with other dims, the two places of one of them meet."""
    plans = []
    for meeting in (None, 0, 1, 2):
        b = Builder()
        inputs = {}
        for number in range(3):
            x, y = b.external(F, (64,)), b.external(F, (128,))
            b.emit("sort", [b.operand(y, F, (64,)), b.temp(DType.I64, (64,))], [x], (0, 0))
            b.emit("neg", b.operand(y, F, (64,), offset=32 if number == meeting else 64), [x])
            inputs[x.buffer] = np.arange(64, 0, -1, dtype=np.float32)
        check(b, inputs)
        program, dims, _ = b.finish()
        plans.append(cast(HostEngine, host).planner(verify(program, dims).digest).full)
    assert plans == [1, 2, 3, 4]


def test_a_temporary_that_other_dims_read_before_it_is_written_is_zero(check: Check) -> None:
    """The part that is written shrinks from the whole; what had the memory before must not show."""
    for written in (64, 64, 40, 64, 17):
        b = Builder()
        x, y, z = b.external(F, (64,)), b.created(F, (64,)), b.created(F, (64,))
        old, t = b.temp(F, (64,)), b.temp(F, (64,))
        b.emit("sort", [old, b.temp(DType.I64, (64,))], [x], (0, 0))
        b.emit("sort", [y, b.temp(DType.I64, (64,))], [old], (0, 1))
        first = b.operand(x, F, (written,))
        b.emit("sort", [b.operand(t, F, (written,)), b.temp(DType.I64, (written,))], [first], (0, 0))
        b.emit("sort", [z, b.temp(DType.I64, (64,))], [t], (0, 1))
        check(b, {x.buffer: np.arange(64, 0, -1, dtype=np.float32)})


def test_a_constant_that_was_stored_is_not_remembered_when_other_types_write_its_bytes(check: Check) -> None:
    b = Builder()
    t, before, after = b.temp(DType.I32, (2,)), b.created(DType.I32, (2,)), b.created(DType.I32, (1,))
    first = b.operand(t, DType.I32, (1,))
    b.emit("cast", first, [b.const(0x01020304, DType.I32)])
    b.emit("neg", before, [t])
    b.emit("cast", b.operand(t, DType.U8, (1,), offset=2), [b.const(0x7F, DType.U8)])
    b.emit("neg", after, [first])
    check(b, {})


def test_memory_of_a_chain_is_that_of_two_links() -> None:
    """Every temporary is read once, by the step that makes the next."""
    uses = [[at, at + 1] if at else [1] for at in range(20)]
    nbytes = dict.fromkeys(range(21), 1000)
    assert lay_out(uses, nbytes, frozenset()).nbytes == 2 * size_class(1000)
    assert lay_out(uses, nbytes, frozenset({5})).nbytes == 3 * size_class(1000)


def test_memory_goes_on_to_the_next_owner_also_through_one_without_elements() -> None:
    """A temporary of no elements is never written, only read by a call that does nothing."""

    def call(reads: Sequence[int], writes: Sequence[int]) -> Call:
        touched = {t: Access(t, F, 0, ((0 if t == nothing else 4, 1),), 0, 0 if t == nothing else 16) for t in (*reads, *writes)}
        block = ArgBlock(np.zeros(1, np.int64), np.zeros((0, 3), np.int64), (), ())
        given = tuple(touched[t] for t in reads), tuple(touched[t] for t in writes)
        return Call(block, *given, address=0, units=1, grain=1.0, scratch_bytes=0, name="")

    first, nothing, second = 1, 2, 3
    calls = [call([], [first]), call([first], []), call([nothing], []), call([], [second])]
    levels = levels_of(calls, {nothing: (first,), second: (nothing,)})
    assert levels[3] > levels[1]
