"""Resolves devices: the names users write, the ones torch knows the backend by, and the current device.

A device has the number in torch by which the script knows it. In a process that torchrun or a launcher like it has started
(``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``) there is one device, which torch knows as index 0 and whose number is the local rank; the script then
sees as many devices as there are local ranks, and means its own one by each of them.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable
from typing import Any, Final

import torch

from wooly.config import HIDE_LOCAL
from wooly.device.backend import BACKEND, DEVICES_MAX, OURS, SHOWN

DeviceArg = torch.device | str | int | None
"""What torch.cuda's functions take as a device."""

_ORDINAL_MAX: Final = 64
_count = 1
_n_ranks = 1
_own = 0
"""The number of the one device of a rank."""
_local: Final = threading.local()
"""``number``: of the thread's current device."""
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
    global _count, _visible, _n_ranks, _own
    _count, _visible = number, None
    _own, _n_ranks = _launched()
    make_current(0)
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
    """The number of the thread's current device, as the script sees it."""
    return _own if is_rank() else getattr(_local, "number", 0)


def make_current(number: int) -> None:
    """Let ``cuda`` mean this device in the thread that calls."""
    _local.number = number


def is_rank() -> bool:
    """Did a launcher start this process as one of several, which each have a device?"""
    return _n_ranks > 1


def chosen(index: int = 0) -> int:
    """Which of the task's devices torch's device ``index`` is. Raises RuntimeError when there is none."""
    number = number_of(_own if is_rank() else index)
    assert _visible, "the device exists"
    return _visible[number % len(_visible)]


def no_devices() -> RuntimeError:
    """What CUDA says where no device can be seen."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    hint = "" if text in ("", "-1") else f" (CUDA_VISIBLE_DEVICES={text!r}, and this task has devices 0 to {_count - 1})"
    return RuntimeError(f"No CUDA GPUs are available{hint}")


def invalid_ordinal() -> RuntimeError:
    """What CUDA says to ``cuda:7`` on a machine with fewer devices."""
    return torch.AcceleratorError("CUDA error: invalid device ordinal")


def number_of(device: DeviceArg) -> int:
    """The number of ``device`` (a cuda device, in any spelling; None or no index: the current one).

    Raises what CUDA raises: AcceleratorError for an ordinal that does not exist, ValueError for another device type.
    """
    global _visible
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type not in OURS:
            raise ValueError(f"Expected a cuda device, but got: {device}")
        device = device.index
    number = current() if device is None or device < 0 else device
    if _visible is None:
        _visible = _find_visible()
    if not 0 <= number < count():
        raise invalid_ordinal() if _visible else no_devices()
    return number


def _add_nothing(index: int) -> None:
    """Before the device is installed."""


_add: Callable[[int], None] = _add_nothing


def add_with(add: Callable[[int], None]) -> None:
    """``add(index)`` readies a device of the process before it is used; it may be called more than once."""
    global _add
    _add = add


def index_of(device: DeviceArg) -> int:
    """torch's index of ``device``, which is ready to be used. Raises what ``number_of`` does; NotImplementedError for too many devices."""
    number = number_of(device)
    if is_rank() or not number:
        return 0
    if number >= DEVICES_MAX:
        raise NotImplementedError(f"cuda:{number}: a process uses at most {DEVICES_MAX} devices; start several, as torchrun does")
    _add(number)
    return number


def shown(device: torch.device) -> torch.device:
    """``device`` as users see it: ``cuda:0``, for example, for ours; any other unchanged."""
    return _shown[(device.index or 0) + _own] if device.type in OURS else device


def ours(index: int = 0) -> torch.device:
    """The device object torch's C++ side knows."""
    return torch.device(BACKEND, index)


def number_devices() -> None:
    """Let ``torch.device(1)`` be ``cuda:1``, as on CUDA.

    torch's constructor takes a number for a device of the private-use backend, and its class allows no subclass and no new attribute. So
    the class gets a ``__new__`` in the way that classes written in Python have theirs (``tp_new`` of CPython's type objects), which calls
    torch's own. Where the class looks different, it stays as it is.
    """
    get_slot = ctypes.pythonapi.PyType_GetSlot
    get_slot.restype, get_slot.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_int)
    own, python = get_slot(torch.device, _TP_NEW), get_slot(_WithNew, _TP_NEW)
    words = (ctypes.c_void_p * _TYPE_WORDS).from_address(id(torch.device))
    places = [place for place, word in enumerate(words) if word == own]
    attributes = next((found for found in gc.get_referents(torch.device.__dict__) if isinstance(found, dict)), None)
    if own == python or len(places) != 1 or attributes is None:
        return
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.py_object)(own)

    def new(kind: type[torch.device], *args: Any, **keywords: Any) -> Any:
        number = args[0] if len(args) == 1 and not keywords else keywords.get("device") if len(keywords) == 1 and not args else None
        if type(number) is int and number >= 0:
            args, keywords = (SHOWN, number), {}
        return make(kind, args, keywords)

    attributes["__new__"] = staticmethod(new)
    words[places[0]] = python
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(torch.device))


_TP_NEW: Final = 65  # of CPython's typeslots.h, which is part of its stable interface
_TYPE_WORDS: Final = 51  # of a PyTypeObject in CPython 3.11; later ones are larger


class _WithNew:
    def __new__(cls) -> _WithNew:
        return object.__new__(cls)


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
    given = torch.device(device)
    result = ours(index_of(given))
    if given.index is not None or count() == 1:
        _translated[device] = result
    return result
