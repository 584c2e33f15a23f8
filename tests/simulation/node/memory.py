"""The device's actual memory: buffers with contents and places, moves that take time and may fail.

It knows nothing of the memory core. What a batch finds is compared with what was last written: contents are tokens, and a second, flat
account of them (``truth``) is never moved anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

__all__ = ["AWAY", "DEVICE", "LEAVING", "COMING", "Buffer", "Memory", "MemoryViolation"]

DEVICE: Final = "device"
LEAVING: Final = "leaving"
COMING: Final = "coming"
AWAY: Final = "away"
"""Where a buffer is. What leaves or comes takes device memory."""


class MemoryViolation(AssertionError):
    """Something was done to memory that would have lost data or overrun the device."""


@dataclass(slots=True)
class Buffer:
    handle: int
    nbytes: int
    content: int
    used_ns: int
    where: str = DEVICE


@dataclass(slots=True)
class Memory:
    """``buffers`` by session and handle. ``work``: temporaries of the run under way, by session. ``swap``: contents of what is away."""

    physical_bytes: int
    buffers: dict[str, dict[int, Buffer]] = field(default_factory=dict)
    truth: dict[str, dict[int, int]] = field(default_factory=dict)
    work: dict[str, int] = field(default_factory=dict)
    swap: dict[tuple[str, int], int] = field(default_factory=dict)
    device_bytes: int = 0
    device_bytes_max: int = 0
    tokens: int = 0
    handles: int = 0

    def open(self, session: str) -> None:
        self.buffers[session], self.truth[session] = {}, {}

    def close(self, session: str) -> None:
        for buffer in self.buffers.pop(session).values():
            if buffer.where != AWAY:
                self._take(-buffer.nbytes)
            self.swap.pop((session, buffer.handle), None)
        self._take(-self.work.pop(session, 0))
        del self.truth[session]

    def alloc(self, session: str, nbytes: int, now_ns: int) -> int:
        """A zeroed buffer; its handle."""
        self.handles += 1
        self._take(nbytes)
        self.buffers[session][self.handles] = Buffer(self.handles, nbytes, 0, now_ns)
        self.truth[session][self.handles] = 0
        return self.handles

    def free(self, session: str, handle: int) -> None:
        buffer = self.buffers[session].pop(handle)
        del self.truth[session][handle]
        self.swap.pop((session, handle), None)
        if buffer.where in (LEAVING, COMING):
            raise MemoryViolation(f"{session}: buffer {handle} was freed while it moved")
        if buffer.where == DEVICE:
            self._take(-buffer.nbytes)

    def use(self, session: str, handle: int, now_ns: int) -> None:
        """Read a buffer, compare it with the truth, and write it."""
        buffer = self.buffers[session][handle]
        if buffer.where != DEVICE:
            raise MemoryViolation(f"{session}: a run uses buffer {handle}, which is {buffer.where}")
        if buffer.content != self.truth[session][handle]:
            raise MemoryViolation(f"{session}: buffer {handle} reads {buffer.content}, {self.truth[session][handle]} was written")
        self.tokens += 1
        buffer.content = self.truth[session][handle] = self.tokens
        buffer.used_ns = now_ns

    def begin_work(self, session: str, nbytes: int) -> None:
        self._take(nbytes)
        self.work[session] = nbytes

    def end_work(self, session: str) -> None:
        self._take(-self.work.pop(session, 0))

    # -- moves ---------------------------------------------------------------------------------------------------------------------

    def leave(self, buffer: Buffer) -> None:
        buffer.where = LEAVING

    def left(self, session: str, buffer: Buffer) -> None:
        """It was swapped out: its bytes on the device are lost."""
        self.swap[session, buffer.handle] = buffer.content
        buffer.where, buffer.content = AWAY, -1
        self._take(-buffer.nbytes)

    def stay(self, buffer: Buffer) -> None:
        """A move was abandoned."""
        buffer.where = DEVICE

    def come(self, buffer: Buffer) -> None:
        self._take(buffer.nbytes)
        buffer.where = COMING

    def came(self, session: str, buffer: Buffer) -> None:
        buffer.where = DEVICE
        buffer.content = self.swap.pop((session, buffer.handle))

    def bytes_where(self, session: str, *where: str) -> int:
        return sum(b.nbytes for b in self.buffers[session].values() if b.where in where)

    def _take(self, nbytes: int) -> None:
        self.device_bytes += nbytes
        self.device_bytes_max = max(self.device_bytes_max, self.device_bytes)
        if self.device_bytes > self.physical_bytes:
            raise MemoryViolation(f"the device has {self.physical_bytes} bytes, {self.device_bytes} are used")
