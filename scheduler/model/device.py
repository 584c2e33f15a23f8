"""The executor in virtual time: launches one after another, in the order they were handed over, as the real one takes them.

- A launch begins when the one before has ended and ``launch_ns`` have passed since its decision. It runs to its end, to its limit, or
  until it is stopped.
- Stopping follows the stop page: a preemption stops every launch of its priority up to its own serial; what has not begun by then comes
  back when its turn comes, without having taken time.
- A batch that is behind a stopped or faulted one of its session comes back unrun.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from scheduler.dispatch import FAULT, Launch, LaunchFinished, LaunchReturned, LaunchStopped
from scheduler.model.inputs import Arrival, DeviceCosts

__all__ = ["Report", "VirtualDevice"]

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
