"""Finds the line of the user's program that made a call, also during a backward pass.

The innermost frame outside of torch and of this client is the user's. During a backward pass it is the line that called ``backward``, and
torch's anomaly mode has kept the line of the forward operation.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from types import FrameType
from typing import Any, Final

import torch

__all__ = ["keep_forward_lines", "place"]

_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_WOOLY: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_STANDARD: Final = sysconfig.get_paths()["stdlib"] + os.sep


def keep_forward_lines() -> None:
    """Let autograd keep the Python line of every operation that it records."""
    torch.autograd.set_detect_anomaly(True, check_nan=False)


def _is_users(filename: str) -> bool:
    return not filename.startswith((_TORCH, _WOOLY, "<"))


def _is_installed(filename: str) -> bool:
    return filename.startswith(_STANDARD) or f"{os.sep}site-packages{os.sep}" in filename or f"{os.sep}dist-packages{os.sep}" in filename


def _users(frame: FrameType | None) -> list[tuple[str, int, str]]:
    """(file, line, function) of every frame of the user's, innermost first."""
    found = []
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def _text(at: tuple[str, int, str]) -> str:
    filename, line, function = at
    source = linecache.getline(filename, line).strip()
    return f"{filename}:{line} in {function}" + (f": {source}" if source else "")


def place() -> list[str]:
    """Lines of text: where the call is made; for a library's line also the innermost line that is not installed."""
    frames = _users(sys._getframe(1))
    node = torch._C._current_autograd_node()
    if node is None:
        return _shown(frames) or ["no line of Python made this call"]
    texts = [f"in backward of {node.name()}"]
    texts += _shown(frames)
    forward = _forward_line(node)
    return [*texts, f"the forward operation: {forward}"] if forward else texts


def _shown(frames: list[tuple[str, int, str]]) -> list[str]:
    if not frames:
        return []
    texts = [_text(frames[0])]
    own = next((at for at in frames if not _is_installed(at[0])), None)
    if own is not None and own is not frames[0]:
        texts.append(f"called from {_text(own)}")
    return texts


def _forward_line(node: torch.autograd.graph.Node) -> str | None:
    """The user's innermost line in the stack that anomaly mode kept."""
    metadata: dict[str, Any] = node.metadata  # type: ignore[assignment]  # a property, in torch's stubs a method
    for entry in reversed(metadata.get("traceback_") or ()):
        head, _, source = entry.strip().partition("\n")
        parts = head.split('"')
        if len(parts) == 3 and _is_users(parts[1]):
            return f"{parts[1]}:{parts[2].removeprefix(', line ').replace(', in ', ' in ')}: {source.strip()}"
    return None
