"""Random torch programs as in test_programs.py: compiled for the host, cut into slices, without fusion, and on OpenCL."""

from __future__ import annotations

import pytest

from tests.support.programs import run


@pytest.mark.slow
@pytest.mark.parametrize("seed", [50_000, pytest.param(150_000, marks=pytest.mark.variant)])
def test_programs_compiled_for_the_host_agree_with_the_cpu(seed: int) -> None:
    run(30, seed, "--backend", "host")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("programs", "options"),
    [(8, ("--cut",)), (8, ("--no-fusion",)), (4, ("--backend", "opencl", "--in-process"))],  # PoCL takes ten times as long to compile
    ids=["cut", "no-fusion", "opencl"],
)
def test_programs_in_slices_without_fusion_and_on_opencl_agree_with_the_cpu(programs: int, options: tuple[str, ...]) -> None:
    run(programs, 60_000, *options)
