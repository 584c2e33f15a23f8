"""An independent model of the dispatcher's rules. It reads stimuli and decisions, never the dispatcher's state.

It is slower and simpler than the dispatcher (sets and scans, no heap), and states the rules from the outside. *Surely ready* is a
session whose next batch is here while nothing of it is in flight, nothing of it awaits memory, and it has no pace.

1. A launch is the next of an open session, has arrived, was neither dropped nor refused, and is in flight at most once. A batch that was
   stopped is the next again: none is lost, none runs twice.
2. Strict: no launch of a lower priority while a higher one is surely ready; nothing that is not being stopped is in flight before what is
   higher. A launch is stopped once, for that, or because it has no limit and is beside others of its level. Fifo: what arrived first goes
   first. Only strict stops. What is in flight of a session that is ended at once is stopped under every policy.
3. Bounds hold: launches in flight that are not being stopped, and of low ones the number and the sum of limits.
4. The device never idles while something may be launched; with room it is filled, but for the low budget and the fair share.
5. What is dropped or refused is so for a reason that is true; the next batch of a healthy session is always taken.
6. A session is released once: closed, everything up to its last batch done or given up, nothing in flight.
7. A session with a pace uses no more core time than it says; the launch digest is that of the batches in the order they ran.

Aging and the reserve are exceptions to rule 2, so runs with them are held to the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from scheduler.dispatch import (
    FAULT,
    BatchArrived,
    ConfigChanged,
    Decision,
    DispatchConfig,
    LaunchFinished,
    LaunchReturned,
    LaunchStopped,
    MemoryReady,
    PriorityChanged,
    SessionClosed,
    SessionOpened,
    Stimulus,
    chain,
)
from scheduler.dispatch.decisions import Drop, Launch, Park, Preempt, Refuse, Release

__all__ = ["AuditError", "Auditor"]


class AuditError(AssertionError):
    """A decision that the model forbids."""


@dataclass
class Flying:
    """A launch in flight, in the order made."""

    session: str
    seq: int
    limit_ns: int
    low: bool
    stopped: bool = False


@dataclass
class Model:
    """A session from the outside. ``here``: arrived and not launched, with its order of arrival and size. ``ran``: finished, in order."""

    opened: SessionOpened
    next_seq: int
    here: dict[int, tuple[int, int]] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    flying: list[int] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    digest: bytes = b""
    faulted: bool = False
    awaits_memory: bool = False
    last: int | None = None
    core_ns: int = 0
    core_max_ns: int = 0
    wall_max_ns: int = 0
    wall_ns: int = 0

    @property
    def epoch(self) -> int:
        return self.opened.epoch

    @property
    def priority(self) -> int:
        return self.opened.priority

    def ready(self) -> bool:
        return self.next_seq in self.here

    def surely_ready(self) -> bool:
        return self.ready() and not (self.flying or self.awaits_memory or self.faulted or self.opened.pace_permille)


@dataclass
class Auditor:
    config: DispatchConfig = field(default_factory=DispatchConfig)
    sessions: dict[str, Model] = field(default_factory=dict)
    arrivals: int = 0
    completed: int = 0
    flights: list[Flying] = field(default_factory=list)
    now_ns: int = 0
    _launched: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    _loose: bool = False

    def judge(self, stimulus: Stimulus, decisions: list[Decision]) -> None:
        """Raise AuditError unless the model allows ``decisions`` after ``stimulus``."""
        self.now_ns = stimulus.at_ns
        answered = self._take(stimulus, decisions)
        for decision in decisions:
            if isinstance(decision, Launch):
                self._launch(decision)
            elif isinstance(decision, Preempt):
                self._preempt(decision, decisions, stimulus)
            elif isinstance(decision, Release):
                self._release(decision)
            elif not answered and isinstance(decision, Drop | Refuse | Park):
                self._given_up(decision, stimulus)
        self._none_before_higher()
        self._not_idle()

    def finish(self, digest_of: Callable[[str], bytes]) -> None:
        """After the drain: everything that can run has run."""
        for name, model in self.sessions.items():
            if not model.faulted:
                expect(digest_of(name) == model.digest, f"{name}: the launch digest is not that of {model.ran}")
            expect(not model.flying, f"{name}: {model.flying} still in flight")
            expect(not model.ready(), f"{name}: {model.next_seq} could run and never did")
            if model.last is not None:
                expect(not model.faulted and model.next_seq <= model.last, f"{name}: closed and over, but never released")

    # -- stimuli -------------------------------------------------------------------------------------------------------------------

    def _take(self, stimulus: Stimulus, decisions: list[Decision]) -> bool:
        """Bring the model up to the stimulus; whether its own answer (Drop, Refuse, Park of an arrival or opening) was judged here."""
        match stimulus:
            case ConfigChanged():
                self.config = stimulus.config
                self._loose = self._loose or bool(self.config.aging_ns or self.config.reserve_percent)
            case SessionOpened():
                self._opened(stimulus, decisions)
                return True
            case BatchArrived():
                self._arrived(stimulus, decisions)
                return True
            case LaunchFinished():
                model = self._slice(stimulus)
                model.wall_max_ns = max(model.wall_max_ns, model.wall_ns)
                model.wall_ns = 0
                model.ran.append(stimulus.seq)
                model.digest = chain(model.digest, stimulus.seq, model.contents[stimulus.seq])
                self.completed += 1
                expect(model.ran == sorted(set(model.ran)), f"{stimulus.session} ran {model.ran[-3:]} at its end: not in order, or twice")
                if stimulus.outcome == FAULT:
                    model.faulted = True
            case LaunchStopped():
                model = self._slice(stimulus)
                model.wall_max_ns = max(model.wall_max_ns, model.wall_ns)
                self._back(model, stimulus, decisions, keep=True)
            case MemoryReady():
                if stimulus.session in self.sessions:
                    self.sessions[stimulus.session].awaits_memory = False
            case LaunchReturned():
                self._returned(stimulus, decisions)
            case SessionClosed():
                model_or_none = self.sessions.get(stimulus.session)
                if model_or_none is not None:
                    before = model_or_none.last
                    model_or_none.last = stimulus.last_seq if before is None else min(before, stimulus.last_seq)
                    self._ended(stimulus, model_or_none.last, decisions)
            case PriorityChanged():
                self._reprioritised(stimulus)
            case _:
                pass
        return False

    def _ended(self, closed: SessionClosed, last: int, decisions: list[Decision]) -> None:
        """Of a session that ends at once, whatever flies after its last batch is being stopped."""
        told = {decision.seq for decision in decisions if isinstance(decision, Preempt) and decision.session == closed.session}
        for flight in self.flights:
            if closed.stop and flight.session == closed.session and flight.seq > last:
                expect(flight.stopped or flight.seq in told, f"{closed}: {flight} goes on")

    def _reprioritised(self, changed: PriorityChanged) -> None:
        """It is a session of another priority from now on, also for what it has in flight."""
        model = self.sessions.get(changed.session)
        if model is not None and model.priority != changed.priority:
            target_ns = 0 if changed.priority else model.opened.sla_ns
            model.opened = replace(model.opened, priority=changed.priority, sla_ns=target_ns)
            for flight in self.flights:
                if flight.session == changed.session:
                    flight.low = self._is_low(model)

    def _slice(self, ended: LaunchFinished | LaunchStopped) -> Model:
        """A slice is over: take its launch out of flight, count its time."""
        model = self.sessions[ended.session]
        model.flying.remove(ended.seq)
        self._land(ended.session, ended.seq)
        model.core_ns += ended.core_ns
        model.wall_ns += ended.wall_ns
        model.core_max_ns = max(model.core_max_ns, ended.core_ns)
        pace = model.opened.pace_permille
        if pace:
            open_ns = self.now_ns - model.opened.at_ns + self.config.pace_burst_ns
            slices_ns = self.config.in_flight_max * max(model.core_max_ns, self.config.quantum_ns * self.config.cores)
            expect(
                model.core_ns * 1000 <= pace * self.config.cores * open_ns + 1000 * slices_ns, f"{ended.session} is faster than its pace"
            )
        return model

    def _land(self, session: str, seq: int) -> None:
        self.flights.remove(next(flight for flight in self.flights if (flight.session, flight.seq) == (session, seq)))

    def _opened(self, opened: SessionOpened, decisions: list[Decision]) -> None:
        answers = [decision for decision in decisions if isinstance(decision, Refuse)]
        target_ns = opened.sla_ns
        others = [model for model in self.sessions.values() if model.opened.sla_ns and not model.faulted]
        blocking_ns = self._low_budget_ns(target_ns) + self.config.stop_ns
        wrong = {
            "session_exists": opened.session in self.sessions,
            "priority_invalid": not 0 <= opened.priority <= 4,
            "seq_invalid": opened.next_seq < 0,
            "weight_invalid": not 1 <= opened.weight <= 10_000,
            "pace_invalid": not 0 <= opened.pace_permille <= 1000,
            "sla_invalid": target_ns < 0 or (target_ns > 0 and opened.priority != 0),
            "sla_contradictory": target_ns != 0 and opened.pace_permille != 0,
            "sla_unreachable": 0 < target_ns < blocking_ns + sum(model.wall_max_ns for model in others),
        }
        expect(len(answers) <= 1 and all(wrong[answer.reason] for answer in answers), f"{opened}: answered {answers}")
        if not answers:
            del wrong["sla_unreachable"]  # what batches take is estimated, and never above the longest
            expect(not any(wrong.values()) and not 0 < target_ns < blocking_ns, f"{opened}: taken, though {wrong}")
            self.sessions[opened.session] = Model(opened, opened.next_seq, digest=opened.chain)

    def _arrived(self, batch: BatchArrived, decisions: list[Decision]) -> None:
        answers = [decision for decision in decisions if isinstance(decision, Drop | Refuse | Park)]
        expect(len(answers) <= 1, f"{batch}: {answers}")
        answer = answers[0] if answers else None
        model = self.sessions.get(batch.session)
        expect(model is not None or isinstance(answer, Refuse), f"{batch}: taken for a session that is not open")
        if model is None:
            return
        if isinstance(answer, Drop | Refuse):
            expect((answer.session, answer.seq) == (batch.session, batch.seq), f"{batch}: {answer} is about another batch")
            expect(self._true(answer, batch, model), f"{batch}: {answer}, which is not so")
            return
        wanted = (
            batch.epoch == model.epoch and batch.seq >= model.next_seq and batch.seq not in model.here and batch.seq not in model.flying
        )
        expect(wanted and not model.faulted, f"{batch}: kept, though stale or of a faulted session")
        expect(model.last is None or batch.seq <= model.last, f"{batch}: kept beyond the last")
        full = len(model.here) >= self.config.parked_batches_max
        full = full or sum(size for _, size in model.here.values()) + batch.nbytes > self.config.parked_bytes_max
        expect(batch.seq == model.next_seq or not full, f"{batch}: kept beyond the bounds")
        model.here[batch.seq] = (self.arrivals, batch.nbytes)
        model.contents[batch.seq] = batch.content
        self.arrivals += 1
        hole = any(seq not in model.here for seq in range(model.next_seq, batch.seq))
        expect(hole == isinstance(answer, Park), f"{batch}: parked is {answer}, a batch before it is missing: {hole}")

    def _true(self, answer: Drop | Refuse, batch: BatchArrived, model: Model) -> bool:
        """Is the reason so?"""
        bytes_here = sum(size for _, size in model.here.values())
        others = batch.seq != model.next_seq
        return {
            "epoch_stale": batch.epoch < model.epoch,
            "epoch_unknown": batch.epoch > model.epoch,
            "seq_invalid": batch.seq < 0,
            "already_run": 0 <= batch.seq < model.next_seq,
            "already_waiting": batch.seq in model.here or batch.seq in model.flying,
            "session_faulted": model.faulted,
            "session_closing": model.last is not None and batch.seq > model.last,
            "parked_batches_full": others and len(model.here) >= self.config.parked_batches_max,
            "parked_bytes_full": others and bytes_here + batch.nbytes > self.config.parked_bytes_max,
        }[answer.reason]

    def _returned(self, returned: LaunchReturned, decisions: list[Decision]) -> None:
        model = self.sessions[returned.session]
        model.flying.remove(returned.seq)
        self._land(returned.session, returned.seq)
        model.awaits_memory |= returned.memory
        self._back(model, returned, decisions, keep=not returned.resend)

    def _back(self, model: Model, stimulus: LaunchReturned | LaunchStopped, decisions: list[Decision], *, keep: bool) -> None:
        model.next_seq = min(model.next_seq, stimulus.seq)
        gone = model.faulted or (model.last is not None and stimulus.seq > model.last)
        dropped = any(isinstance(decision, Drop) and decision.seq == stimulus.seq for decision in decisions)
        expect(dropped == gone, f"{stimulus}: dropped is {dropped}, its session is over is {gone}")
        if not gone and keep:
            model.here[stimulus.seq] = self._launched[stimulus.session, stimulus.seq]  # it keeps its place in the order of arrival

    # -- decisions -----------------------------------------------------------------------------------------------------------------

    def _launch(self, launch: Launch) -> None:
        model = self.sessions.get(launch.session)
        expect(model is not None, f"{launch}: no such session")
        assert model is not None
        expect(not model.faulted, f"{launch}: its session faulted")
        expect(launch.seq == model.next_seq and model.ready(), f"{launch}: next is {model.next_seq}, here are {sorted(model.here)}")
        expect(launch.seq not in model.flying, f"{launch}: is in flight already")
        expect(model.last is None or launch.seq <= model.last, f"{launch}: after the last batch {model.last}")
        low = self._is_low(model)
        if self.config.policy == "strict":
            self._strict(launch, model, low)
        else:
            going = [flight for flight in self.flights if not flight.stopped]
            expect(len(going) < self.config.in_flight_max, f"{launch}: {going} are in flight")
            if self.config.policy == "fifo":
                first = min(
                    (other.here[other.next_seq], name) for name, other in self.sessions.items() if other is model or other.surely_ready()
                )
                expect(first[1] == launch.session, f"{launch}: {first} arrived before it")
                expect(launch.limit_ns == 0, f"{launch}: fifo runs whole batches")
            else:
                expect(0 < launch.limit_ns <= self.config.quantum_ns, f"{launch}: no more than its turn")
        self._launched[launch.session, launch.seq] = model.here.pop(launch.seq)
        model.flying.append(launch.seq)
        model.next_seq += 1
        self.flights.append(Flying(launch.session, launch.seq, launch.limit_ns, low))

    def _strict(self, launch: Launch, model: Model, low: bool) -> None:
        """Rules 2 and 3 of the strict policy."""
        going = [flight for flight in self.flights if not flight.stopped]
        if self._loose:
            expect(len(going) < self.config.in_flight_max, f"{launch}: {going} are in flight")
            return
        expect(len(going) < self.config.in_flight_max, f"{launch}: {going} are in flight")
        lower = [flight for flight in going if self.sessions[flight.session].priority > model.priority]
        expect(not lower, f"{launch}: {lower} run before it and were not stopped")
        higher = [name for name, other in self.sessions.items() if other.priority < model.priority and other.surely_ready()]
        expect(not higher, f"{launch}: {higher} go first")
        peers = [
            name for name, other in self.sessions.items()
            if other is not model and other.priority == model.priority and (other.surely_ready() or other.flying)
        ]  # fmt: skip
        most_ns = 0
        if low:
            beside = [flight.limit_ns for flight in going if flight.low]
            expect(len(beside) < self.config.in_flight_low_max, f"{launch}: {beside} are in flight beside a higher priority")
            most_ns = self._low_budget_ns(0) - sum(beside)
        elif peers or model.opened.pace_permille:
            most_ns = self.config.quantum_ns
        expect(not most_ns or 0 < launch.limit_ns <= most_ns, f"{launch}: limit within 1 to {most_ns}, beside {peers}")

    def _preempt(self, preempt: Preempt, decisions: list[Decision], stimulus: Stimulus) -> None:
        """It is for a higher launch of the same step, or of one that is behind it since a priority changed, or ends a launch without limit
        that has its level no longer for itself; or its session ends at once."""
        ends = isinstance(stimulus, SessionClosed) and stimulus.stop and stimulus.session == preempt.session
        expect(self.config.policy == "strict" or ends, f"{preempt}: only the strict policy stops launches")
        flight = next((flight for flight in self.flights if (flight.session, flight.seq) == (preempt.session, preempt.seq)), None)
        expect(flight is not None and not flight.stopped, f"{preempt}: not in flight, or stopped before")
        assert flight is not None
        flight.stopped = True
        if self._loose or ends:
            return
        priority = self.sessions[preempt.session].priority
        for_higher = any(
            isinstance(decision, Launch) and self.sessions[decision.session].priority < priority
            for decision in decisions[decisions.index(preempt) :]
        )
        peers = any(
            other.priority == priority and other.ready() and not other.awaits_memory
            for name, other in self.sessions.items() if name != preempt.session
        )  # fmt: skip
        if isinstance(stimulus, PriorityChanged):
            behind = self.flights[self.flights.index(flight) + 1 :]
            for_higher |= any(self.sessions[other.session].priority < priority and not other.stopped for other in behind)
        expect(for_higher or (flight.limit_ns == 0 and peers), f"{preempt}: stopped for nothing")

    def _release(self, release: Release) -> None:
        model = self.sessions.get(release.session)
        expect(model is not None, f"{release}: no such session")
        assert model is not None
        expect(model.last is not None and not model.flying, f"{release}: not closed, or {model.flying} in flight")
        assert model.last is not None
        expect(model.faulted or model.next_seq > model.last, f"{release}: {model.next_seq} to {model.last} have not run")
        del self.sessions[release.session]

    def _given_up(self, decision: Drop | Refuse | Park, stimulus: Stimulus) -> None:
        """A batch that waited is dropped because its session ended."""
        expect(isinstance(decision, Drop) and decision.session == getattr(stimulus, "session", None), f"{stimulus}: {decision}")
        assert isinstance(decision, Drop)
        model = self.sessions[decision.session]
        over = model.faulted if decision.reason == "session_over" else model.last is not None and decision.seq > model.last
        expect(over, f"{decision}: its session goes on")
        if not isinstance(stimulus, LaunchReturned | LaunchStopped):
            model.here.pop(decision.seq)

    def _none_before_higher(self) -> None:
        """Rule 2: what flies and is not being stopped flies in the order of priorities."""
        if self.config.policy != "strict" or self._loose:
            return
        going = [self.sessions[flight.session].priority for flight in self.flights if not flight.stopped]
        expect(going == sorted(going), f"{self.flights} are in flight, of priorities {going}")

    def _not_idle(self) -> None:
        for name, model in self.sessions.items():
            expect(not (model.faulted and model.here), f"{name}: faulted, but {sorted(model.here)} wait")
        ready = {name: model for name, model in self.sessions.items() if model.surely_ready()}
        if not ready:
            return
        going = [flight for flight in self.flights if not flight.stopped]
        expect(bool(self.flights), f"the device idles, and {sorted(ready)} are ready")
        if len(going) >= self.config.in_flight_max or self._loose:
            return
        if self.config.policy != "strict":
            expect(len(self.flights) >= self.config.in_flight_max, f"the device has room, and {sorted(ready)} are ready")
            return
        top = min(model.priority for model in ready.values())
        perhaps = [m for m in self.sessions.values() if m.priority <= top and m.ready() and not m.awaits_memory]
        held = any(
            other.priority == model.priority and other is not model and (flight.limit_ns or flight.stopped)
            for flight in self.flights
            for other in [self.sessions[flight.session]]
            for model in perhaps
        )  # by the fair share, which a paced session may stand in for
        beside = [flight.limit_ns for flight in going if flight.low]
        budget_ns = self._low_budget_ns(0) - sum(beside)
        low = any(self._is_low(model) for model in perhaps)
        full = low and bool(beside) and (len(beside) >= self.config.in_flight_low_max or budget_ns < self.config.slice_min_ns)
        expect(held or full, f"the device has room for {sorted(ready)}; in flight are {self.flights}")

    # -- sums ----------------------------------------------------------------------------------------------------------------------

    def _is_low(self, model: Model) -> bool:
        """Does it share the device with a session of a higher priority, or of P0 with one that has a latency target?"""
        if self.config.policy != "strict":
            return False
        others = [other for other in self.sessions.values() if not other.faulted]
        targets = any(other.opened.sla_ns for other in others)
        return (targets and not model.opened.sla_ns) or any(other.priority < model.priority for other in others)

    def _low_budget_ns(self, target_ns: int) -> int:
        """With the open sessions and one more of this target (0: none)."""
        targets = [model.opened.sla_ns for model in self.sessions.values() if model.opened.sla_ns and not model.faulted]
        targets += [target_ns] if target_ns > 0 else []
        part_ns = min(targets, default=0) * self.config.low_budget_permille // 1000
        return min(self.config.low_slice_ns, max(self.config.slice_min_ns, part_ns)) if targets else self.config.low_slice_ns


def expect(condition: bool, text: str) -> None:
    if not condition:
        raise AuditError(text)
