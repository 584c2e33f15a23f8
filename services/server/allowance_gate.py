"""The gate before one device's dispatch core: batches of tenants that have used up what they may wait here, or are refused.

A batch that runs goes on to its end; the next one of its session is stopped here. It is refused only after billing has said that nothing is
left, and the session stays: a client that sends the batch again after a grant, or in a new period, continues normally.
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


_NEAR: Final = 64
"""Nearer to its limit than so many of its costliest batches, a session has one batch with the executor, not one behind the other: what the
first costs decides about the second."""


class Gate:
    """``sessions``: the device's; ``release(pending)`` hands a batch to dispatch (which asks here again); ``forget(session, seq)`` drops a
    batch, False when there is none; ``refuse(session, seq, fault)`` answers the session. ``ask(tenant)``: billing shall be asked at once.
    """

    def __init__(
        self,
        allowances: Allowances,
        sessions: Mapping[str, Session],
        release: Callable[[Pending], None],
        forget: Callable[[Session, int], bool],
        refuse: Callable[[str, int, Fault], None],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._allowances = allowances
        self._sessions = sessions
        self._release = release
        self._forget = forget
        self._refuse = refuse
        self._monotonic_ns = monotonic_ns
        self._waiting: dict[str, dict[str, dict[int, int]]] = {}
        self.ask: Callable[[str], None] = lambda tenant: None

    def passes(self, name: str, seq: int) -> bool:
        """May this batch of session ``name`` be launched? If not, it waits here."""
        session = self._sessions.get(name)
        purse = self._allowances.purses.get(session.record.terms.tenant) if session is not None else None
        if session is None or purse is None:
            return True
        left = self._allowances.left_micro(purse)
        if left > self._allowances.batch_micro(purse) * _NEAR or (left > 0 and seq == session.seq_done + 1):
            return True
        self._waiting.setdefault(purse.tenant, {}).setdefault(name, {}).setdefault(seq, self._monotonic_ns())
        if left <= 0:
            self.ask(purse.tenant)
        return False

    def advance(self, session: Session) -> None:
        """A batch of this session is over: the one after it may go, if it waited for that."""
        if session.record.terms.tenant not in self._waiting:
            return
        sessions = self._waiting[session.record.terms.tenant]
        batches = sessions.get(session.record.session, {})
        seq = session.seq_done + 1
        if batches.pop(seq, None) is None:
            return
        if not batches:
            del sessions[session.record.session]
        if not sessions:
            del self._waiting[session.record.terms.tenant]
        if seq in session.pending:
            self._release(session.pending[seq])

    def forget(self, session: Session) -> None:
        """The session is over: nothing of it waits here, also for one that takes its name."""
        record = session.record
        self._allowances.ended(record.terms.tenant, record.session)
        sessions = self._waiting.get(record.terms.tenant, {})
        if sessions.pop(record.session, None) is not None and not sessions:
            del self._waiting[record.terms.tenant]

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
        """Refuse what waited when the question was asked (monotonic): of each session the next batch, for it is sent again with all that
        follow; these are forgotten, also when the next one was refused before. Whether there was any."""
        waiting = self._waiting.pop(tenant, {})
        later = {name: batches for name, batches in waiting.items() if min(batches.values()) > asked_ns}
        if later:
            self._waiting[tenant] = later
        for name, batches in waiting.items():
            if name in later:
                continue
            session = self._sessions.get(name)
            here = [seq for seq in sorted(batches) if session is not None and self._forget(session, seq)]
            if session is not None and session.seq_done + 1 in here:
                self._refuse(name, session.seq_done + 1, fault)
        return len(later) < len(waiting)


def budget_fault(reason: str) -> Fault:
    """The fault of a session whose tenant has used up its budget."""
    text = (
        f"{reason}. Nothing of this batch was done, and nothing is lost: the session stays, and goes on when it asks again; "
        "what it holds in memory is charged meanwhile"
    )
    return Fault(faults.BUDGET_EXCEEDED, text, fatal=False)


def silence_fault(tenant: str) -> Fault:
    """The fault of a session whose tenant's budget cannot be looked up."""
    reason = f"the billing service does not say what is left of the budget of tenant {tenant!r}"
    return budget_fault(reason)
