"""The device guard that torch's C++ side asks for when it sees device type CUDA.

Without it the C++ side aborts the process in places where it handles a ``cuda`` device before our kernels see it (a device context,
indices on the CPU, autograd metadata).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from wooly.errors import UnsupportedTorch

_SYMBOL: Final = "_ZN3c104impl26device_guard_impl_registryE"
_SLOTS: Final = 21  # one atomic pointer a device type, in torch 2.10 to 2.15
_CUDA: Final = 1
_META: Final = 14
_PRIVATE_USE: Final = 20
_LIBRARIES: Final = Path(torch.__file__).parent / "lib"
_INCLUDE: Final = _LIBRARIES.parent / "include"
_GUARD: Final = _INCLUDE / "c10" / "core" / "impl" / "DeviceGuardImplInterface.h"
_HOOKS: Final = tuple(_INCLUDE / "ATen" / "detail" / f"{name}HooksInterface.h" for name in ("Accelerator", "PrivateUse1"))
_GET_DEVICE: Final = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)  # c10::Device: a byte of type, a byte of index
_kept: Final[list[Any]] = []  # functions that the tables below name
_tables: Final[dict[int, ctypes.Array[ctypes.c_void_p]]] = {}  # tables of virtual functions, by the object that has one


def lend(current: Callable[[], int] | None) -> None:
    """Let device type CUDA have a guard that needs no driver; raises UnsupportedTorch when this torch looks different. ``current``: gives
    the number of the thread's current device, None: there is one device."""
    _settle_streams(current)
    _lend_pinned_memory()
    if torch._C._has_cuda:
        # A CUDA build has a function for this: its real guard gives way to one that does nothing when there is no device.
        torch._C._ensureCUDADeviceGuardSet()
        return
    library = _LIBRARIES / "libc10.so"
    try:
        registry = (ctypes.c_void_p * _SLOTS).in_dll(ctypes.CDLL(str(library)), _SYMBOL)
    except (OSError, ValueError):
        raise UnsupportedTorch(
            f"torch {torch.__version__} has no guard registry in {library.name}, which only the official Linux builds of torch have; "
            "install torch from PyPI or download.pytorch.org"
        ) from None
    if not registry[_PRIVATE_USE]:
        raise UnsupportedTorch(f"torch {torch.__version__} did not register our device guard where 2.10 to 2.15 do; install one of those")
    if registry[_CUDA] and registry[_CUDA] != registry[_PRIVATE_USE]:
        raise UnsupportedTorch(
            f"torch {torch.__version__} is a CPU build with a CUDA device guard of its own; install an official build of torch"
        )
    registry[_CUDA] = registry[_PRIVATE_USE]


def _settle_streams(current: Callable[[], int] | None) -> None:
    """Replace our guard's ``exchangeStream``, which calls into Python, by that of the meta device, which does nothing.

    Autograd calls it when it leaves an operation, also while an exception of a hook is on its way out. A Python call with an exception
    pending fails, and torch ends the process then. ``getDevice`` answers ``current``, where ``torch.tensor(0, device="cuda")`` asks.
    """
    try:
        declared = _declared(_GUARD)
        registry = (ctypes.c_void_p * _SLOTS).in_dll(ctypes.CDLL(str(_LIBRARIES / "libc10.so")), _SYMBOL)
        place, asked = declared.index("exchangeStream"), declared.index("getDevice")
    except (OSError, ValueError):
        return
    ours, meta = registry[_PRIVATE_USE], registry[_META]
    if ours and meta:
        functions = {place: _table_of(meta)[place]}
        if current is not None:
            _kept.append(_GET_DEVICE(lambda _: _PRIVATE_USE | current() << 8))
            functions[asked] = ctypes.cast(_kept[-1], ctypes.c_void_p).value
        _replace(ours, declared, functions)


def _lend_pinned_memory() -> None:
    """Let torch's C++ side have ordinary memory where it asks our hooks for pinned memory (DDP, where parameters may be unused), and take
    any for pinned. Both functions that stand in need no object."""
    try:
        declared = _declared(*_HOOKS)
        torch_cpu, c10 = (ctypes.CDLL(str(_LIBRARIES / f"{name}.so")) for name in ("libtorch_cpu", "libc10"))
        hooks = torch_cpu["_ZN2at6detail19getPrivateUse1HooksEv"]
        stand_ins = {
            declared.index("getPinnedMemoryAllocator"): c10["_ZN3c1015GetCPUAllocatorEv"],
            declared.index("isPinnedPtr"): torch_cpu["_ZN2at28isPrivateUse1HooksRegisteredEv"],  # it is
        }
    except (OSError, ValueError, AttributeError):
        return
    hooks.restype = ctypes.c_void_p
    _replace(hooks(), declared, {place: ctypes.cast(function, ctypes.c_void_p).value for place, function in stand_ins.items()})


def _declared(*headers: Path) -> list[str]:
    """The virtual functions that headers of torch declare, as they stand in the table: a destructor is two. Raises OSError for a torch
    that ships no headers."""
    names = [name for path in headers for name in re.findall(r"^ +virtual [^;(]*?(~?\w+)\(", path.read_text(), re.MULTILINE)]
    return [name for found in names for name in ([found] * 2 if found.startswith("~") else [found])]


def _table_of(address: int) -> Any:
    return ctypes.POINTER(ctypes.c_void_p).from_address(address)


def _replace(address: int, declared: Sequence[str], functions: Mapping[int, int | None]) -> None:
    """Give the object at ``address`` a table of its own, with other functions at some places. Once an object."""
    if address in _tables:
        return
    before = 2  # offset and type
    table = (ctypes.c_void_p * (before + len(declared)))()
    for i in range(before + len(declared)):
        table[i] = _table_of(address)[i - before]
    for place, function in functions.items():
        table[before + place] = function
    _tables[address] = table
    ctypes.c_void_p.from_address(address).value = ctypes.addressof(table) + before * ctypes.sizeof(ctypes.c_void_p)
