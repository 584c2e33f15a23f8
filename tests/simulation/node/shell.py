"""The server's part: clients' batches in, decisions carried out, reports brought back; and the clients themselves."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler import dispatch as core
from scheduler import vram
from scheduler.vram import schedulable_bytes
from tests.simulation.node import executor as device
from tests.simulation.node.clock import Alarm, Clock
from tests.simulation.node.draw import END, MS, Scenario, Script
from tests.simulation.node.executor import Command, Executor, Report

__all__ = ["Client", "Shell"]


@dataclass(slots=True)
class Client:
    """``priority``: now. ``sent`` batches so far; ``answered``: seq -> what became of it. ``over``: why it sends no more."""

    script: Script
    priority: int
    sent: int = 0
    answered: dict[int, str] = field(default_factory=dict)
    unanswered: int = 0
    over: str = ""
    closed: bool = False
    released: bool = False


class Shell:
    """``decide`` is the dispatch core with its journal and its auditor; ``wakeup_ns`` its alarm clock. ``counts``: what came to pass."""

    def __init__(
        self, clock: Clock, scenario: Scenario, decide: Callable[[core.Stimulus], list[core.Decision]], wakeup_ns: Callable[[], int | None]
    ) -> None:
        self.clock = clock
        self.scenario = scenario
        self.clients: dict[str, Client] = {}
        self.counts: Counter[str] = Counter()
        self.executor: Executor
        self._decide = decide
        self._random = random.Random(scenario.seed ^ 0xC11E)
        self._serial = 0
        self._launched: dict[tuple[str, int], Command] = {}
        self._alarm = Alarm(self.clock, wakeup_ns, lambda: self._on(core.Tick(self.clock.now_ns, wake=True)))
        self._quotas: dict[str, tuple[int, bool]] = {}
        self._in_order: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()

    def start(self) -> None:
        s = self.scenario
        self._on(core.ConfigChanged(0, s.config))
        self.executor.vram(vram.DeviceConfigured(0, s.physical_bytes, s.reserve_bytes, s.swap_bytes, s.idle_ns, 20 * MS))
        for script in s.scripts:
            self.clock.at(script.opens_ns, self._open, script)
        for at_ns, config in s.configs:
            self.clock.at(at_ns, lambda config=config: self._on(core.ConfigChanged(self.clock.now_ns, config)))
        for at_ns, name, order in s.orders:
            self.clock.at(at_ns, self._order, name, order)
        for at in range(1, 6):
            self.clock.at(at * 80 * MS, lambda: self._on(core.Tick(self.clock.now_ns)))

    # -- clients -------------------------------------------------------------------------------------------------------------------

    def _open(self, script: Script) -> None:
        """Admission by memory as a node does it, then the dispatcher's own."""
        s = self.scenario
        quota = script.quota_bytes or s.physical_bytes
        swappable = sum(q for q, _ in self._quotas.values())
        fixed = sum(q for q, swap in self._quotas.values() if not swap)
        full = swappable + quota > schedulable_bytes(s.physical_bytes, s.percent) or (not script.swap and fixed + quota > s.physical_bytes)
        if full:
            self.counts["refused at open: vram"] += 1
            return
        refusals = self._on(
            core.SessionOpened(
                self.clock.now_ns, script.session, 1, script.priority, 1, b"", script.weight, script.sla_ns, script.pace_permille
            )
        )
        for refusal in refusals:
            if isinstance(refusal, core.Refuse):
                self.counts[f"refused at open: {refusal.reason}"] += 1
                return
        self._quotas[script.session] = (quota, script.swap)
        client = self.clients[script.session] = Client(script, script.priority)
        opened = vram.SessionOpened(self.clock.now_ns, script.session, script.quota_bytes, 0, script.priority, script.swap, script.wait_ns)
        self.executor.open(script.session, script.batches, opened)
        if script.window:
            self._fill_window(client)
        for at_ns in script.sends:
            self.clock.after(at_ns, self._send_next, client)
        if script.vanishes_ns:
            self.clock.after(script.vanishes_ns, self._vanish, client)

    def _fill_window(self, client: Client) -> None:
        while client.unanswered < client.script.window and client.sent < len(client.script.batches) and not client.over:
            self._send_next(client)

    def _send_next(self, client: Client) -> None:
        if client.over or client.sent >= len(client.script.batches):
            return
        client.sent += 1
        client.unanswered += 1
        self._send(client, client.sent)
        if "repeat" in self.scenario.troubles and self._random.random() < 0.1:
            self.clock.after(self._random.randrange(20 * MS), self._send, client, self._random.randint(1, client.sent))

    def _send(self, client: Client, seq: int) -> None:
        if client.over:
            return
        name = client.script.session
        self._on(core.BatchArrived(self.clock.now_ns, name, 1, seq, 100 + seq, f"{name}.{seq}".encode()))
        self.clock.after(self.scenario.hop_ns, self.executor.expect, name)

    def _vanish(self, client: Client) -> None:
        """The client vanishes: its lease runs out."""
        if not client.over:
            client.over = "vanished"
            self.counts["vanished"] += 1
            self._close(client, -1)

    def _order(self, name: str, order: int) -> None:
        """An operator ends the session, or gives it another priority: both cores hear of it, the device's a way later."""
        client = self.clients.get(name)
        if client is None or client.released:
            return
        if order == END:
            client.over = client.over or "cancelled"
            self.counts["cancelled"] += 1
            self._close(client, -1, stop=True)
            return
        client.priority = order
        self.counts["priorities changed"] += 1
        self._on(core.PriorityChanged(self.clock.now_ns, name, order))
        self.clock.after(self.scenario.hop_ns, self.executor.prioritise, name, order)

    def _close(self, client: Client, last_seq: int, *, stop: bool = False) -> None:
        if not client.closed or stop:
            client.closed = True
            self._on(core.SessionClosed(self.clock.now_ns, client.script.session, last_seq, stop))

    def _answer(self, client: Client, seq: int, how: str) -> None:
        """The client gets an answer; one that has all answers closes."""
        client.answered[seq] = how
        client.unanswered -= 1
        self.counts[f"batches {how}"] += 1
        if how == device.FAULTED:
            client.over = client.over or "faulted"
            self._close(client, -1)
        elif len(client.answered) == len(client.script.batches):
            client.over = client.over or "done"
            self._close(client, seq)
        elif client.script.window:
            self.clock.after(client.script.think_ns, self._fill_window, client)

    # -- decisions -----------------------------------------------------------------------------------------------------------------

    def _on(self, stimulus: core.Stimulus) -> list[core.Decision]:
        decisions = self._decide(stimulus)
        for decision in decisions:
            client = self.clients.get(decision.session)
            match decision:
                case core.Launch(name, seq, limit_ns, number):
                    assert client is not None
                    self._serial += 1
                    command = self._launched[name, seq] = Command(name, seq, self._serial, client.priority, limit_ns, number)
                    self.counts["slices"] += 1
                    self.clock.after(self.scenario.hop_ns, self.executor.command, command)
                case core.Preempt(name, seq):
                    self.counts["preemptions"] += 1
                    launched = self._launched[name, seq]
                    self.executor.stop(launched.priority, launched.serial)
                case core.Refuse(name, seq, reason) if seq >= 0:
                    self.counts[f"batch refused: {reason}"] += 1
                    if client is not None and reason.startswith("parked"):
                        self.clock.after(20 * MS, self._send, client, seq)
                case core.Drop(_, _, reason):
                    self.counts[f"dropped: {reason}"] += 1
                case core.Release(name):
                    assert client is not None
                    client.released = True
                    self._quotas.pop(name)
                    self.clock.after(self.scenario.hop_ns, self.executor.command, Command(name, 0, 0))
                case _:
                    pass
        self._alarm.set()
        return decisions

    # -- reports -------------------------------------------------------------------------------------------------------------------

    def report(self, report: Report) -> None:
        self.clock.after(self.scenario.hop_ns, self._reported, report)

    def memory_freed(self, session: str) -> None:
        self.clock.after(self.scenario.hop_ns, lambda: self._on(core.MemoryReady(self.clock.now_ns, session)))

    def _reported(self, report: Report) -> None:
        name, seq, now_ns = report.command.session, report.command.seq, self.clock.now_ns
        client = self.clients[name]
        match report.status:
            case device.RAN | device.FAULTED:
                outcome = core.OK if report.status == device.RAN else core.FAULT
                self._on(core.LaunchFinished(now_ns, name, seq, report.core_ns, outcome, report.wall_ns))
                self._answer(client, seq, f"refused: {report.refused}" if report.refused else report.status)
            case device.STOPPED:
                self._on(core.LaunchStopped(now_ns, name, seq, report.core_ns, report.wall_ns))
            case device.NEEDS:
                self.counts["resends"] += 1
                self._on(core.LaunchReturned(now_ns, name, seq, True))
                self.clock.after(2 * self.scenario.hop_ns, self._send, client, seq)
            case device.BEHIND:
                self._on(core.LaunchReturned(now_ns, name, seq, False))
            case device.AWAITS:
                self.counts["waits for memory"] += 1
                self._on(core.LaunchReturned(now_ns, name, seq, False, True))
