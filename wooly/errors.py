"""Errors of the client: one tree, in which the class names the responsible component.

Each message is a sentence that says what happened and what to do. All derive from RuntimeError, because that is what PyTorch
programs catch around device code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bus_schemas.quotas import Excess

__all__ = [
    "WoolyError",
    "ConfigError",
    "ActivationError",
    "UnsupportedTorch",
    "ServiceError",
    "NoServerError",
    "NodeLostError",
    "SessionLostError",
    "PlacementError",
    "ApiError",
    "QuotaReachedError",
    "TaskCancelledError",
    "BudgetExceededError",
    "DeviceError",
    "QuotaExceeded",
    "DeviceAssertError",
    "OutOfFuelError",
    "SwapCorruptError",
    "KernelError",
    "KernelArgumentError",
    "KernelLaunchError",
    "UnsupportedOperation",
    "CompileError",
    "ToolchainMissing",
    "ForkError",
    "ForeignPointerError",
    "CheckFailed",
    "RefusedError",
    "ProtocolError",
    "present",
    "from_fault",
    "quota_reached",
]


class WoolyError(RuntimeError):
    """Root of the tree."""


class ConfigError(WoolyError):
    """The configuration is wrong. The message names the key, the value, its source and what is allowed."""


class ActivationError(WoolyError):
    """The device cannot be switched on in this process (a local GPU is in use, a backward pass already ran, ...)."""


class UnsupportedTorch(ActivationError):
    """This build of torch is not supported, or lacks an interface that the device depends on."""


class ServiceError(WoolyError):
    """A service is missing or failed: a matter for the operator, not a fault of the script."""


class NoServerError(ServiceError):
    """No service answers: the URL is wrong, or no bus or no node is running."""


class NodeLostError(ServiceError):
    """The node stopped answering while the session ran; its memory is lost."""


class RecoveryDivergedError(NodeLostError):
    """The node lost the session's memory, and repeating its batches did not give the answers that they gave before."""


class SessionLostError(ServiceError):
    """The node no longer knows the session: its lease ran out or it was closed."""


class PlacementError(ServiceError):
    """The controller could not be reached, or no device fits this task."""


class ApiError(ServiceError):
    """A REST service refused a request. ``status``: the HTTP status; ``fields``: (name, message) of each invalid field; ``kind`` and
    ``detail``: of the problem document (the last part of its type, and its sentence), empty without one; ``excess``: what the document says
    of a quota that refused it (``quota``, ``limit``, ``used``, ``retry_after_ms``)."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        fields: Sequence[tuple[str, str]] = (),
        kind: str = "",
        detail: str = "",
        excess: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.fields = tuple(fields)
        self.excess = dict(excess or {})


class QuotaReachedError(PlacementError):
    """A quota of the tenant or the key refuses one more task, session or other thing. ``quota``: its name; ``limit`` and ``used``: in its
    unit; ``retry_after_ms``: when to try again."""

    def __init__(self, message: str, *, quota: str = "", limit: int = 0, used: int = 0, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.quota = quota
        self.limit = limit
        self.used = used
        self.retry_after_ms = retry_after_ms


class TaskCancelledError(ServiceError):
    """This task was cancelled; the message names the user. Its memory on the node is lost."""


class BudgetExceededError(ServiceError):
    """The tenant's budget is used up, and its batches are refused. The session keeps its memory and the batches that were not run: a script
    that catches this and continues later, after a grant or in a new period, resumes where it stopped."""


class DeviceError(WoolyError):
    """The script asked for something the device cannot do."""


class QuotaExceeded(DeviceError):
    """The task's VRAM quota is used up. ``quota_bytes``, ``used_bytes`` and ``asked_bytes`` are 0 if the node did not report them."""

    def __init__(self, message: str, *, quota_bytes: int = 0, used_bytes: int = 0, asked_bytes: int = 0) -> None:
        super().__init__(message)
        self.quota_bytes = quota_bytes
        self.used_bytes = used_bytes
        self.asked_bytes = asked_bytes


class DeviceAssertError(DeviceError):
    """A program trapped on the node (an index out of range, say): what CUDA calls a device-side assert."""


class OutOfFuelError(DeviceError):
    """A kernel of the script executed more thread-instructions than a launch may; it may be endless. The session is over."""


class SwapCorruptError(ServiceError):
    """Swapped-out memory was damaged on the node's disk. None of it was used; the session is over."""


class KernelError(DeviceError):
    """The node's device cannot run a kernel of the script, or compiling it exceeded the limits of time or memory."""


class KernelArgumentError(DeviceError, TypeError):
    """A kernel of the script was called with too few or too many arguments, or with one of the wrong type; the message names it."""


class KernelLaunchError(DeviceError, ValueError):
    """Grid, block, shared memory or alignment of a launch exceed what the kernel or any node accepts."""


