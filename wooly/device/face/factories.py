"""Functions that make tensors and take ``pin_memory=True``: there is nothing to pin for here, and torch's hook for it would throw.

May live here: the wrappers. May not: anything about devices (the kernels at torch's CUDA key see to those).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from wooly.device.face.api import Face, put, wrapping

__all__ = ["PINNING_FUNCTIONS", "PINNING_METHODS", "patch"]

PINNING_FUNCTIONS: Final = tuple(
    """
    arange empty empty_like empty_permuted empty_strided eye full full_like linspace logspace ones ones_like rand rand_like randint
    randint_like randn randn_like randperm range scalar_tensor tensor tril_indices triu_indices zeros zeros_like
    """.split()
)
PINNING_METHODS: Final = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")


def patch(face: Face) -> None:
    """Wrap every such function: the request is honoured by a pinned-marked tensor of ordinary memory."""
    from torch.utils._device import _device_constructors

    _device_constructors()  # caches the original functions, by which `with torch.device(...)` recognises a factory
    for owner, names in ((torch, PINNING_FUNCTIONS), (torch.Tensor, PINNING_METHODS)):
        for name in names:
            put(owner, name, _pinning(getattr(owner, name)))


def _pinning(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wrapping(original)
    def factory(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "pin_memory" in kwargs:
            wanted = kwargs.pop("pin_memory")
            made = original(*args, **kwargs)
            return made.pin_memory() if wanted else made
        return original(*args, **kwargs)

    return factory
