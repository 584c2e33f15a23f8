"""Fixtures of several files; a file with a control plane, a door or a node of its own has a fixture of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.door import Door
from tests.support.node import Node
from tests.support.plane import Plane


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    """One controller for tests that do not disturb each other: each uses nodes and groups of its own."""
    with Plane() as running:
        yield running


@pytest.fixture
def door(plane: Plane) -> Iterator[Door]:
    found = Door(plane.controller.url)
    yield found
    found.connection.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as running:
        yield running
