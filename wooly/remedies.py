"""Installation remedies: sentences that error messages end with.

Wooly is installed from a checkout or from wheels built there, so no sentence names a package index.
"""

from __future__ import annotations

from typing import Final

__all__ = ["INSTALL_CLIENT", "INSTALL_PLATFORM", "install_extra"]

INSTALL_CLIENT: Final = "run `pip install .` in a checkout of Wooly, or install the wooly wheel"
INSTALL_PLATFORM: Final = "run `pip install ./wooly_server` in a checkout of Wooly, or install the wheel of wooly-server"


def install_extra(name: str) -> str:
    """How to install the client's extra ``name`` (pyproject.toml)."""
    return f"run `pip install '.[{name}]'` in a checkout of Wooly, or install the wooly wheel with the extra `{name}`"
