"""The engine: what a node's executor uses to run verified programs on one device, whatever the backend.

An engine serves one device. Each tenant session has its own space; a prepared program may be run in any space. Calls that touch one
space come from one thread at a time; runs of one engine are serialised by the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from wis.verify import Verified

Number = int | float | complex


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine runs on. ``cores`` is what a launch can occupy at most; ``vram_bytes`` the configured capacity."""

    name: str
    backend: str
    cores: int
    vram_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Of one engine, in bytes. ``used``: asked for and not freed, a shared block once; ``footprint``: what the device's memory gives for
    that (rounding and holes between blocks included); ``idle``: put aside for the sessions that freed it."""

    capacity_bytes: int
    used_bytes: int
    footprint_bytes: int
    idle_bytes: int


@dataclass(frozen=True, slots=True)
class Stop:
    """A word (u64 at ``address``, which another process may write): a run stops soon once it is ``value`` or more."""

    address: int
    value: int


@dataclass(frozen=True, slots=True)
class Launch:
    """The account of one run, or of one piece of it, times on the monotonic clock in ns.

    ``core_ns`` is wall time x cores occupied, phase by phase; ``cores`` the most that took part at once. ``instructions`` is the exact
    element- and thread-instruction count, equal on every backend. ``trap`` says which index was out of bounds, or is
    None; ``trap_at`` of which instruction of the program, or is -1 (a kernel that the program brings says where itself);
    ``out_of_fuel`` which kernel executed more than a launch may (then nothing after it ran), or is None. ``stopped``: the run is not
    over; its last piece reports instructions, trap and out_of_fuel for all of it.
    """

    start_ns: int
    end_ns: int
    core_ns: int
    cores: int
    instructions: int
    trap: str | None
    out_of_fuel: str | None = None
    stopped: bool = False
    trap_at: int = -1


class Prepared(Protocol):
    """A program with its dims, planned and compiled. Immutable for its user; may be run in any space of its engine."""

    @property
    def instructions(self) -> int:
        """Element-instructions one run executes."""
        ...

    @property
    def workspace_bytes(self) -> int:
        """Memory that a run needs for TEMP buffers, beside the buffers it names."""
        ...

    @property
    def writes(self) -> frozenset[int]:
        """Positions in ``keys`` of the EXTERNAL buffers that a run may write."""
        ...


class Run(Protocol):
    """A program under way in a space. Between two calls of ``go`` other runs may use the device, and buffers may move or be parked (they
    are back before the next call). What it computes, counts and traps does not depend on where it was stopped."""

    @property
    def over(self) -> bool:
        """Nothing is left to do."""
        ...

    def go(self, limit_ns: int = 0, stop: Stop | None = None) -> Launch:
        """Run on: to the end, or until about ``limit_ns`` have passed (0: no limit), or ``stop`` says so, or Engine.interrupt is called.
        Every call makes some progress unless ``stop`` says so at its beginning."""
        ...

    def drop(self) -> None:
        """Give up what is left. Safe to call twice, and when it is over."""
        ...


class Shared(Protocol):
    """A read-only, reference-counted block of several buffers, also of several spaces; freed with the last of them (``holders`` 0: no
    buffer can be attached to it any more)."""

    @property
    def nbytes(self) -> int: ...

    @property
    def holders(self) -> int:
        """The reference count: how many buffers use the block."""
        ...


class Space(Protocol):
    """One session's memory. Keys are the session's own handles. Every method raises BadBuffer for an unknown key or a range outside."""

    @property
    def resident_bytes(self) -> int:
        """Sum of the sizes of the live buffers that are on the device, shared ones included in full."""
        ...

    @property
    def shared_bytes(self) -> int:
        """Of these, the ones on shared blocks."""
        ...

    @property
    def workspace_bytes(self) -> int:
        """Memory held for the TEMP buffers of later runs. Counts against the capacity, not in ``resident_bytes``."""
        ...

    def trim(self) -> None:
        """Give that memory back; the next run takes what it needs."""
        ...

    def alloc(self, key: int, nbytes: int) -> None:
        """A new zeroed buffer; raises OutOfMemory beyond the engine's capacity, BadBuffer when the key exists."""
        ...

    def free(self, key: int) -> None:
        """Forget a buffer."""
        ...

    def write(self, key: int, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Overwrite bytes from ``offset`` on."""
        ...

    def read(self, key: int, offset: int, nbytes: int) -> memoryview:
        """Bytes of a buffer: a read-only view, good until the next call of any space of the engine; copy it to keep it."""
        ...

    def size(self, key: int) -> int:
        """Size of a buffer in bytes."""
        ...

    def park(self, key: int) -> None:
        """Give the device memory of a buffer back; read its bytes before. Until ``unpark`` only ``size`` and ``free`` take the key. Not
        for shared buffers."""
        ...

    def unpark(self, key: int) -> None:
        """Device memory for a parked buffer again (OutOfMemory: it stays parked); its bytes are undefined until they are written."""
        ...

    def share(self, key: int) -> Shared:
        """Make the buffer's block a shared one (or find that it is)."""
        ...

    def attach(self, key: int, shared: Shared) -> None:
        """A new buffer on a shared block: no bytes move, no memory is taken. Raises BadBuffer when the key exists."""
        ...

    def unshare(self, key: int) -> None:
        """A block of its own for a shared buffer, with the same bytes (OutOfMemory: nothing changed); no bytes move when it is the only
        holder. ``write`` and runs that write do so by themselves."""
        ...

    def begin(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> Run:
        """A run of a program: ``keys`` names one buffer per EXTERNAL and CREATED buffer in program order.

        EXTERNAL ones must exist and be large enough (BadBuffer); CREATED ones must not, and are allocated; shared ones that the program
        writes get blocks of their own (OutOfMemory: no buffer was allocated or changed). One run of a space at a time: the one before
        must be over or dropped.
        """
        ...

    def run(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> Launch:
        """``begin``, and ``go`` to the end. Raises Interrupted when ``Engine.interrupt`` was called meanwhile."""
        ...

    def close(self) -> None:
        """Drop all buffers. Safe to call twice."""
        ...


class Engine(Protocol):
    """One device."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def memory(self) -> MemoryUse: ...

    def open_space(self) -> Space:
        """A new, empty space."""
        ...

    def prepare(self, verified: Verified) -> Prepared:
        """Plan and compile, or find the result of doing so earlier. Independent of any space; takes no launch time."""
        ...

    def interrupt(self) -> None:
        """Stop the run in progress at its next phase; without one, do nothing. Callable from any thread."""
        ...

    def close(self) -> None:
        """Stop helper threads and drop everything. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine is set up.

    ``cache_dir`` None: compiled kernels are kept in memory only. ``fuel``: thread-instructions that one launch of a kernel may execute.
    ``device``: which one, where a backend finds several. ``compile_ms``: processor time that one compilation may take, None: the default.
    """

    cache_dir: Path | None
    threads: int
    vram_bytes: int
    fuel: int
    device: int = 0
    compile_ms: int | None = None
