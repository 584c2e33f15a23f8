"""The device, switched on over the loopback link before any test of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.device import link, switch_on
from tests.support.loopback import LoopbackLink
from wooly.link import Flush

switch_on()


@pytest.fixture
def flushes() -> Iterator[list[Flush]]:
    """Every flush sent during the test."""
    loopback: LoopbackLink = link()
    loopback.flushes.clear()
    loopback.keep = True
    yield loopback.flushes
    loopback.keep = False
