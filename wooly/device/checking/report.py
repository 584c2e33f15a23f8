"""Findings and counts of the checking mode in this process, and the line of the user's program that made a call, also during a backward
pass.

After the first difference every further operation raises it again, so that a script which catches RuntimeError stops too.

The innermost frame outside of torch and of this client is the user's. During a backward pass it is the line that called ``backward``, and
torch's anomaly mode has kept the line of the forward operation.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from wooly.errors import CheckFailed


class Report:
    """The first difference, and how many calls were compared how."""

    def __init__(self) -> None:
        #: Calls whose values were compared.
        self.compared = 0
        #: Calls that draw random numbers: their results were tested for type, shape and range.
        self.by_property = 0
        #: Calls that the CPU cannot compute, by operation.
        self.skipped: Counter[str] = Counter()
        self._folder = Path()
        self._failed: CheckFailed | None = None
        self._lock = threading.Lock()

    def open(self, folder: Path) -> None:
        """Scripts go to ``folder``, which is made when it is needed."""
        self._folder = folder

    def stop(self) -> None:
        """Raise the difference that was found, if there was one."""
        if self._failed is not None:
            raise self._failed

    def forget(self) -> None:
        """Go on after a difference: for suites that look for many in one process."""
        self._failed = None

    def fail(self, name: str, text: str, write: Callable[[Path], None]) -> CheckFailed:
        """The error for a difference in operation ``name``; ``write(path)`` writes its script."""
        self._folder.mkdir(parents=True, exist_ok=True)
        script = self._path(name)
        write(script)
        advice = f"makes this one call again on both; run it with `wooly run {script.name}`, and send it with your report"
        message = f"{text}\n  script: {script} {advice}"
        with self._lock:
            if self._failed is None:
                self._failed = CheckFailed(message, operation=name, script=str(script))
            return self._failed

    def _path(self, name: str) -> Path:
        """A file that does not exist yet."""
        stem = "wooly_check_" + re.sub(r"\W+", "_", name.removeprefix("aten::"))
        number = 0
        while (path := self._folder / f"{stem}{f'_{number}' if number else ''}.py").exists():
            number += 1
        return path

    def summary(self) -> str:
        """One line for the end of a script."""
        text = f"{self.compared} operations gave the same on the CPU, {self.by_property} random ones passed by type, shape and range"
        if self.skipped:
            text += f"; the CPU cannot compute {', '.join(f'{name} ({n})' for name, n in sorted(self.skipped.items()))}"
        return text


REPORT: Final = Report()
"""The report of this process."""


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
