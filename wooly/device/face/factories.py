"""Wraps tensor factories whose arguments ``pin_memory``, ``generator`` and ``device`` torch would handle wrongly for this device.

``pin_memory=True``: there is nothing to pin for here, and torch's hook for it throws. ``generator=`` of the device with a tensor of the
CPU: ours is a CPU generator underneath, so it would be taken where CUDA's is refused. ``device="cuda"`` beside an ``out=`` of ours: the
argument parser compares the names of the backends. ``vmap`` of ``linspace(tensor, number)``: the rule makes a number on the device that
only kernels written in C++ can take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from wooly.device.backend import is_our_device, is_ours, raw_device
from wooly.device.face.api import Face, overridable, put
from wooly.device.face.devices import index_of, to_backend
from wooly.device.face.generators import DeviceGenerator

PINNING_FUNCTIONS: Final = tuple(
    """
    arange empty empty_like empty_permuted empty_strided eye full full_like linspace logspace ones ones_like rand rand_like randint
    randint_like randn randn_like randperm range scalar_tensor tensor tril_indices triu_indices zeros zeros_like
    """.split()
)
PINNING_METHODS: Final = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")

RANDOM_FUNCTIONS: Final = tuple(
    "bernoulli multinomial normal poisson rand rand_like randint randint_like randn randn_like randperm".split()
)
RANDOM_METHODS: Final = tuple(
    "bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial normal_ random_ uniform_".split()
)


def patch(face: Face) -> None:
    """Wrap every such function: the request is honoured by a pinned-marked tensor of ordinary memory."""
    from torch.utils._device import _device_constructors

    constructors = _device_constructors()  # cached: those by which `with torch.device(...)` recognises a factory
    for owner, names in ((torch, PINNING_FUNCTIONS), (torch.Tensor, PINNING_METHODS)):
        for name in names:
            put(owner, name, _pinning(getattr(owner, name)))
    for name in ("linspace", "logspace"):
        put(torch, name, _between_tensors(getattr(torch, name)))
    for name in ("new", "new_tensor"):
        put(torch.Tensor, name, _beside_self(getattr(torch.Tensor, name)))
    for owner, names in ((torch, RANDOM_FUNCTIONS), (torch.Tensor, RANDOM_METHODS)):
        for name in names:
            put(owner, name, _drawing(getattr(owner, name)))
    constructors.update(getattr(torch, f.__name__) for f in tuple(constructors) if hasattr(torch, f.__name__))


def _between_tensors(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Of a tensor under ``vmap`` and a number the number becomes a tensor as well, of the type that its rule gives it."""

    @overridable(original)
    def spaced(*args: Any, **kwargs: Any) -> torch.Tensor:
        bounds = [*args[:2], *(kwargs[name] for name in ("start", "end") if name in kwargs)]
        batched = [bound for bound in bounds if isinstance(bound, torch.Tensor) and torch._C._functorch.is_batchedtensor(bound)]
        if len(bounds) != 2 or len(batched) != 1:
            return original(*args, **kwargs)

        def lifted(bound: Any) -> Any:
            number = isinstance(bound, bool | int | float | complex)
            return torch.full((), bound, dtype=_NUMBER_TYPES[type(bound)], device=batched[0].device) if number else bound

        args = (*map(lifted, args[:2]), *args[2:])
        return original(*args, **{name: lifted(value) if name in ("start", "end") else value for name, value in kwargs.items()})

    return spaced


_NUMBER_TYPES: Final = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def _drawing(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    in_place = original.__name__.endswith("_")

    @overridable(original)
    def draw(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not isinstance(kwargs.get("generator"), DeviceGenerator):
            return original(*args, **kwargs)
        if in_place:
            _check_generator(args[0])  # before it writes
            return original(*args, **kwargs)
        drawn = original(*args, **kwargs)
        _check_generator(drawn)
        return drawn

    return draw


def _check_generator(tensor: torch.Tensor) -> None:
    if raw_device(tensor).type == "cpu":
        raise RuntimeError("Expected a 'cpu' device type for generator but found 'cuda'")


def _beside_self(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What torch's C++ makes on the current device, which for CUDA is then that of ``self``."""

    @overridable(original)
    def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        of_memory = original.__name__ == "new" and args and isinstance(args[0], torch.Tensor | torch.TypedStorage | torch.UntypedStorage)
        if is_ours(self) and not of_memory:
            kwargs["device"] = raw_device(self) if kwargs.get("device") is None else to_backend(kwargs["device"])
        return original(self, *args, **kwargs)

    return new


def _same_device(out: Any, device: Any) -> bool:
    """Is ``out`` a tensor on the device of ours that ``device`` names, or leaves open?"""
    if not isinstance(out, torch.Tensor) or not is_ours(out):
        return False
    return device is None or (is_our_device(device) and index_of(device) == raw_device(out).index)


def _pinning(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @overridable(original)
    def factory(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "out" in kwargs and _same_device(kwargs["out"], kwargs.get("device")):
            kwargs.pop("device", None)
        if "pin_memory" in kwargs:
            wanted = kwargs.pop("pin_memory")
            made = original(*args, **kwargs)
            return made.pin_memory() if wanted else made
        return original(*args, **kwargs)

    return factory
