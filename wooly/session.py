"""A session on a node over the bus: submits batches in order, waits for their answers, resends after reconnects, and reports faults.

Exactly once: every batch has a sequence number, the node executes each once and in order, and this side keeps a batch until its Done
has come, sending it again after a reconnect or when the node says it never got it. A node that falls silent is waited for
(WOOLY_RECOVERY_WAIT_S), with a line that says so; then it is an error, never a hang.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bus_schemas import faults, subjects
from bus_schemas.batch import Done, Fault, Upload, decode_done
from bus_schemas.events import Outcome
from bus_schemas.session import CloseSession, Ping, Pong, SessionClosed, SessionOpened
from wooly import progress
from wooly.config import Config
from wooly.errors import ForkError, NodeLostError, ProtocolError, RecoveryDivergedError, WoolyError, from_fault, quota_reached
from wooly.link import Flush, ReadBytes, Ticket
from wooly.shared.lru import LruDict
from wooly.transport.batches import BatchEncoder
from wooly.transport.bus import BusThread, NoAnswer, bus_credentials
from wooly.transport.data_port import DataPort
from wooly.transport.halt import Halt
from wooly.transport.opening import Lost, Opening
from wooly.transport.patience import Outage
from wooly.transport.replay import Kept, ReplayLog, groups
from wooly.transport.trace import Tracer

__all__ = ["Session", "open_session"]

_WATCH_S: Final = 0.5
_DOUBT_S: Final = 0.1
_PING_S: Final = 1.5
_SILENCE_S: Final = 7.0
"""A node is not lost before it has answered no ping for this long."""
_REFUSED_S: Final = 20.0
"""How long the bus may refuse our key: it refuses all keys while no controller runs."""
_LEASE_S: Final = 5.0
"""Between two pings for the lease, at most."""
_LOOK_S: Final = 1.0
"""Between two questions whether the task is placed elsewhere."""
_FROZEN_S: Final = 2 * (_PING_S + _WATCH_S)
"""When the watcher sleeps longer, this process was suspended: that is no silence of the node."""
_STALLED_S: Final = 2.0
_DRAIN_S: Final = 30.0
_CLOSE_S: Final = 8.0
_KILLED_S: Final = 1.5
_INLINE_TOTAL_BYTES: Final = 512 << 10
_UPLOAD_SAID_BYTES: Final = 64 << 20
"""Larger uploads are announced on a terminal."""
_LOST_KEPT_MAX: Final = 64
"""Of how many refused batches it is remembered where they came from."""
_CHUNK_ATTEMPTS_MAX: Final = 5
_REBUILDS_MAX: Final = 3
"""A session that is lost so often without a new answer is over: the cause may be one of its batches."""
_SUBSCRIBE_S: Final = 20.0
_RUMOUR_S: Final = 3.0
"""How long after a failure of the data port the node may take to say that it lost the session."""
_FORKED: Final = "the device was used before this process was forked; use the 'spawn' start method, or first use it in the child"
_UNKNOWN: Final = "the node no longer knows this session: its lease ran out, or the node started anew"

_encode: Final = msgspec.msgpack.Encoder().encode
_pong: Final = msgspec.msgpack.Decoder(Pong)
_closed: Final = msgspec.msgpack.Decoder(SessionClosed)


@dataclass(slots=True, eq=False)
class _Sent:
    """A batch without its Done. ``attempt`` tells repeats apart that the bus must not take for one message."""

    seq: int
    flush: Flush
    uploads: tuple[Upload, ...]
    data: bytes
    sent_s: float
    trace: str
    attempt: int = 0


@dataclass(slots=True, eq=False)
class _Answer:
    """Where a waiting thread finds its Done."""

    event: threading.Event = field(default_factory=threading.Event)
    done: Done | None = None
    refused: WoolyError | None = None


@dataclass(slots=True, eq=False)
class _Rebuild:
    """The session is built again after the node lost its memory."""

    #: a thread is at it
    running: bool = False
    #: the last session on a node that was lost
    lost: str = ""
    #: the last session that was ended, because another one takes its place
    left: str = ""
    #: batches that have not been sent to the new session yet
    todo: dict[int, _Sent] = field(default_factory=dict)
    #: of those that were answered before: what was kept, and whether all their answers are wanted again
    repeated: dict[int, tuple[Kept, bool]] = field(default_factory=dict)
    #: losses since a batch was answered for the first time
    attempts: int = 0
    #: the task is to leave the node
    displaced: bool = False


class Session:
    """Implements ``wooly.link.Link``. Made by ``open_session``. Any thread may call; a fault is raised by every call after it."""

    def __init__(
        self,
        bus: BusThread,
        info: SessionOpened,
        tracer: Tracer | None = None,
        *,
        wait_s: float = 120.0,
        opening: Opening | None = None,
        log_bytes: int = 0,
        target_s: float = 30.0,
    ) -> None:
        """``wait_s``: how long a node that does not answer is waited for. ``opening``: opens sessions in the place of this one, which its
        replay log of ``log_bytes`` builds again. ``target_s``: how much work is repeated then, at most, where images cost little."""
        self._bus = bus
        self._wait_s = wait_s
        self._opening = opening
        self._log = ReplayLog(log_bytes if opening is not None else 0)
        self._recoverable = self._log.whole
        self._rebuild = _Rebuild()
        #: the session on a node that this one is asked to leave
        self._leaving = ""
        self._target_s = target_s
        #: when the last image was taken, and how long that took
        self._image_s, self._image_cost_s = time.monotonic(), 0.0
        self._swap = threading.Lock()
        self._use(info)
        self._outage = Outage(wait_s)
        self._tracer = tracer if tracer is not None else Tracer("wooly-client")
        self._pid = os.getpid()
        self._submit_lock = threading.Lock()
        self._state = threading.Condition()
        self._sent: dict[int, _Sent] = {}
        self._answers: dict[int, _Answer] = {}
        self._fault: WoolyError | None = None
        self._refusal: tuple[int, WoolyError] | None = None
        self._lost_at: LruDict[int, str] = LruDict(_LOST_KEPT_MAX)
        self._halt = Halt()
        #: quotas whose delays were announced
        self._delays: set[str] = set()
        self._seq = 0
        self._closed = self._left = False
        self._envelope_bytes = 0
        self._heard_s = time.monotonic()
        self._watcher: asyncio.Task[None] | None = None
        self._looking = False
        self._looked_s = 0.0
        self._shaken = asyncio.Event()
        self.totals: SessionClosed | None = None
        #: of the sessions that this one took the place of
        self._before: list[SessionClosed] = []
        self.outcome: Outcome | None = None
        """How the script ended, for ``close`` to report; None while it runs."""
        #: called for each batch that the node has answered, with its number and its core time in ns; of the bus's thread
        self.on_done: Callable[[int, int], None] | None = None
        self.batches = 0
        self.waits = 0

    def _use(self, info: SessionOpened, skipped: int = 0) -> None:
        """Send batches to this session of a node from now on; it numbers them from the one behind batch ``skipped``."""
        assert info.node is not None
        self._info = info
        self._skipped = skipped
        self._node, self._name = info.node.node, info.node.name
        self._subject = subjects.batch_subject(self._node, info.session, self._bus.principal)
        self._encoder = BatchEncoder(info.session, info.epoch, info.limits.batch_bytes_max)
        self._data_port = DataPort(
            info.node.data_port,
            info.session,
            info.token,
            self._bus.credentials.tls,
            wait_s=self._wait_s,
            check=lambda: self._check_port(info.session),
        )
        self._nonce = secrets.token_hex(8)

    # -- Link ----------------------------------------------------------------------------------------------------------------------

    @property
    def info(self) -> SessionOpened:
        return self._info

    @property
    def wire_bytes(self) -> int:
        return self._envelope_bytes + self._data_port.sent_bytes

    def submit(self, flush: Flush) -> Ticket:
        """Send ``flush``; returns at once unless the window is full or uploads are large (they are on the node when this returns).

        While the node refuses the tenant's batches for its budget, flushes are kept, to be sent again. Waiting for one raises
        BudgetExceededError, and so does sending more than the window holds; ``flush`` is kept all the same."""
        self._check()
        self._go_on()
        with self._submit_lock:
            if self._leaving == self._info.session:
                self._leave()
            self._take_image_when_due()
            sent, full = self._submit(flush)
        if full:
            self._halt.raise_pending()
        return Ticket(sent.seq, len(flush.reads))

    def _submit(self, flush: Flush) -> tuple[_Sent, bool]:
        """Send ``flush``, to the session as it is once it is not being built again; whether the node takes no batches now. A flush is
        taken, or the session is over."""
        while True:
            session = self._settled()
            try:
                uploads = self._upload(flush.uploads)
            except WoolyError:
                if not self._moved(session):
                    raise
                continue
            full = self._wait_for_room()
            with self._swap:
                if not self._rebuild.running and self._info.session == session:
                    return self._record(flush, uploads), full
                if self._halt:
                    return self._postpone(flush), True

    def _postpone(self, flush: Flush) -> _Sent:
        """Number a batch that is sent when the session has been built again."""
        self._seq += 1
        sent, answer = _Sent(self._seq, flush, (), b"", 0.0, ""), _Answer()
        answer.event.set()  # as of all that wait for the budget
        with self._state:
            self._rebuild.todo[sent.seq] = sent
            self._answers[sent.seq] = answer
        self.batches += 1
        return sent

    def _record(self, flush: Flush, uploads: tuple[Upload, ...]) -> _Sent:
        """Number, encode and send a batch."""
        seq = self._seq + 1
        trace = self._tracer.begin(seq, flush.n_ops)
        data = self._encoder.encode(seq - self._skipped, flush, uploads, trace)
        self._seq = seq  # only now: the node waits for every number that was given away
        sent = _Sent(seq, flush, uploads, data, time.monotonic(), trace)
        with self._state:
            self._sent[seq] = sent
            self._answers[seq] = _Answer()
        self.batches += 1
        self._envelope_bytes += len(data)
        if not self._halt:
            self._bus.post(self._send, sent)
        return sent

    def report(self) -> None:
        """Raise, once, the refusal of a batch that no caller has waited for."""
        self._raise_refusal(self._seq)

    def wait(self, ticket: Ticket) -> list[ReadBytes]:
        """Wait for a submitted flush; the answers of its reads, in order."""
        self._check_process()
        self._raise_refusal(ticket.seq - 1, ticket.seq)
        self._go_on()
        return self._take(ticket)

    def _take(self, ticket: Ticket) -> list[ReadBytes]:
        with self._state:
            answer = self._answers.get(ticket.seq)
        if answer is None:
            if ticket.n_reads:
                raise ValueError(f"the answers of batch {ticket.seq} have been taken already")
            return []  # done, and nothing was asked
        self.waits += not answer.event.is_set()
        while True:
            session = self._info.session
            done = self._await(answer)
            try:
                found = self._answers_of(done)
                break
            except WoolyError:
                if not self._moved(session):
                    raise
        with self._state:
            self._answers.pop(ticket.seq, None)
        self._raise_refusal(ticket.seq - 1)
        if answer.refused is not None:
            refused, answer.refused, self._refusal = answer.refused, None, None
            try:
                raise refused
            finally:
                del refused  # its traceback holds this frame, which would keep the script's tensors alive
        return found

    def _await(self, answer: _Answer) -> Done:
        while True:
            while not answer.event.wait(1.0):
                self._raise_fault()
            with self._state:  # an answer that has not been taken is waited for again while the session is built again
                done, over = answer.done, answer.event.is_set()
            if done is not None:
                return done
            if self._fault is None:
                self._halt.raise_pending()
            self._raise_fault()
            if over:
                raise NodeLostError("the session was closed before the batch was done")

    def _answers_of(self, done: Done) -> list[ReadBytes]:
        """Of its reads, in order; large ones are fetched. Raises NodeLostError, ProtocolError."""
        return [self._data_port.get(read.blob, read.nbytes) if read.blob else read.inline for read in done.reads]

    def free_bytes(self) -> int:
        """Free memory of the device now, in bytes; the value from the opening of the session while the node does not report it."""
        self._check()
        info = self._info
        assert info.node is not None
        with contextlib.suppress(NoAnswer, msgspec.DecodeError, TimeoutError):
            request = self._bus.request(
                subjects.node_request(self._node, "ping", self._bus.principal), _encode(Ping(info.session)), _PING_S
            )
            pong = _pong.decode(self._bus.call(request, 2 * _PING_S))
            if pong.vram_free_bytes >= 0:
                return pong.vram_free_bytes
        return next((device.vram_free_bytes for device in info.node.devices if device.index in info.gpus), 0)

    def close(self) -> None:
        """Let everything submitted finish, then end the session; ``totals`` says what it used. Safe to call twice; raises nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._drain(_DRAIN_S)
        self._left = True
        self._withdraw()
        try:
            self.totals = _sum_of(self._before, self._bus.call(self._goodbye(), _CLOSE_S + 1))
        except (TimeoutError, NoAnswer):
            self.totals = None  # the node is away or busy; the lease ends the session
        self._data_port.close()
        self._bus.stop()
        self._tracer.close()
        self._settle(NodeLostError("the session is closed"))

    def abandon(self, outcome: Outcome) -> None:
        """A signal is about to kill the process: tell the node, which drops what waits. May be called in a signal handler: waits for some
        seconds at most, and takes no lock. Raises nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = self._left = True
        self._withdraw(_KILLED_S)
        with contextlib.suppress(TimeoutError, NoAnswer, RuntimeError):
            self._bus.call(self._close_request(CloseSession(self._info.session, "killed", -1, outcome), _KILLED_S), _KILLED_S + 0.5)

    # -- submitting ----------------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._check_process()
        if self._closed:
            raise NodeLostError("the session is closed")
        self._raise_fault()

    def _check_port(self, session: str) -> None:
        """What a data port of this session of a node still waits for will not come once the session is lost."""
        self._check_process()
        self._check_left()
        self._raise_fault()
        if self._rebuild.lost == session:
            raise NodeLostError("the node lost the session's memory")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkError(_FORKED)

    def _raise_fault(self) -> None:
        fault = self._fault
        if fault is not None:
            raise fault.with_traceback(None)

    def _raise_refusal(self, seq_max: int, seq: int = 0) -> None:
        """Raise, once, the refusal of a batch up to ``seq_max`` that no caller waited for: later batches lack its results. The
        answer of batch ``seq`` is given up then."""
        refusal = self._refusal
        if refusal is not None and refusal[0] <= seq_max:
            self._refusal = None
            with self._state:
                self._answers.pop(seq, None)
            try:
                raise refusal[1]
            finally:
                del refusal  # its traceback holds this frame, which would keep the script's tensors alive

    def _go_on(self) -> None:
        """After a budget refusal was raised to the script: republish all with new Nats-Msg-Ids, which bypasses the bus's deduplication."""
        if self._halt.over():
            with self._state:
                for seq, sent in (self._sent | self._rebuild.todo).items():
                    sent.attempt += 1
                    if seq in self._answers:
                        self._answers[seq].event.clear()
            self._bus.post(self._send_all)

    def _wait_for_room(self) -> bool:
        """Until the next batch is within reach of the oldest without a Done: the node keeps answers for no longer than that. True: it will
        not be, for the node takes none of this session's batches now."""
        with self._state:
            while not self._in_reach(self._seq + 1):
                if self._halt:
                    return True
                self._state.wait(1.0)
                self._raise_fault()
        return False

    def _in_reach(self, seq: int) -> bool:
        """Whether the node still keeps the answer of the oldest batch without a Done when batch ``seq`` is executed."""
        return not self._sent or seq - min(self._sent) < self._info.limits.outstanding_batches_max

    def _upload(self, uploads: Sequence[tuple[int, memoryview]]) -> tuple[Upload, ...]:
        """Small ones inline, the rest as chunks that are on the node when this returns."""
        limits = self._info.limits
        room = _INLINE_TOTAL_BYTES
        out: list[Upload] = []
        large: list[tuple[int, int, list[memoryview]]] = []
        for at, (handle, data) in enumerate(uploads):
            if data.nbytes <= min(limits.inline_bytes_max, room):
                room -= data.nbytes
                out.append(Upload(handle, data.nbytes, bytes(data)))
            else:
                large.append((at, handle, self._chunks(data)))
                out.append(Upload(handle, data.nbytes))
        if large:
            nbytes = sum(out[at].nbytes for at, _, _ in large)
            with progress.slow(f"uploading {nbytes >> 20} MiB", 0) if nbytes > _UPLOAD_SAID_BYTES else contextlib.nullcontext():
                names = iter(self._data_port.put([chunk for _, _, chunks in large for chunk in chunks]))
            for at, handle, chunks in large:
                out[at] = Upload(handle, out[at].nbytes, chunks=tuple(next(names) for _ in chunks))
        return tuple(out)

    def _chunks(self, data: memoryview) -> list[memoryview]:
        """An upload cut into what the data port takes."""
        view = data.cast("B") if data.format != "B" or data.ndim != 1 else data
        step = self._info.limits.chunk_bytes
        return [view[start : start + step] for start in range(0, view.nbytes, step)]

    # -- (bus thread) --------------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await self._bus.subscribe(subjects.session_done(self._info.session, self._bus.principal), self._on_done)
        self._bus.on_reconnect(self._send_all)
        self._watcher = asyncio.create_task(self._watch())
        threading.Thread(target=self._data_port.open, name="wooly link", daemon=True).start()

    def _send(self, sent: _Sent) -> None:
        # Who knew it before could send something else under it, and the bus would take the batch for a repeat of that.
        name = f"{self._nonce}:{sent.seq}:{sent.attempt}"
        publishing = self._bus.publish(self._subject, sent.data, name)
        task = asyncio.ensure_future(publishing)
        task.add_done_callback(self._on_published)

    def _on_published(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._settle(ProtocolError(f"the bus refused a batch: {task.exception()}"))

    def _send_all(self) -> None:
        """Go back to the oldest batch without a Done and send all again, in order; the node drops those it has."""
        self._shaken.set()  # answers may have been lost as well
        if self._halt:
            return  # they are sent when the script asks again
        with self._state:
            unanswered = [self._sent[seq] for seq in sorted(self._sent)]
        for sent in unanswered:
            self._send(sent)

    def _on_done(self, data: bytes) -> None:
        try:
            done = decode_done(data)
        except msgspec.DecodeError as error:
            self._settle(ProtocolError(f"the node answered with something unreadable ({error}); client and node are of different versions"))
            return
        with self._state:
            if done.session != self._info.session or done.session == self._rebuild.lost:
                return  # of one that was lost: what it did besides is repeated, and counted as the batches that are known to be
            if self._skipped and done.seq:
                done = msgspec.structs.replace(done, seq=done.seq + self._skipped)
        self._hear()
        if done.needs:
            self._send_bodies(done)
            return
        if done.fault is not None and done.fault.name == faults.DISPLACED and not done.fault.fatal:
            self._leaving = done.session
            return
        if done.fault is not None and done.fault.name in (faults.MEMORY_LOST, faults.SESSION_UNKNOWN, faults.DISPLACED):
            fault = self._refusal[1] if self._refusal is not None else self._exception(done, done.fault)
            self._lost(done.session, fault, displaced=done.fault.name == faults.DISPLACED)
            return
        if done.fault is not None and (done.fault.fatal or done.seq == 0):
            # A refusal that was not raised yet is the cause: later batches fail for lack of its results.
            self._settle(self._refusal[1] if self._refusal is not None else self._exception(done, done.fault))
            return
        if done.fault is not None and done.fault.name == faults.BUDGET_EXCEEDED:
            self._stop(self._exception(done, done.fault))
            return
        refused = None if done.fault is None else self._exception(done, done.fault)
        with self._state:
            sent = self._sent.pop(done.seq, None) if done.session == self._info.session else None
            if sent is None:
                return  # heard already, or of a session that was lost meanwhile
            kept, whole = self._rebuild.repeated.pop(done.seq, (None, True))
            if kept is None:
                self._rebuild.attempts = 0
                self._log.keep(done.seq, sent.flush, done)
            answer = self._answers.get(done.seq) if whole else None
            if not sent.flush.reads and done.fault is None:
                self._answers.pop(done.seq, None)  # waiters already hold the answer; answers without a waiter must not pile up
            self._state.notify_all()
        if kept is not None:
            try:
                kept.check(done, whole=whole)
            except RecoveryDivergedError as diverged:
                self._settle(diverged)
                return
        if refused is not None and self._refusal is None:
            self._refusal = (done.seq, refused)
        self._tracer.end(sent.trace, done.core_ns)
        if self.on_done is not None:
            self.on_done(done.seq, done.core_ns)
        if answer is not None:
            answer.done, answer.refused = done, refused
            answer.event.set()

    # -- building the session again --------------------------------------------------------------------------------------------------

    def _lost(self, session: str, fault: WoolyError, *, displaced: bool = False) -> None:
        """(any thread) The node no longer holds the memory of this session, or does not answer and its task is placed elsewhere, or is to
        be (``displaced``): it is built again, or over."""
        with self._state:
            if self._left or self._fault is not None or self._rebuild.lost == session or self._info.session != session:
                return  # over, or known
            self._rebuild.lost, self._rebuild.displaced = session, displaced
            self._state.notify_all()
            if self._rebuild.running:
                return
            self._rebuild.running = can = self._can_rebuild
        if can:
            threading.Thread(target=self._build_again, args=(fault,), name="wooly rebuild", daemon=True).start()
        else:
            if self._log.lack:
                fault.add_note(f"wooly: the session could not be built again: {self._log.lack}")
            self._settle(fault)

    @property
    def _can_rebuild(self) -> bool:
        return self._opening is not None and self._log.whole and self._wait_s > 0

    def _build_again(self, fault: WoolyError) -> None:
        """Open sessions in the place of the lost one until one has repeated all batches, or ``fault`` is final."""
        began_s = time.monotonic()
        what = f"the session leaves node {self._name}" if self._rebuild.displaced else f"node {self._name} lost the session's memory"
        progress.say(f"wooly: {what}; repeating {len(self._log)} batches")
        try:
            while True:
                self._rebuild.attempts += not self._rebuild.displaced
                if self._rebuild.attempts > _REBUILDS_MAX:
                    raise fault
                if self._repeat_all():
                    break
        except Exception as error:  # whatever it is, nothing may wait for this session any more
            self._withdraw()
            with self._state:
                self._rebuild.running = False
            self._settle(error if isinstance(error, WoolyError) else fault)
            if not isinstance(error, WoolyError | NoAnswer | TimeoutError) and not self._left:
                raise  # the loop of a bus that was left is closed, all else is a defect
            return
        progress.say(f"wooly: continuing on node {self._name} after {time.monotonic() - began_s:.0f} s")

    def _repeat_all(self) -> bool:
        """Send every batch so far to a new session, and those that were not answered; False: that is lost as well."""
        assert self._opening is not None
        restored = self._log.restore()
        skipped = self._log.base - len(restored)
        lost, node, port = self._rebuild.lost, self._node, self._data_port
        ended = Lost(lost, skipped - self._skipped, self._last_executed() - skipped, self._rebuild.displaced)

        def check() -> None:
            self._check_left()
            if ended.displaced and self._rebuild.left != lost:
                self._leave_books(lost, node)  # else its task would not be placed elsewhere

        check()
        info = self._opening.open_again(ended, check)
        self._bus.call(self._bus.subscribe(subjects.session_done(info.session, self._bus.principal), self._on_done), _SUBSCRIBE_S)
        if not ended.displaced:
            self._leave_books(lost, node)  # not before: the node counts what is repeated by what it knows of this one
        with self._swap, self._state:
            unanswered = {seq: sent for seq, sent in (self._rebuild.todo | self._sent).items() if seq not in self._log}
            self._rebuild.repeated = {seq: (kept, seq in self._answers) for seq, kept in self._log}
            self._rebuild.repeated |= {seq: (Kept(flush, ()), False) for seq, flush in enumerate(restored, skipped + 1)}
            todo = {
                seq: _Sent(seq, kept.again(whole=whole), (), b"", 0.0, "") for seq, (kept, whole) in self._rebuild.repeated.items()
            } | unanswered
            self._rebuild.todo = dict(sorted(todo.items()))
            self._sent.clear()
            for seq in self._answers.keys() & self._rebuild.repeated.keys():
                self._answers[seq].done = None
                self._answers[seq].event.clear()
            self._envelope_bytes += self._data_port.sent_bytes
            self._use(info, skipped)
        self._hear()
        threading.Thread(target=self._relink, args=(port,), name="wooly link", daemon=True).start()
        while True:
            with self._swap, self._state:
                sent = next(iter(self._rebuild.todo.values()), None)
                if sent is None:
                    self._rebuild.running = self._rebuild.lost == info.session
                    self._state.notify_all()
                    return not self._rebuild.running
            if not self._repeated(sent):
                return False

    def _last_executed(self) -> int:
        """The last batch that may have been executed. With an image, of those that were answered: the bill cannot tell the work of others
        from what is in the image, and does not count it."""
        with self._state:
            return self._log.last if self._log.base else max(self._log.last, *self._sent, 0)

    def _leave_books(self, lost: str, node: str) -> None:
        """End a session that is lost; its totals are for people."""
        with contextlib.suppress(NoAnswer, TimeoutError, msgspec.DecodeError):
            over = self._close_request(CloseSession(lost, "displaced"), _PING_S, node)
            self._before.append(self._bus.call(over, 2 * _PING_S))
            self._rebuild.left = lost

    def _relink(self, before: DataPort) -> None:
        self._data_port.open()
        before.close()

    def _leave(self) -> None:
        """The session's task is to run elsewhere: fetch what its buffers hold, so that no work is repeated, and open another one there. No
        other thread submits meanwhile. Until that can be done it runs on; the node ends it after a while."""
        if not self._can_rebuild or not self._all_taken():
            return
        with contextlib.suppress(WoolyError):  # what is not in the image is repeated
            if self._log.has_room_for_image:
                self._take_image()
        self._lost(self._leaving, NodeLostError("the session's task is to run on another node; start the script again"), displaced=True)

    def _all_taken(self) -> bool:
        """Wait until every batch is answered, as ``_all_answered``; False as well if answers are still to be fetched from the node."""
        return not self._blobs_untaken() and self._all_answered() and not self._blobs_untaken()

    def _blobs_untaken(self) -> bool:
        """Whether answers are on the node until they are taken."""
        with self._state:
            return any(read.blob for answer in self._answers.values() if answer.done is not None for read in answer.done.reads)

    def _take_image_when_due(self) -> None:
        """Fetch what the session's buffers hold, so that batches so far need not be kept. No other thread submits meanwhile."""
        began_s = time.monotonic()
        if self._log.lack and self._recoverable:
            self._recoverable = False
            progress.say(f"wooly: if a node loses its memory, this script ends from now on; {self._log.lack}")
        if not self._log.image_due(since_s=began_s - self._image_s, target_s=self._target_s, cost_s=self._image_cost_s):
            return
        if self._blobs_untaken():
            return
        with contextlib.suppress(WoolyError):  # an image more or less; the session's fault is raised by what follows
            if self._all_taken():
                self._take_image()
        self._image_s = time.monotonic()
        self._image_cost_s = self._image_s - began_s

    def _take_image(self) -> None:
        image: list[tuple[int, ReadBytes]] = []
        for group in groups(self._log.live()):
            sent, _ = self._submit(Flush(reads=[(handle, 0, nbytes) for handle, nbytes in group]))
            if not self._all_answered():
                return
            image += zip((handle for handle, _ in group), self._take(Ticket(sent.seq, len(group))), strict=True)
        if self._all_answered():
            self._log.take(self._seq, image)

    def _all_answered(self) -> bool:
        """Wait until every batch is; False if that does not happen now, or one was refused: the script hears of it elsewhere."""
        with self._state:
            while (self._sent or self._rebuild.running) and self._fault is None and not self._halt:
                self._state.wait(1.0)
            return self._log.whole and not (self._sent or self._rebuild.running or self._fault or self._halt)

    def _repeated(self, sent: _Sent) -> bool:
        """Send one batch to the new session, once there is room; False: that is lost as well."""
        session = self._info.session
        with self._state:
            while not self._in_reach(sent.seq) and self._rebuild.lost != session:
                self._state.wait(1.0)
                self._raise_fault()
        try:
            sent.uploads = self._upload(sent.flush.uploads)
        except WoolyError:
            if self._moved(session):
                return False
            raise
        with self._swap, self._state:
            self._raise_fault()
            if self._rebuild.lost == session:
                return False
            sent.data = self._encoder.encode(sent.seq - self._skipped, sent.flush, sent.uploads)
            sent.attempt, sent.sent_s = 0, time.monotonic()
            self._rebuild.todo.pop(sent.seq)
            self._sent[sent.seq] = sent
            self._envelope_bytes += len(sent.data)
            if not self._halt:
                self._bus.post(self._send, sent)
        return True

    def _check_left(self) -> None:
        if self._left:
            raise NodeLostError("the session is closed")

    def _settled(self) -> str:
        """The session on a node that batches go to, once it is not being built again; or at once while the node takes none."""
        with self._state:
            while self._rebuild.running and not self._halt:
                self._state.wait(1.0)
            self._raise_fault()
            return self._info.session

    def _moved(self, session: str) -> bool:
        """Whether the node lost this session, which its data port may know a moment before we do."""
        until_s = time.monotonic() + _RUMOUR_S
        self._bus.post(self._shaken.set)  # what it said may be lost: ask now
        with self._state:
            while self._rebuild.lost != session and self._info.session == session and self._log.whole and self._fault is None:
                if time.monotonic() > until_s or self._opening is None:
                    return False
                self._state.wait(0.1)
            return self._fault is None and (self._rebuild.running or self._info.session != session)

    # -- answers ---------------------------------------------------------------------------------------------------------------------

    def _exception(self, done: Done, fault: Fault) -> WoolyError:
        """The exception for the script: the node's words, and which lines of the script they are about."""
        sent = self._sent.get(done.seq)
        origin = sent.flush.origin if sent is not None else None
        where = origin.text(fault.places) if origin is not None else ""
        if fault.cause_seq:
            cause = self._lost_at.get(fault.cause_seq + self._skipped, "")
            where = f"{where}; the work that was refused was {cause}" if where and cause else where
        elif not fault.fatal and where:
            self._lost_at[done.seq] = where
        text = origin.explain(fault.instruction, fault.message) if origin is not None and fault.instruction >= 0 else fault.message
        if fault.excess is not None:
            return quota_reached(f"{text}\n  {where}" if where else text, fault.excess)
        return from_fault(fault.name, text, fault.places, where)

    def _stop(self, refused: WoolyError) -> None:
        """The tenant's budget is used up: resolve all waiters with the refusal; the batches stay, to be sent again."""
        self._halt.set(refused)
        with self._state:
            answers = [self._answers[seq] for seq in self._sent if seq in self._answers]
            self._state.notify_all()
        for answer in answers:
            answer.event.set()

    def _send_bodies(self, done: Done) -> None:
        """The node lacks bodies of a batch: send it again whole, under a new name."""
        with self._state:
            sent = self._sent.get(done.seq)
        if sent is None:
            return
        sent.attempt += 1
        bodies = {sent.flush.program, sent.flush.dims_digest, *(digest for digest, _ in sent.flush.kernels)}
        chunks = set(done.needs) - bodies
        if not chunks:
            self._send_whole(sent)
        elif sent.attempt > _CHUNK_ATTEMPTS_MAX or not chunks.issubset(name for upload in sent.uploads for name in upload.chunks):
            self._settle(_upload_lost())
        else:
            bringing = asyncio.ensure_future(asyncio.to_thread(self._bring_again, sent, chunks))
            bringing.add_done_callback(lambda task: self._on_brought(task, sent))

    def _send_whole(self, sent: _Sent) -> None:
        sent.data = self._encoder.encode_whole(sent.seq - self._skipped, sent.flush, sent.uploads, sent.trace)
        self._envelope_bytes += len(sent.data)
        self._send(sent)

    def _bring_again(self, sent: _Sent, names: set[bytes]) -> None:
        """Bring chunks that the node had when it was asked, in memory that another session has given back since (a thread of its own)."""
        lost: dict[bytes, memoryview] = {}
        for (_, data), upload in zip(sent.flush.uploads, sent.uploads, strict=True):
            lost |= {name: chunk for name, chunk in zip(upload.chunks, self._chunks(data), strict=False) if name in names}
        self._data_port.put(list(lost.values()))

    def _on_brought(self, task: asyncio.Future[None], sent: _Sent) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._send_whole(sent)
        else:
            self._settle(error if isinstance(error, WoolyError) else _upload_lost())

    async def _watch(self) -> None:
        """Keep the lease, notice silence and loss."""
        pinged_s, doubtful, now_s = 0.0, False, time.monotonic()
        while self._fault is None and not self._left:  # also while a script that has ended waits for its last answers
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DOUBT_S if doubtful else _WATCH_S):  # (wait_for may forget a cancellation)
                    await self._shaken.wait()
            doubtful |= self._shaken.is_set()
            self._shaken.clear()
            before_s, now_s = now_s, time.monotonic()
            if now_s - before_s > _FROZEN_S:
                self._heard_s += now_s - before_s
            with self._state:
                oldest = min(self._sent.values(), key=lambda sent: sent.seq, default=None)
            asking = oldest is not None and (doubtful or now_s - oldest.sent_s > 2 * _WATCH_S)
            if asking or doubtful or now_s - pinged_s > min(self._info.lease_ms / 6000, _LEASE_S):
                pinged_s = now_s
                doubtful = not await self._ping(oldest.seq - 1 if asking and oldest is not None else -1)

    async def _ping(self, seq_seen: int) -> bool:
        """Ask the node where it is, and (with ``seq_seen``) for answers that were lost on the way; did it answer?"""
        session = self._info.session
        try:
            ping = _encode(Ping(session, max(-1, seq_seen - self._skipped) if seq_seen >= 0 else -1))
            answer = await self._bus.request(subjects.node_request(self._node, "ping", self._bus.principal), ping, _PING_S)
            self._on_pong(_pong.decode(answer), session)
        except NoAnswer:
            silent_s = time.monotonic() - self._heard_s
            if self._rebuild.lost == session:
                return False  # another one takes its place, for which there is a time of its own
            if silent_s > max(_SILENCE_S, min(self._wait_s, _REFUSED_S) if self._bus.refused else self._wait_s):
                self._settle(self._silence(silent_s))
            else:
                self._outage.lasts(self._missing())
                if silent_s > _SILENCE_S and self._log.whole:
                    self._look_elsewhere(session)
            return False
        except msgspec.DecodeError as error:
            self._settle(ProtocolError(f"the node's pong is unreadable ({error}); client and node are of different versions"))
        return True

    def _look_elsewhere(self, session: str) -> None:
        """Ask, beside all else, whether the task of a node that does not answer is placed elsewhere."""
        now_s = time.monotonic()
        if self._opening is None or self._looking or now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s, self._looking = now_s, True
        threading.Thread(target=self._look, args=(self._opening, session), name="wooly look", daemon=True).start()

    def _look(self, opening: Opening, session: str) -> None:
        try:
            if opening.displaced():
                self._lost(session, self._silence(time.monotonic() - self._heard_s))
        finally:
            self._looking = False

    def _on_pong(self, pong: Pong, session: str) -> None:
        self._hear()
        if not pong.session_known:
            self._lost(session, from_fault(faults.SESSION_UNKNOWN, _UNKNOWN))
        if not pong.session_known or session != self._info.session:
            return
        if pong.excess is not None and self._sent and pong.excess.quota not in self._delays:
            self._delays.add(pong.excess.quota)
            progress.delayed(pong.excess, self._info.tenant)
        overdue_s = self._heard_s - _STALLED_S
        with self._state:
            seq_next = pong.seq_next + self._skipped
            lost = [sent for seq, sent in sorted(self._sent.items()) if seq >= seq_next and pong.seq_next and sent.sent_s < overdue_s]
        if lost and lost[0].seq == seq_next and not self._halt:  # the bus lost them, and would take the same names for repeats
            for sent in lost:
                sent.attempt += 1
                sent.sent_s = self._heard_s
                self._send(sent)

    def _hear(self) -> None:
        """The node has answered."""
        self._outage.over()
        self._heard_s = time.monotonic()

    def _missing(self) -> str:
        return f"node {self._name} does not answer" if self._bus.connected else "the connection to the bus is lost"

    def _silence(self, silent_s: float) -> NodeLostError:
        if self._bus.refused:
            return NodeLostError("the bus does not accept our key any more: it was revoked, or has expired; run `wooly login`")
        if not self._bus.connected:
            return NodeLostError(
                f"the connection to the bus was lost {silent_s:.0f} s ago and does not come back; is the NATS server alive?"
            )
        return NodeLostError(
            f"node {self._name} has not answered for {silent_s:.0f} s: it was stopped, or cannot be reached; start the script again"
        )

    def _settle(self, fault: WoolyError) -> None:
        """The session is over: every waiting call, now or later, raises ``fault``."""
        with self._state:
            if self._fault is None:
                self._fault = fault
            self._sent.clear()
            self._rebuild.todo.clear()
            answers = list(self._answers.values())
            self._state.notify_all()
        for answer in answers:
            answer.event.set()

    # -- closing -------------------------------------------------------------------------------------------------------------------

    def _drain(self, deadline_s: float) -> None:
        """Wait until everything submitted is done, or the session is over."""
        deadline = time.monotonic() + deadline_s
        with self._state:
            while (self._sent or self._rebuild.running) and self._fault is None and not self._halt and time.monotonic() < deadline:
                self._state.wait(0.2)

    def _withdraw(self, timeout_s: float = _CLOSE_S) -> None:
        """The session is over. If it was lost, and nothing took its place, its task may wait for one, in vain."""
        if self._opening is not None and self._rebuild.lost == self._info.session:
            self._opening.withdraw(timeout_s)

    async def _goodbye(self) -> SessionClosed:
        if self._watcher is not None:
            self._watcher.cancel()
        failed = self._fault is not None or bool(self._halt)
        request = CloseSession(
            self._info.session, "failed" if failed else "done", -1 if failed else self._seq - self._skipped, self.outcome
        )
        return await self._close_request(request, 2.0 if failed else _CLOSE_S)

    async def _close_request(self, request: CloseSession, timeout_s: float, node: str = "") -> SessionClosed:
        subject = subjects.node_request(node or self._node, "close", self._bus.principal)
        return _closed.decode(await self._bus.request(subject, _encode(request), timeout_s))


