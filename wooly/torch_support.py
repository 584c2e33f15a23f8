"""The tested versions of torch."""

from __future__ import annotations

import re
from typing import Final

from wooly.errors import UnsupportedTorch

__all__ = ["TESTED_FIRST", "TESTED_LAST", "check_version", "range_text"]

TESTED_FIRST: Final = (2, 10)
TESTED_LAST: Final = (2, 15)


def range_text() -> str:
    """``2.10 to 2.15``"""
    return f"{_text(TESTED_FIRST)} to {_text(TESTED_LAST)}"


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def check_version(version: str) -> None:
    """Raises UnsupportedTorch for a version (as in ``torch.__version__``) outside the tested range."""
    match = re.match(r"(\d+)\.(\d+)", version)
    found = (int(match[1]), int(match[2])) if match else (0, 0)
    if not TESTED_FIRST <= found <= TESTED_LAST:
        raise UnsupportedTorch(
            f"torch {version} is not tested with this version of wooly; install torch {range_text()}, "
            f"for example: pip install 'torch>={_text(TESTED_FIRST)},<{TESTED_LAST[0]}.{TESTED_LAST[1] + 1}'"
        )
