"""Fused groups as kernels for gangs of 32 lanes: they verify, and mean what the reference says, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, cast

import numpy as np
import pytest

from jit.engine import Engine
from jit.errors import Inexpressible
from jit.host.calls import is_short, supported
from jit.host.engine import HostEngine
from jit.kernels.gangs import GangKernel, lower_gangs
from jit.plan.form import form
from jit.plan.fuse import fuse
from tests.support.builder import Builder
from tests.support.wis_run import decompose
from tests.unit.test_jit.conftest import Check
from tests.unit.test_jit.lowered import Buffers, formed_loops, parameters, run_by_reference, same_buffers
from tests.unit.test_jit.lowered_programs import FOLDER, PROGRAMS, pinned, program
from tests.unit.test_jit.programs import random_program
from wis import reference
from wis.dtypes import DType
from wis.kernel.interpret import Launch, launch
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.text import print_kernel
from wis.kernel.verify import verify_kernel
from wis.program import BufferKind
from wis.views import expand

LIMITS: Final = replace(KERNEL_LIMITS, shared_bytes_max=1 << 20)


def run_by_gangs(b: Builder, inputs: Buffers) -> tuple[dict[int, bytes], int]:
    """The bytes of all lasting buffers, and the number of kernels run, each in the definition of the kernel tier."""
    program, _, scalars = b.finish()
    bound, constants = decompose(b.bound())
    scalars = [*scalars, *constants]
    memory = {n: np.zeros(nbytes, np.uint8) for n, nbytes in enumerate(bound.nbytes)}
    for n, values in inputs.items():
        raw = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)[: len(memory[n])]
        memory[n][: len(raw)] = raw
    kernels = 0
    for step in fuse(bound.code, bound.program.buffers, supported):
        formed = form(step.group) if step.group is not None else None
        made: GangKernel | None = None
        if formed is not None:
            try:
                made = lower_gangs(formed.kernel, "fused", short=is_short(formed))
            except Inexpressible:
                made = None
        if formed is None or made is None:
            for place in sorted(step.members):
                reference.step(bound.code[place], scalars, [memory[n] for n in range(len(memory))])
            continue
        params: list[Any] = parameters(made, formed, scalars, memory)
        outcome = launch(verify_kernel(made.kernel, LIMITS), Launch(made.grid(formed.args), (32, 1, 1)), params)
        assert not outcome.trapped
        kernels += 1
    return {n: memory[n].tobytes() for n, kind in enumerate(program.buffers) if kind != BufferKind.TEMP}, kernels


def agree(b: Builder, inputs: Buffers) -> int:
    want = run_by_reference(b, inputs)
    got, kernels = run_by_gangs(b, inputs)
    same_buffers(b, got, want)
    return kernels


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_agree_bit_by_bit(seed: int) -> None:
    b, inputs = random_program(seed, 12)
    agree(b, inputs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_named_functions_and_half_sums_agree(name: str) -> None:
    b, inputs = program(name)
    assert agree(b, inputs) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden_kernel(name: str) -> None:
    """To accept a change on purpose: delete the file, run the test once (it fails and writes the new one), read the difference."""
    (loop,) = formed_loops(PROGRAMS[name]())
    pinned(FOLDER / f"{name}.gang.kernel", print_kernel(lower_gangs(loop.kernel, name).kernel))


def test_a_group_with_more_operands_than_parameters_fit_has_its_strides_in_the_kernel(host: Engine, check: Check) -> None:
    """28 operands that lie differently in seven dimensions: 9 numbers each."""
    b, rng = Builder(), np.random.default_rng(2)
    shape = (2, 3, 2, 3, 2, 3, 2)

    def strides() -> list[int]:
        return [int(s) for s in rng.permutation([1, 3, 10, 31, 94, 283, 850])]

    sources = [b.external(DType.F32, shape, strides()) for _ in range(16)]
    total = sources[0]
    for x in sources[1:]:
        out = b.created(DType.F32, shape, strides())
        b.emit("max", out, [total, x])
        total = out
    check(b, {x.buffer: rng.standard_normal(3000).astype(np.float32) for x in sources})
    assert any(fixed for _, fixed, _ in cast(HostEngine, host)._lowering._groups)


def test_many_sums_of_columns_share_one_walk(check: Check) -> None:
    """Their partial results take more memory than a block has on other devices."""
    b, rng = Builder(), np.random.default_rng(3)
    x = b.external(DType.F64, (37, 70))
    for power in range(14):
        y = b.temp(DType.F64, (37, 70))
        b.emit("mul", y, [x, b.const(1.0 + power, DType.F64)])
        b.emit("sum", b.created(DType.F64, (1, 70)), [y])
    check(b, {x.buffer: rng.standard_normal((37, 70))})


@pytest.mark.parametrize("row", [5, 31, 32, 33, 70, 1000])
def test_costly_values_of_rows_of_any_length_are_kept(row: int, check: Check) -> None:
    b, rng = Builder(), np.random.default_rng(row)
    shape, ends = (6, row), (6, 1)
    x, y, total = b.external(DType.F32, shape), b.temp(DType.F32, shape), b.temp(DType.F32, ends)
    b.emit("sqrt", y, [x])
    for _ in range(9):  # ten operations are worth keeping
        z = b.temp(DType.F32, shape)
        b.emit("mul", z, [y, x])
        y = z
    b.emit("sum", total, [y])
    out = b.created(DType.F32, shape)
    b.emit("div", out, [y, expand(total, shape)])
    check(b, {x.buffer: rng.random(shape).astype(np.float32)})