def open_session(config: Config, *, title: str = "", device: int = 0) -> Session:
    """Open a session on a node: the controller's choice with CONTROLLER_URL, else the first node that answers on the bus.

    ``device``: which of the script's devices (``cuda:N``) it is for. Raises ConfigError, NoServerError, PlacementError, or the
    node's refusal.
    """
    bus = BusThread(config.nats_urls, f"wooly_{secrets.token_hex(6)}", bus_credentials(config))
    bus.start(config.start_wait_s)
    try:
        tracer = Tracer("wooly-client")
        opening = Opening(bus, config, title, device, tracer.open(title))
        session = Session(
            bus,
            opening.open(),
            tracer,
            wait_s=config.recovery_wait_s,
            opening=opening,
            log_bytes=config.recovery_mb << 20,
            target_s=config.recovery_target_s,
        )
        bus.call(session._start(), _SUBSCRIBE_S)
    except BaseException:
        bus.stop()
        raise
    atexit.register(session.close)
    return session


def _sum_of(before: Sequence[SessionClosed], last: SessionClosed) -> SessionClosed:
    """The totals of sessions one after the other, with the digest of the last."""
    names = [name for name, field in SessionClosed.__annotations__.items() if field in (int, "int")]
    return msgspec.structs.replace(last, **{name: sum(getattr(one, name) for one in (*before, last)) for name in names})


def _upload_lost() -> NodeLostError:
    return NodeLostError("the node lost bytes that were being uploaded; start the script again")
