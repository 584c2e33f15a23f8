"""Resolves devices: the names users write, the ones torch knows the backend by, and the current device.

A process uses one device, which torch knows as index 0. Its number is the first one that the script uses. In a process that torchrun or a
launcher like it has started (``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``), it is the local rank; the script then sees as many devices as there are
local ranks, and means its own one by each of them.
"""

from __future__ import annotations

import os
from typing import Any, Final

import torch

from wooly.config import HIDE_LOCAL
from wooly.device.backend import BACKEND, OURS, SHOWN

__all__ = [
    "DeviceArg", "index_of", "shown", "ours", "to_backend", "set_count", "count", "current", "is_rank", "chosen", "invalid_ordinal",
    "no_devices",
]  # fmt: skip

DeviceArg = torch.device | str | int | None
"""What torch.cuda's functions take as a device."""

_ORDINAL_MAX: Final = 64
_count = 1
_n_ranks = 1
_own = 0
_settled = False
_visible: tuple[int, ...] | None = None
_shown: Final = tuple(torch.device(SHOWN, index) for index in range(_ORDINAL_MAX))


def _launched() -> tuple[int, int]:
    """The local rank that a launcher gave this process, and how many there are."""
    rank, ranks = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    if rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks) <= _ORDINAL_MAX:
        return int(rank), int(ranks)
    return 0, 1


def set_count(number: int) -> None:
    """How many devices the task has."""
    global _count, _visible, _n_ranks, _own, _settled
    _count, _visible, _settled = number, None, False
    _own, _n_ranks = _launched()
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
    n_visible = len(_find_visible() if _visible is None else _visible)
    return n_visible and max(n_visible, _n_ranks)


def current() -> int:
    """The number of this process's device, as the script sees it."""
    return _own


def is_rank() -> bool:
    """Did a launcher start this process as one of several, which each have a device?"""
    return _n_ranks > 1


def chosen() -> int:
    """Which of the task's devices this process uses; from now on that is settled. Raises RuntimeError when there is none."""
    global _settled
    _checked(_own)
    _settled = True
    assert _visible, "the device exists"
    return _visible[_own % len(_visible)]


def no_devices() -> RuntimeError:
    """What CUDA says where no device can be seen."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    hint = "" if text in ("", "-1") else f" (CUDA_VISIBLE_DEVICES={text!r}, and this task has devices 0 to {_count - 1})"
    return RuntimeError(f"No CUDA GPUs are available{hint}")


def invalid_ordinal() -> RuntimeError:
    """What CUDA says to ``cuda:7`` on a machine with fewer devices."""
    return torch.AcceleratorError("CUDA error: invalid device ordinal")


def _checked(index: int) -> int:
    global _visible, _own
    if _visible is None:
        _visible = _find_visible()
    if not 0 <= index < count():
        raise invalid_ordinal() if _visible else no_devices()
    if index != _own and not is_rank():
        if _settled:
            raise NotImplementedError(
                f"cuda:{index}: this process uses cuda:{_own}, and a process uses one device; start one process a device, as torchrun does"
            )
        _own = index
        _translated.clear()
    return 0


def index_of(device: DeviceArg) -> int:
    """torch's index of ``device`` (a cuda device, in any spelling; None or no index: the current one), which becomes the process's one.

    Raises what CUDA raises: AcceleratorError for an ordinal that does not exist, ValueError for another device type; NotImplementedError
    for a second device.
    """
    if device is None:
        return _checked(_own)
    if isinstance(device, int):
        return _checked(_own if device < 0 else device)
    if isinstance(device, str):
        device = torch.device(device)
    if device.type not in OURS:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return _checked(_own if device.index is None else device.index)


def shown(device: torch.device) -> torch.device:
    """``device`` as users see it: ``cuda:0``, or the process's number, for ours; any other unchanged."""
    return _shown[_own] if device.type in OURS else device


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
