"""Shared parts of back ends with host-addressable buffers: the byte access half of a space, and binding keys to a program's buffers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from jit.engine import Run, Shared
from jit.errors import BadBuffer
from jit.memory import Block, Capacity, SharedBlock, SpaceMemory

__all__ = ["ByteSpace", "KeySpec"]


class KeySpec:
    """What a run needs to know about one EXTERNAL or CREATED buffer."""

    __slots__ = ("created", "nbytes", "zero")

    def __init__(self, nbytes: int, created: bool, zero: bool) -> None:
        self.nbytes = nbytes
        self.created = created
        self.zero = zero


class ByteSpace:
    """Byte access to one session's buffers (the non-running half of ``jit.engine.Space``).

    ``_run``: what ``begin`` made last; ``_workspace``: memory for its temporaries, which no other space ever uses.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._memory = SpaceMemory(capacity)
        self._run: Run | None = None
        self._workspace: Block | None = None

    @property
    def resident_bytes(self) -> int:
        return self._memory.resident_bytes

    @property
    def shared_bytes(self) -> int:
        return self._memory.shared_bytes

    def alloc(self, key: int, nbytes: int) -> None:
        self._memory.alloc(key, nbytes)

    def free(self, key: int) -> None:
        self._memory.free(key)

    def write(self, key: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        source = np.frombuffer(data, np.uint8)
        self._memory.writable(key, offset, source.size).data[offset : offset + source.size] = source

    def read(self, key: int, offset: int, nbytes: int) -> memoryview:
        return self._memory.window(key, offset, nbytes).data.toreadonly()

    def size(self, key: int) -> int:
        return self._memory.size(key)

    def park(self, key: int) -> None:
        self._memory.park(key)

    def unpark(self, key: int) -> None:
        self._memory.unpark(key)

    def share(self, key: int) -> Shared:
        return self._memory.share(key)

    def attach(self, key: int, shared: Shared) -> None:
        if not isinstance(shared, SharedBlock):
            raise BadBuffer("what a buffer is attached to must come from `share`")
        self._memory.attach(key, shared)

    def unshare(self, key: int) -> None:
        self._memory.unshare(key)

    @property
    def workspace_bytes(self) -> int:
        return self._workspace.room if self._workspace is not None else 0

    def trim(self) -> None:
        if self._workspace is not None and (self._run is None or self._run.over):
            self._memory.release(self._workspace)
            self._workspace = None

    def close(self) -> None:
        if self._run is not None:
            self._run.drop()
            self._run = None
        self.trim()
        self._memory.clear()

    def _reserve(self, nbytes: int) -> Block | None:
        """Memory for temporaries, at least this large, with any contents of this space; None when none was ever needed. Raises
        OutOfMemory."""
        if self.workspace_bytes < nbytes:
            self.trim()  # free the old one first
            self._workspace = self._memory.apart(nbytes)
        return self._workspace

    def _blocks(self, specs: Sequence[KeySpec], keys: Sequence[int], writes: Collection[int] = ()) -> list[Block]:
        """The block of each key: CREATED ones freshly allocated, shared ones among the positions ``writes`` with a block of their own; on
        any error nothing was allocated or changed."""
        if len(keys) != len(specs):
            raise BadBuffer(f"the program needs {len(specs)} keys, not {len(keys)}")
        if len(set(keys)) != len(keys):
            raise BadBuffer("a run names one buffer twice; views of one buffer are operands, not buffers")
        made: list[tuple[int, int, bool]] = []
        memory, find = self._memory, self._memory.find
        for spec, key in zip(specs, keys, strict=True):
            if spec.created:
                made.append((key, spec.nbytes, spec.zero))
                continue
            block = find(key) or memory[key]  # which says what is the matter with it
            if block.nbytes < spec.nbytes:
                raise BadBuffer(f"buffer {key} has {block.nbytes} bytes, the program needs {spec.nbytes}")
        return self._memory.gather(keys, made, writes)
