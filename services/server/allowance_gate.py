"""The gate before one device's dispatch core: batches of tenants that have used up what they may wait here, or are refused.

May live here: who waits. May not: why (allowance.py), asking for more (allowance_link.py), what a batch is (device.py).

A batch that runs goes on to its end; the next one of its session is stopped here. It is refused only after billing has said that nothing is
left, and the session stays: whoever sends the batch again after a grant, or in a new period, goes on as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from bus_schemas import faults
from bus_schemas.batch import Fault
from services.server.allowance import Allowances
from services.server.sessions import Pending, Session

__all__ = ["PATIENCE_NS", "Gate", "budget_fault", "silence_fault"]

PATIENCE_NS: Final = 40 * 10**9
"""How long a batch waits for billing's word before it is refused: longer than what another node was lent can be held from it."""


class Gate:
    """``sessions``: the device's; ``release(pending)`` hands a batch to dispatch (which asks here again); ``refuse(session, seq, fault)``
    tells the session. ``ask(tenant)``: billing shall be asked at once."""

    def __init__(
        self,
        allowances: Allowances,
        sessions: Mapping[str, Session],
        release: Callable[[Pending], None],
        refuse: Callable[[str, int, Fault], None],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._allowances = allowances
        self._sessions = sessions
        self._release = release
        self._refuse = refuse
        self._monotonic_ns = monotonic_ns
        self._waiting: dict[str, dict[str, dict[int, int]]] = {}
        self.ask: Callable[[str], None] = lambda tenant: None

    def passes(self, name: str, seq: int) -> bool:
        """May this batch of session ``name`` be launched? If not, it waits here."""
        session = self._sessions.get(name)
        purse = self._allowances.purses.get(session.record.tenant) if session is not None else None
        if purse is None or self._allowances.left_micro(purse) > 0:
            return True
        tenant = purse.tenant
        self._waiting.setdefault(tenant, {}).setdefault(name, {}).setdefault(seq, self._monotonic_ns())
        self.ask(tenant)
        return False

    def waits(self, tenant: str) -> bool:
        """Whether a batch of ``tenant`` waits here."""
        return tenant in self._waiting

    @property
    def tenants(self) -> set[str]:
        return set(self._waiting)

    def overdue(self, tenant: str) -> bool:
        """Whether a batch of ``tenant`` has waited for longer than it should have to."""
        since = self._monotonic_ns() - PATIENCE_NS
        return any(at_ns < since for batches in self._waiting.get(tenant, {}).values() for at_ns in batches.values())

    def open(self, tenant: str) -> None:
        """Hand over what waits, in order; what then may not go waits again."""
        for name, batches in self._waiting.pop(tenant, {}).items():
            session = self._sessions.get(name)
            for seq in sorted(batches):
                if session is not None and seq in session.pending:
                    self._release(session.pending[seq])

    def shut(self, tenant: str, fault: Fault, asked_ns: int) -> bool:
        """Refuse what waited when the question was asked (monotonic): of each session the first batch, for it is sent again with all that
        follow. Whether there was any."""
        waiting = self._waiting.pop(tenant, {})
        later = {name: batches for name, batches in waiting.items() if min(batches.values()) > asked_ns}
        if later:
            self._waiting[tenant] = later
        for name, batches in waiting.items():
            if name in later:
                continue
            session = self._sessions.get(name)
            here = [seq for seq in sorted(batches) if session is not None and session.pending.pop(seq, None) is not None]
            if here:
                self._refuse(name, here[0], fault)
        return len(later) < len(waiting)


def budget_fault(reason: str) -> Fault:
    """What a session is told whose tenant may use no more."""
    text = f"{reason}. Nothing of this batch was done, and nothing is lost: the session stays, and goes on when it asks again"
    return Fault(faults.BUDGET_EXCEEDED, text, fatal=False)


def silence_fault(tenant: str) -> Fault:
    """What a session is told whose tenant has a budget that nobody can look up."""
    reason = f"the billing service does not say what is left of the budget of tenant {tenant!r}"
    return budget_fault(reason)
