"""Loaded by Python at the start of a case's processes: writes the client's counters at exit, and whether the session outlived an error."""

import atexit
import json
import os
import sys
from typing import Any

_report: dict[str, Any] = {"lost": "", "stats": {}}
_previous = sys.excepthook


def _stats() -> dict[str, Any]:
    wooly = sys.modules.get("wooly")
    return wooly.stats() if wooly is not None and hasattr(wooly, "stats") else {}


def _after_error(kind: Any, value: Any, trace: Any) -> None:
    _previous(kind, value, trace)
    torch: Any = sys.modules.get("torch")
    if torch is not None and _stats().get("batches") and not isinstance(value, KeyboardInterrupt):
        try:
            if (torch.ones(3, device="cuda") + 1).sum().item() != 6:
                _report["lost"] = "the session answers wrong values"
        except Exception as error:
            _report["lost"] = f"{type(error).__name__}: {error}"


def _write() -> None:
    _report["stats"] = _stats()
    with open(os.path.join(os.environ["ECOSYSTEM_REPORTS"], f"{os.getpid()}.json"), "w") as file:
        json.dump(_report, file)


if os.environ.get("ECOSYSTEM_REPORTS"):
    sys.excepthook = _after_error
    atexit.register(_write)
