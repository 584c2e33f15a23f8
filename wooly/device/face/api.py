"""The interface of the face: what it needs of the recorder, and how it changes torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from bus_schemas.session import SessionOpened

__all__ = ["Face", "RecorderApi", "put", "put_all", "wrapping"]


class RecorderApi(Protocol):
    """The recorder as the face sees it. All byte counts are the client's own.

    ``capturing``: what is recorded becomes part of a CUDA graph.
    """

    capturing: bool

    def flush(self) -> Any:
        """Send what was recorded, without waiting."""

    def synchronize(self) -> None:
        """Send what was recorded and wait until the node has done it; raises what went wrong there."""

    def info(self) -> SessionOpened:
        """What the node answered when the session opened; opens it on the first call."""

    def free_bytes(self) -> int:
        """Free memory of the device in bytes, once the node has done everything recorded so far."""

    def check_process(self) -> None:
        """Raises ForkError in a forked child of the process that opened the session."""


class Face:
    """What every part of the face is built on: the recorder, and how many devices the script sees."""

    def __init__(self, api: RecorderApi, device_count: int) -> None:
        self.api: Final = api
        self.device_count: Final = device_count


_F = TypeVar("_F", bound=Callable[..., Any])


def put(owner: Any, name: str, value: Any) -> None:
    """Replace ``owner.name``. The one way in which the face changes torch, so that changes can be found."""
    setattr(owner, name, value)


def put_all(owners: Iterable[Any], values: dict[str, Any]) -> None:
    """Replace each name in every owner that has it: torch's submodules import each other's functions by name."""
    for owner in owners:
        for name, value in values.items():
            if hasattr(owner, name):
                put(owner, name, value)


def wrapping(original: Callable[..., Any]) -> Callable[[_F], _F]:
    """Decorator: the replacement keeps the original's name and documentation, and TorchScript still knows it as the same operator."""

    def decorate(replacement: _F) -> _F:
        functools.update_wrapper(replacement, original)
        from torch.jit import _builtins as typed_builtins

        _builtins: Any = typed_builtins  # untyped in torch

        # TorchScript finds built-in functions by the identity of the Python object.
        operator = _builtins._find_builtin(original)
        if operator is not None:
            _builtins._register_builtin(replacement, operator)
        return replacement

    return decorate
