"""An independent model of the dispatcher's rules. It reads stimuli, decisions and the starts of launches on the device.

1. A launch is the next batch of an open session, in flight once; slices of a batch count those that ran; batches end in order, each once.
2. Strict: no launch while a session of a higher level has one ready, but for levels won by waiting (aging) and one out of the reserve.
   Fifo: no launch while a batch that arrived earlier is ready. Timeslice: no slice is longer than a turn, no session is passed over twice.
3. With a launch, what is lower and in flight is preempted; nothing begins on the device while something higher is behind it, also when a
   session has become lower or higher since. Of a session that is ended at once nothing begins any more.
4. Low work in flight stays within its budget, and every slice of it has a limit.
5. The device never idles while something is surely launchable, and lower work in flight delays no other.
6. A paced session uses no more than its pace and burst give, and the slices in flight. Who ages is run within its periods.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from scheduler.dispatch import (
    FAULT,
    BatchArrived,
    ConfigChanged,
    Decision,
    DispatchConfig,
    Drop,
    Launch,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    MemoryReady,
    Preempt,
    PriorityChanged,
    Refuse,
    Release,
    SessionClosed,
    SessionOpened,
    Stimulus,
)
from tests.simulation.node.executor import Command

__all__ = ["Model", "OrderAudit", "OrderViolation"]


class OrderViolation(AssertionError):
    """A decision that the model forbids."""


@dataclass
class Flying:
    limit_ns: int
    at_ns: int
    low: bool
    preempted: bool = False
    exempt: bool = False


@dataclass
class Model:
    """A session from the outside. ``here``: arrived and not in flight, with its order of arrival. ``slices`` of each batch that ran so far.
    ``since_ns``: since when it waits for a slice.
    ``kept``: the level that it had won when its last batch ended without one. ``passed``: what others ran while it was surely ready."""

    opened: SessionOpened
    next_seq: int
    here: dict[int, int] = field(default_factory=dict)
    flying: dict[int, Flying] = field(default_factory=dict)
    slices: dict[int, int] = field(default_factory=dict)
    order: dict[int, int] = field(default_factory=dict)
    ran: int = 0
    faulted: bool = False
    awaits: bool = False
    ended: bool = False
    last: int | None = None
    since_ns: int = 0
    ready_since_ns: int = -1
    kept: int = 4
    passed: dict[str, int] = field(default_factory=dict)
    used: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def priority(self) -> int:
        return self.opened.priority

    @property
    def has_next(self) -> bool:
        return self.next_seq in self.here and not self.faulted and not self.awaits

    @property
    def surely_ready(self) -> bool:
        """It may be launched whatever the core's estimates are."""
        return self.has_next and not self.flying and not self.opened.pace_permille


