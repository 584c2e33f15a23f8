"""The kernel corpus in the ordinary test run, on the devices that need no toolkit; ``make kernels`` runs all of it on all devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jit.errors import ToolchainError
from tests.conformance.kernels.binding import build
from tests.conformance.kernels.runner import differences, partition_faults, run_case
from tests.conformance.kernels.targets import emitted_fault, source_fault
from tests.golden.cuda.cases import CASES, CATEGORIES, ROOT
from tests.support.kernel_devices import KERNEL_DEVICES

OPENCL_EVERY = 8
"""PoCL takes half a second to compile a kernel: of the corpus, one in so many."""
TARGET_EVERY = 40
LONG = ("crypto/sha256", "sorts/insertion_local")
"""LLVM takes more than ten seconds for one of these, most of it for the versions in pieces."""


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, Any]]:
    made = {name: KERNEL_DEVICES[name]() for name in ("reference", "host")}
    yield made
    for device in made.values():
        device.close()


@pytest.fixture(scope="module")
def opencl() -> Iterator[Any]:
    try:
        device = KERNEL_DEVICES["opencl"]()
    except ToolchainError as error:
        pytest.skip(f"this machine has no OpenCL: {error}")
    yield device
    device.close()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.variant) if name in LONG else name for name in CASES])
def test_equal_to_numpy_everywhere(name: str, devices: dict[str, Any]) -> None:
    """Right, the same bits and counts on both devices; certified grids also in pieces."""
    case = CASES[name]
    reference, host = (run_case(case, device, devices[device]) for device in ("reference", "host"))
    assert (reference.faults, host.faults) == ([], [])
    assert list(differences(reference, host, counts=not case.racy)) == []
    if build(case).verified.certificate.allows(case.grid, case.block):
        assert partition_faults(case, host, devices["host"]) == []


@pytest.mark.parametrize("name", list(CASES)[::OPENCL_EVERY])
def test_the_same_on_opencl(name: str, devices: dict[str, Any], opencl: Any) -> None:
    case = CASES[name]
    host, other = run_case(case, "host", devices["host"]), run_case(case, "opencl", opencl)
    assert other.faults == []
    assert list(differences(host, other, counts=not case.racy)) == []


@pytest.mark.parametrize("name", list(CASES)[::TARGET_EVERY])
def test_nvidia_compiles_the_source_and_what_we_emit(name: str) -> None:
    assert source_fault(CASES[name], "sm_90") == ""
    assert emitted_fault(CASES[name], "sm_90") == ""


def test_every_source_has_a_case_and_every_category_sources() -> None:
    sources = {path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.glob("*/*.cu")}
    assert sources == {case.source for case in CASES.values()}
    assert {source.partition("/")[0] for source in sources} == set(CATEGORIES)
    assert len(sources) >= 60
