"""The books of one device: work reports into the meter, its facts into the fact log, confirmations back to the executor; and counters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bus_schemas.events import DeviceAccounted, Event, Outcome, SessionClosedFact, SessionOpenedFact, SessionPriorityChanged
from bus_schemas.session import SessionClosed
from scheduler.quotas import Asked, Refusals
from services.server.allowance import Allowances
from services.server.facts import FactLog, Progress
from services.server.meter import Account, Meter
from services.server.protocol import Attached, Charged, Compiled, Executed, SpaceClosed
from services.server.sessions import SessionRecord

__all__ = ["Counters", "Accounting", "Spent", "boot_id"]


@dataclass(slots=True)
class Counters:
    """Since the server started."""

    received: int = 0
    executed: int = 0
    dropped: int = 0
    refused: int = 0
    restarts: int = 0
    #: by quota: requests and batches that it refused
    quota_refusals: Counter[str] = field(default_factory=Counter)
    #: those that are to be recorded
    refusals: Refusals = field(default_factory=Refusals)

    def quota_refused(self, asked: Asked) -> None:
        self.quota_refusals[asked.quota] += asked.times
        self.refusals.note(asked)


def boot_id() -> str:
    """Names this boot of the machine: monotonic times compare only within one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(slots=True)
class Spent:
    """Core time of the device in facts, since the server started."""

    charged_ns: int = 0
    scheduler_ns: int = 0
    idle_ns: int = 0

    def add(self, facts: Sequence[Event]) -> None:
        for fact in facts:
            if isinstance(fact, DeviceAccounted):
                self.charged_ns += fact.charged_core_ns
                self.scheduler_ns += fact.scheduler_core_ns
                self.idle_ns += fact.idle_core_ns


