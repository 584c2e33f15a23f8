"""The device, switched on over the loopback link before any test of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.device import link, switch_on
from tests.support.loopback import LoopbackLink

switch_on()


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compiled kernels go to a folder of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture
def fresh_link() -> Iterator[LoopbackLink]:
    """For tests that end the session: afterwards it is as if nothing had happened."""
    loopback: LoopbackLink = link()
    yield loopback
    loopback.forget_fault()
