"""Forms on the device for operators of other libraries, by library: a library's namespace has the module of its name here, imported at the
first call of one of its operators. Libraries are never imported from here: they register their operators themselves.

A form follows the operator's own kernels, in values and types; what it does not cover raises Unsupported, and the library's kernel for the
CPU computes it or says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from wooly.device.lowering.registry import COMPOSITES

__all__ = ["form_of"]

_LIBRARIES: Final = frozenset(module.name for module in iter_modules(__path__))
"""Namespaces of operators with forms here."""


def form_of(name: str) -> Callable[..., Any] | None:
    """The composite of operator ``name`` (``torchvision::nms``) of a library, or None."""
    namespace = name.partition("::")[0]
    if namespace not in _LIBRARIES:
        return None
    import_module(f"{__name__}.{namespace}")
    return COMPOSITES.get(name)
