"""What the server knows of an open session and its batches, their forms for the executor, the dispatch core and the trace, and what a
session repeats of a lost one.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from bus_schemas import faults
from bus_schemas.batch import Batch, Fault
from bus_schemas.events import Outcome
from bus_schemas.session import OpenSession, SessionClosed
from bus_schemas.subjects import LOCAL
from bus_schemas.terms import TaskTerms
from scheduler.dispatch import SessionOpened
from scheduler.placement.states import REASON_DISPLACED
from services.kit.trace import Tracing
from services.server.protocol import Executed, OpenSpace, code_domain

CANCELLED: Final = "cancelled"
"""Why a session closed: its task was cancelled."""
DISPLACED: Final = REASON_DISPLACED
"""Its task is to run elsewhere."""
_FAILED: Final = "failed"


class SessionRecord(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What stays true of a session from open to close. The executor keeps a copy, so that a restarted server finds it."""

    session: str
    terms: TaskTerms
    gpu: int = 0
    #: Opens the data port for it.
    token: str = ""
    #: Of the server that opened it.
    epoch: int = 0
    #: Unix time.
    opened_at_ns: int = 0
    #: The trust domain whose content it may share; empty: none, not even its own.
    domain: str = ""
    #: How long a batch may wait for memory before it is refused, 0: not at all.
    vram_wait_ms: int = 0
    #: Whose connection it is.
    principal: str = LOCAL
    #: W3C, of its trace; empty: none.
    traceparent: str = ""
    #: The last batch that repeats one of a session whose memory was lost.
    replayed: int = 0
    #: Core time of these that is not charged, for it was before.
    recover_ns: int = 0
    #: They repeat work of another node, as the client says: the bill decides how much of it counts.
    elsewhere: bool = False
    #: The session whose place it takes; empty: none.
    replaces: str = ""
    #: The first of the sessions that took each other's place until it; empty: it is that one.
    origin: str = ""
    #: Core time of the batch after ``replayed`` that is not charged: a lost session had begun it.
    begun_ns: int = 0
    #: The client's image that its memory is built from; 0: none.
    image: int = 0

    @property
    def code_domain(self) -> str:
        return code_domain(self.domain, self.terms.tenant)

    @property
    def about(self) -> dict[str, str]:
        """For lines of the log."""
        return {"session": self.session, "task": self.terms.task, "tenant": self.terms.tenant}


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
    """An open session."""

    record: SessionRecord
    #: The last batch executed.
    seq_done: int = 0
    #: Launch digest after it.
    chain: bytes = b""
    #: What it is charged for.
    resident_bytes: int = 0
    #: How long nothing came from its client while the node listened.
    silent_ns: int = 0
    #: Its client closed its connection to the data port, as one that ends or is killed does.
    unlinked: bool = False
    #: Batches that came and are not over, by seq.
    pending: dict[int, Pending] = field(default_factory=dict)
    #: What the executor did for it beside its launches, and the dispatcher does not know yet.
    overhead_ns: int = 0
    #: Why it is over although it is not closed yet.
    fault: Fault | None = None
    #: Set once it is being closed; resolves to its totals.
    closing: asyncio.Future[SessionClosed] | None = None
    #: Why it is being closed.
    reason: str = ""
    #: Bytes (allocated, swapped, shared).
    memory: tuple[int, int, int] = (0, 0, 0)
    #: The executor was asked to bring back what is swapped out.
    expected: bool = False
    #: The executor was asked for answers that were lost on their way.
    recalling: bool = False
    #: How its script ended, once that is known.
    outcome: Outcome | None = None
    #: Core time that is not charged to the session that takes its place.
    recover_ns: int = 0
    #: Core time of the slices of the batch after ``seq_done``, which was not over.
    begun_ns: int = 0

    @property
    def reason_in_log(self) -> str:
        """Why it closed. That one with a fault was displaced is no word of its client: what it did could be repeated without a charge."""
        by_client = self.reason == DISPLACED and self.fault is not None and self.fault.name != faults.DISPLACED
        return _FAILED if by_client else self.reason

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
    return OpenSpace(record.session, record.token, encode_record(record), record.terms, record.domain, record.vram_wait_ms)


