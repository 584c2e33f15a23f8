"""Fair shares inside a level, measured from outside: what two sessions were served while both had something to launch all the time.

Over every such interval what they were served for their weights may differ by at most the bound that scheduler.dispatch.fair states and
proves, computed here from the slices that were seen, and by the slices that were under way when the interval began.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from scheduler.dispatch import ConfigChanged, Decision, DispatchConfig, Launch, LaunchFinished, LaunchReturned, LaunchStopped, Stimulus
from tests.simulation.node.audit_order import Model

__all__ = ["ShareAudit", "ShareViolation"]


class ShareViolation(AssertionError):
    """Two sessions of a level were served too differently."""


@dataclass(slots=True)
class _Pair:
    """Since both are busy: served first / weight - served second / weight, now and at its extremes."""

    since_ns: int
    now: Fraction = Fraction(0)
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(0)


class ShareAudit:
    """``sessions`` is the model of audit_order, brought up to each step before this sees it. ``widest``: the largest part of its bound that
    any pair used."""

    def __init__(self, sessions: dict[str, Model], cores: int) -> None:
        self.widest = 0.0
        self._sessions = sessions
        self._cores = cores
        self._config = DispatchConfig()
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._largest_ns: dict[str, int] = {}
        self._launched_ns: dict[tuple[str, int], int] = {}

    def judge(self, stimulus: Stimulus, decisions: list[Decision]) -> None:
        if isinstance(stimulus, ConfigChanged):
            self._config = stimulus.config
            self._pairs.clear()
        if isinstance(stimulus, LaunchFinished | LaunchStopped | LaunchReturned):
            launched_ns = self._launched_ns.pop((stimulus.session, stimulus.seq))
            if not isinstance(stimulus, LaunchReturned):
                self._largest_ns[stimulus.session] = max(self._largest_ns[stimulus.session], stimulus.core_ns)
                self._serve(stimulus.session, launched_ns, stimulus.core_ns)
        for decision in decisions:
            if isinstance(decision, Launch):
                estimate_ns = (decision.limit_ns or self._config.quantum_ns) * self._cores
                self._largest_ns[decision.session] = max(self._largest_ns.get(decision.session, 0), estimate_ns)
                self._launched_ns[decision.session, decision.seq] = stimulus.at_ns
        self._pair_up(stimulus.at_ns)

    def _pair_up(self, now_ns: int) -> None:
        """Pairs that are busy from now on, and those that are not any longer."""
        config = self._config
        fair = config.policy == "strict" and not config.aging_ns and not config.reserve_percent
        busy = [name for name, m in self._sessions.items() if fair and m.has_next and not m.opened.pace_permille]
        now = {
            (first, second)
            for at, first in enumerate(busy)
            for second in busy[at + 1 :]
            if self._sessions[first].priority == self._sessions[second].priority
        }
        for pair in [pair for pair in self._pairs if pair not in now]:
            del self._pairs[pair]
        for pair in sorted(now):
            self._pairs.setdefault(pair, _Pair(now_ns))

    def _serve(self, name: str, launched_ns: int, core_ns: int) -> None:
        for (first, second), pair in self._pairs.items():
            if name not in (first, second) or launched_ns < pair.since_ns:
                continue
            served = Fraction(core_ns, self._sessions[name].opened.weight)
            pair.now += served if name == first else -served
            pair.low, pair.high = min(pair.low, pair.now), max(pair.high, pair.now)
            bound = self._bound(first, second)
            self.widest = max(self.widest, float((pair.high - pair.low) / bound))
            if pair.high - pair.low > bound:
                weights = [self._sessions[s].opened.weight for s in (first, second)]
                raise ShareViolation(
                    f"{first} and {second} (weights {weights}) differ by {float(pair.high - pair.low):.0f} core-ns for a weight of 1 since "
                    f"{pair.since_ns} ns; the bound is {float(bound):.0f}"
                )

    def _bound(self, first: str, second: str) -> Fraction:
        """A(f) + A(m) + (2k + 1) (L(f) + L(m)), and k (L(f) + L(m)) for slices under way before."""
        k = self._config.in_flight_max
        total = Fraction(0)
        for name in (first, second):
            opened = self._sessions[name].opened
            if opened.sla_ns:
                total += Fraction(self._config.deadline_lead_ns, opened.weight)
            total += (3 * k + 1) * Fraction(self._largest_ns.get(name, 0) + 1, opened.weight)
        return total
