"""The command in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Wooly, command_in


@pytest.fixture
def wooly(tmp_path: Path) -> Wooly:
    """See tests.support.command."""
    return command_in(tmp_path)
