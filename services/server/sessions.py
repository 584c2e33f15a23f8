"""What the server knows of an open session, and its forms for the executor and the dispatch core. Data only."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bus_schemas.batch import Batch, Fault
from bus_schemas.events import Outcome
from bus_schemas.session import SessionClosed
from bus_schemas.subjects import LOCAL
from scheduler.dispatch import SessionOpened
from services.server.protocol import Executed, OpenSpace

__all__ = ["CANCELLED", "Pending", "Session", "SessionRecord", "decode_record", "encode_record", "open_space", "opened_stimulus"]


CANCELLED: Final = "cancelled"
"""Why a session closed: its task was cancelled."""


class SessionRecord(msgspec.Struct, array_like=True, frozen=True):
    """What stays true of a session for its life. The executor keeps a copy, so that a restarted server finds it. ``domain``: the trust
    domain whose content it may share (empty: none, not even its own). ``principal``: whose it is. ``traceparent``: of its trace, or
    empty."""

    session: str
    tenant: str
    task: str
    gpu: int
    priority: int
    quota_bytes: int
    exclusive: bool
    swap: bool
    title: str
    token: str
    epoch: int
    opened_at_ns: int
    domain: str = ""
    weight: int = 100
    sla_ms_p99: int = 0
    pace_percent: int = 0
    vram_wait_ms: int = 0
    principal: str = LOCAL
    traceparent: str = ""

    @property
    def about(self) -> dict[str, str]:
        """For lines of the log."""
        return {"session": self.session, "task": self.task, "tenant": self.tenant}


@dataclass(slots=True)
class Pending:
    """A batch that came and is not over."""

    batch: Batch
    #: Its encoding; empty once the executor has it.
    data: bytes
    #: Its place in the batch stream.
    position: int
    received_ns: int
    #: Why the executor is to refuse it, if the intake did.
    refused: Fault | None = None
    #: The dispatch core has it, or the gate does.
    prepared: bool = False
    #: Of its last Execute.
    serial: int = 0
    #: That Execute was sent with this priority.
    priority: int = 0
    #: The session's launch digest after it.
    chain: bytes = b""
    #: When the executor took up its first slice.
    begun_ns: int = 0
    #: When that slice was launched.
    start_ns: int = 0
    #: Core time of its slices so far.
    core_ns: int = 0
    #: How many slices of it have run.
    slices: int = 0
    #: Bytes of its encoding.
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = len(self.data)

    def hand_over(self) -> bytes:
        """The encoding for the executor, which keeps it: nothing the second time."""
        data, self.data = self.data, b""
        return data

    def slice(self, done: Executed) -> None:
        """A slice of it ran."""
        if not self.slices:
            self.begun_ns, self.start_ns = done.begin_ns, done.start_ns
        self.core_ns += done.core_ns
        self.slices += 1


@dataclass(slots=True)
class Session:
    """``heard_ns``: last sign of life (monotonic). ``seq_done``: last batch executed; ``chain``: launch digest after it. ``fault``: why the
    session is over although it is not closed yet. ``closing``: set once it is being closed; resolves to its totals. ``memory``: bytes
    (allocated, swapped, shared). ``expected``: the executor was asked to bring back what is swapped out. ``recalling``: it was asked for
    answers that were lost on their way. ``outcome``: how its script ended, once that is known."""

    record: SessionRecord
    heard_ns: int
    seq_done: int = 0
    chain: bytes = b""
    resident_bytes: int = 0
    pending: dict[int, Pending] = field(default_factory=dict)
    fault: Fault | None = None
    closing: asyncio.Future[SessionClosed] | None = None
    reason: str = ""
    memory: tuple[int, int, int] = (0, 0, 0)
    expected: bool = False
    recalling: bool = False
    outcome: Outcome | None = None

    @property
    def swapped_bytes(self) -> int:
        return self.memory[1]

    @property
    def pending_bytes(self) -> int:
        return sum(pending.nbytes for pending in self.pending.values())

    @property
    def seq_next(self) -> int:
        """The lowest batch that has not come."""
        seq = self.seq_done + 1
        while seq in self.pending:
            seq += 1
        return seq


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SessionRecord)


def encode_record(record: SessionRecord) -> bytes:
    return _encoder.encode(record)


def decode_record(data: bytes) -> SessionRecord:
    return _decoder.decode(data)


def open_space(record: SessionRecord) -> OpenSpace:
    """The request to the executor to open the session."""
    return OpenSpace(
        record.session,
        record.token,
        record.quota_bytes,
        encode_record(record),
        record.priority,
        record.swap,
        record.domain,
        record.vram_wait_ms,
        record.tenant,
        record.task,
    )


def opened_stimulus(now_ns: int, session: Session) -> SessionOpened:
    """The stimulus that opens the session in the dispatch core."""
    record = session.record
    return SessionOpened(
        now_ns,
        record.session,
        record.epoch,
        record.priority,
        session.seq_done + 1,
        session.chain,
        record.weight,
        record.sla_ms_p99 * 10**6,
        record.pace_percent * 10,
    )
