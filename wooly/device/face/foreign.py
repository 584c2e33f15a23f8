"""Guards against dereferencing: data pointers of the device's tensors name remote memory, and dereferencing one here would crash.

``data_ptr`` gives a number to the libraries that compare pointers to find shared memory and never follow them, and an opaque object to
all other code; a library's module that calls C by ctypes, which would refuse the object without a reason, is refused.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from functools import total_ordering
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from wooly.device.backend import TensorBase, is_ours, storage_of
from wooly.device.face.api import Face, overridable, put, wrapping
from wooly.errors import ForeignPointerError

IDENTITY_USERS: Final = frozenset({"torch", "transformers", "safetensors", "accelerate", "peft", "triton", "wooly"})
"""Packages that use data_ptr() only to tell tensors apart, or to see how they are aligned."""

_INSTEAD: Final = "the memory is on a remote device; copy the tensor to this machine first, by Tensor.cpu()"


def patch(face: Face) -> None:
    """Refuse every way to a pointer."""
    _numpy()
    _pointers()
    _protocols()


def _numpy() -> None:
    original = Tensor.numpy

    @overridable(original)
    def numpy(self: Tensor, *, force: bool = False) -> Any:
        if is_ours(self):
            if not force:
                raise TypeError(
                    f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
                )
            self = self.detach().cpu()
        return original(self, force=force)

    put(Tensor, "numpy", numpy)


@total_ordering
class DevicePointer:
    """A data pointer as other code gets it: it can be compared, hashed and shown, and refuses to become a number.

    So ``a.data_ptr() == b.data_ptr()`` works, and ``ctypes.c_void_p(a.data_ptr())`` is an error instead of a crash.
    """

    __slots__ = ("_address", "storage")

    def __init__(self, address: int, storage: Any = None) -> None:
        self._address = address
        self.storage = storage

    @property
    def address(self) -> int:
        """For launches of kernels, which find the memory by ``storage``."""
        return self._address

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DevicePointer):
            return self._address == other._address
        return isinstance(other, int) and self._address == other

    def __lt__(self, other: DevicePointer | int) -> bool:
        return self._address < (other._address if isinstance(other, DevicePointer) else other)

    def __hash__(self) -> int:
        return hash(self._address)

    def __bool__(self) -> bool:
        return self._address != 0

    def __sub__(self, other: DevicePointer | int) -> DevicePointer | int:
        """Bytes between two pointers; a number of bytes before this one."""
        return self._address - other._address if isinstance(other, DevicePointer) else DevicePointer(self._address - other, self.storage)

    def __add__(self, nbytes: int) -> DevicePointer:
        return DevicePointer(self._address + nbytes, self.storage)

    __radd__ = __add__

    def __mod__(self, alignment: int) -> int:
        return self._address % alignment

    def __int__(self) -> NoReturn:
        _refuse("the data pointer")

    __index__ = __int__

    def __repr__(self) -> str:
        return f"<pointer {self._address:#x} on cuda>"


_INSTALLED: Final = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"))
"""Parts of a file's path that say it is no code of the user's own."""


def _pointers() -> None:
    original = TensorBase.data_ptr

    @overridable(Tensor.data_ptr)
    def data_ptr(self: Tensor) -> Any:
        address: int = original(self)
        if not is_ours(self):
            return address
        caller = sys._getframe(2)  # beyond the wrapper
        module = caller.f_globals.get("__name__", "")
        if module.partition(".")[0] in IDENTITY_USERS:
            return address
        installed = any(part in caller.f_code.co_filename for part in _INSTALLED)
        if installed and any(value is ctypes for value in caller.f_globals.values()):
            raise ForeignPointerError(f"data_ptr() of a cuda tensor cannot be given to {module or 'this code'}: {_INSTEAD}")
        storage = storage_of(self)
        storage._wooly_pointed = True  # from now on it stays where it is
        return DevicePointer(address, storage)

    put(Tensor, "data_ptr", data_ptr)


def _refuse(what: str) -> NoReturn:
    raise ForeignPointerError(f"{what} of a cuda tensor is not available here: {_INSTEAD}")


def _protocols() -> None:
    original_interface = Tensor.__cuda_array_interface__

    def cuda_array_interface(self: Tensor) -> Any:
        if is_ours(self):
            _refuse("__cuda_array_interface__")
        return original_interface.__get__(self)

    put(Tensor, "__cuda_array_interface__", property(cuda_array_interface))

    original_dlpack, original_device = Tensor.__dlpack__, Tensor.__dlpack_device__

    @overridable(original_dlpack)
    def dlpack(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_ours(self):
            _refuse("__dlpack__")
        return original_dlpack(self, *args, **kwargs)

    @overridable(original_device)
    def dlpack_device(self: Tensor) -> Any:
        if is_ours(self):
            _refuse("__dlpack_device__")
        return original_device(self)

    put(Tensor, "__dlpack__", dlpack)
    put(Tensor, "__dlpack_device__", dlpack_device)
    _dlpack_functions()


def _dlpack_functions() -> None:
    import torch.utils.dlpack as typed_module

    module: Any = typed_module  # to_dlpack is C++ and has no type
    original_to, original_from = module.to_dlpack, module.from_dlpack

    @wrapping(original_to)
    def to_dlpack(tensor: Tensor) -> Any:
        if is_ours(tensor):
            _refuse("to_dlpack()")
        return original_to(tensor)

    @wrapping(original_from)
    def from_dlpack(ext_tensor: Any, **kwargs: Any) -> Tensor:
        if isinstance(ext_tensor, Tensor) and is_ours(ext_tensor):
            return ext_tensor.detach()  # what the round trip means: the same memory, without history
        made: Tensor = original_from(ext_tensor, **kwargs)
        return made

    for owner in (module, torch):
        if hasattr(owner, "to_dlpack"):
            put(owner, "to_dlpack", to_dlpack)
        put(owner, "from_dlpack", from_dlpack)
