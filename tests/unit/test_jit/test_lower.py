"""Fused groups as kernels of the kernel tier: they verify, and mean what the reference says, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from jit.kernels.lower import lower
from tests.support.builder import Builder
from tests.unit.test_jit.lowered import Buffers, Runner, formed_loops, interpreted, run_by_kernels, run_by_reference, same_buffers
from tests.unit.test_jit.lowered_programs import FOLDER, PROGRAMS, pinned, program
from tests.unit.test_jit.programs import random_program
from wis.dtypes import DType
from wis.kernel.text import print_kernel


def agree(b: Builder, inputs: Buffers, run: Runner, most: float = 0.0) -> int:
    """Compare every lasting buffer; returns how many kernels ran. 0 and -0 agree, and so do NaNs of any payload."""
    want = run_by_reference(b, inputs)
    got, kernels, _ = run_by_kernels(b, inputs, run)
    same_buffers(b, got, want, most)
    return kernels


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_agree_bit_by_bit(seed: int) -> None:
    b, inputs = random_program(seed, 12)
    agree(b, inputs, interpreted)


@pytest.mark.parametrize("name", PROGRAMS)
def test_named_functions_and_half_sums_agree(name: str) -> None:
    b, inputs = program(name)
    assert agree(b, inputs, interpreted) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden_kernel(name: str) -> None:
    """To accept a change on purpose: delete the file, run the test once (it fails and writes the new one), read the difference."""
    (loop,) = formed_loops(PROGRAMS[name]())
    pinned(FOLDER / f"{name}.kernel", print_kernel(lower(loop.kernel, name).kernel))


@pytest.mark.parametrize("name", ["fmod", "mod", "floor_div"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.F16])
def test_float_remainders_agree(name: str, dtype: DType) -> None:
    """Signs of both kinds, zeros, infinities, and quotients that round up to a whole number."""
    edges = np.array([0.0, -0.0, 1.0, -1.0, 0.1, -0.3, 3.0, -7.5, 1e4, -6e4, np.inf, -np.inf, np.nan, 2.0**-14, 0.7, 6.3])
    a, b = (x.reshape(-1).astype(dtype.numpy) for x in np.meshgrid(edges, edges))
    made = Builder()
    x, y = made.external(dtype, (256,)), made.external(dtype, (256,))
    made.emit(name, made.created(dtype, (256,)), [x, y])
    assert agree(made, {x.buffer: a, y.buffer: b}, interpreted) == 1
