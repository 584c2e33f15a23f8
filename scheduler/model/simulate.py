"""The loop and the device in virtual time: the next thing that happens goes to the dispatcher, what it decides goes to the device, what
ends there wakes clients. The device takes launches one after another, in the order they were handed over, as the real executor does.

Virtual time goes from event to event. Events of one time come in the order they were made, so one input gives one outcome.

- A launch begins when the one before has ended and ``launch_ns`` have passed since its decision. It runs to its end, to its limit, or
  until it is stopped.
- Stopping follows the stop page: a preemption stops every launch of its priority up to its own serial; what has not begun by then comes
  back when its turn comes, without having taken time.
- A batch that is behind a stopped or faulted one of its session comes back unrun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from scheduler.dispatch import (
    FAULT,
    BatchArrived,
    Dispatch,
    DispatchConfig,
    DispatchState,
    Launch,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    Preempt,
    Record,
    Refuse,
    SessionClosed,
    SessionOpened,
    Stimulus,
    Tick,
)
from scheduler.errors import ModelError
from scheduler.model.runs import STAYS, Arrival, BatchOutcome, DeviceCosts, Outcome, SessionOutcome, Tenant

__all__ = ["VirtualDevice", "simulate"]

Report = LaunchFinished | LaunchStopped | LaunchReturned


@dataclass(slots=True)
class _Job:
    """A launch that was handed over; the times are set when it begins. ``run_begin_ns`` to ``end_ns`` it runs."""

    launch: Launch
    work: Arrival
    priority: int
    serial: int
    handed_ns: int
    begin_ns: int = -1
    run_begin_ns: int = -1
    end_ns: int = -1
    returned: bool = False


@dataclass(slots=True)
class VirtualDevice:
    """``end_ns``: when the head of the queue ends, None while there is none. ``done_ns``: wall time behind each unfinished batch."""

    costs: DeviceCosts
    end_ns: int | None = None
    _queue: deque[_Job] = field(default_factory=deque)
    _free_ns: int = 0
    _reported_ns: int = 0
    _serial: int = 0
    _stopped: dict[int, int] = field(default_factory=dict)
    _done_ns: dict[tuple[str, int], int] = field(default_factory=dict)
    _only: dict[str, int | None] = field(default_factory=dict)
    """Sessions of which nothing but this seq may run: it is stopped half-way (None: nothing at all, it faulted)."""

    def execute(self, now_ns: int, launch: Launch, work: Arrival, priority: int) -> None:
        """Hand a launch over."""
        self._serial += 1
        self._queue.append(_Job(launch, work, priority, self._serial, now_ns))
        if len(self._queue) == 1:
            self._begin()

    def preempt(self, now_ns: int, session: str, seq: int) -> None:
        """Stop this launch, and what of its priority came before it."""
        for job in self._queue:
            if (job.launch.session, job.launch.seq) == (session, seq):
                self._stopped[job.priority] = max(job.serial, self._stopped.get(job.priority, 0))
        if self._queue and self._is_stopped(self._queue[0]):
            self._cut(self._queue[0], now_ns)

    def end(self) -> Report:
        """The head ends, at ``end_ns``: what the dispatcher hears of it ``report_ns`` later. The next one begins."""
        job = self._queue.popleft()
        self._free_ns = job.end_ns
        self._reported_ns = max(self._reported_ns, job.end_ns + self._report_ns(job.work))  # reports come in the order of their launches
        report = self._report(job, self._reported_ns)
        self.end_ns = None
        if self._queue:
            self._begin()
        return report

    def _begin(self) -> None:
        """The head's turn."""
        job = self._queue[0]
        job.begin_ns = job.run_begin_ns = job.end_ns = max(self._free_ns, job.handed_ns + self._launch_ns(job.work))
        session, seq = job.launch.session, job.launch.seq
        job.returned = session in self._only and self._only[session] != seq
        if not job.returned and not self._is_stopped(job):
            done_ns = self._done_ns.get((session, seq), 0)
            job.run_begin_ns += self.costs.slice_ns if job.launch.slice else job.work.overhead_ns
            run_ns = job.work.wall_ns - done_ns
            if job.launch.limit_ns:
                run_ns = min(run_ns, _grained(job.launch.limit_ns + self.costs.over_ns, job.work.grain_ns))
            job.end_ns = job.run_begin_ns + run_ns
        self.end_ns = job.end_ns

    def _cut(self, job: _Job, now_ns: int) -> None:
        """Ask a running launch to stop at the end of its slice."""
        if now_ns <= job.begin_ns:
            job.run_begin_ns = job.end_ns = job.begin_ns
        elif now_ns < job.run_begin_ns:
            job.end_ns = job.run_begin_ns
        else:
            job.end_ns = min(job.end_ns, job.run_begin_ns + _grained(now_ns + self.costs.stop_ns - job.run_begin_ns, job.work.grain_ns))
        self.end_ns = job.end_ns

    def _launch_ns(self, work: Arrival) -> int:
        return self.costs.launch_ns if work.way_ns < 0 else work.way_ns - work.way_ns // 2

    def _report_ns(self, work: Arrival) -> int:
        return self.costs.report_ns if work.way_ns < 0 else work.way_ns // 2

    def _is_stopped(self, job: _Job) -> bool:
        return self._stopped.get(job.priority, 0) >= job.serial

    def _report(self, job: _Job, at_ns: int) -> Report:
        session, seq = job.launch.session, job.launch.seq
        if job.returned:
            return LaunchReturned(at_ns, session, seq, False)
        before_ns = self._done_ns.pop((session, seq), 0)
        wall_ns = job.end_ns - job.run_begin_ns
        core_ns = _part(job.work, before_ns + wall_ns) - _part(job.work, before_ns)
        if before_ns + wall_ns < job.work.wall_ns or (not wall_ns and self._is_stopped(job)):
            self._done_ns[(session, seq)] = before_ns + wall_ns
            self._only[session] = seq
            return LaunchStopped(at_ns, session, seq, core_ns, wall_ns)
        self._only.pop(session, None)
        if job.work.outcome == FAULT:
            self._only[session] = None
        return LaunchFinished(at_ns, session, seq, core_ns, job.work.outcome, wall_ns)


