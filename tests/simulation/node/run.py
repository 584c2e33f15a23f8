"""Runs one seed, from its drawing to its verdict."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler import dispatch, vram
from scheduler.dispatch import Dispatch, DispatchState, restore, snapshot, totals
from scheduler.frames import Journal
from scheduler.vram import Vram, VramState
from scheduler.vram import journal as vram_journal
from scheduler.vram.journal import decode_state, encode_state
from tests.simulation.node.audit_memory import MemoryAudit
from tests.simulation.node.audit_order import OrderAudit, OrderViolation
from tests.simulation.node.audit_share import ShareAudit
from tests.simulation.node.clock import Clock
from tests.simulation.node.draw import MS, Scenario, draw
from tests.simulation.node.executor import Command, Executor
from tests.simulation.node.shell import Shell
from tests.support.replayed import replay, replay_vram, verify

__all__ = ["Failure", "Outcome", "simulate"]

EVENTS_MAX = 40_000
"""A seed has some thousands: one that does not end in so many never does."""


class Failure(AssertionError):
    """A seed in which something did not hold."""


@dataclass
class Outcome:
    """``digests``: of both cores' journals, segment by segment. ``widest``: the largest part of its fairness bound that a pair used."""

    seed: int
    counts: Counter[str]
    digests: tuple[bytes, ...]
    widest: float


@dataclass
class Segment:
    """A segment of a core's journal: its initial state, its stimuli and decisions, as frames."""

    begins: bytes
    journal: Journal
    frames: list[bytes] = field(default_factory=list)


class _Node:
    """Clock, cores, shell, executor and audits of one seed."""

    def __init__(
        self, scenario: Scenario, make_dispatch: Callable[[DispatchState], Dispatch], make_vram: Callable[[VramState], Vram]
    ) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self._make_dispatch, self._make_vram = make_dispatch, make_vram
        self.dispatch, self.vram = make_dispatch(DispatchState()), make_vram(VramState())
        self.dispatch_segments = [Segment(b"", Journal())]
        self.vram_segments = [Segment(b"", Journal())]
        self.order = OrderAudit()
        self.share = ShareAudit(self.order.sessions, scenario.cores)
        self.memory = MemoryAudit()
        self.core_ns: Counter[str] = Counter()
        self._before: tuple[Dispatch, Vram] | None = None
        self.shell = Shell(self.clock, scenario, self.decide, lambda: self.dispatch.next_wakeup_ns())
        self.executor = Executor(
            self.clock, scenario, self.ask, lambda: self.vram.next_wakeup_ns, self.shell.report, self.shell.memory_freed
        )
        self.shell.executor = self.memory.executor = self.executor
        self.executor.began = self._began
        for at_ns in scenario.snapshots_ns:
            self.clock.at(at_ns, self._restart_cores)

    def decide(self, stimulus: dispatch.Stimulus) -> list[dispatch.Decision]:
        if isinstance(stimulus, dispatch.LaunchFinished | dispatch.LaunchStopped):
            self.core_ns[stimulus.session] += stimulus.core_ns
            self._identity(stimulus.session, stimulus.core_ns)
        decisions = self.dispatch.on(stimulus)
        if self._before is not None and self._before[0].on(stimulus) != decisions:
            raise OrderViolation(f"{stimulus!r}: the core that was restored decides {decisions!r}, the one before otherwise")
        segment = self.dispatch_segments[-1]
        segment.frames.append(segment.journal.add(stimulus, decisions))
        self.order.judge(stimulus, decisions)
        self.share.judge(stimulus, decisions)
        return decisions

    def ask(self, stimulus: vram.Stimulus) -> list[vram.Decision]:
        decisions = self.vram.on(stimulus)
        if self._before is not None and self._before[1].on(stimulus) != decisions:
            raise OrderViolation(f"{stimulus!r}: the core that was restored decides {decisions!r}, the one before otherwise")
        segment = self.vram_segments[-1]
        segment.frames.append(segment.journal.add(stimulus, decisions))
        self.memory.judge(stimulus, decisions, self.vram.state)
        return decisions

    def _identity(self, session: str, core_ns: int) -> None:
        """The dispatcher's account of core time is the sum of what was reported."""
        booked_ns = totals(self.dispatch.state, session).core_ns + core_ns
        if booked_ns != self.core_ns[session]:
            raise OrderViolation(f"{session}: {self.core_ns[session]} core-ns were reported, {booked_ns} are booked")

    def _began(self, command: Command) -> None:
        self.order.began(command, list(self.executor.queue))

    def _restart_cores(self) -> None:
        """Both cores go on from a snapshot: the segment of the journal ends, another begins. The ones before go on beside them."""
        begins = snapshot(self.dispatch.state)
        self._before = (self.dispatch, self.vram)
        self.dispatch = self._make_dispatch(restore(begins))
        self.dispatch_segments.append(Segment(begins, Journal()))
        begins = encode_state(self.vram.state)
        self.vram = self._make_vram(decode_state(begins))
        self.vram_segments.append(Segment(begins, Journal()))
        self.shell.counts["snapshots"] += 1

    def finish(self) -> None:
        """Everything that was begun is over, both journals replay to themselves."""
        for name, client in self.shell.clients.items():
            if not client.released:
                raise OrderViolation(
                    f"{name}: {client.sent} sent, {len(client.answered)} answered, {client.over or 'open'}: it never ended"
                )
            if client.over == "done" and set(client.answered) != set(range(1, len(client.script.batches) + 1)):
                raise OrderViolation(f"{name}: answers {sorted(client.answered)}")
        self.order.finish(self.scenario.cores)
        self.memory.finish()
        for segment in self.dispatch_segments:
            records, _ = dispatch.decode_journal(b"".join(segment.frames))
            verify(records, snapshot=segment.begins)
            _, again = replay([record.stimulus for record in records], snapshot=segment.begins)
            if again.digest != segment.journal.digest:
                raise OrderViolation("the journal of the dispatcher replays to another digest")
        for segment in self.vram_segments:
            entries, _ = vram_journal.decode_journal(b"".join(segment.frames))
            _, anew = replay_vram([entry.stimulus for entry in entries], segment.begins)
            if anew.digest != segment.journal.digest:
                raise OrderViolation("the journal of the memory core replays to another digest")


def simulate(
    seed: int, make_dispatch: Callable[[DispatchState], Dispatch] = Dispatch, make_vram: Callable[[VramState], Vram] = Vram
) -> Outcome:
    """One audited run. Raises Failure that names the seed and the time."""
    node = _Node(draw(seed), make_dispatch, make_vram)
    try:
        node.shell.start()
        if not node.clock.run(EVENTS_MAX):
            raise OrderViolation(f"no end within {EVENTS_MAX} events")
        node.finish()
    except Exception as error:
        where = "" if isinstance(error, AssertionError) else "\n" + traceback.format_exc()
        raise Failure(f"seed {seed}, at {node.clock.now_ns / MS:.3f} ms: {type(error).__name__}: {error}{where}") from error
    counts = node.shell.counts
    for name, number in node.executor.swaps.items():
        counts[f"swaps {name}"] += number
    counts["swap victims of P0"] += node.memory.chosen_p0
    counts["stimuli"] += sum(s.journal.records for s in (*node.dispatch_segments, *node.vram_segments))
    digests = tuple(s.journal.digest for s in (*node.dispatch_segments, *node.vram_segments))
    return Outcome(seed, counts, digests, node.share.widest)
