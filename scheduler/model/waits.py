"""Breakdown of the time of a session's batches: running, or waiting for which sessions under which rule. Exact, from the journal.

Between two records nothing changes, so each stretch of time between them is given, for every batch that has come and not finished, to one
condition: it runs; it is with the executor behind another's launch; it waits under a rule of the dispatcher (scheduler.dispatch.explain
names it) while another runs; or it is not its turn, since an earlier batch of its own session is not over. The stretches of a batch add
up to its latency, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler.dispatch import (
    BatchArrived,
    Decision,
    DispatchState,
    Drop,
    Launch,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    Preempt,
    Stimulus,
)
from scheduler.dispatch.decisions import HIGHER_PRIORITY, QUEUED

RUNS: Final = "runs"
OWN: Final = "own_earlier"
"""An earlier batch of its own session is not over."""
RESENT: Final = "sent_again"
"""The node lacked its program and asked for the batch again."""


@dataclass(slots=True)
class _Flight:
    """A launch in flight. ``head_ns``: since when it is the executor's; once it has ended, its core time over ``span_ns`` is known."""

    session: str
    seq: int
    priority: int
    head_ns: int = -1
    span_ns: int = 0
    core_ns: int = 0


@dataclass(slots=True)
class Stretch:
    """From ``begin_ns`` to ``end_ns`` one condition held; ``by`` is what ran meanwhile (None: nothing)."""

    begin_ns: int
    end_ns: int
    rule: str
    by: _Flight | None

    @property
    def ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def other(self) -> str:
        """The session that ran meanwhile, empty: none."""
        return "" if self.by is None else self.by.session

    @property
    def other_priority(self) -> int:
        return -1 if self.by is None else self.by.priority

    @property
    def other_core_ns(self) -> int:
        """Its core time in this stretch: its part of the launch it belongs to."""
        return self.by.core_ns * self.ns // self.by.span_ns if self.by is not None and self.by.span_ns else 0


@dataclass(slots=True)
class BatchStory:
    """``end_ns`` -1: it had not finished. ``preempted``: how often a launch of it was cut short for another session. ``core_ns``: the
    measured core time of its slices. ``content``: the digest of what it runs."""

    session: str
    seq: int
    begin_ns: int
    end_ns: int = -1
    slices: int = 0
    preempted: int = 0
    core_ns: int = 0
    content: bytes = b""
    dropped: bool = False
    stretches: list[Stretch] = field(default_factory=list)

    @property
    def waits(self) -> Iterable[Stretch]:
        """The stretches in which it might have run and did not."""
        return (stretch for stretch in self.stretches if stretch.rule not in (RUNS, OWN))

    def fill(self, until_ns: int) -> None:
        """Up to ``until_ns`` an earlier batch of its session was not over, where nothing else was noted."""
        since_ns = self.stretches[-1].end_ns if self.stretches else self.begin_ns
        if since_ns < until_ns:
            self.stretches.append(Stretch(since_ns, until_ns, OWN, None))

    def shift(self, by_ns: int) -> None:
        """Add ``by_ns`` to every time, once: from the node's monotonic clock to Unix time."""
        self.begin_ns += by_ns
        self.end_ns += by_ns if self.end_ns >= 0 else 0
        for stretch in self.stretches:
            stretch.begin_ns += by_ns
            stretch.end_ns += by_ns

    @property
    def waited_ns(self) -> int:
        return sum(stretch.ns for stretch in self.waits)