def opened_stimulus(now_ns: int, session: Session) -> SessionOpened:
    """The stimulus that opens the session in the dispatch core."""
    record, terms = session.record, session.record.terms
    return SessionOpened(
        at_ns=now_ns,
        session=record.session,
        epoch=record.epoch,
        priority=terms.priority,
        next_seq=session.seq_done + 1,
        chain=session.chain,
        weight=terms.weight,
        sla_ns=terms.sla_ms_p99 * 10**6,
        pace_permille=terms.pace_percent * 10,
    )


def record_spans(tracing: Tracing, pending: Pending, done: Executed, gpu: int) -> None:
    """``done``: the report of its last slice, which ``pending`` knows of."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    about = {"wooly.session": done.session, "wooly.seq": done.seq, "wooly.gpu": gpu}
    cost = about | {"wooly.core_ns": pending.core_ns, "wooly.instructions": done.instructions, "wooly.slices": pending.slices}
    for name, start_ns, end_ns, attributes in (
        ("wooly.queue", pending.received_ns, pending.begun_ns, about),
        ("wooly.execute", pending.begun_ns, done.finish_ns, about),
        ("wooly.launch", pending.start_ns, done.end_ns, cost),
    ):
        tracing.record(pending.batch.trace, name, start_ns + offset_ns, max(start_ns, end_ns) + offset_ns, attributes)


def gives_way(record: SessionRecord, request: OpenSession, principal: str) -> bool:
    """Whether the requested session may take the place of this one: it names it, and both are of one client, tenant and task. The name
    alone proves nothing: a client may name another's session."""
    own = record.principal, record.terms.tenant, record.terms.task
    return record.session == request.replaces and own == (principal, request.tenant, request.task)


def is_unanswered(lost: Session, request: OpenSession, principal: str) -> bool:
    """Whether a lost session has the name of this request because its client repeats the request, having had no answer: it ran no batch."""
    return (lost.record.principal, lost.record.terms.tenant, lost.seq_done) == (principal, request.tenant, 0)


def repeats_of(lost: Session | None, request: OpenSession) -> dict[str, Any]:
    """Fields of the record of a session: what it repeats of the one whose place it takes."""
    return {
        "replayed": _replayed(lost, request),
        "recover_ns": lost.recover_ns if lost is not None else 0,
        "elsewhere": _elsewhere(lost, request),
        "begun_ns": _begun_ns(lost, request),
    }


def repeats_again(unanswered: Session) -> dict[str, Any]:
    """The same of one that was opened before under its name, and ended the one whose place it takes."""
    record = unanswered.record
    return {"replayed": record.replayed, "recover_ns": unanswered.recover_ns, "elsewhere": record.elsewhere, "begun_ns": record.begun_ns}


def _replayed(lost: Session | None, request: OpenSession) -> int:
    """The last batch of the new session that repeats one of the lost one."""
    if lost is not None:
        return max(max(lost.seq_done, lost.record.replayed) - max(0, request.skips), _shared(lost, request))
    return request.repeats if _elsewhere(lost, request) else 0


def _shared(lost: Session, request: OpenSession) -> int:
    """The last batch of the new session that the lost one ran beside another node's, or was to run."""
    return request.shared if lost.record.elsewhere else 0


def _begun_ns(lost: Session | None, request: OpenSession) -> int:
    """Core time that was charged for slices of the first batch that does not repeat one of the lost session: of that one's own, and of the
    session's whose place that one took, if it was not beyond it. None, if the client has an image with what that batch did: the node knows
    of less than it ran."""
    if lost is None or request.skips > max(lost.seq_done, lost.record.replayed):
        return 0
    return max(lost.begun_ns, lost.record.begun_ns if lost.seq_done <= lost.record.replayed else 0)


def _elsewhere(lost: Session | None, request: OpenSession) -> bool:
    """Whether the new session repeats work of another node: this one does not know the lost one, or that was not yet through with such."""
    if lost is not None:
        known = max(lost.record.replayed, _shared(lost, request) + max(0, request.skips))
        return lost.record.elsewhere and lost.seq_done < known
    return bool(request.replaces and request.terms.task)
