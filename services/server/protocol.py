"""Protocol between server and executor over their Unix socket: frames (bus_schemas.frames) of one msgpack message each. Pure.

Commands are carried out in the order sent, but for Prepare (done beside them, the highest priority first, in order inside one).
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus_schemas.batch import Fault
from bus_schemas.telemetry import QuotaUse
from bus_schemas.terms import TaskTerms
from scheduler.quotas import Asked

__all__ = [
    "PROTOCOL", "RAN", "FAULTED", "NEEDS", "BEHIND", "STOPPED", "AWAITS", "STOP_WORDS", "Attach", "OpenSpace", "CloseSpace", "Prepare",
    "Forget", "Execute", "Expect", "ChangePriority", "UseCertificate", "JournalAnew", "Recall", "Confirm", "Shutdown", "Command",
    "HeldSession", "Attached", "SpaceOpened", "SpaceClosed", "Prepared", "Compiled", "Executed", "MemoryFreed", "Charged", "Journalled",
    "QuotasUsed", "Recalled", "Report", "code_domain", "decode_command", "decode_report",
]  # fmt: skip

STOP_WORDS: Final = 8
"""The stop page is a file of this many u64 (little-endian), mapped by both: the server writes into word p the serial up to which launches
of priority p stop as soon as they can. Faster than any message: the code that runs a launch reads it."""

PROTOCOL: Final = 8
"""Grows with every change of these messages: a server does not take over an executor of another version."""

RAN: Final = 0
FAULTED: Final = 1
NEEDS: Final = 2
BEHIND: Final = 3
STOPPED: Final = 4
AWAITS: Final = 5
"""Status of an Executed: it ran (or was refused without ending its session), it ended its session, it lacks bodies or chunks and had no
effect, it came behind such a one and was not looked at, it was stopped before its end (or before its beginning) and goes on with the next
Execute of its seq, the memory it needs is not free or its program not compiled (a MemoryFreed will come) and it had no effect."""


class Attach(msgspec.Struct, array_like=True, frozen=True, tag="attach"):
    protocol: int


class OpenSpace(msgspec.Struct, array_like=True, frozen=True, tag="open"):
    """Open the memory of a session."""

    session: str
    #: Opens the data port for it.
    token: str
    #: The server's own notes about the session, given back when a server attaches.
    record: bytes
    terms: TaskTerms
    #: Whose content it may share; empty: it did not opt in.
    domain: str = ""
    #: How long a batch may wait for memory before it is refused, 0: not at all.
    wait_ms: int = 0


def code_domain(domain: str, tenant: str) -> str:
    """The sessions that may name the same programs, dims and kernels by digest: of the trust domain of a session, else of its tenant."""
    return domain or f"tenant {tenant}"


class CloseSpace(msgspec.Struct, array_like=True, frozen=True, tag="close"):
    session: str


class Prepare(msgspec.Struct, array_like=True, frozen=True, tag="prepare"):
    """Keep this batch, and verify and compile what it will run, beside the launches."""

    session: str
    seq: int
    #: Encoded.
    batch: bytes


class Forget(msgspec.Struct, array_like=True, frozen=True, tag="forget"):
    """Batch ``seq`` was brought and will not be executed: it was dropped or refused."""

    session: str
    seq: int


class Execute(msgspec.Struct, array_like=True, frozen=True, tag="execute"):
    """Begin batch ``seq`` of a session, or go on with it where a slice of it ended."""

    session: str
    seq: int
    #: The session's launch digest after this launch.
    chain: bytes
    #: Encoded; empty when an earlier Prepare or Execute brought it. The executor keeps a batch until it has begun, lacks a body, or a
    #: Forget names it. If it is under way (the server is a new one), the launch continues, provided that the batch is the same.
    batch: bytes
    #: Counts these commands from 1; the launch stops when the word of its ``priority`` in the stop page reaches it.
    serial: int = 0
    priority: int = 0
    #: It stops after about that time, 0: never.
    limit_ns: int = 0
    #: Why the batch is refused; its content only says which buffers are lost with it.
    refused: Fault | None = None
    #: Of the batch.
    repeats: bool = False


class Expect(msgspec.Struct, array_like=True, frozen=True, tag="expect"):
    """A batch of this session will be executed soon: what was swapped out may be brought back while others run."""

    session: str


class ChangePriority(msgspec.Struct, array_like=True, frozen=True, tag="priority"):
    """The session has another priority from now on, for its memory; what is launched says itself. ``record``: as in OpenSpace."""

    session: str
    priority: int
    record: bytes


class UseCertificate(msgspec.Struct, array_like=True, frozen=True, tag="certificate"):
    """New connections to the data port are encrypted with this certificate: the executor cannot read the files."""

    #: Certificate and private key, PEM.
    pem: bytes


class JournalAnew(msgspec.Struct, array_like=True, frozen=True, tag="journal_anew"):
    """Begin a new segment of the memory core's journal: the record of the one before has a hole."""


class Recall(msgspec.Struct, array_like=True, frozen=True, tag="recall"):
    """The kept Done messages of batches after ``after_seq``, as many of them as may be sent at a time."""

    session: str
    after_seq: int


class Confirm(msgspec.Struct, array_like=True, frozen=True, tag="confirm"):
    """Executed reports up to ``index`` are in the server's journal."""

    index: int


