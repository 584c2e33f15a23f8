"""State of a session: one session on a node, and what stays when another takes its place: batches, answers, and whether it is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
from blake3 import blake3

from bus_schemas import subjects
from bus_schemas.batch import Done, Upload
from bus_schemas.session import CloseSession, Ping, Pong, SessionClosed, SessionOpened
from wooly import progress
from wooly.errors import ForkError, NodeLostError, ProtocolError, QuotaReachedError, WoolyError
from wooly.link import Flush, ReadBytes
from wooly.transport.batches import BatchEncoder
from wooly.transport.bus import BusThread
from wooly.transport.data_port import DataPort
from wooly.transport.halt import Halt
from wooly.transport.patience import Outage
from wooly.transport.replay import Kept, ReplayLog

PING_S: Final = 1.5
_INLINE_TOTAL_BYTES: Final = 512 << 10
_UPLOAD_SAID_BYTES: Final = 64 << 20
"""Larger uploads are announced on a terminal."""
_CHUNK_ATTEMPTS_MAX: Final = 5
_RUMOUR_S: Final = 3.0
"""How long after a failure of the data port the node may take to say that it lost the session."""
_UPLOAD_LOST: Final = "the node lost bytes that were being uploaded; start the script again"
_FORKED: Final = "the device was used before this process was forked; use the 'spawn' start method, or first use it in the child"


@dataclass(slots=True, eq=False)
class Sent:
    """A batch without its Done. ``attempt`` tells repeats apart that the bus must not take for one message."""

    seq: int
    flush: Flush
    uploads: tuple[Upload, ...] = ()
    data: bytes = b""
    sent_s: float = 0.0
    trace: str = ""
    attempt: int = 0
    #: why its uploads are not on the node, which refuses it therefore
    refusal: WoolyError | None = None


@dataclass(slots=True, eq=False)
class Answer:
    """Where a waiting thread finds its Done."""

    event: threading.Event = field(default_factory=threading.Event)
    done: Done | None = None
    refused: WoolyError | None = None
    #: held while its bytes are fetched
    fetching: threading.Lock = field(default_factory=threading.Lock)
    #: those bytes
    found: list[ReadBytes] | None = None

    @property
    def on_node(self) -> bool:
        """Whether bytes of it are on the node until they are fetched."""
        return self.found is None and self.done is not None and any(read.blob for read in self.done.reads)


class RemoteSession:
    """A session on a node. When the node loses it, another one takes its place."""

    def __init__(self, bus: BusThread, info: SessionOpened, skipped: int, *, wait_s: float, check: Callable[[], None]) -> None:
        """``wait_s`` and ``check``: of its data port."""
        assert info.node is not None
        self._bus, self.info, self.session, self.node = bus, info, info.session, info.node
        #: it numbers batches from the one behind this one
        self.skipped = skipped
        self._subject = subjects.batch_subject(info.node.node, info.session, bus.principal)
        self.encoder = BatchEncoder(info.session, info.epoch, info.limits.batch_bytes_max)
        self.port = DataPort(info.node.data_port, info.session, info.token, bus.credentials.tls, wait_s=wait_s, check=check)
        self._nonce = secrets.token_hex(8)

    @staticmethod
    def answers_of(info: SessionOpened, bus: BusThread) -> str:
        """The subject on which the session hears of its batches: what other nodes publish under its name does not count."""
        assert info.node is not None
        return subjects.session_done(info.session, bus.principal, info.node.node)

    def publish(self, sent: Sent) -> Coroutine[Any, Any, None]:
        # Who knew the name before could send something else under it, and the bus would take the batch for a repeat of that.
        return self._bus.publish(self._subject, sent.data, f"{self._nonce}:{sent.seq}:{sent.attempt}")

    async def ping(self, seq_seen: int = -1, image: int = 0) -> Pong:
        """Ask the node where it is, (with ``seq_seen``) for answers that were lost on the way, and (with ``image``) to record that there is
        this image. Raises NoAnswer, DecodeError."""
        ping = Ping(self.session, max(-1, seq_seen - self.skipped) if seq_seen >= 0 else -1, image)
        return msgspec.msgpack.decode(await self._ask("ping", ping, PING_S), type=Pong)

    async def close(self, request: CloseSession, timeout_s: float) -> SessionClosed:
        """Raises NoAnswer, DecodeError."""
        return msgspec.msgpack.decode(await self._ask("close", request, timeout_s), type=SessionClosed)

    def _ask(self, verb: str, request: Ping | CloseSession, timeout_s: float) -> Coroutine[Any, Any, bytes]:
        subject = subjects.node_request(self.node.node, verb, self._bus.principal)
        return self._bus.request(subject, msgspec.msgpack.encode(request), timeout_s)

    def upload(self, uploads: Sequence[tuple[int, memoryview]]) -> tuple[Upload, ...]:
        """Small ones inline, the rest as chunks that are on the node when this returns."""
        room = _INLINE_TOTAL_BYTES
        out: list[Upload] = []
        large: list[tuple[int, int, list[memoryview]]] = []
        for at, (handle, data) in enumerate(uploads):
            if data.nbytes <= min(self.info.limits.inline_bytes_max, room):
                room -= data.nbytes
                out.append(Upload(handle, data.nbytes, bytes(data)))
            else:
                large.append((at, handle, self._chunks(data)))
                out.append(Upload(handle, data.nbytes))
        if large:
            nbytes = sum(out[at].nbytes for at, _, _ in large)
            with progress.slow(f"uploading {nbytes >> 20} MiB", 0) if nbytes > _UPLOAD_SAID_BYTES else contextlib.nullcontext():
                names = iter(self.port.put([chunk for _, _, chunks in large for chunk in chunks]))
            for at, handle, chunks in large:
                out[at] = Upload(handle, out[at].nbytes, chunks=tuple(next(names) for _ in chunks))
        return tuple(out)

    def upload_again(self, sent: Sent, names: set[bytes]) -> None:
        """Bring chunks that the node had when it was asked, in memory that another session has given back since."""
        lost: dict[bytes, memoryview] = {}
        for (_, data), upload in zip(sent.flush.uploads, sent.uploads, strict=True):
            lost |= {name: chunk for name, chunk in zip(upload.chunks, self._chunks(data), strict=False) if name in names}
        self.port.put(list(lost.values()))

    def release(self, uploads: Sequence[tuple[int, memoryview]], needed: set[bytes]) -> None:
        """Give up the chunks of uploads that were refused, but those that are ``needed``."""
        names = {blake3(chunk).digest() for _, data in uploads for chunk in self._chunks(data)}
        self.port.release(list(names - needed))

    def _chunks(self, data: memoryview) -> list[memoryview]:
        """An upload cut into what the data port takes."""
        view = data.cast("B") if data.format != "B" or data.ndim != 1 else data
        step = self.info.limits.chunk_bytes
        return [view[start : start + step] for start in range(0, view.nbytes, step)]


class Mirror(Protocol):
    """Runs the batches of a session in another one as well."""

    def record(self, seq: int, flush: Flush) -> None:
        """The session was sent this batch (``swap`` is held)."""
        ...

    def answered(self, seq: int, flush: Flush, done: Done) -> None:
        """The session has answered this batch (bus thread; ``changed`` is held)."""
        ...

    def heard(self, done: Done) -> None:
        """An answer came that is not the session's (bus thread)."""
        ...


