"""Installation remedies, sentences that error messages end with; and the tested versions of torch.

Wooly is installed from a checkout or from wheels built there, so no sentence names a package index.
"""

from __future__ import annotations

import re
from typing import Final

from wooly.errors import UnsupportedTorch

__all__ = ["INSTALL_CLIENT", "INSTALL_PLATFORM", "check_version", "install_extra", "range_text"]

INSTALL_CLIENT: Final = "run `pip install .` in a checkout of Wooly, or install the wooly wheel"
INSTALL_PLATFORM: Final = "run `pip install ./wooly_server` in a checkout of Wooly, or install the wheel of wooly-server"


def install_extra(name: str) -> str:
    """How to install the client's extra ``name`` (pyproject.toml)."""
    return f"run `pip install '.[{name}]'` in a checkout of Wooly, or install the wooly wheel with the extra `{name}`"


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
