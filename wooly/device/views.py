"""View operations: torch's own metadata code on our virtual storages; they cost no instruction.

All other views are composites over these six (and over in-place views such as ``squeeze_``, which are listed by their tag).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from wooly.device.backend import CPU_KEYS, all_op_names, has_kernel
from wooly.device.schema import overload

__all__ = ["VIEWS", "view_kernel", "inplace_views"]

VIEWS: Final = ("view", "as_strided", "_reshape_alias", "unfold", "view_as_real", "view_as_complex", "is_set_to")

_OWN: Final = frozenset({"resize_", "resize_as_", "set_", "detach_"})
"""Tagged as in-place views, but they deal with storages: transfer.py has their kernels, or torch needs none."""


def view_kernel(op: Any) -> Callable[..., Any]:
    """A kernel that runs torch's CPU kernel of ``op``, which only handles metadata."""
    redispatch, keys = op.redispatch, CPU_KEYS

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(keys, *args, **kwargs)

    return kernel


def inplace_views() -> list[str]:
    """Names of the operations that change a tensor's metadata in place."""
    names = []
    for name in all_op_names():
        if not name.startswith("aten::") or name[6:].partition(".")[0] in _OWN or has_kernel(name, "CompositeImplicitAutograd"):
            continue
        op = overload(name)
        if op is not None and torch.Tag.inplace_view in op.tags:
            names.append(name)
    return names