class SessionState:
    """Any thread may read; who changes ``sent``, ``answers``, ``todo`` or what is about lost sessions holds ``changed``."""

    def __init__(self, bus: BusThread, info: SessionOpened, log: ReplayLog, wait_s: float) -> None:
        """``wait_s``: how long a node that does not answer is waited for."""
        self.bus, self.log, self.wait_s = bus, log, wait_s
        #: held, beside ``changed`` and before it, while a batch is given to one session of a node, or they are given to another
        self.swap = threading.Lock()
        self.changed = threading.Condition()
        self.pid = os.getpid()
        #: the number of the last batch
        self.seq = 0
        #: the number of the last batch that ran on the node that was left as well, when its task moved
        self.shared = 0
        #: batches without a Done, by number
        self.sent: dict[int, Sent] = {}
        self.answers: dict[int, Answer] = {}
        self.envelope_bytes = 0
        self.fault: WoolyError | None = None
        self.halt = Halt()
        #: closed, and not to be built again
        self.left = False
        #: when the node answered last
        self.heard_s = time.monotonic()
        self.outage = Outage(wait_s)
        #: messages may be lost: the watch asks now
        self.shaken = asyncio.Event()
        #: a thread builds the session again
        self.rebuilding = False
        #: the last session on a node that was lost
        self.lost = ""
        #: batches that have not been sent to the new session yet
        self.todo: OrderedDict[int, Sent] = OrderedDict()
        #: of those that were answered before: what was kept, and whether all their answers are wanted again
        self.repeated: dict[int, tuple[Kept, bool]] = {}
        #: losses since a batch was answered for the first time
        self.attempts = 0
        #: what runs its batches on another node as well, to which it moves
        self.mirror: Mirror | None = None
        self.use(info)

    def use(self, info: SessionOpened, skipped: int = 0) -> None:
        """Send batches to this session of a node from now on; it numbers them from the one behind batch ``skipped``."""
        self.remote = RemoteSession(self.bus, info, skipped, wait_s=self.wait_s, check=lambda: self.check_port(info.session))

    def hear(self) -> None:
        """The node has answered."""
        self.outage.over()
        self.heard_s = time.monotonic()

    def check_process(self) -> None:
        if os.getpid() != self.pid:
            raise ForkError(_FORKED)

    def check_left(self) -> None:
        if self.left:
            raise NodeLostError("the session is closed")

    def raise_fault(self) -> None:
        fault = self.fault
        if fault is not None:
            raise fault.with_traceback(None)

    def check_port(self, session: str) -> None:
        """What a data port of this session of a node still waits for will not come once the session is lost."""
        self.check_process()
        self.check_left()
        self.raise_fault()
        if self.lost == session:
            raise NodeLostError("the node lost the session's memory")

    def settle(self, fault: WoolyError) -> None:
        """The session is over: every waiting call, now or later, raises ``fault``."""
        with self.changed:
            if self.fault is None:
                self.fault = fault
            self.sent.clear()
            self.todo.clear()
            answers = list(self.answers.values())
            self.changed.notify_all()
        for answer in answers:
            answer.event.set()

    def stop(self, refused: WoolyError) -> None:
        """The tenant's budget is used up: resolve all waiters with the refusal; the batches stay, to be sent again."""
        self.halt.set(refused)
        with self.changed:
            answers = [self.answers[seq] for seq in self.sent if seq in self.answers]
            self.changed.notify_all()
        for answer in answers:
            answer.event.set()

    def resume(self) -> None:
        """After a budget refusal was raised to the script: republish all with new Nats-Msg-Ids, which bypasses the bus's deduplication."""
        if self.halt.over():
            with self.changed:
                for seq, sent in (self.sent | self.todo).items():
                    sent.attempt += 1
                    if seq in self.answers:
                        self.answers[seq].event.clear()
            self.bus.post(self.send_all)

    def wait_for_done(self, answer: Answer) -> Done:
        while True:
            while not answer.event.wait(1.0):
                self.raise_fault()
            with self.changed:  # an answer that has not been taken is waited for again while the session is built again
                done, over = answer.done, answer.event.is_set()
            if done is not None:
                return done
            if self.fault is None:
                self.halt.raise_pending()
            self.raise_fault()
            if over:
                raise NodeLostError("the session was closed before the batch was done")

    def wait_for_room(self) -> bool:
        """Until the next batch is within reach of the oldest without a Done: the node keeps answers for no longer than that. True: it will
        not be, for the node takes none of this session's batches now."""
        with self.changed:
            while not self.in_reach(self.seq + 1):
                if self.halt:
                    return True
                self.changed.wait(1.0)
                self.raise_fault()
        return False

    def upload(self, uploads: Sequence[tuple[int, memoryview]]) -> tuple[Upload, ...]:
        """Bring uploads to the node. While it has no room for them the batches under way are waited for: they use what takes it."""
        while True:
            with self.changed:
                remote, oldest = self.remote, min(self.sent, default=0)
            try:
                return remote.upload(uploads)
            except QuotaReachedError:
                with self.changed:
                    needed = {name for sent in self.sent.values() for upload in sent.uploads for name in upload.chunks}
                remote.release(uploads, needed)
                if not oldest or self.halt:
                    raise
            with self.changed:
                while oldest in self.sent and not self.halt and self.remote is remote and self.lost != remote.session:
                    self.changed.wait(1.0)
                    self.raise_fault()

    def in_reach(self, seq: int) -> bool:
        """Whether the node still keeps the answer of the oldest batch without a Done when batch ``seq`` is executed."""
        return not self.sent or seq - min(self.sent) < self.remote.info.limits.outstanding_batches_max

    def settled(self) -> str:
        """The session on a node that batches go to, once it is not being built again; or at once while the node takes none."""
        with self.changed:
            while self.rebuilding and not self.halt:
                self.changed.wait(1.0)
            self.raise_fault()
            return self.remote.session

    def moved(self, session: str) -> bool:
        """Whether the node lost this session, which its data port may know a moment before we do."""
        until_s = time.monotonic() + _RUMOUR_S
        self.bus.post(self.shaken.set)  # what it said may be lost: ask now
        with self.changed:
            while self.lost != session and self.remote.session == session and self.log.whole and self.fault is None:
                if time.monotonic() > until_s:
                    return False
                self.changed.wait(0.1)
            return self.fault is None and (self.rebuilding or self.remote.session != session)

    def all_answered(self) -> bool:
        """Wait until every batch is; False if that does not happen now, or one was refused: the script hears of it elsewhere."""
        with self.changed:
            while (self.sent or self.rebuilding) and self.fault is None and not self.halt:
                self.changed.wait(1.0)
            return self.log.whole and not (self.sent or self.rebuilding or self.fault or self.halt)

    # -- (bus thread) --------------------------------------------------------------------------------------------------------------

    def send(self, sent: Sent) -> None:
        asyncio.ensure_future(self.remote.publish(sent)).add_done_callback(self._on_published)

    def _on_published(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.settle(ProtocolError(f"the bus refused a batch: {task.exception()}"))

    def send_all(self) -> None:
        """Go back to the oldest batch without a Done and send all again, in order; the node drops those it has."""
        self.shaken.set()  # answers may have been lost as well
        if self.halt:
            return  # they are sent when the script asks again
        with self.changed:
            unanswered = [self.sent[seq] for seq in sorted(self.sent)]
        self.send_in_order(unanswered)

    def send_in_order(self, batches: list[Sent]) -> None:
        for sent in batches:
            self.send(sent)

    def send_bodies(self, done: Done) -> None:
        """The node lacks bodies of a batch: send it again whole, under a new name."""
        with self.changed:
            sent = self.sent.get(done.seq)
        if sent is None:
            return
        sent.attempt += 1
        bodies = {sent.flush.program, sent.flush.dims_digest, *(digest for digest, _ in sent.flush.kernels)}
        chunks = set(done.needs) - bodies
        if not chunks:
            self._send_whole(sent)
        elif sent.attempt > _CHUNK_ATTEMPTS_MAX or not chunks.issubset(name for upload in sent.uploads for name in upload.chunks):
            self.settle(NodeLostError(_UPLOAD_LOST))
        else:
            bringing = asyncio.ensure_future(asyncio.to_thread(self._bring, self.remote, sent, chunks))
            bringing.add_done_callback(lambda task: self._on_brought(task, sent))

    def _bring(self, remote: RemoteSession, sent: Sent, chunks: set[bytes]) -> bool:
        """(own thread) Bring these chunks; False: the session was lost meanwhile, and its batches are repeated. Raises WoolyError."""
        try:
            remote.upload_again(sent, chunks)
        except WoolyError:
            if not self.moved(remote.session):
                raise
        return self.remote is remote and self.lost != remote.session

    def _send_whole(self, sent: Sent) -> None:
        sent.data = self.remote.encoder.encode_whole(sent.seq - self.remote.skipped, sent.flush, sent.uploads, sent.trace)
        self.envelope_bytes += len(sent.data)
        self.send(sent)

    def _on_brought(self, task: asyncio.Future[bool], sent: Sent) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            if task.result():
                self._send_whole(sent)
        else:
            self.settle(error if isinstance(error, WoolyError) else NodeLostError(_UPLOAD_LOST))
