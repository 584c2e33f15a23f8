"""What every backend with host-addressable buffers shares: the byte access half of a space, and binding keys to a program's buffers.

May live here: allocation and transfer by key. May not: running programs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jit.errors import BadBuffer, JitError
from jit.memory import Block, Capacity, SpaceMemory

__all__ = ["ByteSpace", "KeySpec"]


class KeySpec:
    """What a run needs to know about one EXTERNAL or CREATED buffer."""

    __slots__ = ("created", "nbytes", "zero")

    def __init__(self, nbytes: int, created: bool, zero: bool) -> None:
        self.nbytes = nbytes
        self.created = created
        self.zero = zero


class ByteSpace:
    """Byte access to one session's buffers (the non-running half of ``jit.engine.Space``)."""

    def __init__(self, capacity: Capacity) -> None:
        self._memory = SpaceMemory(capacity)

    @property
    def resident_bytes(self) -> int:
        return self._memory.resident_bytes

    def alloc(self, key: int, nbytes: int) -> None:
        self._memory.alloc(key, nbytes)

    def free(self, key: int) -> None:
        self._memory.free(key)

    def write(self, key: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        source = np.frombuffer(data, np.uint8)
        self._memory.window(key, offset, source.size)[:] = source

    def read(self, key: int, offset: int, nbytes: int) -> memoryview:
        return self._memory.window(key, offset, nbytes).data.toreadonly()

    def size(self, key: int) -> int:
        return self._memory[key].nbytes

    def close(self) -> None:
        self._memory.clear()

    def _blocks(self, specs: Sequence[KeySpec], keys: Sequence[int]) -> list[Block]:
        """The block of each key, CREATED ones freshly allocated; on any error nothing stays allocated."""
        if len(keys) != len(specs):
            raise BadBuffer(f"the program needs {len(specs)} keys, not {len(keys)}")
        if len(set(keys)) != len(keys):
            raise BadBuffer("a run names one buffer twice; views of one buffer are operands, not buffers")
        memory = self._memory
        blocks: list[Block] = []
        made: list[int] = []
        try:
            for spec, key in zip(specs, keys, strict=True):
                if spec.created:
                    blocks.append(memory.alloc(key, spec.nbytes, zero=spec.zero))
                    made.append(key)
                else:
                    block = memory[key]
                    if block.nbytes < spec.nbytes:
                        raise BadBuffer(f"buffer {key} has {block.nbytes} bytes, the program needs {spec.nbytes}")
                    blocks.append(block)
        except JitError:
            for key in made:
                memory.free(key)
            raise
        return blocks
