"""Whole programs on the shared engine, by the definition of kernels: equal to the reference bit by bit."""

from __future__ import annotations

import pytest

from tests.unit.test_jit.conftest import Check
from tests.unit.test_jit.programs import random_program


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_agree_with_the_reference(check: Check, seed: int) -> None:
    b, inputs = random_program(seed, 12)
    check(b, inputs)


@pytest.mark.parametrize("seed", range(8))
def test_further_dims_of_a_known_program_agree_with_the_reference(check: Check, seed: int) -> None:
    for grow in (0, 1, 7, 0):
        b, inputs = random_program(1000 + seed, 10, grow)
        check(b, inputs)
