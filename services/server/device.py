"""One device of the node: batches and reports into the dispatch core, its decisions carried out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bus_schemas.batch import Batch, Done, Fault, encode_done
from bus_schemas.events import Outcome
from bus_schemas.session import CloseSession, DeviceInfo, OpenSession, SessionClosed
from bus_schemas.telemetry import QuotaUse
from bus_schemas.terms import TaskTerms
from scheduler import dispatch as core
from scheduler.dispatch import decisions as why
from services.kit.errors import StartError
from services.kit.log import get_logger
from services.kit.trace import Tracing
from services.server.accounting import Accounting, Counters, Spent, recoverable_ns
from services.server.admission import EXECUTOR_LOST, EXECUTOR_OUT_OF_MEMORY, REFUSALS, DomainTurns, OpenRefused, not_taken, refusal
from services.server.allowance import Gate
from services.server.dispatch_log import Alarm, DispatchLog
from services.server.executor_process import ExecutorProcess
from services.server.intake import content_digest
from services.server.journal_stream import Lane, ProgramLane
from services.server.meter import Account
from services.server.protocol import (
    AWAITS,
    FAULTED,
    NEEDS,
    RAN,
    STOPPED,
    Attached,
    ChangePriority,
    Charged,
    CloseSpace,
    Compiled,
    Confirm,
    Execute,
    Executed,
    Expect,
    Forget,
    JournalAnew,
    Journalled,
    Linked,
    MemoryFreed,
    Prepare,
    Prepared,
    QuotasUsed,
    Recall,
    Recalled,
    Report,
    SpaceClosed,
    SpaceOpened,
)
from services.server.sessions import (
    Pending,
    Session,
    SessionRecord,
    decode_record,
    encode_record,
    gives_way,
    open_space,
    opened_stimulus,
    record_spans,
)
from services.server.settings import ExecutorSettings
from services.server.stop_page import StopPage
from wooly.shared.lru import LruDict

EXECUTOR_WAIT_S: Final = 3.0
"""How long a request waits for an executor that is being started: less than its client waits for the answer."""
_AHEAD_MAX: Final = 1024
"""How far a batch may be ahead of the last one executed; nearer ones are bounded by the dispatch core."""
_RESTART_PAUSE_S: Final = 1.0
_LISTENED_NS_MAX: Final = 2 * 10**9
"""Of the time between two ticks, what counts for leases: while the event loop was held up, it read no message of a client."""
_BOOK_PAUSE_NS: Final = 10**8
"""Between two settlements of the books that sessions ask for."""
_ENDED_MAX: Final = 256
_WARM_MAX: Final = 4096
_OVERHEAD_NS: Final = 200_000
"""What the executor does for a session beside its launches is reported to the dispatcher in portions of at least this much."""
_EXECUTOR_LOST: Final = "executor_lost"
_NODE_RESTARTED: Final = "node_restarted"
_DONE: Final = "done"
"""Why a session is closed whose client needs it no more."""


class Device:
    """``send_done(session, encoded Done)`` reaches the session; ``settings(domain)``: of an executor for this trust domain, or for all
    (empty). Lives on the server's event loop."""

    def __init__(
        self,
        *,
        gpu: int,
        settings: Callable[[str], ExecutorSettings],
        accounting: Accounting,
        config: core.DispatchConfig,
        log_factory: Callable[[], DispatchLog],
        memory_lane: Lane,
        programs: ProgramLane,
        counters: Counters,
        send_done: Callable[[str, bytes], None],
        tracing: Tracing,
    ) -> None:
        self.gpu = gpu
        self.sessions: dict[str, Session] = {}
        self.lost: dict[str, Session] = {}
        """Sessions whose memory the executor lost. Each stays in the books until its client has opened another one in its place, closes it,
        or is silent for its lease, so that its task continues."""
        self.ended: LruDict[str, tuple[str, SessionClosed]] = LruDict(_ENDED_MAX)
        """(principal, totals) of the sessions that ended last, for clients that ask late."""
        self.gate = Gate(accounting.allowances, self.sessions, self._arrived, self._forget, self.refuse, time.monotonic_ns)
        self.attached: Attached | None = None
        self.quota_uses: tuple[QuotaUse, ...] = ()
        """Of the executor's quotas; of those that a trust domain has together by its name."""
        self._accounting = accounting
        self._config = config
        self._log_factory = log_factory
        self._memory_lane = memory_lane
        self._programs = programs
        self._memory_digest = b""
        memory_lane.on_gap = lambda: self._executor.send(JournalAnew())
        self._counters = counters
        self._send_done = send_done
        self._tracing = tracing
        self._settings = settings
        self._executor = ExecutorProcess(settings(""), self._on_report, self._on_lost)
        self.domain = ""
        """The trust domain that the executor is for; empty: any."""
        self.turns = DomainTurns()
        self._warm: LruDict[tuple[str, bytes, bytes], None] = LruDict(_WARM_MAX)
        """(code domain, program, dims) that the executor has ready: their batches need not be prepared first."""
        self._page: StopPage | None = None
        self._serial = 0
        self._booked_ns = 0
        self._alarm = Alarm(self._rang)
        self._opening: dict[str, tuple[SessionRecord, asyncio.Future[None]]] = {}
        self._restarting: asyncio.Task[None] | None = None
        self._stopping = False
        self._log = get_logger()
        self._dispatch = log_factory()

    # -- start and stop ---------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find or start the executor and take over what it holds. Raises StartError."""
        attached = await self._executor.start()
        try:
            self._page = StopPage.open(Path(attached.stop_page))
        except (OSError, ValueError) as error:
            raise StartError(f"the stop page of device {self.gpu}'s executor cannot be mapped: {error}") from None
        self.attached = attached
        now_ns = time.monotonic_ns()
        self._on(core.ConfigChanged(now_ns, msgspec.structs.replace(self._config, cores=attached.cores)))
        records = {held.session: decode_record(held.record) for held in attached.held}
        for held in attached.held:
            session = Session(records[held.session], held.seq_done, held.chain, held.resident_bytes, memory=held.memory)
            self.sessions[held.session] = session
            if held.faulted:
                session.fault = REFUSALS[why.SESSION_FAULTED]
            else:
                self._on(opened_stimulus(now_ns, session))
        for result in self._accounting.attach(attached, records):
            if result.done:
                self._send_done(result.session, result.done)
        for account in self._accounting.lost_accounts:
            terms = TaskTerms(tenant=account.tenant, task=account.task, priority=account.priority)
            record = SessionRecord(
                session=account.session,
                terms=terms,
                gpu=self.gpu,
                principal=account.principal,
                replayed=account.replayed,
                elsewhere=account.elsewhere,
                begun_ns=account.resume_ns_max,
            )
            self._lose(Session(record, account.seq_done, reason=_NODE_RESTARTED), account)
        self._accounting.lost_accounts.clear()

    def announce(self) -> None:
        """Tell the log again of the sessions taken over: the node's new epoch has them."""
        for session in self.sessions.values():
            self._accounting.opened_fact(session.record)
        if self.sessions:
            self._take_stock()  # else a server after this one would not know of them, if the executor ends with it

    def leave(self) -> None:
        """Leave sessions and executor to the next server, as after a crash: it takes over what runs, and the reports of it."""
        self._stopping = True
        self._alarm.set(None)
        self._executor.leave()
        self._dispatch.close()

    async def stop(self) -> None:
        """End all sessions and the executor."""
        self._stopping = True
        if self._restarting is not None:
            self._restarting.cancel()
        for session in list(self.lost.values()):
            self.end_lost(session)
        for session in list(self.sessions.values()):
            self._end(session, "node_stopped", failed=True)
        if self.attached is not None:
            self._accounting.settle(in_flight=False)
            self._note()
        await self._executor.stop()
        self._dispatch.close()

    def info(self) -> DeviceInfo | None:
        """What discovery says of it; None while it has no executor."""
        if self.attached is None:
            return None
        a = self.attached
        return DeviceInfo(self.gpu, a.name, a.backend, a.cores, a.vram_bytes, max(0, a.vram_bytes - self.used_bytes))

    @property
    def used_bytes(self) -> int:
        return sum(session.resident_bytes for session in self.sessions.values())

    @property
    def in_flight(self) -> int:
        """Launches with the executor."""
        return self._dispatch.state.in_flight

    @property
    def spent(self) -> Spent:
        return self._accounting.spent

    @property
    def reserved_bytes(self) -> int:
        return sum(session.record.terms.vram_bytes for session in self.sessions.values())

    # -- sessions ------------------------------------------------------------------------------------------------------------------

    async def wait_for_executor(self) -> None:
        """Wait for the executor that is being started, for a while. Raises nothing."""
        if self._restarting is not None:
            await asyncio.wait((self._restarting,), timeout=EXECUTOR_WAIT_S)

    async def open(self, record: SessionRecord) -> None:
        """Give the session its space and take its batches from now on. Raises StartError when the executor is away, OpenRefused."""
        if self.attached is None:
            raise StartError("the device's executor is being restarted; try again")
        if record.session not in self._opening:  # else the client asks again while the first answer is under way
            self._opening[record.session] = (record, asyncio.get_running_loop().create_future())
            self._executor.send(open_space(record))
        await asyncio.shield(self._opening[record.session][1])

    @property
    def records(self) -> list[SessionRecord]:
        """Of all sessions that are open or being opened."""
        return [session.record for session in self.sessions.values()] + [record for record, _ in self._opening.values()]

    def _opened(self, record: SessionRecord) -> None:
        """Raises OpenRefused."""
        session = self.sessions[record.session] = Session(record)
        self._on(opened_stimulus(time.monotonic_ns(), session))
        if record.session not in self._dispatch.state.sessions:
            fault = self.sessions.pop(record.session).fault
            self._executor.send(CloseSpace(record.session))
            raise OpenRefused(fault or not_taken("no reason given"))
        self._accounting.opened(record, in_flight=self._dispatch.state.in_flight > 0)
        self._note()

    def _lose(self, session: Session, account: Account) -> None:
        session.silent_ns, session.recover_ns, session.begun_ns = 0, recoverable_ns(account), account.begun_ns
        self.put_back(session)

    def claim_lost(self, request: OpenSession, principal: str) -> Session | None:
        """The lost session that the requested one takes the place of: to be ended, or put back if that cannot be opened. Nothing else takes
        its place meanwhile."""
        found = self.lost.get(request.replaces)
        return self.lost.pop(request.replaces) if found is not None and gives_way(found.record, request, principal) else None

    def put_back(self, session: Session) -> None:
        self.lost[session.record.session] = session

    def end_lost(self, session: Session, request: CloseSession | None = None) -> None:
        """End a session that was lost. ``request``: of its client; it did not fail if it had done all that this asks for."""
        self.lost.pop(session.record.session, None)
        if request is not None and request.reason == _DONE and 0 <= request.last_seq <= session.seq_done:
            self._end(session, _DONE, failed=False)
        else:
            self._end(session, session.reason, failed=True)

    def close(self, session: Session, last_seq: int, reason: str, *, stop: bool = False) -> asyncio.Future[SessionClosed]:
        """End a session once batch ``last_seq`` has run (-1: at once); resolves to its totals. ``stop``: what runs beyond is stopped."""
        if session.closing is None:
            session.closing = asyncio.get_running_loop().create_future()
            session.reason = reason
        name = session.record.session
        if name in self._dispatch.state.sessions:
            self._on(core.SessionClosed(time.monotonic_ns(), name, last_seq, stop))
        else:
            self._executor.send(CloseSpace(name))
        return session.closing

    def cancel(self, session: Session, fault: Fault, reason: str) -> None:
        """End a session at once for this reason (CANCELLED, DISPLACED): its client gets ``fault``, and its running launch is stopped.
        Idempotent."""
        if session.reason == reason:
            return
        name = session.record.session
        self._send_done(name, encode_done(Done(name, 0, fault=fault)))
        released = session.closing is not None and name not in self._dispatch.state.sessions
        session.fault, session.reason = fault, reason
        if not released:
            self.close(session, -1, reason, stop=True)

    def ask_to_leave(self, session: Session, fault: Fault) -> None:
        """Ask the client to continue on another node. It ends the session when it has left."""
        name = session.record.session
        self._send_done(name, encode_done(Done(name, 0, fault=msgspec.structs.replace(fault, fatal=False))))

    def prioritise(self, session: Session, priority: int) -> None:
        """Give a session another priority: from now on for its launches, its memory, its bill; in the log."""
        record = session.record
        session.record = msgspec.structs.replace(record, terms=record.terms.at_priority(priority))
        self._accounting.prioritised(session.record, in_flight=self._dispatch.state.in_flight > 0)
        self._executor.send(ChangePriority(record.session, priority, encode_record(session.record)))
        if record.session in self._dispatch.state.sessions:
            self._on(core.PriorityChanged(time.monotonic_ns(), record.session, priority))
        self._note()

    def account(self, session: str) -> Account:
        """The session's totals in the facts so far."""
        meter = self._accounting.meter
        return (meter.accounts.get(session) if meter is not None else None) or Account(session, "", "", 0)

    def recall(self, session: Session, after_seq: int) -> None:
        """Send the kept Done messages after ``after_seq`` again, unless some are on their way."""
        if not session.recalling:
            session.recalling = True
            self._executor.send(Recall(session.record.session, after_seq))

    # -- batches -------------------------------------------------------------------------------------------------------------------

    def batch(self, session: Session, batch: Batch, data: bytes, position: int, refused: Fault | None = None) -> None:
        """A batch that passed the intake; or one that did not, with the reason: it takes its place in the order, and is refused there."""
        now_ns = time.monotonic_ns()
        session.silent_ns = 0
        if session.fault is not None:
            self.refuse(batch.session, batch.seq, session.fault)
            return
        if batch.seq <= session.seq_done or batch.seq in session.pending:
            self._counters.dropped += 1
            return
        if batch.seq > session.seq_done + 1 and session.pending_bytes + len(data) > self._dispatch.state.config.parked_bytes_max:
            self.refuse(batch.session, batch.seq, REFUSALS[why.PARKED_BYTES_FULL])
            return
        if batch.seq > session.seq_done + _AHEAD_MAX:
            self.refuse(batch.session, batch.seq, REFUSALS[why.PARKED_BATCHES_FULL])
            return
        pending = session.pending[batch.seq] = Pending(batch, data, position, now_ns, refused)
        if session.swapped_bytes and not session.expected:
            session.expected = True
            self._executor.send(Expect(batch.session))
        if not batch.program or (session.record.code_domain, batch.program, batch.dims) in self._warm:
            self._arrived(pending)
        else:
            self._executor.send(Prepare(batch.session, batch.seq, pending.hand_over()))

    def _forget(self, session: Session, seq: int) -> bool:
        """This batch will not be executed; False when there is none."""
        pending = session.pending.pop(seq, None)
        if pending is not None and not pending.data:
            self._executor.send(Forget(session.record.session, seq))
        return pending is not None

    def refuse(self, session: str, seq: int, fault: Fault) -> None:
        self._counters.refused += 1
        self._send_done(session, encode_done(Done(session, seq, fault=fault)))

    def _arrived(self, pending: Pending) -> None:
        pending.prepared = True
        batch = pending.batch
        if not self.gate.passes(batch.session, batch.seq):
            return
        content = content_digest(batch)
        self._programs.note(batch, content)
        self._on(core.BatchArrived(time.monotonic_ns(), batch.session, batch.epoch, batch.seq, pending.nbytes, content))

    def _on(self, stimulus: core.Stimulus) -> None:
        """One stimulus to the core; carry out what it decides."""
        stopped: list[core.Launch] = []
        for decision in self._dispatch.on(stimulus):
            session = self.sessions.get(decision.session)
            match decision:
                case core.Launch():
                    assert session is not None, "only open sessions have batches to launch"
                    if decision.slice or self.gate.passes(decision.session, decision.seq):
                        self._launch(session, decision)
                    else:
                        stopped.append(decision)
                case core.Preempt(_, seq):
                    assert session is not None and self._page is not None, "what is in flight has a session and an executor"
                    self._page.stop(session.pending[seq].priority, session.pending[seq].serial)
                case core.Drop(_, seq):
                    self._counters.dropped += 1
                    if session is not None:
                        self._forget(session, seq)
                case core.Refuse(_, -1, reason):
                    if session is not None:
                        session.fault = not_taken(reason)
                case core.Refuse(name, seq, reason):
                    if session is not None:
                        self._forget(session, seq)
                    self.refuse(name, seq, refusal(reason))
                case core.Release(name):
                    self._executor.send(CloseSpace(name))
                case core.Park():
                    continue  # it waits in the core; nothing to do
        for launch in stopped:  # the core forgets them until the gate lets them go, or their session sends them again
            self._on(core.LaunchReturned(time.monotonic_ns(), launch.session, launch.seq, True))
        self._alarm.set(self._dispatch.next_wakeup_ns)

    def _launch(self, session: Session, launch: core.Launch) -> None:
        pending = session.pending[launch.seq]
        self._serial += 1
        pending.serial, pending.priority = self._serial, session.record.terms.priority
        pending.chain = self._dispatch.chain_after(launch.session, launch.seq)
        self._executor.send(
            Execute(
                session=launch.session,
                seq=launch.seq,
                chain=pending.chain,
                batch=pending.hand_over(),
                serial=self._serial,
                priority=pending.priority,
                limit_ns=launch.limit_ns,
                refused=pending.refused,
                repeats=pending.batch.repeats,
            )
        )

    def _rang(self) -> None:
        if self.attached is not None:
            self._on(core.Tick(time.monotonic_ns(), wake=True))

    # -- reports -------------------------------------------------------------------------------------------------------------------

    def _on_report(self, report: Report) -> None:
        match report:
            case Executed():
                self._executed(report)
            case Prepared(name, seq, ready):
                session = self.sessions.get(name)
                pending = None if session is None else session.pending.get(seq)
                if session is not None and pending is not None and not pending.prepared:
                    if ready:
                        self._warm[session.record.code_domain, pending.batch.program, pending.batch.dims] = None
                    self._arrived(pending)
            case Compiled():
                self._accounting.compiled(report)
            case QuotasUsed(uses, refused):
                self.quota_uses = uses
                for asked in refused:
                    self._counters.quota_refused(asked)
            case Linked(name, linked):
                session = self.sessions.get(name)
                if session is not None:
                    session.unlinked = not linked
            case Recalled(name, dones):
                session = self.sessions.get(name)
                if session is not None:
                    session.recalling = False
                for done in dones:
                    self._send_done(name, done)
            case SpaceOpened(name):
                opening = self._opening.pop(name, None)
                if opening is not None:
                    try:
                        self._opened(opening[0])
                        opening[1].set_result(None)
                    except OpenRefused as refused:
                        opening[1].set_exception(refused)
            case SpaceClosed(name, _, others):
                self._accounting.released(report)
                self._charge(others, ())
                session = self.sessions.get(name)
                if session is not None:
                    self._end(session, session.reason_in_log, failed=session.fault is not None)
            case Charged(_, others, memory):
                self._accounting.charged(report)
                self._charge(others, memory)
            case MemoryFreed(name):
                if name in self._dispatch.state.sessions:
                    self._on(core.MemoryReady(time.monotonic_ns(), name))
            case Journalled(frames, records, digest, snapshot):
                if snapshot is not None:
                    self._memory_lane.begin(lambda: self._memory_digest, snapshot)
                self._memory_digest = digest
                self._memory_lane.add(frames, records)
            case Attached():
                raise AssertionError("taken by the executor process")

    def _executed(self, done: Executed) -> None:
        session = self.sessions.get(done.session)
        if session is not None and done.done:
            # The answer leaves first: the session waits for it, the books and the next decision can wait for this line.
            self._send_done(done.session, done.done)
        self._accounting.work(done)
        self._charge(done.others, done.others_memory)
        if session is None:
            return
        now_ns = time.monotonic_ns()
        session.resident_bytes, session.memory, session.expected = done.resident_bytes, done.memory, False
        wall_ns = done.end_ns - done.start_ns
        session.overhead_ns += max(0, done.finish_ns - done.begin_ns - (wall_ns if done.core_ns else 0))
        if session.overhead_ns >= _OVERHEAD_NS:
            self._on(core.OverheadMeasured(now_ns, done.session, session.overhead_ns))
            session.overhead_ns, now_ns = 0, time.monotonic_ns()  # what that decided may be back already, at a later time
        if done.status in (RAN, FAULTED):
            self._over(session, done)
            outcome = core.FAULT if done.status == FAULTED else core.OK
            self._on(core.LaunchFinished(now_ns, done.session, done.seq, done.core_ns, outcome, wall_ns))
            self.gate.advance(session)
        elif done.status == STOPPED:
            if wall_ns:
                session.pending[done.seq].slice(done)
            self._on(core.LaunchStopped(now_ns, done.session, done.seq, done.core_ns, wall_ns))
        else:
            if done.status == NEEDS:
                session.pending.pop(done.seq, None)
            self._on(core.LaunchReturned(now_ns, done.session, done.seq, done.status == NEEDS, done.status == AWAITS))

    def _over(self, session: Session, done: Executed) -> None:
        """A batch ran to its end."""
        self._counters.executed += 1
        pending = session.pending.pop(done.seq)
        session.seq_done, session.chain = done.seq, pending.chain
        if pending.batch.trace:
            pending.slice(done)
            record_spans(self._tracing, pending, done, self.gpu)
        if done.status == FAULTED:
            session.fault = REFUSALS[why.SESSION_FAULTED]

    def _charge(self, others: Sequence[tuple[str, int]], memory: Sequence[tuple[int, int, int]]) -> None:
        """Memory of sessions changed through others: it was swapped out to make room, or is shared with one more or fewer."""
        for at, (name, nbytes) in enumerate(others):
            session = self.sessions.get(name)
            if session is not None:
                session.resident_bytes = nbytes
                if at < len(memory):
                    session.memory = memory[at]

    def _end(self, session: Session, reason: str, *, failed: bool) -> None:
        """The session is over: settle its bill, and resolve its ``closing`` future."""
        name = session.record.session
        self.sessions.pop(name, None)
        self.gate.forget(session)
        in_flight = self._dispatch.state.in_flight > 0 and self.attached is not None
        totals = self._accounting.closed(name, session.chain.hex(), reason, failed, session.outcome, in_flight=in_flight)
        self.ended[name] = (session.record.principal, totals)
        self._log.info("session closed", **session.record.about, reason=reason, failed=failed, core_ns=totals.core_ns)
        self._note()
        if session.closing is not None and not session.closing.done():
            session.closing.set_result(totals)

    # -- once a second -------------------------------------------------------------------------------------------------------------

    def renew_certificate(self) -> None:
        """Let the data port use the node's certificate if it was replaced. Raises OSError."""
        self._executor.renew_certificate()

    def tick(self, lease_ns: int, unlinked_lease_ns: int, heard_ns: int) -> None:
        """Reap silent sessions and settle the books. ``unlinked_lease_ns``: the lease of a client without a connection to the data port;
        ``heard_ns``: the time since the last tick; 0 while the bus is away, for then no client is heard."""
        listened_ns = min(heard_ns, _LISTENED_NS_MAX)
        for session in list(self.lost.values()):
            session.silent_ns += listened_ns
            if session.silent_ns > lease_ns:
                self.end_lost(session)
        if self.attached is None:
            return
        for session in list(self.sessions.values()):
            session.silent_ns += listened_ns
            silent_ns_max = min(lease_ns, unlinked_lease_ns) if session.unlinked else lease_ns
            if session.silent_ns > silent_ns_max and self._waits_for_client(session):
                self._log.info("lease ran out", **session.record.about)
                session.reason = "lease"
                session.outcome = session.outcome or Outcome(lost=True)
                self.close(session, -1, session.reason)
        self._on(core.Tick(time.monotonic_ns()))  # after the ends above: the core's time never runs backwards
        self._dispatch.flush()
        self._take_stock()

    def _take_stock(self) -> None:
        self._accounting.settle(in_flight=self._dispatch.state.in_flight > 0, whole=False)
        self._note()

    async def book(self, session: Session, image: int) -> bool:
        """Record what the session used so far, with this image that its client has of it; False: its memory is lost. Sessions that ask
        within a moment share a settlement of the books."""
        name = session.record.session
        self._accounting.images[name] = image
        try:
            while self.sessions.get(name) is session and self.attached is not None:
                if time.monotonic_ns() - self._booked_ns >= _BOOK_PAUSE_NS:
                    self._booked_ns = time.monotonic_ns()
                    self._take_stock()
                if name not in self._accounting.images:
                    return True
                await asyncio.sleep(max(0, self._booked_ns + _BOOK_PAUSE_NS - time.monotonic_ns()) / 1e9)
            return False
        finally:
            self._accounting.images.pop(name, None)

    def _waits_for_client(self, session: Session) -> bool:
        """Is the session blocked on client input, so that the lease applies? A session that is being closed is rightly silent while its
        batches run, and may wait for one that never comes."""
        if session.closing is None:
            return True
        return session.record.session in self._dispatch.state.sessions and session.seq_done + 1 not in session.pending

    def occupancy_ns(self) -> tuple[int, int]:
        """Totals (busy, fed) of the current dispatcher up to its last stimulus."""
        occupancy = self._dispatch.state.occupancy
        return occupancy.busy_ns, occupancy.fed_ns

    def totals(self, session: str) -> tuple[core.Totals, str]:
        """A session's running totals up to the last stimulus, and the word for what it does now."""
        return core.totals(self._dispatch.state, session), core.standing(self._dispatch.state, session)

    def oldest_position(self) -> int | None:
        """Position of the oldest batch that is not over, None when there is none."""
        return min((p.position for session in self.sessions.values() for p in session.pending.values()), default=None)

    def _note(self) -> None:
        self._accounting.note(lambda report: self._executor.send(Confirm(report)))

    # -- another executor ----------------------------------------------------------------------------------------------------------

    def change_domain(self, domain: str) -> None:
        """Serve this trust domain from now on, in a new process. No session is open."""
        self._log.info("a process for another trust domain is started", gpu=self.gpu)
        self.domain = domain
        self._accounting.settle(in_flight=False)
        self._note()
        self._detach()
        self._restarting = asyncio.get_running_loop().create_task(self._replace(), name=f"replace {self.gpu}")

    async def _replace(self) -> None:
        await self._executor.stop()
        self._executor = ExecutorProcess(self._settings(self.domain), self._on_report, self._on_lost)
        await self._restart()

    def _detach(self) -> None:
        """The executor has ended, or is to end: what was known of it is forgotten."""
        self.attached = None
        self._alarm.set(None)
        if self._page is not None:
            self._page.close()
            self._page = None
        self._warm.clear()
        self.quota_uses = ()
        for _, future in self._opening.values():
            future.set_exception(StartError("the device's executor ended; try again"))
            future.exception()  # mark it retrieved: the request may have been abandoned
        self._opening.clear()
        self._dispatch.close()
        self._dispatch = self._log_factory()

    # -- the executor died ---------------------------------------------------------------------------------------------------------

    def _on_lost(self) -> None:
        """The executor's memory is lost, and a new executor is started. Clients may open their sessions again, and repeat their batches."""
        fault = EXECUTOR_OUT_OF_MEMORY if self._executor.exceeded_memory else EXECUTOR_LOST
        self._log.error("executor lost", gpu=self.gpu, sessions=len(self.sessions), reason=fault.message)
        self._counters.restarts += 1
        self.attached = None
        now_ns = time.monotonic_ns()
        for name, session in list(self.sessions.items()):
            self._send_done(name, encode_done(Done(name, 0, fault=fault)))
            if session.closing is not None or session.fault is not None:
                self._end(session, _EXECUTOR_LOST, failed=True)
                continue
            session.reason = _EXECUTOR_LOST
            self._lose(session, self._accounting.lost(name, now_ns))
            self.gate.forget(session)
            del self.sessions[name]
        if self.lost:
            self._accounting.note(lambda report: None)
        self._detach()
        if not self._stopping:
            self._restarting = asyncio.get_running_loop().create_task(self._restart(), name=f"restart {self.gpu}")

    async def _restart(self) -> None:
        self._executor.kill()
        while True:
            try:
                await self.start()
            except (StartError, OSError) as error:  # the machine may have no process or memory to give just now
                self._log.error("no executor", gpu=self.gpu, problem=str(error))
                await asyncio.sleep(_RESTART_PAUSE_S)
                continue
            self._log.info("executor restarted", gpu=self.gpu)
            return
