"""Kernel devices for the tests of what all of them must do alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jit.errors import ToolchainError
from tests.support.kernel_devices import KERNEL_DEVICES, KernelDevice


@pytest.fixture(scope="module", params=sorted(KERNEL_DEVICES))
def device(request: pytest.FixtureRequest) -> Iterator[KernelDevice]:
    """Each device that this machine has."""
    try:
        made: KernelDevice = KERNEL_DEVICES[request.param]()
    except ToolchainError as error:
        pytest.skip(f"no {request.param} device here: {error}")
    yield made
    made.close()
