"""The journals of a node's cores on the bus, and beside them which program a batch ran: what was recorded leaves in packs about once a
second, and nothing ever waits for it.

While the bus is away, packs are kept up to a bound; beyond it the record gets a hole, and goes on with a new segment once the bus takes
packs again.

The dispatch journal names what a batch runs by one digest of program, sizes and scalars. Here each such digest is named once a segment with
the program's own digest, each program once with its operations, and each program of a session once with the lines that recorded it.

Refusals and delays at quotas have a lane of the node's first device: at most one record a second for each quota and tenant.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from bus_schemas import subjects
from bus_schemas.batch import Batch
from bus_schemas.journal import PROGRAM_NAME_BYTES, JournalPart, ProgramUse, encode_part, encode_use
from scheduler.frames import Journal
from scheduler.quotas import Asked, decisions
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.log import get_logger
from services.kit.streams import journal_stream_config
from services.server.intake import NAMED_BODY_BYTES_MAX
from wis.encoding import decode_program, digest
from wis.errors import WisError
from wis.kernel.model import decode_kernel
from wis.ops import BY_CODE, BY_NAME
from wooly.shared.lru import LruDict

_PART_BYTES: Final = 512 << 10
_KEPT_BYTES_MAX: Final = 64 << 20
"""What one lane holds for a bus that is away."""
_ACK_S: Final = 30.0
_RETRY_S: Final = 1.0
_MISSING_S: Final = 10.0


class Lane:
    """The record of one core of one device. ``on_gap()`` asks for a new segment after a hole; ``begin`` answers it."""

    def __init__(self, node: str, epoch: int, gpu: int, name: str, wake: Callable[[], None]) -> None:
        self.parts: deque[JournalPart] = deque()
        self.segment = 0
        self.on_gap: Callable[[], None] = lambda: None
        self._node = node
        self._epoch = epoch
        self._gpu = gpu
        self._name = name
        self._wake = wake
        self._frames: list[bytes] = []
        self._nbytes = 0
        self._kept = 0
        self._records = 0
        self._first = 0
        self._snapshot = b""
        self._digest_of: Callable[[], bytes] = bytes
        self._offset_ns = 0
        self._hole = False

    @property
    def subject(self) -> str:
        return subjects.journal_subject(self._node, self._gpu, self._name)

    def begin(self, digest_of: Callable[[], bytes], snapshot: bytes = b"") -> int:
        """A segment begins, from ``snapshot`` (empty: a new core); its number. ``digest_of()``: its digest so far, asked after ``add``."""
        self.seal()
        self._digest_of = digest_of
        self.segment = max(self.segment + 1, time.time_ns() // 10**6)
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._first = self._records = 0
        self._snapshot = snapshot
        self._hole = False
        return self.segment

    def add(self, frames: bytes, records: int = 1) -> None:
        """Further records of the segment. What comes before any began belongs to one that an earlier server had."""
        if self._hole or not records or not self.segment:
            return
        self._frames.append(frames)
        self._nbytes += len(frames)
        self._records += records
        if self._nbytes >= _PART_BYTES:
            self.seal()

    def seal(self) -> None:
        """What was added so far may leave."""
        if not self._frames:
            return
        part = JournalPart(
            node=self._node,
            epoch=self._epoch,
            gpu=self._gpu,
            lane=self._name,
            segment=self.segment,
            first=self._first,
            records=self._records,
            frames=b"".join(self._frames),
            digest=self._digest_of(),
            unix_offset_ns=self._offset_ns,
            snapshot=self._snapshot,
        )
        self._kept += _nbytes(part)
        self._first += self._records
        self._frames, self._nbytes, self._records, self._snapshot = [], 0, 0, b""
        self.parts.append(part)
        if self._kept > _KEPT_BYTES_MAX:
            self._hole = True
            get_logger().warning("the bus is away for too long: the journal on it has a hole", gpu=self._gpu, lane=self._name)
            while len(self.parts) > 1:  # the first one may be on its way
                self._kept -= _nbytes(self.parts.pop())
        self._wake()

    def sent(self) -> None:
        """The oldest part is in the stream, or lost."""
        self._kept -= _nbytes(self.parts.popleft())
        if self._hole and not self.parts:
            self.on_gap()

    def lose(self) -> None:
        """The stream does not take the oldest part: what follows it is of no use either."""
        self._hole = True
        self._frames, self._nbytes, self._records = [], 0, 0
        while self.parts:
            self._kept -= _nbytes(self.parts.pop())

    @property
    def hole(self) -> bool:
        return self._hole


class JournalStream:
    """Of one node. Lives on the server's event loop."""

    def __init__(self, node: str, epoch: int) -> None:
        self._node = node
        self._epoch = epoch
        self._nonce = secrets.token_hex(8)
        """In the names of messages: who knew one before could publish something else under it."""
        self._lanes: list[Lane] = []
        self._wake = asyncio.Event()
        self._sent = asyncio.Event()
        self._bus: Bus | None = None
        self._task: asyncio.Task[None] | None = None
        self._log = get_logger()

    def lane(self, gpu: int, name: str) -> Lane:
        """A further lane, by its name in bus_schemas.journal."""
        lane = Lane(self._node, self._epoch, gpu, name, self._wake.set)
        self._lanes.append(lane)
        return lane

    def start(self, bus: Bus) -> None:
        """Begin to send."""
        self._bus = bus
        self._task = asyncio.create_task(self._send_forever(), name="journal")

    def tick(self) -> None:
        """About once a second: what was recorded leaves."""
        for lane in self._lanes:
            lane.seal()

    async def close(self, deadline_s: float) -> bool:
        """Send what is left within ``deadline_s``, then stop; is everything sent?"""
        self.tick()
        if self._task is not None:
            self._wake.set()
            self._sent.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._sent.wait(), deadline_s)
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        return not any(lane.parts or lane.hole for lane in self._lanes)

    async def _send_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            for lane in self._lanes:
                await self._send(lane)
            if not any(lane.parts for lane in self._lanes):
                self._sent.set()

    async def _send(self, lane: Lane) -> None:
        """Everything of one lane, in order; tries again while the bus is away."""
        assert self._bus is not None
        while lane.parts:
            part = lane.parts[0]
            name = f"{self._nonce}.{part.gpu}.{part.lane}.{part.segment}.{part.first}"
            try:
                await self._bus.publish_acked(lane.subject, encode_part(part), message_id=name, deadline_s=_ACK_S)
            except BusUnavailable:
                await asyncio.sleep(_RETRY_S)
            except BusRefused as refused:
                self._log.warning("the journal on the bus has a hole", gpu=part.gpu, lane=part.lane, problem=str(refused))
                lane.lose()
                await self._stream_there()
                lane.on_gap()
            else:
                lane.sent()

    async def _stream_there(self) -> None:
        """Wait until there is a stream, again or at last."""
        assert self._bus is not None
        while True:
            await asyncio.sleep(_MISSING_S)
            with contextlib.suppress(BusUnavailable, BusRefused):
                await self._bus.require_stream(journal_stream_config())
                return


