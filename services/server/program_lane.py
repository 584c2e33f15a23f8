"""Which program a batch of the dispatch journal ran, on the bus beside that journal: for people who ask where a task's time went.

The dispatch journal names what a batch runs by one digest of program, sizes and scalars. Here each such digest is named once a segment with
the program's own digest, each program once with its operations, and each program of a session once with the lines that recorded it.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Final

import msgspec

from bus_schemas.batch import Batch
from bus_schemas.journal import PROGRAM_NAME_BYTES, ProgramUse, encode_use
from services.server.journal_stream import Lane
from wis.encoding import decode_program, digest
from wis.errors import WisError
from wis.kernel.encoding import decode_kernel
from wis.ops import BY_CODE, BY_NAME
from wis.program import Instr
from wooly.shared.lru import LruDict

__all__ = ["ProgramLane"]

_SEGMENT_S: Final = 3600.0
_SAID_MAX: Final = 65_536
_PROGRAMS_MAX: Final = 2_048
_BODY_BYTES_MAX: Final = 256 << 10
"""Of a larger program the operations are not named: decoding it would hold up the server."""
_OPERATIONS_MAX: Final = 8
_NAME_MAX: Final = 80


class ProgramLane:
    """Of one device. Lives on the server's event loop."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._operations: LruDict[bytes, tuple[str, ...]] = LruDict(_PROGRAMS_MAX)
        self._kernels: LruDict[bytes, str] = LruDict(_PROGRAMS_MAX)
        self._origins: LruDict[tuple[str, bytes], str] = LruDict(_PROGRAMS_MAX)
        self._said: set[bytes | tuple[str, bytes]] = set()
        self._began_s = -_SEGMENT_S
        lane.on_gap = self._begin

    def note(self, batch: Batch, content: bytes) -> None:
        """A batch, also one without a program, whose ``content`` digest goes into the dispatch journal."""
        for body in batch.kernels:
            self._learn_kernel(body)
        if batch.program_body and batch.program not in self._operations:
            self._operations[batch.program] = self._operations_of(batch.program_body)
        here = (batch.session, batch.program)
        if batch.program and batch.origin and here not in self._origins:
            self._origins[here] = "".join(letter if letter.isprintable() else "?" for letter in batch.origin)
        if time.monotonic() - self._began_s > _SEGMENT_S or len(self._said) >= _SAID_MAX:
            self._begin()
        name = content[:PROGRAM_NAME_BYTES]
        origin = "" if here in self._said else self._origins.get(here, "")
        if name in self._said and not origin:
            return
        program = batch.program[:PROGRAM_NAME_BYTES]
        operations = () if batch.program in self._said else self._operations.get(batch.program, ())
        self._said |= {name, batch.program} if batch.program else {name}
        if origin:
            self._said.add(here)
        self._lane.add(encode_use(ProgramUse(name, program, operations, batch.session if origin else "", origin)))

    def _learn_kernel(self, body: bytes) -> None:
        """Its name, of a kernel that can be read; one that cannot refuses its batch."""
        name = digest(body)
        if name in self._kernels or len(body) > _BODY_BYTES_MAX:
            return
        with contextlib.suppress(WisError, msgspec.DecodeError):
            self._kernels[name] = decode_kernel(body).name[:_NAME_MAX]

    def _operations_of(self, body: bytes) -> tuple[str, ...]:
        """The operations of a program, the most frequent first, as ``matmul x3``; none of one that cannot be read: its batch is refused."""
        if len(body) > _BODY_BYTES_MAX:
            return ()
        try:
            program = decode_program(body)
        except (WisError, msgspec.DecodeError):
            return ()
        counts = Counter(self._name_of(instruction, program.kernels) for instruction in program.code)
        return tuple(f"{name} x{count}" if count > 1 else name for name, count in counts.most_common(_OPERATIONS_MAX))

    def _name_of(self, instruction: Instr, kernels: tuple[bytes, ...]) -> str:
        """An operation by its name; a launch with that of its kernel."""
        known = BY_CODE.get(instruction.op)
        if known is None or known is not BY_NAME["launch"]:
            return "unknown" if known is None else known.name
        at = instruction.attrs[0] if instruction.attrs else -1
        kernel = self._kernels.get(kernels[at], "") if 0 <= at < len(kernels) else ""
        return f"kernel {kernel}" if kernel else "kernel"

    def _begin(self) -> None:
        self._said.clear()
        self._began_s = time.monotonic()
        self._lane.begin(bytes)