@dataclass(slots=True)
class Waits:
    """Feed it every record with the state after it. ``rule_of(state, session)``: why the session's next batch is not launched."""

    sessions: Collection[str]
    rule_of: Callable[[DispatchState, str], str]
    stories: list[BatchStory] = field(default_factory=list)
    _open: dict[tuple[str, int], BatchStory] = field(default_factory=dict)
    _flights: list[_Flight] = field(default_factory=list)
    _conditions: dict[tuple[str, int], tuple[str, _Flight | None]] = field(default_factory=dict)
    _now_ns: int = 0

    def resume(self, state: DispatchState) -> None:
        """Begin with a core that has batches already: what came of them before is not known."""
        self._now_ns = state.now_ns
        for name, session in state.sessions.items():
            self._flights += [_Flight(name, seq, session.priority) for seq in session.launched]
            if name in self.sessions:
                for seq in sorted({*session.launched, *session.waiting}):
                    waiting = session.waiting.get(seq)
                    content = b"" if waiting is None else waiting.content
                    self._open[(name, seq)] = BatchStory(name, seq, state.now_ns, content=content)
        self.stories += self._open.values()
        self._look(state)

    def take(self, stimulus: Stimulus, decisions: Sequence[Decision], state: DispatchState) -> None:
        """One record; ``state`` is the dispatcher's after it."""
        self._pass(stimulus.at_ns)
        match stimulus:
            case BatchArrived() if stimulus.session in self.sessions:
                key = (stimulus.session, stimulus.seq)
                if key not in self._open:
                    self._open[key] = BatchStory(*key, stimulus.at_ns, content=stimulus.content)
                    self.stories.append(self._open[key])
            case LaunchFinished() | LaunchStopped() | LaunchReturned():
                self._landed(stimulus)
        for decision in decisions:
            self._decided(decision, state)
        for flight in self._flights[:1]:
            if flight.head_ns < 0:
                flight.head_ns = stimulus.at_ns
        self._look(state)

    def _look(self, state: DispatchState) -> None:
        """What holds from now on for the batches that may run next: for the others it is OWN, which is noted once it has ended."""
        self._conditions = {}
        for name in self.sessions:
            known = state.sessions.get(name)
            if known is None:
                continue
            for seq in {*known.launched, known.next_seq}:
                if (name, seq) in self._open:
                    rule, by = self._condition(name, seq, state)
                    if rule != OWN:
                        self._conditions[(name, seq)] = rule, by

    def _pass(self, at_ns: int) -> None:
        """Give the time up to ``at_ns`` to what held until now."""
        if at_ns > self._now_ns:
            for key, (rule, by) in self._conditions.items():
                story = self._open[key]
                story.fill(self._now_ns)
                stretches = story.stretches
                if stretches and stretches[-1].rule == rule and stretches[-1].by is by and stretches[-1].end_ns == self._now_ns:
                    stretches[-1].end_ns = at_ns
                else:
                    stretches.append(Stretch(self._now_ns, at_ns, rule, by))
        self._now_ns = at_ns

    def _landed(self, report: LaunchFinished | LaunchStopped | LaunchReturned) -> None:
        for flight in self._flights:
            if (flight.session, flight.seq) == (report.session, report.seq):
                self._flights.remove(flight)
                if not isinstance(report, LaunchReturned) and flight.head_ns >= 0:
                    flight.core_ns, flight.span_ns = report.core_ns, report.at_ns - flight.head_ns
                break
        story = self._open.get((report.session, report.seq))
        if story is None:
            return
        story.core_ns += 0 if isinstance(report, LaunchReturned) else report.core_ns
        story.slices += not isinstance(report, LaunchReturned) and (report.wall_ns > 0 or isinstance(report, LaunchFinished))
        if isinstance(report, LaunchFinished):
            self._end(story, report.at_ns)

    def _decided(self, decision: Decision, state: DispatchState) -> None:
        match decision:
            case Launch(session, seq):
                known = state.sessions.get(session)
                self._flights.append(_Flight(session, seq, -1 if known is None else known.priority))
            case Preempt(session, seq):
                if (session, seq) in self._open:
                    self._open[(session, seq)].preempted += 1
            case Drop(session, seq):
                story = self._open.get((session, seq))
                known = state.sessions.get(session)
                if story is not None and (known is None or (seq not in known.waiting and seq not in known.launched)):
                    story.dropped = True
                    self._end(story, self._now_ns)
            case _:
                pass

    def _end(self, story: BatchStory, at_ns: int) -> None:
        story.fill(at_ns)
        story.end_ns = at_ns
        del self._open[(story.session, story.seq)]

    def _condition(self, session: str, seq: int, state: DispatchState) -> tuple[str, _Flight | None]:
        """What holds for a batch from now on."""
        head = self._flights[0] if self._flights else None
        if head is not None and (head.session, head.seq) == (session, seq):
            return RUNS, head
        known = state.sessions.get(session)
        if known is None:
            return OWN, head
        own = [launched for launched in known.launched if launched != seq]
        if seq in known.launched:
            if min(own, default=seq) < seq:
                return OWN, head
            higher = head is not None and 0 <= head.priority < known.priority
            return HIGHER_PRIORITY if higher else QUEUED, head
        if own or seq != known.next_seq:
            return OWN, head
        if seq not in known.waiting:
            return RESENT, head
        return self.rule_of(state, session), head
