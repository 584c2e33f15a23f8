"""The face of the device: makes torch present the private-use backend to Python as ``cuda``."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from wooly import errors
from wooly.device import transfer
from wooly.device.face import (
    autocast,
    bindings,
    cuda,
    devices,
    factories,
    foreign,
    generators,
    guard,
    profiler,
    storages,
    streams,
    switches,
    tensors,
)
from wooly.device.face.api import Face, RecorderApi
from wooly.device.face.cuda import backend_module

__all__ = ["RecorderApi", "backend_module", "patch"]


class _OutOfMemory(errors.QuotaExceeded, torch.OutOfMemoryError):
    """What CUDA programs catch as torch.cuda.OutOfMemoryError."""


class _DeviceAssert(errors.DeviceAssertError, torch.AcceleratorError):
    """What CUDA programs catch as torch.AcceleratorError."""


_OutOfMemory.__name__ = _OutOfMemory.__qualname__ = "OutOfMemoryError"


class _OutOfFuel(errors.OutOfFuelError, torch.AcceleratorError):
    """What CUDA programs catch as torch.AcceleratorError: a launch that was ended."""


_OutOfFuel.__name__ = _OutOfFuel.__qualname__ = "OutOfFuelError"
_DeviceAssert.__name__ = _DeviceAssert.__qualname__ = "DeviceAssertError"


def _current() -> int:
    """The number that torch's C++ side is to take for the current device."""
    beside = transfer.beside_index()
    return devices.current() if beside is None else beside


def patch(apis: Mapping[int, RecorderApi], device_count: int = 1) -> None:
    """Put the face on. Once a process, after the backend and its kernels are registered. ``apis``: the recorders, by index of the device;
    the first one is there, others may come."""
    face = Face(apis, device_count)
    devices.set_count(device_count)
    errors.present(errors.QuotaExceeded, _OutOfMemory)
    errors.present(errors.DeviceAssertError, _DeviceAssert)
    errors.present(errors.OutOfFuelError, _OutOfFuel)
    guard.lend(_current if device_count > 1 and not devices.is_rank() else None)
    for put_on in (
        bindings.patch, cuda.patch, bindings.patch_comm, streams.patch, generators.patch, cuda.patch_accelerator, tensors.patch_legacy,
        tensors.patch, storages.patch, foreign.patch, factories.patch, autocast.patch, switches.patch_recurrent, switches.patch,
        cuda.patch_compiler, profiler.patch,
    ):  # fmt: skip
        put_on(face)
    devices.number_devices()