class Shutdown(msgspec.Struct, array_like=True, frozen=True, tag="shutdown"):
    pass


Command = (
    Attach | OpenSpace | CloseSpace | Prepare | Forget | Execute | Expect | ChangePriority | UseCertificate | JournalAnew | Recall | Confirm
    | Shutdown
)  # fmt: skip


class Executed(msgspec.Struct, array_like=True, frozen=True, tag="executed"):
    """One Execute, accounted: one slice of a batch. Times are the monotonic clock."""

    #: Counts these reports from 1.
    index: int
    session: str
    seq: int
    #: RAN to AWAITS.
    status: int
    #: When the command was taken up.
    begin_ns: int
    #: The launch is [start_ns, end_ns).
    start_ns: int
    end_ns: int
    #: When it was answered.
    finish_ns: int
    core_ns: int
    #: Of the batch, in the report of its last slice; like ``launches``.
    instructions: int
    launches: int
    #: What the session is charged for from ``finish_ns`` on: its part of shared memory included, what is swapped out not.
    resident_bytes: int
    #: The encoded Done; empty for BEHIND, STOPPED and AWAITS.
    done: bytes
    #: (session, the same) of other sessions for which that changed.
    others: tuple[tuple[str, int], ...] = ()
    #: Bytes of the session: (allocated, swapped, shared).
    memory: tuple[int, int, int] = (0, 0, 0)
    #: The same of ``others``.
    others_memory: tuple[tuple[int, int, int], ...] = ()
    #: Of the Execute.
    repeats: bool = False


class MemoryFreed(msgspec.Struct, array_like=True, frozen=True, tag="memory_freed"):
    """What this session's batch waits for, memory or its program, may be had now (or its patience is over: the next Execute says so)."""

    session: str


class Charged(msgspec.Struct, array_like=True, frozen=True, tag="charged"):
    """Between two launches memory moved: what sessions are charged for from ``at_ns`` on, as in Executed."""

    at_ns: int
    others: tuple[tuple[str, int], ...]
    others_memory: tuple[tuple[int, int, int], ...] = ()


class Journalled(msgspec.Struct, array_like=True, frozen=True, tag="journalled"):
    """Frames of the memory core's journal, in order (scheduler.vram.journal)."""

    frames: bytes
    #: How many frames.
    records: int
    #: The segment's after them.
    digest: bytes
    #: A segment begins with these frames and this state (empty: a new core); None: they continue one.
    snapshot: bytes | None = None


class HeldSession(msgspec.Struct, array_like=True, frozen=True):
    """A session whose memory the executor holds."""

    session: str
    #: As in OpenSpace.
    record: bytes
    seq_done: int
    #: Launch digest after ``seq_done``.
    chain: bytes
    #: As in Executed.
    resident_bytes: int
    faulted: bool
    #: As in Executed.
    memory: tuple[int, int, int] = (0, 0, 0)


class Attached(msgspec.Struct, array_like=True, frozen=True, tag="attached"):
    """The executor's state, for a server that attaches."""

    protocol: int
    pid: int
    name: str
    backend: str
    cores: int
    vram_bytes: int
    data_port: tuple[str, ...]
    #: Empty in a fresh executor.
    held: tuple[HeldSession, ...] = ()
    #: Those that no server has confirmed.
    results: tuple[Executed, ...] = ()
    #: Path of the file (see STOP_WORDS).
    stop_page: str = ""


class SpaceOpened(msgspec.Struct, array_like=True, frozen=True, tag="opened"):
    session: str


class SpaceClosed(msgspec.Struct, array_like=True, frozen=True, tag="closed"):
    """``others``: sessions whose charge changed with that, and what they are charged for from ``at_ns`` on."""

    session: str
    at_ns: int
    others: tuple[tuple[str, int], ...] = ()


class Prepared(msgspec.Struct, array_like=True, frozen=True, tag="prepared"):
    """``ready``: the batch will find its program compiled."""

    session: str
    seq: int
    ready: bool


class Compiled(msgspec.Struct, array_like=True, frozen=True, tag="compiled"):
    """So long this session's programs kept the compiler busy."""

    session: str
    compile_ns: int


class Linked(msgspec.Struct, array_like=True, frozen=True, tag="linked"):
    """Whether the session's client is connected to the data port, when that changes."""

    session: str
    linked: bool


class Recalled(msgspec.Struct, array_like=True, frozen=True, tag="recalled"):
    session: str
    dones: tuple[bytes, ...]


class QuotasUsed(msgspec.Struct, array_like=True, frozen=True, tag="quotas"):
    """The quotas that the executor enforces: how much is used (``QuotaUse.tenant`` may be a trust domain), and what they refused."""

    uses: tuple[QuotaUse, ...]
    refused: tuple[Asked, ...] = ()


Report = (
    Attached | SpaceOpened | SpaceClosed | Prepared | Compiled | Executed | MemoryFreed | Charged | Journalled | Linked | Recalled
    | QuotasUsed
)  # fmt: skip

_command: Final[msgspec.msgpack.Decoder[Command]] = msgspec.msgpack.Decoder(Command)
_report: Final[msgspec.msgpack.Decoder[Report]] = msgspec.msgpack.Decoder(Report)


def decode_command(data: bytes | memoryview) -> Command:
    return _command.decode(data)


def decode_report(data: bytes | memoryview) -> Report:
    return _report.decode(data)
