"""Random torch programs as in test_programs.py: compiled for the host, cut into slices, without fusion, and on OpenCL."""

from __future__ import annotations

import pytest

from tests.support.programs import run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("programs", "seed"), [(8, 50_000), *(pytest.param(30, seed, marks=pytest.mark.variant) for seed in (50_000, 150_000))]
)
def test_programs_compiled_for_the_host_agree_with_the_cpu(programs: int, seed: int) -> None:
    run(programs, seed, "--backend", "host")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("programs", "options"),
    [
        pytest.param(4, ("--cut",), id="cut"),
        pytest.param(4, ("--no-fusion",), id="no-fusion"),
        # PoCL takes ten times as long to compile.
        pytest.param(4, ("--backend", "opencl", "--in-process"), id="opencl", marks=pytest.mark.variant),
    ],
)
def test_programs_in_slices_without_fusion_and_on_opencl_agree_with_the_cpu(programs: int, options: tuple[str, ...]) -> None:
    run(programs, 60_000, *options)
