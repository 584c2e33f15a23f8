"""Cores with one bug each, of the kind that is really made. The simulation must catch every one, or it is not testing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from scheduler.dispatch import Decision, Dispatch, Preempt, SessionClosed, Stimulus, fair, flights, pacing, queues
from scheduler.dispatch.state import DispatchState, SessionState
from scheduler.vram import PriorityChanged, SwapOut, Tick, Vram, victims
from scheduler.vram import core as vram_core
from scheduler.vram.quota import Verdict
from scheduler.vram.state import SessionMemory, VramState
from tests.simulation.node.run import Failure, simulate

__all__ = ["CANARIES", "Canary", "caught_by"]

SEEDS_MAX: Final = 400


@dataclass(frozen=True)
class Canary:
    """``planted``: a context in which the bug is there."""

    name: str
    bug: str
    planted: Callable[[], Any]
    dispatch: Callable[[DispatchState], Dispatch] = Dispatch
    vram: Callable[[VramState], Vram] = Vram


def caught_by(canary: Canary, seeds_max: int = SEEDS_MAX) -> tuple[int, str]:
    """The first seed that catches it, and how. Raises AssertionError when none does."""
    with canary.planted():
        for seed in range(seeds_max):
            try:
                simulate(seed, canary.dispatch, canary.vram)
            except Failure as failure:
                return seed, str(failure)
    raise AssertionError(f"{canary.name} passed {seeds_max} seeds: {canary.bug}")


class NeverPreempts(Dispatch):
    def on(self, stimulus: Stimulus) -> list[Decision]:
        return [decision for decision in super().on(stimulus) if not isinstance(decision, Preempt)]


class RunsOn(Dispatch):
    def on(self, stimulus: Stimulus) -> list[Decision]:
        ended = isinstance(stimulus, SessionClosed) and stimulus.stop
        return [decision for decision in super().on(stimulus) if not (ended and isinstance(decision, Preempt))]


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _replaced(owner: Any, name: str, bug: Any) -> Iterator[None]:
    with patch.object(owner, name, bug):
        yield


def _first_of_second_level(state: DispatchState, number: int) -> tuple[SessionState | None, bool]:
    """Priority order: of levels 1 and 2 the lower goes first when both have work."""
    if number == 1 and state.levels[2].ready:
        number = 2
    return _best(state, number)


_best = queues.best
_plan = victims.plan
_may_displace = victims.may_displace


def _unweighted(core_ns: int, weight: int) -> int:
    return core_ns


def _takes_noswap(requester: SessionMemory, victim: SessionMemory) -> bool:
    return victim.session != requester.session and (victim.priority > 0 or requester.priority == 0)


def _takes_p0(requester: SessionMemory, victim: SessionMemory) -> bool:
    return victim.session != requester.session and victim.swap


def _quota_of_device_only(quota: int, use: int, request: int, free: int) -> Verdict:
    return Verdict("", quota, use, request, free)


def _newest_first(victim: SessionMemory) -> tuple[bool, int, int, int, str]:
    return victim.priority == 0, -victim.turn, -victim.priority, victim.used_ns, victim.session


class SwapsWhoRuns(Vram):
    """Asks for a part of a running session's memory."""

    def on(self, stimulus: Any) -> Any:
        decisions = super().on(stimulus)
        runs = [s for s in self.state.sessions.values() if s.under_way and s.held and not s.moving]
        for at, decision in enumerate(decisions):
            if isinstance(decision, SwapOut) and runs:
                decisions[at] = SwapOut(runs[0].session, 1, decision.for_session)
        return decisions


def _moved_on_paper(state: DispatchState, session: SessionState, out: list[Decision]) -> None:
    """The session waits in its new level, and what it has in flight stays where it was."""
    session.tag = state.levels[session.priority].vtime
    queues.requeue(state, session)


class ForgetsThePriority(Vram):
    """Goes by the priority that a session opened with."""

    def on(self, stimulus: Any) -> Any:
        if isinstance(stimulus, PriorityChanged):
            stimulus = Tick(stimulus.at_ns)
        return super().on(stimulus)


def _always_ready(session: SessionState, config: Any, now_ns: int) -> int:
    return now_ns


CANARIES: Final = (
    Canary(
        "MovesOnPaper",
        "a changed priority does not hold for what is in flight",
        lambda: _replaced(flights, "change_level", _moved_on_paper),
    ),
    Canary("RunsOn", "the running launch of an ended session continues to its end", _nothing, dispatch=RunsOn),
    Canary("ForgetsThePriority", "the memory core goes by the priority that a session opened with", _nothing, vram=ForgetsThePriority),
    Canary("NeverPreempts", "low launches are not stopped for high ones", _nothing, dispatch=NeverPreempts),
    Canary("SwapsLevels", "of two levels the lower one goes first", lambda: _replaced(queues, "best", _first_of_second_level)),
    Canary("IgnoresWeights", "shares inside a level do not follow weights", lambda: _replaced(fair, "virtual", _unweighted)),
    Canary("ForgetsPaces", "a paced session runs as much as it likes", lambda: _replaced(pacing, "ready_at_ns", _always_ready)),
    Canary("IgnoresNoswap", "a session that may not be swapped is", lambda: _replaced(victims, "may_displace", _takes_noswap)),
    Canary("TakesFromP0", "P0 gives up memory for lower priorities", lambda: _replaced(victims, "may_displace", _takes_p0)),
    Canary("NoRotation", "the session swapped last is swapped again", lambda: _replaced(victims, "order", _newest_first)),
    Canary("NoQuota", "quotas are not checked", lambda: _replaced(vram_core, "check_quota", _quota_of_device_only)),
    Canary("SwapsWhoRuns", "memory of a run under way is moved", _nothing, vram=SwapsWhoRuns),
)
