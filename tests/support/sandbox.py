"""What tests of the sandbox need to know of this machine."""

from __future__ import annotations

import pytest

from wooly_server.sandbox import offered

__all__ = ["lacking", "needs_every_layer"]


def lacking(layers: tuple[str, ...]) -> list[str]:
    """The layers that do not hold though they need no privileges."""
    return [layer for layer in layers if layer.startswith(("no sandbox", "no network", "no no_new_privs", "no Landlock", "no seccomp"))]


_LACKING = lacking(offered())
needs_every_layer = pytest.mark.skipif(bool(_LACKING), reason=f"this machine lacks a layer: {', '.join(_LACKING)}")