class UnsupportedOperation(DeviceError, NotImplementedError):
    """The device lacks an operation, and the fallback to the CPU is switched off or impossible."""


class CompileError(WoolyError):
    """The CUDA source does not compile; ``log`` is the compiler's output."""

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class ToolchainMissing(WoolyError):
    """The compiler for CUDA sources is not installed; the message says how to get it."""


class ForkError(DeviceError):
    """The device was used in a forked child of the process that opened it."""


class ForeignPointerError(DeviceError):
    """A device pointer was about to reach code that would dereference it on this machine."""


class CheckFailed(WoolyError):
    """WOOLY_CHECK found an operation whose result differs on the device: a bug in Wooly. ``operation``: its name; ``script``: the path of a
    script that repeats the call."""

    def __init__(self, message: str, *, operation: str = "", script: str = "") -> None:
        super().__init__(message)
        self.operation = operation
        self.script = script


class RefusedError(WoolyError):
    """The node refused a batch that this client built: a bug in Wooly. ``places``: one ``rule @ place: text`` for each finding."""

    def __init__(self, message: str, *, name: str = "", places: Sequence[str] = (), where: str = "") -> None:
        super().__init__(message + "".join(f"\n  {line}" for line in (*places, where) if line))
        self.name = name
        self.places = tuple(places)


class ProtocolError(WoolyError):
    """Client and node have incompatible versions."""


_BY_FAULT: dict[str, type[WoolyError]] = {
    "ConfigError": ConfigError,
    "NoServerError": NoServerError,
    "NodeLostError": NodeLostError,
    "MemoryLost": NodeLostError,
    "TaskDisplaced": NodeLostError,
    "SessionLostError": SessionLostError,
    "SessionUnknown": SessionLostError,
    "PlacementError": PlacementError,
    "DeviceTaken": PlacementError,
    "QuotaReached": QuotaReachedError,
    "QuotaExceeded": QuotaExceeded,
    "OutOfMemory": QuotaExceeded,
    "Trap": DeviceAssertError,
    "DeviceAssertError": DeviceAssertError,
    "OutOfFuel": OutOfFuelError,
    "SwapCorrupt": SwapCorruptError,
    "KernelRefused": KernelError,
    "TaskCancelled": TaskCancelledError,
    "BudgetExceeded": BudgetExceededError,
    "PriorityCeiling": ConfigError,
    "ProtocolError": ProtocolError,
}


_ASSERT: Final = "device-side assert triggered: "
_BLOCKING: Final = "operations are sent in batches: CUDA_LAUNCH_BLOCKING=1 sends each at once, so that the line is exact"
_OUT_OF_MEMORY: Final = "out of memory: "
"""How a node begins."""


def present(error: type[WoolyError], shown: type[WoolyError]) -> None:
    """From now on raise ``shown``, a subclass, wherever a fault means ``error`` (the face adds the class that CUDA would raise)."""
    if not issubclass(shown, error):
        raise TypeError(f"{shown.__name__} is not a {error.__name__}")
    for name, known in _BY_FAULT.items():
        if issubclass(shown, known) and issubclass(known, error):
            _BY_FAULT[name] = shown


def quota_reached(message: str, excess: Excess) -> QuotaReachedError:
    """The exception for a node's refusal at a quota, to be raised by the caller."""
    from bus_schemas.texts import printable  # not at the top, as in from_fault

    return QuotaReachedError(
        printable(message), quota=excess.quota, limit=excess.limit, used=excess.used, retry_after_ms=excess.retry_after_ms
    )


def from_fault(name: str, message: str, places: Sequence[str] = (), where: str = "") -> WoolyError:
    """The exception for a node's fault, to be raised by the caller. A name without an entry is a refusal of our own batch.

    ``where``: what it is about in the user's script (``link.Origin.text``); empty: not known.
    """
    from bus_schemas.texts import printable  # not at the top: a process without the device imports this module and no schema

    name, message, places = printable(name), printable(message), tuple(map(printable, places))
    known = _BY_FAULT.get(name)
    if known is None:
        return RefusedError(f"{name}: {message}", name=name, places=places, where=where)
    if where:
        places = (*places, where)
    if issubclass(known, DeviceAssertError):
        message = f"CUDA error: device-side assert triggered: {message.removeprefix(_ASSERT)}"
        places = (*places, _BLOCKING) if where and os.environ.get("CUDA_LAUNCH_BLOCKING") != "1" else places
    if message.startswith(_OUT_OF_MEMORY):  # CUDA's words: programs that try a smaller batch next look for them
        rest = message.removeprefix(_OUT_OF_MEMORY)
        message = f"CUDA out of memory. {rest[:1].upper()}{rest[1:]}"
    return known(message + "".join(f"\n  {place}" for place in places))
