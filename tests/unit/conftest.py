"""What tests of several folders ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wooly.link import Flush


@pytest.fixture
def flushes() -> Iterator[list[Flush]]:
    """Every flush sent during the test."""
    from tests.support.device import link  # it imports torch

    loopback = link()
    loopback.flushes.clear()
    loopback.keep = True
    yield loopback.flushes
    loopback.keep = False
