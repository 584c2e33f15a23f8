"""Cuts tracebacks of uncaught errors at the user's line: frames of this package below it are left out.

WOOLY_DEBUG=1 keeps all frames.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from types import TracebackType
from typing import Final

__all__ = ["install", "without_our_frames"]

_OURS: Final = (os.path.dirname(os.path.abspath(__file__)) + os.sep,)
_LIBRARIES: Final = (*(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")), "<frozen")
_SHOWN_TO_USERS: Final = (RuntimeError, IndexError, ValueError, OSError)
"""What this package raises for a mistake of the script. Other classes may be a fault of ours: their frames are needed."""


def install() -> None:
    """Leave our frames out of what ``sys.excepthook`` and ``threading.excepthook`` show from now on."""
    shown, shown_of_thread = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _trim(error)
        shown(kind, error, error.__traceback__)

    def thread_hook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None:
            _trim(arguments.exc_value)
            kind, error, thread = arguments.exc_type, arguments.exc_value, arguments.thread
            arguments = threading.ExceptHookArgs((kind, error, error.__traceback__, thread))
        shown_of_thread(arguments)

    sys.excepthook, threading.excepthook = hook, thread_hook


def _trim(error: BaseException | None) -> None:
    """Of ``error`` and those that it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, _SHOWN_TO_USERS):
            error.__traceback__ = without_our_frames(error.__traceback__)
        error = error.__cause__ if error.__cause__ is not None or error.__suppress_context__ else error.__context__


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """``trace`` without its end, where that lies in this package or in libraries that it calls. Frames of the script that this package
    calls back stay, with all above them; a trace that holds no other frames stays whole."""
    links: list[TracebackType] = []
    keep, inside = 0, False
    link = trace
    while link is not None:
        links.append(link)
        name = link.tb_frame.f_code.co_filename
        inside = name.startswith(_OURS) or (inside and name.startswith(_LIBRARIES))
        if not inside:
            keep = len(links)
        link = link.tb_next
    if keep in (0, len(links)):
        return trace
    end: TracebackType | None = None
    for link in reversed(links[:keep]):
        end = TracebackType(end, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return end
