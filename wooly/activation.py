"""Activates the device in this process: backend, kernels, face, in that order. Then tracebacks of uncaught errors are cut at the user's
line: frames of this package below it are left out (WOOLY_DEBUG=1 keeps all frames).
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from wooly.config import Config
from wooly.counters import COUNTERS
from wooly.device import fallback, install, transfer
from wooly.device.face import backend_module, patch
from wooly.device.face.devices import add_with, chosen, index_of, is_rank
from wooly.device.imports import when_imported
from wooly.device.lowering.trace import Trace
from wooly.device.recorder import RECORDERS
from wooly.link import Link
from wooly.rest import Credentials

if TYPE_CHECKING:
    from wooly.profiling import ProfiledLink
    from wooly.session import Session

__all__ = ["activate", "end_sessions", "without_our_frames"]

_ends: Final[list[Callable[[], None]]] = []
"""What ends each session that is open, in the order of their opening."""


def activate(config: Config, connect: Callable[[int], Link] | None = None) -> None:
    """Make ``cuda`` appear. ``connect`` opens the session of a device, at first use; the default goes to the bus that ``config`` names.

    Raises RuntimeError when the device is on already. Nothing is sent and no connection is made here.
    """
    fallback.allow_cpu(config.cpu_fallback)
    transfer.replace_whole(config.weights_dedup)
    transfer.check_device_with(index_of)
    add_with(_refuse_another if config.check == "cpu" else install.add_device)
    Trace.refuses_nan = config.check == "nan"
    with warnings.catch_warnings():
        # A CUDA build has kernels of its own at the CUDA key; that ours take their place is the purpose, not news.
        warnings.filterwarnings("ignore", message=r".*Overriding a previously registered kernel", category=UserWarning)
        warnings.filterwarnings("ignore", message=r".*other operators may also be overridden", category=UserWarning)
        install.register(connect or partial(_open, config), backend_module(), *_checking(config))
    atexit.register(_do_nothing, _AtLast())
    patch(RECORDERS, config.device_count)
    when_imported("triton.backends", partial(_run_triton_here, config.triton_math))
    when_imported("torch.utils.cpp_extension", _build_extensions)
    when_imported("numba.cuda", _run_numba_here)
    when_imported("cupy", _run_cupy_here)
    if not config.debug:
        cut_tracebacks()
    # torch's import leaves a million long-lived objects; collections that walk them would cost tens of milliseconds while recording.
    gc.freeze()


class _AtLast:
    """Ends the sessions when the interpreter drops its exit handlers. It calls all of them before: those that the script registered before
    it imported torch are called after ours, and may use the device as well."""

    def __del__(self) -> None:
        end_sessions()


def _do_nothing(at_last: _AtLast) -> None:
    """The exit handler that holds ``at_last``."""


def end_sessions() -> None:
    """End each open session, the last opened first: what is pending is sent, and totals are shown."""
    with ExitStack() as each:
        each.callback(install.close_all)
        for end in _ends:
            each.callback(end)


def _refuse_another(index: int) -> None:
    raise NotImplementedError(f"cuda:{index}: WOOLY_CHECK=cpu checks the work of one device; use cuda:0, or do not set it")


def _run_triton_here(math: str, backends: Any) -> None:
    from wis.kernel.model import Math
    from wooly.kernels.triton import replace_nvidia  # only for scripts that import Triton

    replace_nvidia(backends, Math[math.upper()])


def _build_extensions(module: Any) -> None:
    from wooly.kernels.extension import patch  # only for scripts that build extensions

    patch(module)


def _run_numba_here(module: Any) -> None:
    from wooly.kernels.numba import patch  # only for scripts that import it

    patch(module)


def _run_cupy_here(module: Any) -> None:
    from wooly.kernels.cupy import patch  # only for scripts that import it

    patch(module)


def _checking(config: Config) -> list[Callable[[Any], Any]]:
    """What kernels are wrapped with: nothing, unless the configuration asks for their results to be compared."""
    if config.check != "cpu":
        return []
    from wooly.device import checking  # only where it is asked for

    return [checking.switch_on(config.check_dir)]


def _open(config: Config, index: int) -> Link:
    """A session over the bus for device ``index``. At exit the recorder sends what is pending and closes it; then its totals are shown."""
    from wooly import outcome, progress
    from wooly.session import open_session

    device = chosen(index)
    if is_rank() and config.controller_url and not config.task_id:  # each rank is a task with one device
        config, device = replace(config, gpu_count=1), 0
    session = open_session(config, title=os.path.basename(sys.argv[0] if sys.argv else ""), device=device)
    opened_at_s = progress.opened(session.info, session.info.tenant or config.tenant)
    profiled = _profiled(config, session, index)

    pid = os.getpid()
    outcome.watch()
    survive = outcome.on_kill(session.abandon)

    def finish() -> None:
        if os.getpid() != pid or finish not in _ends:
            return  # a forked child that runs its exit handlers, the session is its parent's; or it has ended
        _ends.remove(finish)
        survive()
        session.outcome = outcome.of_process()
        RECORDERS[index].close()
        session.close()
        if profiled is not None:
            for line in profiled.finish(COUNTERS.fallbacks):
                progress.say(f"wooly: profile: {line}")
        progress.closed(session.totals, opened_at_s, config.billing_url or config.controller_url, session.info.task, Credentials.of(config))

    # The session's own farewell would come before the recorder's; this runs both in order.
    atexit.unregister(session.close)
    _ends.append(finish)
    outcome.at_child_end(finish)
    link: Link = profiled or session
    if config.record:
        from wooly.profiling import path_of
        from wooly.recording import RecordingLink

        link = RecordingLink(link, Path(path_of(config.record, os.environ, index)), config.record_mb << 20)
    if config.debug:
        progress.switch_on()
        return progress.VerboseLink(link)
    return link


def _profiled(config: Config, session: Session, index: int) -> ProfiledLink | None:
    """The session with a profile of it, where the configuration asks for one."""
    if not config.profile:
        return None
    from wooly.profiling import ProfiledLink, path_of

    profiled = ProfiledLink(session, path_of(config.profile, os.environ, index))
    profiled.listen()
    return profiled


_OURS: Final = (os.path.dirname(os.path.abspath(__file__)) + os.sep,)
_LIBRARIES: Final = (*(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")), "<frozen")
_SHOWN_TO_USERS: Final = (RuntimeError, IndexError, ValueError, OSError)
"""What this package raises for a mistake of the script. Other classes may be a fault of ours: their frames are needed."""


def cut_tracebacks() -> None:
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
