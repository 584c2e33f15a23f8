"""An independent model of the memory core's rules, beside the actual memory of the device.

1. Quota: an allowed batch stays within it, and a refusal that names it is true. The device: see memory (it cannot be overrun).
2. Victims: may be swapped, do not run or move, have not used the device for the idle time, did not just fail to move; P0 gives only to P0,
   and only when everything of the others goes too; a victim goes when no other eligible one of its kind was chosen longer ago.
3. Reserve: when an allowed batch leaves less than it, and an eligible session could give, one is asked to.
4. Swap stays within its room. No session waits for ever (see run), and what comes and goes is what was said.
5. Books: what the core believes each session to hold is what it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from scheduler.vram import (
    AllocationRequested,
    Allow,
    Await,
    Decision,
    DeviceConfigured,
    Holds,
    PriorityChanged,
    Refuse,
    SessionClosed,
    SessionOpened,
    Stimulus,
    SwapFailed,
    SwapIn,
    SwapLost,
    SwapOut,
    SwappedIn,
    SwappedOut,
    VramState,
)
from tests.simulation.node.executor import Executor
from tests.simulation.node.memory import AWAY, COMING, DEVICE, LEAVING

__all__ = ["MemoryAudit", "MemoryRuleViolation"]


class MemoryRuleViolation(AssertionError):
    """A decision about memory that the rules forbid."""


@dataclass
class Model:
    """``turn``: when it was chosen last (0: never). ``waits_ns``: since when a batch of it waits, -1: none. ``coming``: a move
    back of its memory is under way, perhaps of nothing. ``leaving``: what it was asked to give and has not yet."""

    opened: SessionOpened
    used_ns: int
    turn: int = 0
    barred_ns: int = 0
    waits_ns: int = -1
    swapped: int = 0
    coming: bool = False
    leaving: int = 0


class MemoryAudit:
    """``judge`` every step of the core before its decisions are carried out. ``executor`` knows the truth."""

    def __init__(self) -> None:
        self.executor: Executor
        self.sessions: dict[str, Model] = {}
        self.configured = DeviceConfigured(0, 0)
        self.turns = 0
        self.chosen_p0 = 0

    def judge(self, stimulus: Stimulus, decisions: list[Decision], state: VramState) -> None:
        self._take(stimulus)
        chosen: dict[str, int] = {}
        for decision in decisions:
            match decision:
                case SwapOut():
                    self._victim(decision, stimulus, chosen)
                case SwapIn(name):
                    self.sessions[name].coming = True
                case Allow():
                    self._allowed(stimulus, decision, decisions)
                case Refuse():
                    self._refused(stimulus, decision)
                case Await(name):
                    model = self.sessions[name]
                    model.waits_ns = stimulus.at_ns if model.waits_ns < 0 else model.waits_ns
                case _:
                    pass
        if not isinstance(stimulus, AllocationRequested) and not any(isinstance(d, SwapOut) for d in decisions):
            self._books(state)

    def _take(self, stimulus: Stimulus) -> None:
        match stimulus:
            case DeviceConfigured():
                self.configured = stimulus
            case SessionOpened(at_ns, name):
                self.sessions[name] = Model(stimulus, at_ns)
            case SessionClosed(_, name):
                self.sessions.pop(name, None)
                self._unbar()
            case SwapLost(_, name):
                self.sessions[name].coming = False
            case PriorityChanged(_, name, priority):
                self.sessions[name].opened = replace(self.sessions[name].opened, priority=priority)
            case Holds(at_ns, name) | SwappedIn(at_ns, name):
                self.sessions[name].coming &= isinstance(stimulus, Holds)
                self.sessions[name].used_ns = at_ns
                swapped = self._away(name)
                if swapped < self.sessions[name].swapped:
                    self._unbar()
                self.sessions[name].swapped = swapped
            case SwappedOut(at_ns, name, nbytes) | SwapFailed(at_ns, name, nbytes):
                self.sessions[name].swapped = self._away(name)
                self.sessions[name].leaving = 0
                if isinstance(stimulus, SwapFailed) or not nbytes:
                    self.sessions[name].barred_ns = at_ns + self.configured.retry_ns
            case _:
                pass

    def _unbar(self) -> None:
        """Room came free where memory goes to: who could not move may be asked again."""
        for model in self.sessions.values():
            model.barred_ns = 0

    # -- victims -------------------------------------------------------------------------------------------------------------------

    def _victim(self, decision: SwapOut, stimulus: Stimulus, chosen: dict[str, int]) -> None:
        name, now_ns = decision.session, stimulus.at_ns
        requester = decision.for_session or getattr(stimulus, "session", "")
        model = self.sessions[name]
        room = self._room()
        expect(0 < decision.nbytes <= room, f"{decision}: there is room for {room} bytes elsewhere")
        expect(decision.nbytes <= self._held(name, DEVICE), f"{decision}: it has {self._held(name, DEVICE)} bytes on the device")
        expect(model.opened.swap, f"{decision}: the session may not be swapped")
        expect(not self.executor.tenants[name].under_way, f"{decision}: a run of it is under way")
        if name != requester:
            expect(now_ns - model.used_ns >= self.configured.idle_ns, f"{decision}: it used the device at {model.used_ns}, now is {now_ns}")
            expect(self._eligible(name, requester, now_ns), f"{decision}: not eligible for {requester}")
            self._order(decision, requester, now_ns, chosen)
        self.turns += 1
        model.turn = self.turns
        model.leaving = decision.nbytes
        chosen[name] = chosen.get(name, 0) + decision.nbytes

    def _order(self, decision: SwapOut, requester: str, now_ns: int, chosen: dict[str, int]) -> None:
        name = decision.session
        p0 = self.sessions[name].opened.priority == 0
        self.chosen_p0 += p0
        for other, model in self.sessions.items():
            if other in (name, requester) or model.waits_ns >= 0 or not self._eligible(other, requester, now_ns):
                continue  # (memory may be set aside for a batch that waits: then its session is about to run)
            other_p0 = model.opened.priority == 0
            if p0 and not other_p0:
                expect(chosen.get(other, 0) >= self._held(other, DEVICE), f"{decision}: a P0 goes while {other} has something to give")
            elif p0 == other_p0 and other not in chosen:
                expect(model.turn >= self.sessions[name].turn, f"{decision}: {other} was chosen longer ago")

    def _eligible(self, name: str, requester: str, now_ns: int) -> bool:
        model = self.sessions[name]
        asks = self.sessions.get(requester)
        return (
            name != requester
            and model.opened.swap
            and (model.opened.priority > 0 or (asks is not None and asks.opened.priority == 0))
            and self._held(name, DEVICE) > 0
            and not self.executor.tenants[name].under_way
            and not self._held(name, LEAVING, COMING)
            and not model.coming
            and now_ns - model.used_ns >= self.configured.idle_ns
            and now_ns >= model.barred_ns
        )

    # -- answers -------------------------------------------------------------------------------------------------------------------

    def _allowed(self, stimulus: Stimulus, decision: Allow, decisions: list[Decision]) -> None:
        assert isinstance(stimulus, AllocationRequested)
        name = decision.session
        model = self.sessions[name]
        expect(name == stimulus.session and decision.nbytes == stimulus.nbytes, f"{stimulus} -> {decision}")
        expect(stimulus.back_bytes == 0, f"{decision}: {stimulus.back_bytes} bytes it needs are not on the device")
        logical = self._held(name, DEVICE, LEAVING, COMING, AWAY)
        quota = model.opened.quota_bytes
        expect(not quota or logical + stimulus.nbytes <= quota, f"{decision}: the quota is {quota}, it has {logical}")
        model.used_ns, model.waits_ns = stimulus.at_ns, -1
        self._reserved(stimulus, decision, decisions)

    def _reserved(self, stimulus: AllocationRequested, decision: Allow, decisions: list[Decision]) -> None:
        """Rule 3."""
        memory = self.executor.memory
        leaving = sum(self._held(name, LEAVING) for name in self.sessions)
        free = memory.physical_bytes - memory.device_bytes - decision.nbytes + leaving
        if not decision.nbytes or free >= self.configured.reserve_bytes or any(isinstance(d, SwapOut) for d in decisions):
            return
        room = self._room()
        could = [n for n, m in self.sessions.items() if self._eligible(n, decision.session, stimulus.at_ns) and m.waits_ns < 0]
        expect(room <= 0 or not could, f"{decision}: {free} bytes stay free, the reserve lacks, and {could} could give")

    def _refused(self, stimulus: Stimulus, decision: Refuse) -> None:
        assert isinstance(stimulus, AllocationRequested)
        model = self.sessions[decision.session]
        logical = self._held(decision.session, DEVICE, LEAVING, COMING, AWAY)
        quota, need = model.opened.quota_bytes, stimulus.nbytes + stimulus.back_bytes
        over = bool(quota) and logical + stimulus.nbytes > quota
        expect(
            (decision.verdict.reason == "quota_exceeded") == over, f"{decision}: quota {quota}, it has {logical} and asks {stimulus.nbytes}"
        )
        alone = all(m.waits_ns < 0 for n, m in self.sessions.items() if n != decision.session)
        memory = self.executor.memory
        coming = any(self._held(n, COMING) for n in self.sessions)
        if not over and alone and not coming:
            expect(need > memory.physical_bytes - memory.device_bytes, f"{decision}: it fits")
        model.waits_ns = -1

    # -- books ---------------------------------------------------------------------------------------------------------------------

    def _books(self, state: VramState) -> None:
        """Rule 5, when nothing is set aside or moving."""
        for name, session in state.sessions.items():
            away = self._held(name, AWAY, COMING)
            expect(session.swapped == away, f"{name}: {session.swapped} bytes are booked as swapped, {away} are")
            held = self._held(name, DEVICE, LEAVING) + self.executor.memory.work.get(name, 0)
            expect(session.held == held, f"{name}: {session.held} bytes are booked on the device, {held} are there")
        if not state.waiting and not any(session.coming or session.grant for session in state.sessions.values()):
            expect(
                state.used_bytes == self.executor.memory.device_bytes,
                f"{state.used_bytes} booked, {self.executor.memory.device_bytes} used",
            )

    def finish(self) -> None:
        for name, model in self.sessions.items():
            expect(model.waits_ns < 0, f"{name} still waits for memory")

    def _room(self) -> int:
        """How much more may be asked to leave: buffers leave whole, so somewhat more than was asked may be under way."""
        return self.configured.swap_bytes - sum(self._held(n, AWAY, COMING) + m.leaving for n, m in self.sessions.items())

    def _held(self, name: str, *where: str) -> int:
        return self.executor.memory.bytes_where(name, *where) if name in self.executor.memory.buffers else 0

    def _away(self, name: str) -> int:
        return self._held(name, AWAY)


def expect(condition: bool, text: str) -> None:
    if not condition:
        raise MemoryRuleViolation(text)
