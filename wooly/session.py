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
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

import msgspec

from bus_schemas import faults
from bus_schemas.batch import Done, Fault, Upload, decode_done
from bus_schemas.events import Outcome
from bus_schemas.session import CloseSession, SessionClosed, SessionOpened
from wooly import progress
from wooly.config import Config
from wooly.errors import NodeLostError, ProtocolError, QuotaReachedError, RecoveryDivergedError, WoolyError
from wooly.link import Flush, ReadBytes, Ticket
from wooly.transport.bus import BusThread, NoAnswer, bus_credentials
from wooly.transport.halt import Refusals
from wooly.transport.moving import Move, Stays
from wooly.transport.opening import Opening
from wooly.transport.patience import Away, repeat
from wooly.transport.recovery import CLOSE_S, SUBSCRIBE_S, Rebuild, Watch
from wooly.transport.replay import ReplayLog, groups
from wooly.transport.session_state import PING_S, Answer, Sent, SessionState
from wooly.transport.trace import Tracer

_DRAIN_S: Final = 30.0
_KILLED_S: Final = 1.5
_URGENT_S: Final = 5.0
"""More work than that is not repeated when the node is being stopped: an image is taken first, although the script waits for it."""
_FIRST_IMAGE_BYTES_S: Final = 3e8
"""The speed that the first image of a session is expected to have: the lowest that was measured, into memory that a virtual machine had not
used before."""


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
        self._log = ReplayLog(log_bytes if opening is not None else 0)
        self._state = SessionState(bus, info, self._log, wait_s)
        self._rebuild = Rebuild(self._state, opening, self._on_done)
        #: the last try to move it to another node
        self._move: Move | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._tracer = tracer if tracer is not None else Tracer("wooly-client")
        self._recoverable = self._log.whole
        self._target_s = target_s
        #: when the last image was taken, and how long that took
        self._image_s, self._image_cost_s = time.monotonic(), 0.0
        self._submit_lock = threading.Lock()
        self._refusals = Refusals()
        self._closed = False
        self.totals: SessionClosed | None = None
        self.outcome: Outcome | None = None
        """How the script ended, for ``close`` to report; None while it runs."""
        #: called for each batch that the node has answered, with its number and its core time in ns; of the bus's thread
        self.on_done: Callable[[int, int], None] | None = None
        self.batches = 0
        self.waits = 0

    @property
    def info(self) -> SessionOpened:
        return self._state.remote.info

    @property
    def wire_bytes(self) -> int:
        return self._state.envelope_bytes + self._state.remote.port.sent_bytes

    def submit(self, flush: Flush) -> Ticket:
        """Send ``flush``; returns at once unless the window is full or uploads are large (they are on the node when this returns).

        While the node refuses the tenant's batches for its budget, flushes are kept, to be sent again. Waiting for one raises
        BudgetExceededError, and so does sending more than the window holds; ``flush`` is kept all the same."""
        self._check()
        self._state.resume()
        if self._move is not None:
            self._move.pace()
        with self._submit_lock:
            self._take_image_when_due()
            sent, full = self._submit(flush)
        if full:
            self._state.halt.raise_pending()
        return Ticket(sent.seq, len(flush.reads))

    def _submit(self, flush: Flush) -> tuple[Sent, bool]:
        """Send ``flush``, to the session as it is once it is not being built again; whether the node takes no batches now. A flush is
        taken, or the session is over."""
        state = self._state
        while True:
            session, refusal = state.settled(), None
            try:
                uploads = state.upload(flush.uploads)
            except QuotaReachedError as error:
                # The node refuses it, and what depends on it: else later batches would find buffers as they were before.
                uploads, refusal = tuple(Upload(handle, data.nbytes) for handle, data in flush.uploads), error.with_traceback(None)
            except WoolyError:
                if not state.moved(session):
                    raise
                continue
            full = state.wait_for_room()
            self._fetch_overdue()
            with state.swap:
                if not state.rebuilding and state.remote.session == session:
                    return self._record(flush, uploads, refusal), full
                if state.halt:
                    return self._postpone(flush), True

    def _postpone(self, flush: Flush) -> Sent:
        """Number a batch that is sent when the session has been built again."""
        state = self._state
        state.seq += 1
        flush.taken = True
        sent, answer = Sent(state.seq, flush), Answer()
        answer.event.set()  # as of all that wait for the budget
        with state.changed:
            state.todo[sent.seq] = sent
            state.answers[sent.seq] = answer
        self.batches += 1
        return sent

    def _record(self, flush: Flush, uploads: tuple[Upload, ...], refusal: WoolyError | None) -> Sent:
        """Number, encode and send a batch. ``refusal``: why its uploads are not on the node."""
        state, seq = self._state, self._state.seq + 1
        trace = self._tracer.begin(seq, flush.n_ops)
        data = state.remote.encoder.encode(seq - state.remote.skipped, flush, uploads, trace)
        state.seq = seq  # only now: the node waits for every number that was given away
        flush.taken = True
        if refusal is not None:
            flush.uploads = ()
        sent = Sent(seq, flush, uploads, data, time.monotonic(), trace, refusal=refusal)
        with state.changed:
            state.sent[seq] = sent
            state.answers[seq] = Answer()
            if state.mirror is not None:
                state.mirror.record(seq, flush)
        self.batches += 1
        state.envelope_bytes += len(data)
        if not state.halt:
            self._bus.post(state.send, sent)
        return sent

    def report(self) -> None:
        """Raise, once, the refusal of a batch that no caller has waited for."""
        self._refusals.raise_first(self._state.seq)

    def wait(self, ticket: Ticket) -> list[ReadBytes]:
        """Wait for a submitted flush; the answers of its reads, in order."""
        self._state.check_process()
        try:
            self._refusals.raise_first(ticket.seq - 1)
        except WoolyError:
            with self._state.changed:
                self._state.answers.pop(ticket.seq, None)
            raise
        self._state.resume()
        return self._take(ticket)

    def _take(self, ticket: Ticket) -> list[ReadBytes]:
        state = self._state
        with state.changed:
            answer = state.answers.get(ticket.seq)
        if answer is None:
            if ticket.n_reads:
                raise ValueError(f"the answers of batch {ticket.seq} have been taken already")
            self._refusals.raise_first(ticket.seq)
            return []  # done, and nothing was asked
        self.waits += not answer.event.is_set()
        try:
            found = self._fetch(answer)
        except WoolyError:
            raise
        except BaseException:  # Ctrl-C, say: its caller does not ask again
            with state.changed:
                state.answers.pop(ticket.seq, None)
            raise
        with state.changed:
            state.answers.pop(ticket.seq, None)
        self._refusals.raise_first(ticket.seq - 1)
        if answer.refused is not None:
            refused, answer.refused, self._refusals.first = answer.refused, None, None
            try:
                raise refused
            finally:
                del refused  # its traceback holds this frame, which would keep the script's tensors alive
        return found

    def _fetch(self, answer: Answer) -> list[ReadBytes]:
        """Wait for an answer, and get what the node keeps of it."""
        state = self._state
        with answer.fetching:
            while answer.found is None:
                session = state.remote.session
                done = state.wait_for_done(answer)
                try:
                    answer.found = [state.remote.port.get(read.blob, read.nbytes) if read.blob else read.inline for read in done.reads]
                except WoolyError:
                    if not state.moved(session):
                        raise
            return answer.found

    def _fetch_overdue(self) -> None:
        """Get the answers that the node will not keep beyond the next batch: another thread may be about to ask for them."""
        state = self._state
        with state.changed:
            before = state.seq + 1 - state.remote.info.limits.outstanding_batches_max
            overdue = [answer for seq, answer in state.answers.items() if seq <= before and answer.on_node]
        for answer in overdue:
            with contextlib.suppress(WoolyError):  # for the one that asks for it, or the session's fault, which is raised by what follows
                self._fetch(answer)

    def free_bytes(self) -> int:
        """Free memory of the device now, in bytes; the value from the opening of the session while the node does not report it."""
        self._check()
        remote = self._state.remote
        with contextlib.suppress(NoAnswer, msgspec.DecodeError, TimeoutError):
            pong = self._bus.call(remote.ping(), 2 * PING_S)
            if pong.vram_free_bytes >= 0:
                return pong.vram_free_bytes
        return next((device.vram_free_bytes for device in remote.node.devices if device.index in remote.info.gpus), 0)

    def _check(self) -> None:
        self._state.check_process()
        if self._closed:
            raise NodeLostError("the session is closed")
        self._state.raise_fault()

    # -- images (no other thread submits meanwhile) ----------------------------------------------------------------------------------

    def _take_image_to_move(self, urgent: bool) -> None:
        """Take an image so that less is repeated, if that takes a moment only, or all that is to be repeated may take too long."""
        due = urgent and time.monotonic() - self._image_s > _URGENT_S
        with contextlib.suppress(WoolyError):  # the session's fault is raised by what follows
            if len(self._log) and self._all_taken() and self._log.has_room_for_image(small=not due):
                self._take_image()
                self._image_s = time.monotonic()

    def _leave(self, session: str) -> None:
        """(bus thread) The node asks the client to have the session's task continue elsewhere."""
        state, opening = self._state, self._rebuild.opening
        if opening is None or state.left or session != state.remote.session or (self._move is not None and not self._move.over):
            return
        self._move = Move(
            state,
            opening,
            submitting=self._submit_lock,
            image=self._take_image_to_move,
            ready=self._may_go,
            on_done=self._on_done,
            on_left=self._rebuild.leave_books,
        )
        threading.Thread(target=self._move.run, name="wooly move", daemon=True).start()

    def _may_go(self) -> bool:
        """Whether no answer is left on the node, and the task's sessions of other devices of this process may go as well: they go together.
        Raises Stays when one of them stays."""
        move, own, state = self._move, self.info.task, self._state
        assert move is not None
        for other in tuple(_sessions):
            beside = other is not self and own and other.info.task == own and other._state.pid == state.pid
            if not beside or other._closed or other._state.remote.node.node != state.remote.node.node:
                continue
            if other._move is None or other._move.position != move.position:
                return False
            if other._move.over and not other._move.moved:
                raise Stays("another session of the task stays")
            if not other._move.caught_up:
                return False
        return not self._blobs_untaken()

    def _take_image_when_due(self) -> None:
        """Fetch what the session's buffers hold, so that batches so far need not be kept."""
        began_s = time.monotonic()
        if self._log.lack and self._recoverable:
            self._recoverable = False
            progress.say(f"wooly: if a node loses its memory, this script ends from now on; {self._log.lack}")
        if not self._image_due(began_s) or self._blobs_untaken():
            return
        if not self._log.base:
            self._image_cost_s = self._log.fetched_bytes() / _FIRST_IMAGE_BYTES_S
            if not self._image_due(began_s):
                return
        before = self._log.base
        with contextlib.suppress(WoolyError):  # an image more or less; the session's fault is raised by what follows
            if self._all_taken():
                self._take_image()
        self._image_s = time.monotonic()
        if self._log.base > before:
            self._image_cost_s = self._image_s - began_s

    def _image_due(self, now_s: float) -> bool:
        return self._log.image_due(since_s=now_s - self._image_s, target_s=self._target_s, cost_s=self._image_cost_s)

    def _all_taken(self) -> bool:
        """Wait until every batch is answered; False as well if answers are still to be fetched from the node."""
        return not self._blobs_untaken() and self._state.all_answered() and not self._blobs_untaken()

    def _blobs_untaken(self) -> bool:
        """Whether answers are on the node until they are taken."""
        with self._state.changed:
            return any(answer.on_node for answer in self._state.answers.values())

    def _take_image(self) -> None:
        held, known = self._log.live()
        image = list(known.items())
        fetched = groups({handle: nbytes for handle, nbytes in held.items() if handle not in known})
        for group in fetched:
            sent, _ = self._submit(Flush(reads=[(handle, 0, nbytes) for handle, nbytes in group]))
            if not self._state.all_answered():
                return
            image += zip((handle for handle, _ in group), self._take(Ticket(sent.seq, len(group))), strict=True)
        state = self._state
        for _ in range(len(groups({handle: len(data) for handle, data in image})) - len(fetched)):
            self._submit(Flush())  # the batches that build the image have numbers of its own, of which the script awaits no answer
        if not state.all_answered():
            return
        # What an image holds is not repeated: it is charged nowhere, unless the log has it before the node can die.
        remote, number = state.remote, state.seq
        try:
            pong = self._bus.call(remote.ping(image=number), 2 * PING_S)
        except (NoAnswer, TimeoutError, msgspec.DecodeError):
            return
        with state.changed:
            if pong.session_known and pong.image in (number, None) and state.remote is remote and not state.rebuilding:
                self._log.take(number, image)

    # -- (bus thread) --------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Receive answers, keep the lease, and connect to the data port beside all else."""
        state = self._state
        await self._bus.subscribe(state.remote.answers_of(state.remote.info, self._bus), self._on_done)
        self._bus.on_reconnect(state.send_all)
        self._watcher = asyncio.create_task(Watch(state, self._rebuild).run())
        threading.Thread(target=state.remote.port.open, name="wooly link", daemon=True).start()

    def _on_done(self, data: bytes) -> None:
        state = self._state
        try:
            done = decode_done(data)
        except msgspec.DecodeError as error:
            state.settle(ProtocolError(f"the node answered with something unreadable ({error}); client and node are of different versions"))
            return
        with state.changed:
            if done.session != state.remote.session and state.mirror is not None:
                state.mirror.heard(done)
            if done.session != state.remote.session or done.session == state.lost:
                return  # of one that was lost: what it did besides is repeated, and counted as the batches that are known to be
            if state.remote.skipped and done.seq:
                done = msgspec.structs.replace(done, seq=done.seq + state.remote.skipped)
        state.hear()
        if done.needs:
            state.send_bodies(done)
            return
        refused = self._refused(done, done.fault) if done.fault is not None else None
        if done.fault is not None and refused is None:
            return
        with state.changed:
            sent = state.sent.pop(done.seq, None) if done.session == state.remote.session else None
            if sent is None:
                return  # heard already, or of a session that was lost meanwhile
            kept, whole = state.repeated.pop(done.seq, (None, True))
            if kept is None:
                state.attempts = 0
                self._log.keep(done.seq, sent.flush, done)
                if state.mirror is not None:
                    state.mirror.answered(done.seq, sent.flush, done)
            answer = state.answers.get(done.seq) if whole else None
            if not sent.flush.reads:
                if refused is not None and self._refusals.first is None:
                    self._refusals.first = (done.seq, refused)
                state.answers.pop(done.seq, None)  # waiters already hold the answer; answers without a waiter must not pile up
            state.changed.notify_all()
        if kept is not None:
            try:
                kept.check(done, whole=whole)
            except RecoveryDivergedError as diverged:
                state.settle(diverged)
                return
        if refused is not None and self._refusals.first is None:
            self._refusals.first = (done.seq, refused)
        self._tracer.end(sent.trace, done.core_ns)
        if self.on_done is not None:
            self.on_done(done.seq, done.core_ns)
        if answer is not None:
            answer.done, answer.refused = done, refused
            answer.event.set()

    def _refused(self, done: Done, fault: Fault) -> WoolyError | None:
        """The refusal of this batch; None: the fault is of more than that, and what follows from it is done."""
        if fault.name == faults.DISPLACED and not fault.fatal:
            self._leave(done.session)
            return None
        sent = self._state.sent.get(done.seq)
        refused = self._refusals.exception(done.seq, fault, sent.flush.origin if sent is not None else None, self._state.remote.skipped)
        # A refusal that was not raised yet is the cause: later batches fail for lack of its results.
        cause = self._refusals.first[1] if self._refusals.first is not None else refused
        if fault.name in (faults.MEMORY_LOST, faults.SESSION_UNKNOWN, faults.DISPLACED):
            self._rebuild.lose(done.session, cause, displaced=fault.name == faults.DISPLACED)
        elif fault.fatal or done.seq == 0:
            self._state.settle(cause)
        elif fault.name == faults.BUDGET_EXCEEDED:
            self._state.stop(refused)
        else:
            return refused if sent is None or sent.refusal is None else sent.refusal
        return None

    def close(self) -> None:
        """Let everything submitted finish, then end the session; ``totals`` says what it used. Safe to call twice; raises nothing."""
        if self._closed or os.getpid() != self._state.pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        state = self._state
        try:
            self._drain()
            self.totals = self._rebuild.totals(repeat(self._take_leave, 0 if state.fault is not None else min(state.wait_s, _DRAIN_S)))
        except (NodeLostError, KeyboardInterrupt):
            self.totals = None  # the node is away or busy, or the user waits no longer: the lease ends the session
            state.left = True
        state.remote.port.close()
        self._bus.stop()
        self._tracer.close()
        state.settle(NodeLostError("the session is closed"))

    def _drain(self) -> None:
        """Wait for the answers to all batches, then send no more."""
        state, deadline_s = self._state, time.monotonic() + _DRAIN_S
        with state.changed:
            while (state.sent or state.rebuilding) and state.fault is None and not state.halt and time.monotonic() < deadline_s:
                state.changed.wait(0.2)
            state.left = True
        if self._move is not None:
            self._move.stop(CLOSE_S)
        self._rebuild.withdraw(CLOSE_S)

    def abandon(self, outcome: Outcome) -> None:
        """A signal is about to kill the process: tell the node, which drops what waits. May be called in a signal handler: waits for some
        seconds at most, and takes no lock. Raises nothing."""
        if self._closed or os.getpid() != self._state.pid:
            return
        self._closed = self._state.left = True
        self._rebuild.withdraw(_KILLED_S)
        with contextlib.suppress(TimeoutError, NoAnswer, RuntimeError):
            request = CloseSession(self.info.session, "killed", -1, outcome)
            self._bus.call(self._state.remote.close(request, _KILLED_S), _KILLED_S + 0.5)

    def _take_leave(self) -> SessionClosed:
        """End the session on its node. Raises Away while that does not answer, NodeLostError when the bus is away as well."""
        try:
            return self._bus.call(self._goodbye(), CLOSE_S + 1)
        except (TimeoutError, NoAnswer):
            away = NodeLostError(f"node {self._state.remote.node.name} does not answer")
            raise Away(away) if self._bus.connected else away from None

    async def _goodbye(self) -> SessionClosed:
        if self._watcher is not None:
            self._watcher.cancel()
        state = self._state
        failed = state.fault is not None or bool(state.halt)
        last_seq = -1 if failed else state.seq - state.remote.skipped
        request = CloseSession(state.remote.session, "failed" if failed else "done", last_seq, self.outcome)
        return await state.remote.close(request, 2.0 if failed else CLOSE_S)


_sessions: Final[WeakSet[Session]] = WeakSet()
"""Those that this process has opened."""


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
        log_bytes, target_s = config.recovery_mb << 20, config.recovery_target_s
        session = Session(
            bus, opening.open(), tracer, wait_s=config.recovery_wait_s, opening=opening, log_bytes=log_bytes, target_s=target_s
        )
        bus.call(session.start(), SUBSCRIBE_S)
    except BaseException:
        bus.stop()
        raise
    _sessions.add(session)
    atexit.register(session.close)
    return session
