"""Random number streams of the device: a seed and a position each, counted the way CUDA counts them.

Every random instruction carries (seed, offset) and takes as many Philox counters as it consumes, so its numbers do not depend on
when or where it runs. One default stream a device; a ``torch.Generator("cuda")`` has its own.
"""

from __future__ import annotations

import struct
from typing import Final
from weakref import WeakValueDictionary

import torch

SEED_DEFAULT: Final = 67280421310721
"""The seed of an unseeded generator: CUDA's own, so that an unseeded script repeats itself."""

STATE_NBYTES: Final = 16
_STATE: Final = struct.Struct("<Qq")
_SEED_MASK: Final = (1 << 64) - 1


class Philox:
    """A stream: 64-bit ``seed``, and ``offset`` counters already taken from it. Not thread-safe: the recorder's lock covers ``take``."""

    __slots__ = ("__weakref__", "offset", "seed")

    def __init__(self, seed: int = SEED_DEFAULT, offset: int = 0) -> None:
        self.seed = seed & _SEED_MASK
        self.offset = offset

    def take(self, counters: int) -> tuple[int, int]:
        """Reserve ``counters``; returns (seed, offset of the first)."""
        offset = self.offset
        self.offset = offset + counters
        return self.seed, offset

    def reseed(self, seed: int) -> None:
        self.seed = seed & _SEED_MASK  # negative seeds wrap, as torch does
        self.offset = 0

    def pack(self) -> bytes:
        """The state as CUDA lays it out: seed and offset, 8 bytes each, little-endian."""
        return _STATE.pack(self.seed, self.offset)

    def unpack(self, state: bytes) -> None:
        """Take over a packed state; raises RuntimeError for a wrong size, as CUDA does."""
        if len(state) != STATE_NBYTES:
            raise RuntimeError(f"RNG state is wrong size: expected {STATE_NBYTES} bytes, got {len(state)}")
        self.seed, self.offset = _STATE.unpack(state)


_defaults: Final[dict[int, Philox]] = {}
# torch hands kernels a fresh Python object for the same C++ generator, so the C++ address is the identity.
_by_address: Final[WeakValueDictionary[int, Philox]] = WeakValueDictionary()


def default(index: int = 0) -> Philox:
    """The default stream of device ``index``, by torch's number of it."""
    stream = _defaults.get(index)
    if stream is None:
        stream = _defaults[index] = Philox()
    return stream


def set_default(stream: Philox, index: int = 0) -> None:
    """Let device ``index`` draw from ``stream`` by default."""
    _defaults[index] = stream


def register(generator: torch.Generator, stream: Philox) -> None:
    """``generator`` (whose Python owner keeps ``stream`` alive) draws from ``stream``."""
    _by_address[generator._cdata] = stream  # type: ignore[attr-defined]


def of(generator: torch.Generator | None, index: int = 0) -> Philox:
    """The stream behind a kernel's ``generator`` argument; None means the device's default. Raises RuntimeError for a CPU generator."""
    if generator is None:
        return default(index)
    stream = _by_address.get(generator._cdata)  # type: ignore[attr-defined]
    if stream is None:
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found '{generator.device.type}'")
    return stream
