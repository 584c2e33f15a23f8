"""Random number generators: ``torch.Generator("cuda")`` and torch.cuda's default generators.

torch's C++ side has no generator for our device, so ours is a CPU generator object underneath; kernels are handed that object and
find the stream by its address.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import torch

from wooly.device.backend import OURS
from wooly.device.face.api import Face, put
from wooly.device.face.devices import count, is_rank, number_of
from wooly.device.random import Philox, default, register, set_default

_Base: Final = torch._C.Generator


class DeviceGenerator(torch._C.Generator):
    """A generator of the device, with the interface of torch's."""

    def __new__(cls, index: int = 0, stream: Philox | None = None) -> DeviceGenerator:
        return super().__new__(cls)

    def __init__(self, index: int = 0, stream: Philox | None = None) -> None:
        self._index = index
        self._stream = stream or Philox()
        register(self, self._stream)

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's stub says attribute; in C++ it is a property
        return torch.device("cuda", self._index)

    def manual_seed(self, seed: int) -> DeviceGenerator:
        self._stream.reseed(_seed(seed))
        return self

    def seed(self) -> int:
        """Seed from the system's randomness; returns the seed."""
        seed = secrets.randbits(63)
        self._stream.reseed(seed)
        return seed

    def initial_seed(self) -> int:
        return self._stream.seed

    def get_offset(self) -> int:
        return self._stream.offset

    def set_offset(self, offset: int) -> DeviceGenerator:
        self._stream.offset = offset
        return self

    def get_state(self) -> torch.Tensor:
        # On the CPU whatever the default device is: states are kept and compared there.
        return torch.tensor(list(self._stream.pack()), dtype=torch.uint8, device="cpu")

    def set_state(self, new_state: torch.Tensor) -> DeviceGenerator:
        if new_state.device.type != "cpu" or new_state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        self._stream.unpack(bytes(new_state.tolist()))
        return self

    def clone_state(self) -> DeviceGenerator:
        return DeviceGenerator(self._index, Philox(self._stream.seed, self._stream.offset))

    def graphsafe_get_state(self) -> DeviceGenerator:
        """Another generator of the same stream."""
        return DeviceGenerator(self._index, self._stream)

    def graphsafe_set_state(self, state: torch.Generator) -> DeviceGenerator:
        if not isinstance(state, DeviceGenerator):
            raise TypeError("a cuda generator takes its state from another cuda generator")
        self._stream = state._stream
        register(self, self._stream)
        if any(self is generator for generator in default_generators):
            set_default(self._stream, 0 if is_rank() else self._index)
        return self

    def __reduce__(self) -> Any:
        return _rebuild, (self._index, self._stream.seed, self._stream.offset)

    def __repr__(self) -> str:
        return f"<torch.Generator device={self.device} seed={self._stream.seed} offset={self._stream.offset}>"


def _rebuild(index: int, seed: int, offset: int) -> DeviceGenerator:
    return DeviceGenerator(index, Philox(seed, offset))


def _seed(seed: int) -> int:
    """Check a seed as torch does: anything from -2^63 to 2^64 - 1."""
    seed = int(seed)
    if not -(1 << 63) <= seed < 1 << 64:
        raise RuntimeError(f"Overflow when unpacking long: a seed must fit in 64 bits, got {seed}")
    return seed


class _GeneratorType(type(_Base)):  # type: ignore[misc]  # a metaclass computed at run time
    """Metaclass of what users call ``torch.Generator``: makes the right kind, and knows both as its instances."""

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        wanted = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if wanted.type in OURS:
            return DeviceGenerator(number_of(wanted))
        return _Base(device=wanted)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Base)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Base)


default_generators: tuple[DeviceGenerator, ...] = ()


def patch(face: Face) -> None:
    """Replace torch.Generator, and give each device its default generator."""
    global default_generators
    generator = _GeneratorType("Generator", (), {"__module__": "torch", "__doc__": _Base.__doc__})
    put(torch, "Generator", generator)
    n_devices = max(face.device_count, count())
    default_generators = tuple(DeviceGenerator(number, default(0 if is_rank() else number)) for number in range(n_devices))
    put(torch.cuda, "default_generators", default_generators)
