"""Finds the line of the user's script that is being executed, for error messages about work that was sent earlier."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from types import FrameType
from typing import Final

import torch

__all__ = ["user_line"]

_HERE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH: Final = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARIES: Final = (os.path.dirname(os.path.dirname(_TORCH)) + os.sep, sysconfig.get_path("stdlib") + os.sep)
_INTERNAL: Final = (_HERE, _TORCH, "<wooly", "<frozen")


def user_line() -> str:
    """``file:line`` of the innermost frame that is neither ours nor torch's, and no other library's if there is one; of the main thread
    when this one has none (threads of torch's: nested backward passes beyond its depth limit). Empty: there is none."""
    line = _line(sys._getframe(1))
    if line:
        return line
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    return _line(main) if main is not None else ""


def _line(frame: FrameType | None) -> str:
    library: FrameType | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_INTERNAL):
            if not name.startswith(_LIBRARIES):
                return f"{name}:{frame.f_lineno}"
            library = library or frame
        frame = frame.f_back
    return f"{library.f_code.co_filename}:{library.f_lineno}" if library is not None else ""