class Accounting:
    """One device's books. ``position`` gives the batch stream's position to remember; ``allowances`` hear what tenants use."""

    def __init__(self, node: str, gpu: int, facts: FactLog, position: Callable[[], tuple[str, int]], allowances: Allowances) -> None:
        self.allowances = allowances
        allowances.watch(lambda: self.meter)
        self._node = node
        self._gpu = gpu
        self._facts = facts
        self._position = position
        self._boot = boot_id()
        self._executor = 0
        self._report = 0
        self.meter: Meter | None = None
        self.lost_accounts: list[Account] = []
        """Of sessions that the first executor does not hold any more."""
        self.spent = Spent()

    def attach(self, attached: Attached, records: dict[str, SessionRecord]) -> list[Executed]:
        """Begin with this executor: its sessions (``records``) go on where the journal left them; sessions that have ended are closed.
        Those whose memory was lost with the executor before stay in the books (``lost_accounts``). Returns the reports that are not in the
        books yet, entered now."""
        now_ns = time.monotonic_ns()
        last = self._facts.progress.get(self._gpu)
        served = bool(records or attached.results)  # by an earlier server; else the executor is new
        if self.meter is None:
            same_boot = last is not None and last.boot == self._boot and last.accounted_ns <= now_ns
            begins_ns = last.accounted_ns if last is not None and same_boot and served else now_ns
            self.meter = Meter(self._node, self._facts.epoch, self._gpu, attached.cores, begins_ns, time.time_ns() - time.monotonic_ns())
            for account in last.accounts if last is not None else ():
                self.meter.open(account)
                if account.session not in records:
                    account.resident_bytes = 0
                    self.lost_accounts.append(account)
        for session, record in records.items():
            if session not in self.meter.accounts:
                self.meter.open(_account(record))
        known = last.report if last is not None and served and last.executor == attached.pid else 0  # pids are given again
        self._executor = attached.pid
        self._report = known
        fresh = [result for result in attached.results if result.index > known]
        for result in fresh:
            self.work(result)
        for held in attached.held:  # what moved between launches is in no report that was kept
            self.meter.resident(held.session, held.resident_bytes, now_ns)
        return fresh

    def opened(self, record: SessionRecord, *, in_flight: bool) -> None:
        """A session begins: so does an interval, for its facts must not reach back before it."""
        assert self.meter is not None
        self.settle(in_flight=in_flight)
        self.meter.open(_account(record))
        self.opened_fact(record)

    def prioritised(self, record: SessionRecord, *, in_flight: bool) -> None:
        """A session has another priority: what it used so far is recorded under the one before."""
        assert self.meter is not None
        self.settle(in_flight=in_flight)
        account = self.meter.accounts.get(record.session)
        if account is not None:
            account.priority = record.terms.priority
        self._facts.record(
            "session", record.session, [SessionPriorityChanged(time.time_ns(), record.session, self._node, record.terms.priority)]
        )

    def opened_fact(self, record: SessionRecord) -> None:
        terms = record.terms
        fact = SessionOpenedFact(
            at_ns=time.time_ns(),
            session=record.session,
            tenant=terms.tenant,
            task=terms.task,
            node=self._node,
            gpu=record.gpu,
            priority=terms.priority,
            quota_bytes=terms.vram_bytes,
            swap=terms.swap,
            title=terms.title,
            weight=terms.weight,
            sla_ms_p99=terms.sla_ms_p99,
            pace_percent=terms.pace_percent,
            traceparent=record.traceparent,
            replaces=record.replaces,
            origin=record.origin,
            image=record.image,
        )
        self._facts.record("session", record.session, [fact])

    def work(self, done: Executed) -> None:
        """Enter one report."""
        assert self.meter is not None
        self._report = done.index
        account = self.meter.accounts.get(done.session)
        if account is not None and account.elsewhere and done.repeats:
            account.replayed = max(account.replayed, done.seq)
        repeats = account is not None and done.seq <= account.replayed
        resumes = account is not None and not repeats and account.seq_done <= account.replayed  # the first batch with a launch that is new
        if account is not None:
            account.seq_done = max(account.seq_done, done.seq if done.launches else 0)
            charged_ns = 0 if repeats and account.recover_ns else done.core_ns
            self.allowances.ran(self._gpu, account.tenant, done.session, charged_ns, done.launches > 0)
        self.meter.work(
            done.session,
            begin_ns=done.begin_ns,
            start_ns=done.start_ns,
            end_ns=done.end_ns,
            finish_ns=done.finish_ns,
            core_ns=done.core_ns,
            instructions=done.instructions,
            launches=done.launches,
            resident_bytes=done.resident_bytes,
            others=done.others,
            repeats=repeats,
            resumes=resumes,
        )

    def compiled(self, report: Compiled) -> None:
        """The compiler worked for a session."""
        assert self.meter is not None
        self.meter.compiled(report.session, report.compile_ns)

    def charged(self, report: Charged) -> None:
        """Memory moved between two launches."""
        assert self.meter is not None
        for session, nbytes in report.others:
            if session in self.meter.accounts:
                self.meter.resident(session, nbytes, report.at_ns)

    def released(self, closed: SpaceClosed) -> None:
        """A session's memory is free: it is charged for none of it from then on, and those who shared it for more."""
        assert self.meter is not None
        self.meter.released(closed.session, closed.others, closed.at_ns)

    def lost(self, session: str, at_ns: int) -> Account:
        """The executor ended, and a session's memory with it; its totals."""
        assert self.meter is not None
        self.meter.resident(session, 0, at_ns)
        self.settle(in_flight=False)
        return self.meter.accounts[session]

    def closed(
        self, session: str, launch_digest: str, reason: str, failed: bool, outcome: Outcome | None = None, *, in_flight: bool
    ) -> SessionClosed:
        """Settle a session's last interval and close its account; its totals."""
        assert self.meter is not None
        self.settle(in_flight=in_flight)
        account = self.meter.close(session) or Account(session, "", "", 0)
        return self._closed_fact(account, launch_digest, reason, failed, outcome)

    @property
    def images(self) -> dict[str, int]:
        """By session, the image that its client has of all it used so far, until a fact says so."""
        assert self.meter is not None
        return self.meter.images

    def settle(self, *, in_flight: bool, whole: bool = True) -> None:
        """Turn everything known into facts: up to now, or up to the last report while work is in flight."""
        meter = self.meter
        assert meter is not None
        meter.dated(time.time_ns() - time.monotonic_ns())
        until_ns = max(meter.finish_ns, meter.accounted_ns) if in_flight else time.monotonic_ns()
        events = meter.cut(until_ns, whole=whole)
        self._facts.record("usage", self._node, events)
        self.spent.add(events)
        if events:
            self.allowances.settled(self._gpu, events)

    def note(self, confirm: Callable[[int], None]) -> None:
        """Journal how far the books are; ``confirm(report index)`` runs once that is safe."""
        assert self.meter is not None
        stream, position = self._position()
        report = self._report
        accounts = tuple(self.meter.accounts.values())
        progress = Progress(
            gpu=self._gpu,
            boot=self._boot,
            accounted_ns=self.meter.accounted_ns,
            executor=self._executor,
            report=report,
            accounts=accounts,
            stream=stream,
            position=position,
        )
        self._facts.note(progress, lambda: confirm(report))

    def _closed_fact(
        self, account: Account, launch_digest: str, reason: str, failed: bool, outcome: Outcome | None = None
    ) -> SessionClosed:
        fact = SessionClosedFact(
            at_ns=time.time_ns(),
            session=account.session,
            node=self._node,
            reason=reason,
            core_ns=account.core_ns,
            byte_ms=account.byte_ms,
            instructions=account.instructions,
            launches=account.launches,
            launch_digest=launch_digest,
            failed=failed,
            outcome=outcome,
            compile_ns=account.compile_ns,
        )
        self._facts.record("session", account.session, [fact])
        return SessionClosed(
            session=account.session,
            core_ns=account.core_ns - account.displaced_ns - (account.recover_ns_max - account.recover_ns),
            byte_ms=account.byte_ms,
            instructions=account.instructions - account.displaced_instructions,
            launches=account.launches - account.displaced_launches,
            launch_digest=launch_digest,
            compile_ns=account.compile_ns,
        )


def _account(record: SessionRecord) -> Account:
    terms = record.terms
    return Account(
        record.session,
        terms.tenant,
        terms.task,
        terms.priority,
        principal=record.principal,
        replayed=record.replayed,
        recover_ns=record.recover_ns,
        recover_ns_max=record.recover_ns,
        elsewhere=record.elsewhere,
        resume_ns=record.begun_ns,
        resume_ns_max=record.begun_ns,
    )


def recoverable_ns(account: Account) -> int:
    """Core time that a session in the place of this one may repeat without a charge."""
    return max(account.core_ns, account.recover_ns_max)
