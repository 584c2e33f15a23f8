"""Counts of failed authentication and of denials, so that callers cannot fill the log with them. Pure.

A count is kept for each kind of refusal, caller and address, and becomes one audit record when it is taken. Callers that are not
authenticated choose addresses and names, so names that no user or key has are left out, and at most ``BUCKETS_MAX`` counts an action are
kept; what comes then is counted without caller and address.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from bus_schemas.events import ActionTaken

FAILED: Final = "session.fail"
DENIED: Final = "access.deny"
BUCKETS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is counted together."""

    #: ``FAILED`` or ``DENIED``
    action: str
    #: of a denial: the action that the caller may not do
    target: str
    reason: str
    #: user or key; empty: no user or key of the name that was given
    actor: str
    tenant: str
    #: group of addresses (``address_group``)
    source: str


class Refusals:
    def __init__(self) -> None:
        self._counts: dict[Refusal, int] = {}

    def add(self, refusal: Refusal, count: int = 1) -> None:
        if refusal not in self._counts and sum(known.action == refusal.action for known in self._counts) >= BUCKETS_MAX:
            refusal = replace(refusal, target="", reason="further ones", actor="", tenant="", source="")
        self._counts[refusal] = self._counts.get(refusal, 0) + count

    def take(self) -> dict[Refusal, int]:
        """What was counted since the last call, by refusal."""
        taken, self._counts = self._counts, {}
        return taken


def records(counts: dict[Refusal, int], at_ns: int) -> list[ActionTaken]:
    """The audit records of ``counts``, written at Unix time ``at_ns``."""
    return [
        ActionTaken(at_ns, one.actor, one.tenant, one.action, one.target, f"{one.reason}, {count} time{'s' * (count > 1)}", one.source)
        for one, count in counts.items()
    ]