def _grained(wall_ns: int, grain_ns: int) -> int:
    """The first place to stop at or after ``wall_ns``."""
    return wall_ns if not grain_ns else -(-wall_ns // grain_ns) * grain_ns


def _part(work: Arrival, wall_ns: int) -> int:
    """Core time of the first ``wall_ns`` of a batch; the parts of a batch add up to its whole."""
    return work.core_ns if wall_ns >= work.wall_ns else work.core_ns * wall_ns // work.wall_ns


_EPOCH: Final = 1
_STIMULUS, _ARRIVE, _END, _WAKE = range(4)


def simulate(
    tenants: Iterable[Tenant], arrivals: Iterable[Arrival], config: DispatchConfig, costs: DeviceCosts, *, keep_records: bool = True
) -> Outcome:
    """Run these batches on a virtual device under this configuration. Raises ModelError for arrivals without a session, out of order, or
    that the dispatcher refuses (a client that sends more than may be parked)."""
    run = _Run(config, costs, keep_records)
    for tenant in tenants:
        run.add(tenant)
    for arrival in arrivals:
        run.expect(arrival)
    return run.go()


@dataclass(slots=True)
class _Client:
    """``works``: all its batches; ``next``: the first that has not been scheduled to arrive; ``outcomes``: of those that arrived."""

    tenant: Tenant
    works: list[Arrival] = field(default_factory=list)
    next: int = 0
    arrived: int = 0
    finished: int = 0
    outcomes: list[BatchOutcome] = field(default_factory=list)

    def think_ns(self, work: Arrival, heard_ns: int) -> int:
        """How long it takes from hearing of what this batch waits for to sending it."""
        took_ns = self.tenant.reactions.at(heard_ns) if work.reacts and self.tenant.reactions is not None else None
        return work.think_ns if took_ns is None else took_ns


class _Run:
    """One virtual run."""

    def __init__(self, config: DispatchConfig, costs: DeviceCosts, keep_records: bool) -> None:
        self._dispatch = Dispatch(DispatchState(config=config))
        self._device = VirtualDevice(costs)
        self._clients: dict[str, _Client] = {}
        self._events: list[tuple[int, int, int, Stimulus | Arrival | None]] = []
        self._made = 0
        self._keep = keep_records
        self._out = Outcome()
        self._wake_ns: int | None = None

    def add(self, tenant: Tenant) -> None:
        self._clients[tenant.session] = _Client(tenant)

    def expect(self, arrival: Arrival) -> None:
        client = self._clients.get(arrival.session)
        if client is None or arrival.seq != len(client.works) or arrival.after_seq >= arrival.seq:
            raise ModelError(
                f"{arrival!r}: of an unknown session, not the next of its session, or after a batch that does not come before it"
            )
        if arrival.wall_ns < 0 or arrival.core_ns < 0:
            raise ModelError(f"{arrival!r}: a cost is not negative")
        client.works.append(arrival)

    def go(self) -> Outcome:
        for client in self._clients.values():
            tenant = client.tenant
            opened = SessionOpened(
                at_ns=tenant.open_ns,
                session=tenant.session,
                epoch=_EPOCH,
                priority=tenant.priority,
                next_seq=0,
                chain=b"",
                weight=tenant.weight,
                sla_ns=tenant.sla_ns,
                pace_permille=tenant.pace_permille,
            )
            self._push(tenant.open_ns, _STIMULUS, opened)
        begin_ns = min((client.tenant.open_ns for client in self._clients.values()), default=0)
        self._dispatch.state.now_ns = self._dispatch.state.occupancy.at_ns = begin_ns
        now_ns = begin_ns
        while self._events:
            at_ns, _, kind, what = heappop(self._events)
            if kind == _END:
                self._ended(at_ns)
                continue
            if kind == _WAKE:
                if at_ns != self._wake_ns:
                    continue
                self._wake_ns = None
            now_ns = at_ns
            self._happen(at_ns, kind, what)
        return self._outcome(begin_ns, now_ns)

    # -- events --------------------------------------------------------------------------------------------------------------------

    def _push(self, at_ns: int, kind: int, what: Stimulus | Arrival | None = None) -> None:
        self._made += 1
        heappush(self._events, (at_ns, self._made, kind, what))

    def _happen(self, at_ns: int, kind: int, what: Stimulus | Arrival | None) -> None:
        """One stimulus, and what follows from it."""
        stimulus: Stimulus
        if isinstance(what, Arrival):
            stimulus = BatchArrived(at_ns, what.session, _EPOCH, what.seq, what.nbytes)
            client = self._clients[what.session]
            client.arrived += 1
            client.outcomes.append(BatchOutcome(what.seq, at_ns))
        elif what is None:
            stimulus = Tick(at_ns, wake=True)
        else:
            stimulus = what
        decisions = self._dispatch.on(stimulus)
        if self._keep:
            self._out.records.append(Record(stimulus, tuple(decisions)))
        self._follow(stimulus)
        for decision in decisions:
            self._carry_out(at_ns, decision)
        self._see_wakeup()

    def _follow(self, stimulus: Stimulus) -> None:
        """What clients make of it."""
        match stimulus:
            case SessionOpened() | BatchArrived():
                client = self._clients[stimulus.session]
            case LaunchFinished():
                client = self._clients[stimulus.session]
                batch = self._account(client, stimulus)
                batch.finished_ns = stimulus.at_ns
                client.finished += 1
            case LaunchStopped():
                client = self._clients[stimulus.session]
                self._account(client, stimulus)
                return
            case _:
                return
        self._next_arrival(client, stimulus.at_ns)

    def _account(self, client: _Client, ended: LaunchFinished | LaunchStopped) -> BatchOutcome:
        batch = client.outcomes[ended.seq]
        batch.core_ns += ended.core_ns
        batch.wall_ns += ended.wall_ns
        batch.slices += 1 if ended.wall_ns or isinstance(ended, LaunchFinished) else 0
        return batch

    def _next_arrival(self, client: _Client, now_ns: int) -> None:
        """Schedule the client's next batch as soon as its time is known; after the last, the end of the session."""
        if client.next == len(client.works):
            if client.finished == len(client.works) and client.works and client.tenant.close_after_ns != STAYS:
                at_ns = now_ns + client.tenant.close_after_ns
                self._push(at_ns, _STIMULUS, SessionClosed(at_ns, client.tenant.session, len(client.works) - 1))
            return
        work = client.works[client.next]
        if client.arrived < client.next or client.finished <= work.after_seq:
            return
        at_ns = max(now_ns, work.at_ns)
        if client.outcomes:
            at_ns = max(at_ns, client.outcomes[-1].arrived_ns + work.gap_ns)
        if work.after_seq >= 0:
            heard_ns = client.outcomes[work.after_seq].finished_ns
            at_ns = max(at_ns, heard_ns + client.think_ns(work, heard_ns))
        client.next += 1
        self._push(at_ns, _ARRIVE, work)

    def _carry_out(self, now_ns: int, decision: object) -> None:
        match decision:
            case Launch(session, seq):
                client = self._clients[session]
                batch = client.outcomes[seq]
                if batch.launched_ns < 0:
                    batch.launched_ns = now_ns
                self._device.execute(now_ns, decision, client.works[seq], client.tenant.priority)
                self._see_end()
            case Preempt(session, seq):
                self._clients[session].outcomes[seq].preempted += 1
                self._device.preempt(now_ns, session, seq)
                self._see_end()
            case Refuse(session, seq, reason):
                raise ModelError(f"the dispatcher refuses batch {seq} of session {session}: {reason}")
            case _:
                pass

    def _see_end(self) -> None:
        if self._device.end_ns is not None:
            self._push(self._device.end_ns, _END)

    def _ended(self, at_ns: int) -> None:
        """The head of the device's queue may have ended; a time that was moved since is looked at again when it comes."""
        while self._device.end_ns is not None and self._device.end_ns <= at_ns:
            report = self._device.end()
            self._push(report.at_ns, _STIMULUS, report)
            self._see_end()

    def _see_wakeup(self) -> None:
        """A dispatcher that waits for a time is woken by a Tick then; one that was asked for before and is not any more is passed over."""
        due_ns = self._dispatch.next_wakeup_ns()
        if due_ns != self._wake_ns and due_ns is not None:
            self._push(due_ns, _WAKE)
        self._wake_ns = due_ns

    def _outcome(self, begin_ns: int, end_ns: int) -> Outcome:
        out, occupancy = self._out, self._dispatch.state.occupancy
        out.begin_ns, out.end_ns = begin_ns, end_ns
        out.busy_ns, out.fed_ns = occupancy.busy_ns, occupancy.fed_ns
        for client in self._clients.values():
            done = [batch for batch in client.outcomes if batch.finished_ns >= 0]
            out.sessions[client.tenant.session] = SessionOutcome(client.tenant.session, client.tenant.priority, done)
            out.unfinished += len(client.works) - len(done)
        return out
