"""Whole programs on the host backend: equal to the reference, to themselves, and for any number of threads."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jit.backends import create_engine
from jit.engine import Engine
from jit.plan import fuse
from tests.unit.test_jit.conftest import Check, checker, run
from tests.unit.test_jit.programs import random_program

RELAXED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], derandomize=True
)


@given(seed=st.integers(0, 2**32), length=st.integers(1, 24))
@RELAXED
def test_random_programs_agree_with_the_reference(check: Check, seed: int, length: int) -> None:
    b, inputs = random_program(seed, length)
    check(b, inputs)


@given(seed=st.integers(0, 2**32), length=st.integers(8, 40), near=st.integers(1, 6))
@settings(RELAXED, max_examples=20)
def test_programs_whose_groups_are_far_apart_agree_with_the_reference(defining: Engine, seed: int, length: int, near: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse, "LOOK_BACK", near)
        engine = create_engine("host", cache_dir=None, threads=2, vram_bytes=1 << 26)
        try:
            for grow in (0, 1):
                checker(engine, defining)(*random_program(seed, length, grow))
        finally:
            engine.close()


@given(seed=st.integers(0, 2**32))
@settings(RELAXED, max_examples=10)
def test_results_do_not_depend_on_threads_or_on_the_run(host: Engine, host_alone: Engine, seed: int) -> None:
    b, inputs = random_program(seed, 16)
    first, _ = run(host, b, inputs)
    assert run(host, b, inputs)[0] == first
    assert run(host_alone, b, inputs)[0] == first


@given(seed=st.integers(0, 2**32), length=st.integers(1, 20))
@settings(RELAXED, max_examples=40)
def test_further_dims_of_a_known_program_agree_with_the_reference(check: Check, seed: int, length: int) -> None:
    """The second and third dims go through patching of the first plan; going back finds it prepared."""
    for grow in (0, 1, 7, 0):
        b, inputs = random_program(seed, length, grow)
        check(b, inputs)
