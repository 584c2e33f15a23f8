"""The device guard that torch's C++ side asks for when it sees device type CUDA.

Without it the C++ side aborts the process in places where it handles a ``cuda`` device before our kernels see it (a device context,
indices on the CPU, autograd metadata).
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Final

import torch

from wooly.errors import UnsupportedTorch

__all__ = ["lend"]

_SYMBOL: Final = "_ZN3c104impl26device_guard_impl_registryE"
_SLOTS: Final = 21  # one atomic pointer a device type, in torch 2.10 to 2.15
_CUDA: Final = 1
_META: Final = 14
_PRIVATE_USE: Final = 20
_INTERFACE: Final = Path("include", "c10", "core", "impl", "DeviceGuardImplInterface.h")
_tables: Final[list[ctypes.Array[ctypes.c_void_p]]] = []  # tables of virtual functions live as long as this


def lend() -> None:
    """Let device type CUDA have a guard that needs no driver; raises UnsupportedTorch when this torch looks different."""
    _settle_streams()
    if torch._C._has_cuda:
        # A CUDA build has a function for this: its real guard gives way to one that does nothing when there is no device.
        torch._C._ensureCUDADeviceGuardSet()
        return
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
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


def _settle_streams() -> None:
    """Replace our guard's ``exchangeStream``, which calls into Python, by that of the meta device, which does nothing.

    Autograd calls it when it leaves an operation, also while an exception of a hook is on its way out. A Python call with an exception
    pending fails, and torch ends the process then. Where it stands in the table of virtual functions is read from torch's own header;
    a torch that ships none keeps its guard.
    """
    folder = Path(torch.__file__).parent
    try:
        declared = re.findall(r"^ +virtual [^;(]*?(~?\w+)\(", (folder / _INTERFACE).read_text(), re.MULTILINE)
        registry = (ctypes.c_void_p * _SLOTS).in_dll(ctypes.CDLL(str(folder / "lib" / "libc10.so")), _SYMBOL)
        place = declared.index("exchangeStream")
    except (OSError, ValueError):
        return
    ours, meta = registry[_PRIVATE_USE], registry[_META]
    if not (ours and meta) or _tables:
        return
    before, count = 2, len(declared) + 1  # offset and type before the functions; a virtual destructor is two of them
    table_of = ctypes.POINTER(ctypes.c_void_p).from_address
    table = (ctypes.c_void_p * (before + count))()
    for i in range(before + count):
        table[i] = table_of(ours)[i - before]
    table[before + place] = table_of(meta)[place]
    _tables.append(table)
    ctypes.c_void_p.from_address(ours).value = ctypes.addressof(table) + before * ctypes.sizeof(ctypes.c_void_p)
