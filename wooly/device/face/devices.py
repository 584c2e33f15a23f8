"""Resolves devices: the names users write, the ones torch knows the backend by, and the current device."""

from __future__ import annotations

import os
from typing import Any, Final

import torch

from wooly.config import HIDE_LOCAL
from wooly.device.backend import BACKEND, OURS, SHOWN

__all__ = ["DeviceArg", "index_of", "shown", "ours", "to_backend", "set_count", "count", "chosen", "invalid_ordinal", "no_devices"]

DeviceArg = torch.device | str | int | None
"""What torch.cuda's functions take as a device."""

_ORDINAL_MAX: Final = 64
_count = 1
_visible: tuple[int, ...] | None = None
_shown: Final = tuple(torch.device(SHOWN, index) for index in range(_ORDINAL_MAX))


def set_count(number: int) -> None:
    """How many devices the task has."""
    global _count, _visible
    _count, _visible = number, None
    _translated.clear()
    torch.cuda._cached_device_count = None


def _find_visible() -> tuple[int, ...]:
    """Those of the task's devices that CUDA_VISIBLE_DEVICES lists, in its order and up to the first entry that names none, as CUDA reads
    it; all of them without it."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text in (None, HIDE_LOCAL):
        return tuple(range(_count))
    found: list[int] = []
    for entry in text.split(","):
        if not entry.strip().isdecimal() or int(entry) >= _count or int(entry) in found:
            break
        found.append(int(entry))
    return tuple(found)


def count() -> int:
    """How many devices the script sees. As on CUDA, CUDA_VISIBLE_DEVICES may change until a device is first used."""
    return len(_find_visible() if _visible is None else _visible)


def chosen() -> int:
    """Which of the task's devices is the script's first; from now on that is settled. Raises RuntimeError when there is none."""
    _checked(0)
    assert _visible, "the first device exists"
    return _visible[0]


def no_devices() -> RuntimeError:
    """What CUDA says where no device can be seen."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    hint = "" if text in ("", "-1") else f" (CUDA_VISIBLE_DEVICES={text!r}, and this task has devices 0 to {_count - 1})"
    return RuntimeError(f"No CUDA GPUs are available{hint}")


def invalid_ordinal() -> RuntimeError:
    """What CUDA says to ``cuda:7`` on a machine with fewer devices."""
    return torch.AcceleratorError("CUDA error: invalid device ordinal")


def _checked(index: int) -> int:
    global _visible
    if _visible is None:
        _visible = _find_visible()
    if not 0 <= index < len(_visible):
        raise invalid_ordinal() if _visible else no_devices()
    if index:
        raise NotImplementedError(
            f"cuda:{index}: this version runs a process on its first device only; use cuda:0, or start one process a device (GPU_COUNT=1)"
        )
    return index


def index_of(device: DeviceArg) -> int:
    """The index meant by ``device`` (a cuda device, in any spelling; None or no index: the current one).

    Raises what CUDA raises: AcceleratorError for an ordinal that does not exist, ValueError for another device type.
    """
    if device is None:
        return _checked(0)
    if isinstance(device, int):
        return _checked(max(device, 0))
    if isinstance(device, str):
        device = torch.device(device)
    if device.type not in OURS:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return _checked(device.index or 0)


def shown(device: torch.device) -> torch.device:
    """``device`` as users see it: ``cuda:0`` for ours, any other unchanged."""
    return _shown[device.index or 0] if device.type in OURS else device


def ours(index: int = 0) -> torch.device:
    """The device object torch's C++ side knows."""
    return torch.device(BACKEND, index)


_translated: Final[dict[Any, torch.device]] = {}


def to_backend(device: Any) -> Any:
    """``device`` for torch's C++ functions: a cuda device becomes ours (its index checked), anything else is returned as it is.

    Wrong spellings are returned too: the C++ function has the better error.
    """
    known = _translated.get(device) if isinstance(device, str | torch.device) else None
    if known is not None:
        return known
    if isinstance(device, bool):
        return device
    if isinstance(device, int):
        return ours(index_of(device))
    if isinstance(device, torch.device):
        if device.type not in OURS:
            return device
    elif not (isinstance(device, str) and device.partition(":")[0] in OURS):
        return device
    result = _translated[device] = ours(index_of(torch.device(device)))
    return result
