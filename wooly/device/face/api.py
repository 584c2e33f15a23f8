"""The interface of the face: what it needs of the recorder, and how it changes torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, Final, Protocol, TypeVar

from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_unary

from bus_schemas.session import SessionOpened
from wooly.device.memory import MemoryCounter
from wooly.link import Link, LinkWrapper

__all__ = ["Face", "RecorderApi", "overridable", "overridable_property", "put", "put_all", "wrapping"]


class HeapApi(Protocol):
    """The buffers of one device."""

    @property
    def memory(self) -> MemoryCounter:
        """Counts them."""


class RecorderApi(Protocol):
    """A device's recorder as the face sees it. All byte counts are the client's own.

    ``capturing``: what is recorded becomes part of a CUDA graph.
    """

    capturing: bool

    @property
    def heap(self) -> HeapApi:
        """The device's buffers."""

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

    def watch(self, wrap: Callable[[Link], LinkWrapper]) -> Callable[[], None]:
        """Let batches pass through ``wrap`` of the session, also when that opens later, until what is returned is called."""


class Face:
    """What every part of the face is built on: the recorders of the devices in use, and how many devices the task has. ``api``: the
    recorder of the process's first device."""

    def __init__(self, apis: Mapping[int, RecorderApi], device_count: int) -> None:
        self.apis: Final = apis
        self.api: Final = apis[0]
        self.device_count: Final = device_count

    def flush(self) -> None:
        """Send what was recorded for all devices, without waiting."""
        for api in tuple(self.apis.values()):
            api.flush()

    def synchronize(self) -> None:
        """Wait until all devices have done what was recorded; raises what went wrong there."""
        self.flush()
        for api in tuple(self.apis.values()):
            api.synchronize()


_F = TypeVar("_F", bound=Callable[..., Any])


def put(owner: Any, name: str, value: Any) -> None:
    """Replace ``owner.name``. The one way in which the face changes torch, so that changes can be found.

    A function that wraps one of torch's receives the name by which it is reached, so that it can be pickled.
    """
    if isinstance(value, FunctionType) and hasattr(value, "__wrapped__"):
        of_class = isinstance(owner, type)
        value.__module__ = owner.__module__ if of_class else owner.__name__
        value.__qualname__ = f"{owner.__qualname__}.{name}" if of_class else name
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


def overridable(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``wrapping`` of a function that ``__torch_function__`` may override: subclasses and modes receive the replacement."""

    def decorate(replacement: Callable[..., Any]) -> Callable[..., Any]:
        @wrapping(original)
        def dispatching(*args: Any, **kwargs: Any) -> Any:
            given = (*args, *kwargs.values()) if kwargs else args
            if has_torch_function(given):
                return handle_torch_function(dispatching, given, *args, **kwargs)
            return replacement(*args, **kwargs)

        return dispatching

    return decorate


def overridable_property(get: Callable[[Any], Any], set_: Callable[[Any, Any], None] | None, original: Any) -> property:
    """A property in the place of torch's ``original``, whose accessors ``__torch_function__`` may override."""

    def getter(self: Any) -> Any:
        return handle_torch_function(made.__get__, (self,), self) if has_torch_function_unary(self) else get(self)

    def setter(self: Any, value: Any) -> None:
        assert set_ is not None
        if has_torch_function_unary(self):
            handle_torch_function(made.__set__, (self,), self, value)
        else:
            set_(self, value)

    made = property(getter, setter if set_ else None, doc=original.__doc__)
    return made
