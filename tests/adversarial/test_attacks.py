"""Attacks on kernel devices: each ends only its own session, with the expected error, and the canary's results stay right.

All of them on the definition and on the host device, a sample on OpenCL, which takes a second to compile a kernel; ``make attacks`` runs
all on every device.
"""

from __future__ import annotations

from typing import Any

import pytest

from jit.errors import ToolchainError
from tests.adversarial.attacks import ATTACKS
from tests.adversarial.canary import Canary
from tests.adversarial.trial import trial
from tests.support.kernel_devices import KERNEL_DEVICES

OPENCL_EVERY = 9
ON_DEVICES = [name for name, attack in ATTACKS.items() if not attack.everywhere_alike]

Target = tuple[Any, Canary]


def _target(name: str) -> Target:
    try:
        device = KERNEL_DEVICES[name]()
    except ToolchainError as error:
        pytest.skip(f"this machine has no {name}: {error}")
    return device, Canary(device)


@pytest.fixture(scope="module")
def reference() -> Target:
    return _target("reference")


@pytest.fixture(scope="module")
def host() -> Target:
    return _target("host")


@pytest.fixture(scope="module")
def opencl() -> Target:
    return _target("opencl")


@pytest.mark.parametrize("name", ATTACKS)
def test_by_the_definition(name: str, reference: Target) -> None:
    assert trial(ATTACKS[name], *reference) == []


@pytest.mark.parametrize("name", ON_DEVICES)
def test_on_the_host(name: str, host: Target) -> None:
    assert trial(ATTACKS[name], *host) == []


@pytest.mark.parametrize("name", ON_DEVICES[::OPENCL_EVERY])
def test_on_opencl(name: str, opencl: Target) -> None:
    assert trial(ATTACKS[name], *opencl) == []


def test_there_are_attacks_of_every_kind() -> None:
    kinds = {attack.kind for attack in ATTACKS.values()}
    assert kinds == {"bounds", "pointers", "own", "endless", "barriers", "bombs", "ptx", "values", "launch", "bytes", "lies"}
    assert len(ATTACKS) >= 100
