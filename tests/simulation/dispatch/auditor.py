"""An independent model of what a dispatcher may do. It sees stimuli and decisions, never the dispatcher's state.

It is slower and simpler than the dispatcher (sets and scans, no heap), and states the rules from the outside:

1. A launch is the next of an open session, has arrived, was neither dropped nor refused, and is in flight at most once.
2. No launch of a lower priority while a higher one is ready; inside a priority, the batch that arrived first.
3. Bounds hold: launches in flight, and of sessions beside a higher priority.
4. The device never idles while something may be launched.
5. What is dropped or refused is so for a reason that is true; the next batch of a healthy session is always taken.
6. A session is released once: closed, everything up to its last batch done or given up, nothing in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.dispatch import (
    FAULT,
    BatchArrived,
    ConfigChanged,
    Decision,
    DispatchConfig,
    LaunchFinished,
    LaunchReturned,
    SessionClosed,
    SessionOpened,
    Stimulus,
)
from scheduler.dispatch.decisions import Drop, Launch, Park, Refuse, Release

__all__ = ["AuditError", "Auditor"]


class AuditError(AssertionError):
    """A decision that the model forbids."""


@dataclass
class Model:
    """A session from the outside. ``here``: arrived and not launched, with its order of arrival and size. ``ran``: finished, in order."""

    epoch: int
    priority: int
    next_seq: int
    here: dict[int, tuple[int, int]] = field(default_factory=dict)
    flying: list[int] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    faulted: bool = False
    last: int | None = None

    def ready(self) -> bool:
        return self.next_seq in self.here


@dataclass
class Auditor:
    config: DispatchConfig = field(default_factory=DispatchConfig)
    sessions: dict[str, Model] = field(default_factory=dict)
    arrivals: int = 0
    completed: int = 0
    _launched: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def judge(self, stimulus: Stimulus, decisions: list[Decision]) -> None:
        """Raise AuditError unless the model allows ``decisions`` after ``stimulus``."""
        answered = self._take(stimulus, decisions)
        for decision in decisions:
            if isinstance(decision, Launch):
                self._launch(decision)
            elif isinstance(decision, Release):
                self._release(decision)
            elif not answered and isinstance(decision, Drop | Refuse | Park):
                self._given_up(decision, stimulus)
        self._not_idle()

    def finish(self) -> None:
        """After the drain: everything that can run has run."""
        for name, model in self.sessions.items():
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
            case SessionOpened():
                self._opened(stimulus, decisions)
                return True
            case BatchArrived():
                self._arrived(stimulus, decisions)
                return True
            case LaunchFinished():
                model = self.sessions[stimulus.session]
                model.flying.remove(stimulus.seq)
                model.ran.append(stimulus.seq)
                self.completed += 1
                expect(model.ran == sorted(set(model.ran)), f"{stimulus.session} ran {model.ran[-3:]} at its end: not in order, or twice")
                if stimulus.outcome == FAULT:
                    model.faulted = True
            case LaunchReturned():
                self._returned(stimulus, decisions)
            case SessionClosed():
                model_or_none = self.sessions.get(stimulus.session)
                if model_or_none is not None:
                    before = model_or_none.last
                    model_or_none.last = stimulus.last_seq if before is None else min(before, stimulus.last_seq)
            case _:
                pass
        return False

    def _opened(self, opened: SessionOpened, decisions: list[Decision]) -> None:
        answers = [decision for decision in decisions if isinstance(decision, Refuse)]
        fit = opened.session not in self.sessions and 0 <= opened.priority <= 4 and opened.next_seq >= 0
        expect(bool(answers) != fit, f"{opened}: answered {answers}")
        if fit:
            self.sessions[opened.session] = Model(opened.epoch, opened.priority, opened.next_seq)

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
        model.next_seq = min(model.next_seq, returned.seq)
        gone = model.faulted or (model.last is not None and returned.seq > model.last)
        dropped = any(isinstance(decision, Drop) and decision.seq == returned.seq for decision in decisions)
        expect(dropped == gone, f"{returned}: dropped is {dropped}, its session is over is {gone}")
        if not gone and not returned.resend:
            model.here[returned.seq] = self._launched[returned.session, returned.seq]  # it keeps its place in the order of arrival

    # -- decisions -----------------------------------------------------------------------------------------------------------------

    def _launch(self, launch: Launch) -> None:
        model = self.sessions.get(launch.session)
        expect(model is not None, f"{launch}: no such session")
        assert model is not None
        expect(not model.faulted, f"{launch}: its session faulted")
        expect(launch.seq == model.next_seq and model.ready(), f"{launch}: next is {model.next_seq}, here are {sorted(model.here)}")
        expect(launch.seq not in model.flying, f"{launch}: is in flight already")
        expect(model.last is None or launch.seq <= model.last, f"{launch}: after the last batch {model.last}")
        expect(self._flying() < self.config.in_flight_max, f"{launch}: {self._flying()} are in flight")
        best = min(self._ready())
        expect(self._key(launch.session) == best, f"{launch}: {best} goes first")
        expect(not self._held_back(model), f"{launch}: too many launches beside a higher priority")
        self._launched[launch.session, launch.seq] = model.here.pop(launch.seq)
        model.flying.append(launch.seq)
        model.next_seq += 1

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
        if not isinstance(stimulus, LaunchReturned):
            model.here.pop(decision.seq)

    def _not_idle(self) -> None:
        ready = self._ready()
        if ready and self._flying() < self.config.in_flight_max:
            _, _, name = min(ready)
            expect(self._held_back(self.sessions[name]), f"the device has room, {name} is ready and was not launched")
        for name, model in self.sessions.items():
            expect(not (model.faulted and model.here), f"{name}: faulted, but {sorted(model.here)} wait")

    # -- sums ----------------------------------------------------------------------------------------------------------------------

    def _ready(self) -> list[tuple[int, int, str]]:
        return [self._key(name) for name, model in self.sessions.items() if model.ready()]

    def _key(self, name: str) -> tuple[int, int, str]:
        model = self.sessions[name]
        return (model.priority, model.here[model.next_seq][0], name)

    def _flying(self) -> int:
        return sum(len(model.flying) for model in self.sessions.values())

    def _held_back(self, model: Model) -> bool:
        top = min(other.priority for other in self.sessions.values() if not other.faulted)
        low = sum(len(other.flying) for other in self.sessions.values() if other.priority > top)
        return model.priority > top and low >= self.config.in_flight_low_max


def expect(condition: bool, text: str) -> None:
    if not condition:
        raise AuditError(text)
