"""What foreign code must not get: our data pointers are names of remote memory, and whoever follows one on this machine crashes.

May live here: refusals of pointers and of zero-copy protocols. May not: ways around them.

``data_ptr`` stays callable for the libraries that compare pointers to find shared memory and never follow them.
"""

from __future__ import annotations

import sys
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from wooly.device.backend import TensorBase, is_ours
from wooly.device.face.api import Face, put, wrapping
from wooly.errors import ForeignPointerError

__all__ = ["IDENTITY_USERS", "patch"]

IDENTITY_USERS: Final = frozenset({"torch", "transformers", "safetensors", "accelerate", "peft", "wooly"})
"""Packages that use data_ptr() only to tell tensors apart."""

_INSTEAD: Final = "the memory is on a remote device; copy the tensor to this machine first, by Tensor.cpu()"


def patch(face: Face) -> None:
    """Refuse every way to a pointer."""
    _numpy()
    _pointers()
    _protocols()


def _numpy() -> None:
    original = Tensor.numpy

    @wrapping(original)
    def numpy(self: Tensor, *, force: bool = False) -> Any:
        if is_ours(self):
            if not force:
                raise TypeError(
                    f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
                )
            self = self.detach().cpu()
        return original(self, force=force)

    put(Tensor, "numpy", numpy)


def _pointers() -> None:
    original = TensorBase.data_ptr

    @wrapping(Tensor.data_ptr)
    def data_ptr(self: Tensor) -> int:
        if is_ours(self):
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.partition(".")[0] not in IDENTITY_USERS:
                raise ForeignPointerError(f"data_ptr() of a cuda tensor cannot be given to {caller or 'this code'}: {_INSTEAD}")
        return original(self)  # type: ignore[no-any-return]

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

    @wrapping(original_dlpack)
    def dlpack(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_ours(self):
            _refuse("__dlpack__")
        return original_dlpack(self, *args, **kwargs)

    @wrapping(original_device)
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
