"""Entry point that ``import torch`` calls at its end (group ``torch.backends``): switches the device on when it is requested.

Asked for means: ``WOOLY_NATS_URL`` in the environment or in the config file, or the process was started by ``wooly run``. Otherwise
nothing happens, and nothing is imported but this module and the configuration's. A script that asked for the device and cannot have it
fails: ``import torch`` raises. With WOOLY_ON_FAILURE=cpu the script runs on the CPU.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from wooly import config
from wooly.errors import ActivationError, WoolyError

__all__ = ["autoload", "launch", "failure"]

_launched = False
_flags: dict[str, Any] = {}
failure: BaseException | None = None
"""Why switching on failed in this process, if it did."""


def launch(flags: Mapping[str, Any]) -> None:
    """``wooly run`` says: switch on whatever the environment says, with these flags."""
    global _launched
    _launched = True
    _flags.update(flags)


def autoload() -> None:
    """Called once by torch, at the end of its import. Raises ActivationError, with one sentence, when the device is asked for and cannot be
    had; under ``wooly run``, which shows one line, the error itself."""
    global failure
    try:
        if not (_launched or config.is_enabled()):
            return
        _activate()
    except Exception as error:  # whatever goes wrong: the user decides whether the script runs without the device
        failure = error
        what = (_hidden() if isinstance(error, ImportError) else "") or _sentence(error)
        if config.goes_on_without(_flags):
            _report(f"the remote device stays off: {what}")
        elif _launched and isinstance(error, WoolyError):
            raise
        else:
            if sys.excepthook is sys.__excepthook__:
                sys.excepthook = _show
            cause = None if isinstance(error, WoolyError) else error
            raise ActivationError(f"{what}; WOOLY_ON_FAILURE=cpu runs the script on the CPU, `wooly doctor` shows more") from cause


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, WoolyError) else f"{type(error).__name__}: {error}"


def _hidden() -> str:
    """Which module of the user's Python found in place of a package of ours, and what to do; empty: none."""
    import importlib.util
    from pathlib import Path

    ours = Path(__file__).resolve().parents[1]
    for name in ("wis", "bus_schemas"):
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
        if found is not None and found.parent.parent != ours:
            return f"{found} hides the package {name!r} that wooly needs: rename that file, or start the script with `python -P`"
    return ""


def _activate() -> None:
    from wooly.device.face import checks

    settings = config.load(_flags)
    processes = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is None:  # a child has the environment of its parent, which has said it
        for text in config.unknown_variables():
            _report(text)
    checks.check_process(settings)  # before importing modules that use torch's private names

    collects = gc.isenabled()
    gc.disable()  # what is imported and registered stays; collections would walk torch's million objects meanwhile
    try:
        from wooly.activation import activate

        activate(settings)
    finally:
        if collects:
            gc.enable()


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """One line for the failure, which torch wraps into an error of its own that advises to switch the device off; else Python's report."""
    if isinstance(error.__cause__, ActivationError):
        _report(str(error.__cause__))
    else:
        sys.__excepthook__(kind, error, trace)


def _report(text: str) -> None:
    """One line on stderr; not the warnings module, whose filters could turn it into an exception."""
    try:
        sys.stderr.write(f"wooly: {text}\n")
    except (OSError, AttributeError, ValueError):
        pass  # standard error is closed