def _nbytes(part: JournalPart) -> int:
    return len(part.frames) + len(part.snapshot)


_SEGMENT_S: Final = 3600.0
_SAID_MAX: Final = 65_536
_PROGRAMS_MAX: Final = 2_048
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
        if batch.program_body and batch.program not in self._operations and batch.program == digest(batch.program_body):
            self._operations[batch.program] = self._operations_of(batch.program_body)
        here = (batch.session, batch.program)
        if batch.program and batch.origin and here not in self._origins:
            self._origins[here] = "".join(letter if letter.isprintable() else "?" for letter in batch.origin)
        if time.monotonic() - self._began_s > _SEGMENT_S or len(self._said) >= _SAID_MAX:
            self._begin()
        name = content[:PROGRAM_NAME_BYTES]
        origin = "" if here in self._said else self._origins.get(here, "")
        operations = () if batch.program in self._said else self._operations.get(batch.program, ())
        if name in self._said and not origin and not operations:
            return
        program = batch.program[:PROGRAM_NAME_BYTES]
        self._said |= {name, batch.program} if operations else {name}
        if origin:
            self._said.add(here)
        self._lane.add(encode_use(ProgramUse(name, program, operations, batch.session if origin else "", origin)))

    def _learn_kernel(self, body: bytes) -> None:
        """Its name, of a kernel that can be read; one that cannot refuses its batch."""
        name = digest(body)
        if name in self._kernels or len(body) > NAMED_BODY_BYTES_MAX:
            return
        with contextlib.suppress(WisError, msgspec.DecodeError):
            self._kernels[name] = decode_kernel(body).name[:_NAME_MAX]

    def _operations_of(self, body: bytes) -> tuple[str, ...]:
        """The operations of a program, the most frequent first, as ``matmul x3``; none of one that cannot be read: its batch is refused."""
        if len(body) > NAMED_BODY_BYTES_MAX:
            return ()
        try:
            program = decode_program(body)
        except (WisError, msgspec.DecodeError):
            return ()
        counts: Counter[str] = Counter()
        for (op, attrs), count in Counter((instruction.op, instruction.attrs[:1]) for instruction in program.code).items():
            counts[self._name_of(op, attrs, program.kernels)] += count
        return tuple(f"{name} x{count}" if count > 1 else name for name, count in counts.most_common(_OPERATIONS_MAX))

    def _name_of(self, op: int, attrs: Sequence[int], kernels: tuple[bytes, ...]) -> str:
        """An operation by its name; a launch with that of its kernel."""
        known = BY_CODE.get(op)
        if known is None or known is not BY_NAME["launch"]:
            return "unknown" if known is None else known.name
        at = attrs[0] if attrs else -1
        kernel = self._kernels.get(kernels[at], "") if 0 <= at < len(kernels) else ""
        return f"kernel {kernel}" if kernel else "kernel"

    def _begin(self) -> None:
        self._said.clear()
        self._began_s = time.monotonic()
        self._lane.begin(bytes)


class QuotaLane:
    """What quotas refused. Lives on the server's event loop."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._began_s = 0.0
        lane.on_gap = self._begin
        self._begin()

    def add(self, refused: Iterable[Asked]) -> None:
        """Questions with their answers, by time."""
        if time.monotonic() - self._began_s > _SEGMENT_S:
            self._begin()
        for asked in refused:
            self._lane.add(self._journal.add(asked, decisions(asked)))

    def _begin(self) -> None:
        self._began_s = time.monotonic()
        self._journal = journal = Journal()
        self._lane.begin(lambda: journal.digest)
