"""The module torch calls for our backend's own name (``torch.wooly``): torch.cuda's functions under another name."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from wooly.device.backend import BACKEND

__all__ = ["backend_module"]


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
