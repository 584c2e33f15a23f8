"""``WOOLY_CHECK=cpu``: every operation runs on this machine's CPU beside the device, and the first that differs ends the script.

Where the mode is on, the kernels that the device registers are wrapped: before a call its tensors are copied here (snapshot), the same
operation runs on the copies, then on the device, and what both have afterwards is compared by the rules for that operation (rules). A
difference is raised as ``CheckFailed`` with the user's line (places) and a script that makes the call again (script). Where the mode is
off, nothing of this package is imported.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from wooly import progress
from wooly.device.checking import report
from wooly.device.checking.call import CheckedCall, CheckedView
from wooly.device.checking.report import REPORT
from wooly.device.schema import describe, overload

__all__ = ["Checked", "REPORT", "switch_on"]

_NOT_COMPARED: Final = frozenset(
    "set_ is_set_to record_stream is_pinned _copy_from _copy_from_and_resize _nested_from_padded _nested_tensor_from_mask".split()
)
"""Operations that only deal with storages, or hand on to another operation that is compared."""


class Checked:
    """A ``torch.library.Library`` whose kernels are compared with the CPU's."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def impl(self, name: str, kernel: Callable[..., Any], key: str) -> None:
        """Register ``kernel``, wrapped, for the operation ``name`` at dispatch key ``key``."""
        self._library.impl(name, _checked(name if "::" in name else f"aten::{name}", kernel), key)


def switch_on(folder: str = "") -> Callable[[Any], Checked]:
    """What wraps the library of kernels. Scripts go to ``folder``, else to the working directory."""
    report.keep_forward_lines()
    atexit.register(lambda: progress.checked(REPORT.summary()))
    REPORT.open(Path(folder) if folder else Path.cwd())
    return Checked


def _checked(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    op = overload(name)
    if op is None:
        return kernel
    info = describe(name, op)
    if info.base in _NOT_COMPARED:
        return kernel
    kind = CheckedView if info.is_view or torch.Tag.inplace_view in info.tags else CheckedCall

    def checked(*args: Any, **kwargs: Any) -> Any:
        REPORT.stop()
        call = kind(info, kernel, args, kwargs)
        probe = call.without_dropout()
        if probe is not None:
            probe.run()
        return call.run()

    return checked
