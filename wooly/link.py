"""The interface between the recorder and the transport of its batches.

Implemented by ``wooly.session.Session`` (a node over NATS) and by ``tests/support/loopback.py`` (in process).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from bus_schemas.batch import ORIGIN_CHARS_MAX
from bus_schemas.session import SessionOpened

ReadBytes = bytes | bytearray | memoryview
"""The answer to one read."""


class Operation(Protocol):
    """A recorded operation: its name in torch, and its instructions in the program."""

    @property
    def name(self) -> str: ...

    @property
    def code(self) -> Sequence[object]: ...

    def explain(self, instruction: int, text: str) -> str:
        """``text``, which a node says of an instruction of this operation, in the user's terms."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """The place in the user's script that a flush comes from. Lines are ``file:line``."""

    #: line of the flush before; empty: none
    since: str
    #: line of this flush
    until: str
    #: of its program, in order
    operations: Sequence[Operation] = ()
    #: all of it was recorded at ``until``
    exact: bool = False

    def lines(self) -> str:
        """For the list of a task's programs: ``file:line``, or the first and the last line; at most ``ORIGIN_CHARS_MAX`` characters. Of a
        file's path only the name and its folder's leave this machine."""
        until = _short(self.until)
        if self.exact or self.since in ("", self.until):
            return until
        return f"{_short(self.since)} to {until}"

    def text(self, places: Sequence[str] = ()) -> str:
        """For an error message. ``places``: of a fault; those that name an instruction say which operation it belongs to."""
        if self.exact:
            lines = f"at {self.until}"
        elif not self.since:
            lines = f"at or before {self.until}"
        elif self.since == self.until:
            lines = f"between two passes of {self.until}"
        else:
            lines = f"between {self.since} and {self.until}"
        guilty = self._named(places)
        if guilty:
            return f"recorded {lines}, by {guilty}"
        names = list(dict.fromkeys(operation.name for operation in self.operations))
        more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
        return f"recorded {lines}" + (f" ({', '.join(names[:_NAMES_MAX])}{more})" if names else "")

    def explain(self, instruction: int, text: str) -> str:
        """``text``, which a node says of an instruction of the program, in the user's terms."""
        operation, at = self._operation(instruction)
        return text if operation is None else operation.explain(at, text)

    def _named(self, places: Sequence[str]) -> str:
        """The operation of the first place that names an instruction; empty: there is none."""
        found = next(filter(None, (_INSTRUCTION.search(place) for place in places)), None)
        operation = None if found is None else self._operation(int(found[1]))[0]
        return "" if operation is None else operation.name

    def _operation(self, instruction: int) -> tuple[Operation | None, int]:
        """Whose instruction that is, and which of its own."""
        for operation in self.operations:
            if instruction < len(operation.code):
                return operation, instruction
            instruction -= len(operation.code)
        return None, instruction


def _short(line: str) -> str:
    """``file:line`` with the last two names of the file's path."""
    name = os.sep.join(line.split(os.sep)[-2:])
    return name[-(ORIGIN_CHARS_MAX // 2 - _TO_CHARS) :].encode("utf-8", "replace").decode()


_TO_CHARS: Final = len(" to ")
_NAMES_MAX: Final = 6
_INSTRUCTION: Final = re.compile(r"@ code (\d+)")


@dataclass(slots=True)
class Flush:
    """One batch as the recorder hands it over. A node does, in this order: allocs, uploads, program, reads, frees."""

    #: blake3 digest of ``program_body``, 32 bytes; empty: no program
    program: bytes = b""
    #: always given; the link decides whether the node needs it
    program_body: bytes = b""
    #: blake3 digest of ``dims``; empty without a program
    dims_digest: bytes = b""
    dims: bytes = b""
    scalars: Sequence[int | float | complex] = ()
    #: unique in the session; one for every EXTERNAL and CREATED buffer of the program, in buffer order
    handles: Sequence[int] = ()
    #: (handle, bytes) of zeroed buffers
    allocs: Sequence[tuple[int, int]] = ()
    #: each makes a fresh buffer of exactly its length; the memory does not change any more
    uploads: Sequence[tuple[int, memoryview]] = ()
    #: (handle, offset, bytes)
    reads: Sequence[tuple[int, int, int]] = ()
    #: handles of buffers that the node holds, each once
    frees: Sequence[int] = ()
    #: recorded operations
    n_ops: int = 0
    #: digest and body of every kernel that the program names
    kernels: Sequence[tuple[bytes, bytes]] = ()
    #: for messages
    origin: Origin | None = None
    #: set by the link once it will be sent, whatever ``submit`` raises
    taken: bool = False


@dataclass(slots=True, eq=False)
class Ticket:
    """A submitted flush."""

    #: its place in the session, from 1
    seq: int
    #: how many answers it will have
    n_reads: int = 0
    #: for the link's own use
    answer: list[ReadBytes] = field(default_factory=list)


class Link(Protocol):
    """Carries flushes to one device, in order, each executed once.

    Any method may raise a ``wooly.errors.WoolyError``: the fault of this or of an earlier flush, as soon as it is known.
    """

    @property
    def info(self) -> SessionOpened:
        """What the node answered when the session opened: limits, quota, device names."""
        ...

    @property
    def wire_bytes(self) -> int:
        """Bytes sent so far, envelopes and data together."""
        ...

    def submit(self, flush: Flush) -> Ticket:
        """Send ``flush``. Returns at once unless the outstanding window is full."""
        ...

    def report(self) -> None:
        """Raise, once, what the node refused of the flushes submitted so far that were not waited for: later flushes lack their results."""
        ...

    def wait(self, ticket: Ticket) -> list[ReadBytes]:
        """Wait for the flush; returns the answers of its reads, in order. One call a ticket."""
        ...

    def free_bytes(self) -> int:
        """Free memory of the device now, in bytes."""
        ...

    def close(self) -> None:
        """End the session: everything submitted is executed first, then all its memory is freed."""
        ...


class LinkWrapper:
    """A link that passes everything to another one."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def inner(self) -> Link:
        """What it wraps."""
        return self._link

    @property
    def info(self) -> SessionOpened:
        return self._link.info

    @property
    def wire_bytes(self) -> int:
        return self._link.wire_bytes

    def submit(self, flush: Flush) -> Ticket:
        return self._link.submit(flush)

    def report(self) -> None:
        self._link.report()

    def wait(self, ticket: Ticket) -> list[ReadBytes]:
        return self._link.wait(ticket)

    def free_bytes(self) -> int:
        return self._link.free_bytes()

    def close(self) -> None:
        self._link.close()
