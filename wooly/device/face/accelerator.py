"""torch.accelerator, and the module of our backend's own name (``torch.wooly``): both give the answers of torch.cuda."""

from __future__ import annotations

from collections import OrderedDict
from types import ModuleType
from typing import Any

import torch

from wooly.device.backend import BACKEND
from wooly.device.face.api import Face, put_all

__all__ = ["patch", "backend_module"]


def patch(face: Face) -> None:
    """Point torch.accelerator at torch.cuda (which has its face on)."""
    cuda: Any = torch.cuda
    module: Any = torch.accelerator

    def current_accelerator(check_available: bool = False) -> torch.device:
        return torch.device("cuda")

    def memory_stats(device_index: Any = None, /) -> OrderedDict[str, Any]:
        return OrderedDict(cuda.memory_stats(device_index))

    def get_device_capability(device: Any = None, /) -> dict[str, Any]:
        cuda._get_device_index(device, optional=True)
        return {"supported_dtypes": {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool}}

    values: dict[str, Any] = {
        "current_accelerator": current_accelerator,
        "current_device_index": cuda.current_device,
        "current_device_idx": cuda.current_device,
        "set_device_index": cuda.set_device,
        "set_device_idx": cuda.set_device,
        "device_index": cuda.device,
        "get_device_capability": get_device_capability,
        "memory_stats": memory_stats,
        "empty_host_cache": lambda: None,
        "get_memory_info": cuda.mem_get_info,
    }
    for name in (
        "current_stream",
        "set_stream",
        "synchronize",
        "empty_cache",
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
    ):
        values[name] = getattr(cuda, name)
    put_all((module, module.memory), values)


class _BackendModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # a module's own: torch.cuda's file and spec are not ours
        return getattr(torch.cuda, name)


def backend_module() -> ModuleType:
    """What to register under the backend's name."""
    module = _BackendModule(f"torch.{BACKEND}", __doc__)
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]  # type: ignore[attr-defined]  # autocast asks for it
    return module
