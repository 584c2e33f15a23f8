"""What ``import torch`` calls at its end (entry-point group ``torch.backends``): switches the device on when it is asked for.

Asked for means: ``WOOLY_NATS_URL`` in the environment or in the config file, or the process was started by ``wooly run``. Otherwise
nothing happens, and nothing is imported but this module and the configuration's.

May live here: the decision and its error handling. May not: anything slow at import, anything that can raise into ``import torch``
unless ``wooly run`` wants it to.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from wooly.errors import ActivationError, WoolyError

__all__ = ["autoload", "launch", "failure"]

_launched = False
_flags: dict[str, Any] = {}
failure: BaseException | None = None
"""Why switching on failed in this process, if it did."""


def launch(flags: Mapping[str, Any]) -> None:
    """``wooly run`` says: switch on whatever the environment says, with these flags, and let a failure stop the script."""
    global _launched
    _launched = True
    _flags.update(flags)


def autoload() -> None:
    """Called once by torch, at the end of its import. Raises only under ``wooly run``, and where a module of the user's hides one of ours:
    a script that asked for the device must not run on without it for a file's name."""
    global failure
    try:
        from wooly import config

        if not (_launched or config.is_enabled()):
            return
        _activate()
    except Exception as error:  # whatever goes wrong here must not break `import torch` for a script that may not even use the device
        failure = error
        if _launched:
            raise
        hidden = _hidden() if isinstance(error, ImportError) else ""
        if hidden:
            raise ActivationError(hidden) from error
        _report(error)


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
    from wooly import config
    from wooly.device.face import checks

    settings = config.load(_flags)
    checks.check_process(settings)  # before importing modules that use torch's private names

    from wooly.activation import activate

    activate(settings)


def _report(error: Exception) -> None:
    """One line on stderr; not the warnings module, whose filters could turn it into the exception that must not happen."""
    what = str(error) if isinstance(error, WoolyError) else f"{type(error).__name__}: {error}"
    try:
        sys.stderr.write(f"wooly: the remote device stays off: {what} (`wooly doctor` shows more)\n")
    except OSError:
        pass  # stderr is closed: the message cannot be shown
