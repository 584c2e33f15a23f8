"""Detects how this process ends: its exit code, the exception that ended it, or the signal that killed it.

Python says no exit handler how the process ends, so this module keeps three watches from ``watch()`` on. An exception that nothing caught
is in ``sys.last_value`` when the exit handlers run. The exit code of ``SystemExit`` is read by the interpreter through the class attribute
``SystemExit.code``, so a descriptor in its place sees that reading (``sys.exit`` of Python 3.11 makes no instance whose code could be read,
so it is replaced by one that does). A signal whose default is to end the process gets a handler that reports and then lets it end the
process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NoReturn

from bus_schemas.events import OUTCOME_ERROR_CHARS_MAX, Outcome

_DEADLY: Final = ("SIGTERM", "SIGHUP")
_INTERRUPTED_CODE: Final = 130

_lock: Final = threading.Lock()
_watching = False
_exit_code: int | None = None
_error: BaseException | None = None
_on_kill: list[Callable[[Outcome], None]] = []


def watch() -> None:
    """Begin to watch. Again: nothing."""
    global _watching
    with _lock:
        if _watching:
            return
        _watching = True
    with contextlib.suppress(Exception):  # another interpreter than we know
        _watch_exit_code()
    if threading.current_thread() is threading.main_thread():
        pid = os.getpid()
        for name in _DEADLY:
            number = getattr(signal, name)
            if signal.getsignal(number) is signal.SIG_DFL:  # a script that handles it decides itself how it ends
                signal.signal(number, lambda number, frame: _killed(pid, number, frame))


def on_kill(report: Callable[[Outcome], None]) -> Callable[[], None]:
    """Call ``report`` when a signal is about to kill the process; returns what takes that back. It must be quick, and take no lock that
    the main thread may hold."""
    _on_kill.append(report)
    return lambda: _on_kill.remove(report) if report in _on_kill else None


def failed_with(error: BaseException) -> None:
    """A launcher says: ``error`` ended the script, and it ends the process with an exit code of its own."""
    global _error
    _error = error


def at_child_end(finish: Callable[[], None]) -> None:
    """In a process that multiprocessing started, call ``finish`` at its end: a forked one runs no exit handlers."""
    if _is_child():
        from multiprocessing.util import Finalize

        Finalize(None, finish, exitpriority=0)


def of_process() -> Outcome:
    """How the process ends, asked by an exit handler, or by what ``at_child_end`` calls."""
    child = _is_child()
    error = _error or _uncaught() or (sys.exc_info()[1] if child else None)
    if isinstance(error, SystemExit):
        return Outcome(_number(error.code), child=child)
    if isinstance(error, KeyboardInterrupt):
        return Outcome(_INTERRUPTED_CODE, _name(error), int(signal.SIGINT), child=child)
    if error is not None:
        return Outcome(_exit_code or 1, _name(error), child=child)
    return Outcome(_exit_code or 0, child=child)


def _number(code: object) -> int:
    """The exit code of the process for the code of a SystemExit."""
    return 0 if code is None else code & 0xFF if isinstance(code, int) else 1


def _uncaught() -> BaseException | None:
    """The exception that ended the main program. At a prompt (Python's, IPython's, a notebook's) one that is printed ends nothing."""
    error = getattr(sys, "last_value", None)
    trace = getattr(error, "__traceback__", None)
    if hasattr(sys, "ps1") or not isinstance(error, BaseException) or trace is None or trace.tb_frame.f_back is not None:
        return None
    return error


def _is_child() -> bool:
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None


def _name(error: BaseException) -> str:
    """The class as a traceback names it, and ours without their module, which users never name."""
    kind = type(error)
    plain = kind.__module__ in ("builtins", "__main__") or kind.__module__.partition(".")[0] == "wooly"
    name = kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"
    return name[:OUTCOME_ERROR_CHARS_MAX]


def _killed(pid: int, number: int, frame: FrameType | None) -> None:
    """Report, then die by the signal as if there had been no handler. In a forked child there is nothing to report."""
    if os.getpid() == pid:
        for report in _on_kill:
            with contextlib.suppress(Exception):
                report(Outcome(128 + number, "", number))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class _Code:
    """Stands for ``SystemExit.code``. The interpreter's own reading, at the end of the process, has no Python frame below it."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __get__(self, error: BaseException | None, kind: type[BaseException] | None = None) -> Any:
        if error is None:
            return self
        code = self._original.__get__(error, kind)
        if sys._getframe().f_back is None and threading.current_thread() is threading.main_thread():
            global _exit_code
            _exit_code = _number(code)
        return code

    def __set__(self, error: BaseException, value: Any) -> None:
        self._original.__set__(error, value)

    def __delete__(self, error: BaseException) -> None:
        self._original.__delete__(error)


def _exit(status: Any = None, /) -> NoReturn:
    """``sys.exit``, raising an instance."""
    raise status if isinstance(status, SystemExit) else SystemExit(status)


def _watch_exit_code() -> None:
    if sys.version_info < (3, 12):
        for name, value in list(vars(sys.modules["__main__"]).items()):
            if value is sys.exit:  # from sys import exit
                setattr(sys.modules["__main__"], name, _exit)
        sys.exit = _exit
    original = SystemExit.__dict__["code"]
    (attributes,) = gc.get_referents(SystemExit.__dict__)  # the dictionary behind the read-only view
    attributes["code"] = _Code(original)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    if SystemExit(7).code != 7:
        attributes["code"] = original
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
