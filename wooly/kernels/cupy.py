"""CuPy's kernels on tensors of the device: ``cupy.RawKernel`` and ``cupy.RawModule`` are ours, which are called as they are, and what
scripts wrap around a launch (devices, streams, ``memoize``) has no driver to ask. CuPy's own arrays need a GPU of this machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from wooly.kernels.raw import RawKernel, RawModule


class _Current:
    """The device or stream that a script selects for CuPy: launches are recorded on the device of their tensors, in their order."""

    def __init__(self, number: Any = 0, *args: Any, **kwargs: Any) -> None:
        self.id = self.ptr = number

    def __enter__(self) -> _Current:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing to restore."""

    def use(self) -> _Current:
        """Nothing to select."""
        return self

    def synchronize(self) -> None:
        """Wait for all that was recorded."""
        torch.cuda.synchronize()


def _memoize(for_each_device: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return functools.cache


def _compile_with_cache(source: str, options: Any = (), *args: Any, **kwargs: Any) -> RawModule:
    return RawModule(source, options=tuple(options))


_Current.null = _Current()  # type: ignore[attr-defined]  # of CuPy's Stream


def patch(cupy: Any) -> None:
    """Put our kernels in the place of CuPy's in module ``cupy``, which has just been imported."""
    for name, value in {"RawKernel": RawKernel, "RawModule": RawModule, "memoize": _memoize}.items():
        setattr(cupy, name, value)
    for name, value in {
        "Device": _Current,
        "Stream": _Current,
        "ExternalStream": _Current,
        "compile_with_cache": _compile_with_cache,
    }.items():
        setattr(cupy.cuda, name, value)
