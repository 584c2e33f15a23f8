"""Entry point that ``import torch`` calls at its end (group ``torch.backends``): switches the device on when it is requested.

Asked for means: ``WOOLY_NATS_URL`` in the environment or in the config file, or the process was started by ``wooly run``. Otherwise
nothing happens, and nothing is imported but this module and the configuration's. A script that asked for the device and cannot have it
fails: ``import torch`` raises. With WOOLY_ON_FAILURE=cpu the script runs on the CPU.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import walk_packages
from types import TracebackType
from typing import Any, Final

from wooly import config
from wooly.errors import ActivationError, WoolyError

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


_ROOT: Final = Path(__file__).resolve().parents[1]
_BESIDE: Final = ("wis", "bus_schemas")
"""Packages of ours beside this one, whose names a user's file may have."""


def _in_place_of(name: str) -> ModuleSpec | None:
    """What of the user's Python finds in place of a package of ours; None: it finds ours."""
    spec = find_spec(name)
    found = spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent.parent != _ROOT
    return spec if found else None


def _hidden() -> str:
    """Which package of the user's Python found in place of one of ours, and what to do; empty: none."""
    for name in _BESIDE:
        spec = _in_place_of(name)
        if spec is not None:
            return f"{spec.origin} hides the package {name!r} that wooly needs: rename it, or start the script with `python -P`"
    return ""


@contextmanager
def _beside_the_users() -> Iterator[None]:
    """Where a module of the user's has the name of a package of ours, load all of ours, and leave the name to the user's: modules of ours
    are found by their own names, which the user's module, having none within, does not take."""
    names = [name for name in _BESIDE if (spec := _in_place_of(name)) is not None and spec.submodule_search_locations is None]
    if not names:
        yield
        return
    theirs = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    try:
        for name in names:
            spec = spec_from_file_location(name, _ROOT / name / "__init__.py", submodule_search_locations=[str(_ROOT / name)])
            assert spec is not None and spec.loader is not None, "a package has a loader"
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        for name in [*names, "wooly"]:
            for module in walk_packages(sys.modules[name].__path__, f"{name}."):
                if not module.name.startswith(("wooly.cli", "wooly.slurm")):  # which no script imports
                    import_module(module.name)
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(theirs)


def _activate() -> None:
    with _beside_the_users():
        _switch_on()


def _switch_on() -> None:
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