class OrderAudit:
    """``judge`` every step, ``began`` every slice, ``finish`` at the end. ``sessions``: also for the other audits."""

    def __init__(self) -> None:
        self.config = DispatchConfig()
        self.configs: list[DispatchConfig] = []
        self.sessions: dict[str, Model] = {}
        self.gone: list[Model] = []
        self.arrivals = 0
        self.slice_wall_max_ns = 0
        self._since_config_ns = 0
        self._awaited_ns = 0

    def judge(self, stimulus: Stimulus, decisions: list[Decision]) -> None:
        self._take(stimulus, decisions)
        for decision in decisions:
            match decision:
                case Launch():
                    self._launch(decision, stimulus.at_ns)
                case Preempt(name, seq):
                    flight = self.sessions[name].flying.get(seq)
                    expect(flight is not None and not flight.preempted, f"{decision}: not in flight, or twice")
                    assert flight is not None
                    flight.preempted = True
                case Drop(name, seq, _):
                    model = self.sessions.get(name)
                    if model is not None and not isinstance(stimulus, BatchArrived):
                        model.here.pop(seq, None)
                case Release(name):
                    model = self.sessions.pop(name)
                    expect(model.last is not None and not model.flying, f"{decision}: not closed, or in flight")
                    expect(model.faulted or model.next_seq > (model.last or 0), f"{decision}: {model.next_seq}.. have not run")
                    self.gone.append(model)
                case _:
                    pass
        self._not_idle()
        for model in self.sessions.values():
            if not model.surely_ready:
                model.ready_since_ns = -1
                model.passed.clear()
            elif model.ready_since_ns < 0:
                model.ready_since_ns = stimulus.at_ns
            else:
                self._aged(model, stimulus.at_ns)

    # -- stimuli -------------------------------------------------------------------------------------------------------------------

    def _take(self, stimulus: Stimulus, decisions: list[Decision]) -> None:
        match stimulus:
            case ConfigChanged():
                self.config = stimulus.config
                self.configs.append(stimulus.config)
                self._since_config_ns = stimulus.at_ns
                for model in self.sessions.values():
                    model.passed.clear()
            case SessionOpened():
                if not any(isinstance(d, Refuse) for d in decisions):
                    self.sessions[stimulus.session] = Model(stimulus, stimulus.next_seq, since_ns=stimulus.at_ns)
            case BatchArrived(_, name, _, seq):
                model = self.sessions.get(name)
                if model is not None and not any(isinstance(d, Refuse | Drop) and d.seq == seq for d in decisions):
                    expect(seq >= model.next_seq and seq not in model.flying and seq not in model.here, f"{stimulus}: taken twice")
                    if not model.here and not model.flying:
                        model.since_ns = stimulus.at_ns
                    model.here[seq] = self.arrivals
                    self.arrivals += 1
            case LaunchFinished(_, name, seq):
                model = self._landed(stimulus)
                expect(seq == model.ran + 1, f"{stimulus}: {model.ran} ran before it")
                model.ran = seq
                if stimulus.outcome == FAULT:
                    model.faulted = True
                    model.here.clear()
            case LaunchStopped():
                self._back(self._landed(stimulus), stimulus.seq, keep=True)
            case LaunchReturned():
                model = self._landed(stimulus)
                model.awaits |= stimulus.memory
                self._back(model, stimulus.seq, keep=not stimulus.resend)
            case MemoryReady(_, name):
                if name in self.sessions:
                    self.sessions[name].awaits = False
            case SessionClosed(_, name, last):
                model = self.sessions.get(name)
                if model is not None:
                    model.last = last if model.last is None else min(last, model.last)
                    model.ended |= stimulus.stop
            case PriorityChanged(_, name, priority):
                model = self.sessions.get(name)
                if model is not None and model.priority != priority:
                    target_ns = 0 if priority else model.opened.sla_ns
                    model.opened = replace(model.opened, priority=priority, sla_ns=target_ns)
                    model.kept = priority
                    for flight in model.flying.values():
                        flight.low = self._low(model)
            case _:
                pass

    def _landed(self, stimulus: LaunchFinished | LaunchStopped | LaunchReturned) -> Model:
        model = self.sessions[stimulus.session]
        flight = model.flying.pop(stimulus.seq)
        if isinstance(stimulus, LaunchReturned) or not stimulus.wall_ns:
            model.kept = self._level_min(model, stimulus.at_ns)
        if not isinstance(stimulus, LaunchReturned) and stimulus.wall_ns:
            model.slices[stimulus.seq] = model.slices.get(stimulus.seq, 0) + 1
            model.since_ns = stimulus.at_ns
            model.kept = model.priority
            model.used.append((flight.at_ns, stimulus.at_ns, stimulus.core_ns))
            for other in self.sessions.values():
                if other.surely_ready:
                    other.passed[stimulus.session] = other.passed.get(stimulus.session, 0) + stimulus.wall_ns
            self.slice_wall_max_ns = max(self.slice_wall_max_ns, stimulus.wall_ns)
        return model

    def _back(self, model: Model, seq: int, *, keep: bool) -> None:
        """A launch is back and its batch not over."""
        model.next_seq = min(model.next_seq, seq)
        if keep and not model.faulted and (model.last is None or seq <= model.last):
            model.here[seq] = model.order[seq]

    # -- decisions -----------------------------------------------------------------------------------------------------------------

    def _launch(self, launch: Launch, now_ns: int) -> None:
        model = self.sessions[launch.session]
        expect(launch.seq == model.next_seq and launch.seq in model.here, f"{launch}: next is {model.next_seq}, here {sorted(model.here)}")
        expect(not model.faulted and not model.awaits, f"{launch}: its session faulted, or awaits memory")
        expect(launch.slice == model.slices.get(launch.seq, 0), f"{launch}: {model.slices.get(launch.seq, 0)} slices of it ran")
        held = sum(not f.preempted for m in self.sessions.values() for f in m.flying.values() if m.priority <= model.priority)
        expect(self.config.policy != "strict" or held < self.config.in_flight_max + self._exempts(), f"{launch}: {held} are in flight")
        exempt = False
        if self.config.policy == "strict":
            exempt = self._strict(launch, model, now_ns)
        elif self.config.policy == "fifo":
            first = min((m.here[m.next_seq] for m in self.sessions.values() if m.surely_ready), default=None)
            expect(first is None or model.here[launch.seq] <= first, f"{launch}: arrival {first} goes first")
            expect(launch.limit_ns == 0, f"{launch}: fifo runs whole batches")
        else:
            self._turns(launch, model)
        low = self._low(model)
        model.order[launch.seq] = model.here.pop(launch.seq)
        model.flying[launch.seq] = Flying(launch.limit_ns, now_ns, low, exempt=exempt)
        model.next_seq += 1
        if low and not exempt and self.config.policy == "strict":
            self._budget(launch)

    def _strict(self, launch: Launch, model: Model, now_ns: int) -> bool:
        """Levels and preemption; True for a launch out of the reserve."""
        level = self._level_min(model, now_ns)
        above = [m for m in self.sessions.values() if m.surely_ready and m.priority < level]
        if above and self.config.reserve_percent:
            lowest = max((self._level_min(m, now_ns) for m in self.sessions.values() if m.surely_ready), default=model.priority)
            expect(model.priority >= lowest, f"{launch}: {above[0].opened.session} goes first, and the reserve is for level {lowest}")
            expect(launch.limit_ns > 0, f"{launch}: a slice of the reserve has a limit")
            return True
        expect(not above, f"{launch}: {[m.opened.session for m in above]} of higher levels are ready")
        raised = level < model.priority
        for other in self.sessions.values():
            for seq, flight in other.flying.items():
                lower = other.priority > model.priority and not flight.exempt and flight.at_ns >= self._since_config_ns
                if lower and not raised and self._plain:
                    expect(flight.preempted, f"{launch}: {other.opened.session}.{seq} of a lower level goes on beside it")
        return False

    def _level_min(self, model: Model, now_ns: int) -> int:
        """The highest level at which it may run by now."""
        periods_ns = [config.aging_ns for config in self.configs if config.aging_ns]  # levels won stay won when another comes
        if not periods_ns:
            return model.priority
        return max(0, min(model.kept, model.priority - (now_ns - model.since_ns) // min(periods_ns)))

    @property
    def _plain(self) -> bool:
        """Nothing but priorities decides between levels, and never has."""
        return not self.config.reserve_percent and not any(config.aging_ns for config in self.configs)

    def _low(self, model: Model) -> bool:
        opened = [m for m in self.sessions.values() if not m.faulted]
        beside_target = any(m.opened.sla_ns for m in opened) and not model.opened.sla_ns
        return beside_target or any(m.priority < model.priority for m in opened)

    def _budget(self, launch: Launch) -> None:
        """Rule 4, after ``launch`` was counted."""
        if not self._plain:
            return
        expect(launch.limit_ns > 0, f"{launch}: low work without a limit")
        targets = [m.opened.sla_ns for m in self.sessions.values() if m.opened.sla_ns and not m.faulted]
        budget_ns = self.config.low_slice_ns
        if targets:
            budget_ns = min(budget_ns, max(self.config.slice_min_ns, min(targets) * self.config.low_budget_permille // 1000))
        low = [
            f for m in self.sessions.values() for f in m.flying.values() if f.low and not f.preempted and f.at_ns >= self._since_config_ns
        ]
        room_ns = max(budget_ns, self.config.slice_min_ns * len(low))
        if len(low) > 1:  # what was launched before a target came is bounded by its own budget
            expect(sum(f.limit_ns for f in low[-1:]) <= room_ns, f"{launch}: above the low budget of {budget_ns}")
        expect(len(low) <= self.config.in_flight_low_max, f"{launch}: {len(low)} low launches are in flight")

    def _turns(self, launch: Launch, model: Model) -> None:
        quantum_ns = max(config.quantum_ns for config in self.configs)  # a turn goes on as it began
        expect(0 < launch.limit_ns <= quantum_ns, f"{launch}: a turn has {quantum_ns} ns")
        for other in self.sessions.values():
            if other is not model and other.surely_ready:
                most_ns = (self.config.in_flight_max + 1) * max(quantum_ns, self.slice_wall_max_ns)
                passed_ns = other.passed.get(launch.session, 0)
                expect(passed_ns <= most_ns, f"{launch}: {other.opened.session} has been passed over for {passed_ns} ns")

    # -- afterwards ----------------------------------------------------------------------------------------------------------------

    def _not_idle(self) -> None:
        ready = [m for m in self.sessions.values() if m.surely_ready]
        flying = [m for m in self.sessions.values() if m.flying]
        expect(not ready or bool(flying), f"the device is idle, {[m.opened.session for m in ready]} are ready")
        if ready and self.config.policy == "strict" and self._plain:
            top = min(m.priority for m in ready)
            behind = [m for m in flying if m.priority <= top or any(f.at_ns < self._since_config_ns for f in m.flying.values())]
            expect(bool(behind), f"a batch of level {top} is ready and only lower ones are in flight")

    def _aged(self, model: Model, now_ns: int) -> None:
        """Rule 6: who has waited through all its levels runs soon: after what each other session may have ahead of it there."""
        config = self.config
        if config.policy != "strict" or not config.aging_ns or config.reserve_percent or not model.priority:
            return  # (in P0 there is nothing to be raised to: there it is weights that say how long a wait may be)
        since_ns = max(model.ready_since_ns, self._since_config_ns)
        others = len(self.sessions) + 1
        lead_ns = sum(config.deadline_lead_ns * m.opened.weight // 100 for m in self.sessions.values() if m.opened.sla_ns)
        most_ns = config.aging_ns * (model.priority + 1) + 6 * others * (self.slice_wall_max_ns + config.quantum_ns) + 4 * lead_ns
        expect(
            now_ns - since_ns <= most_ns, f"{model.opened.session} has been ready for {now_ns - since_ns} ns, aging is {config.aging_ns}"
        )

    def _exempts(self) -> int:
        return sum(f.exempt for m in self.sessions.values() for f in m.flying.values())

    def began(self, command: Command, behind: list[Command]) -> None:
        """A slice begins on the device; ``behind`` it wait these."""
        config = self.config
        model = self.sessions[command.session]
        expect(not model.ended, f"{command} begins, and its session was ended at once")
        if config.policy == "strict" and self._plain and len(self.configs) == 1:
            higher = [c for c in behind if c.serial and c.session in self.sessions and self.sessions[c.session].priority < model.priority]
            expect(not higher, f"{command} begins, and {higher} of higher levels wait behind it")

    def finish(self, cores: int) -> None:
        """After the last event: nothing is left, and paces held."""
        for model in self.sessions.values():
            expect(
                not model.flying and not model.has_next, f"{model.opened.session}: {sorted(model.flying)} in flight, next {model.next_seq}"
            )
        for model in (*self.gone, *self.sessions.values()):
            if model.opened.pace_permille:
                self._paced(model, cores)

    def _paced(self, model: Model, cores: int) -> None:
        """Rule 6, over every interval from one launch to one landing, in one pass."""
        rate = model.opened.pace_permille * cores  # per mille of a core-ns a ns
        burst_ns = max(config.pace_burst_ns for config in self.configs)
        slices = 1 + max(config.in_flight_max for config in self.configs)
        slack = slices * max((core for _, _, core in model.used), default=0)
        slack = 1000 * max(slack, slices * cores * max(config.quantum_ns for config in self.configs))
        total, low = 0, None
        for at_ns, end_ns, core_ns in model.used:
            base = 1000 * total - rate * at_ns
            low = base if low is None else min(low, base)
            total += core_ns
            over = 1000 * total - rate * end_ns - low - rate * burst_ns - slack
            expect(over <= 0, f"{model.opened.session}: {over // 1000} core-ns above its pace of {model.opened.pace_permille} permille")


def expect(condition: bool, text: str) -> None:
    if not condition:
        raise OrderViolation(text)
