"""Remaining allowances of tenants with a budget on this node: billing's leases, less what the node has counted since; and the gate before
each device's dispatch core: batches of tenants that have used up what they may wait here, or are refused.

The node counts in micro-credits, usage fact by usage fact, with the function and the prices that billing charges them with. What is in no
fact yet (launches since the last one, memory held since) is priced the same way, so a tenant is at most one batch a session beyond what it
may use. Of a tenant without a budget these books know nothing: asking for it is one look into a dictionary.

A batch that runs goes on to its end; the next one of its session is stopped here. It is refused only after billing has said that nothing is
left, and the session stays: a client that sends the batch again after a grant, or in a new period, continues normally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from billing.tariff import Tariff, charge
from billing.tiers import TierBook, task_refusal
from bus_schemas import faults
from bus_schemas.allowance import GRANTED, MICRO_MAX, Allowance, TenantUse
from bus_schemas.batch import Fault
from bus_schemas.events import BudgetSet, Event, GrantRecorded, TariffSet, TierSet, UsageRecorded
from bus_schemas.terms import TaskTerms
from services.server.meter import Meter
from services.server.sessions import Pending, Session

_FACTS_MAX: Final = 256
_MS: Final = 10**6


@dataclass(slots=True)
class Purse:
    """One tenant: ``micro`` may be used beyond the facts that billing knew, until ``until_ns`` (monotonic). ``facts``: (gpu, serial, micro)
    of those it did not; ``running``: core-ns of every device that are in no fact yet. ``since``: the last usage fact of every device when
    these books were opened: an answer must know it. ``periods``: of its budgets that can stop it. ``batches``: core-ns of the
    batches that run, by session; ``batch_core_ns``: of the costliest one so far."""

    tenant: str
    since: dict[int, int] = field(default_factory=dict)
    periods: set[str] = field(default_factory=set)
    micro: int = 0
    until_ns: int = 0
    facts: list[tuple[int, int, int]] = field(default_factory=list)
    running: dict[int, int] = field(default_factory=dict)
    busy: bool = False
    batches: dict[str, int] = field(default_factory=dict)
    batch_core_ns: int = 0

    def remember(self, gpu: int, serial: int, micro: int) -> None:
        """A usage fact; when there are too many that billing has not acknowledged, the older half of a device's become one: what it
        acknowledges next, it most likely ends behind them."""
        self.facts.append((gpu, serial, micro))
        if len(self.facts) > _FACTS_MAX:
            half = len(self.facts) // 2
            sums: dict[int, tuple[int, int]] = {}
            for of, number, amount in self.facts[:half]:
                last, total = sums.get(of, (0, 0))
                sums[of] = max(last, number), total + amount
            self.facts = [*((of, last, total) for of, (last, total) in sums.items()), *self.facts[half:]]


class Allowances:
    """The purses of this node. ``now_ns``: Unix time; ``monotonic_ns``: the clock of the meters."""

    def __init__(self, now_ns: Callable[[], int], monotonic_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._monotonic_ns = monotonic_ns
        self._meters: list[Callable[[], Meter | None]] = []
        self._tariff = Tariff()
        self._tiers = TierBook()
        self._serials: dict[int, int] = {}
        self.purses: dict[str, Purse] = {}
        self.on_changed: Callable[[str], None] = lambda tenant: None
        """Called when the log says that a tenant's budget, credits or prices may be others now."""

    def watch(self, meter: Callable[[], Meter | None]) -> None:
        """Look at this device's meter for memory that is in no fact yet."""
        self._meters.append(meter)

    # -- the log -------------------------------------------------------------------------------------------------------------------

    def apply(self, position: int, event: Event) -> None:
        """Fold in one event about money."""
        match event:
            case BudgetSet():
                self._budget(event)
            case TariffSet():
                self._tariff.record(event)
            case TierSet() | GrantRecorded():
                self._tiers.apply(position, event)
        tenant = getattr(event, "tenant", "")
        if tenant in self.purses:
            self.on_changed(tenant)

    def _budget(self, fact: BudgetSet) -> None:
        purse = self.purses.get(fact.tenant) or Purse(fact.tenant, {meter.gpu: meter.serial for meter in self._known_meters()})
        if fact.limit_micro >= 0 and fact.stop_percent:
            purse.periods.add(fact.period)
            self.purses[fact.tenant] = purse
            purse.micro = 0  # what was lent was lent under another limit
            return
        purse.periods.discard(fact.period)
        if not purse.periods and self.purses.pop(fact.tenant, None) is not None:
            self.on_changed(fact.tenant)

    def right_fault(self, terms: TaskTerms) -> Fault | None:
        """Why the tenant has no right to a session on these terms, or None."""
        refusal = task_refusal(self._tiers, terms, self._now_ns())
        if refusal is None:
            return None
        text = ": ".join(refusal)
        if refusal[0] != "priority":
            return Fault(faults.ACCESS_DENIED, text)
        ceiling = self._tiers.ceiling_of(terms.tenant, self._now_ns())
        return Fault(faults.PRIORITY_CEILING, text, (f"ceiling @ priority: {ceiling}",))

    # -- use -----------------------------------------------------------------------------------------------------------------------

    def ran(self, gpu: int, tenant: str, session: str, core_ns: int, over: bool) -> None:
        """A slice of a batch used so much that is in no fact yet. ``over``: it was the batch's last."""
        purse = self.purses.get(tenant)
        if purse is None:
            return
        purse.running[gpu] = purse.running.get(gpu, 0) + core_ns
        purse.busy = True
        whole = purse.batches.pop(session, 0) + core_ns
        purse.batch_core_ns = max(purse.batch_core_ns, whole)
        if not over:
            purse.batches[session] = whole

    def ended(self, tenant: str, session: str) -> None:
        """A session is over, and its batch that ran if there was one."""
        purse = self.purses.get(tenant)
        if purse is not None:
            purse.batches.pop(session, None)

    def batch_micro(self, purse: Purse) -> int:
        """What the tenant's costliest batch so far costs now."""
        return self._price(purse.tenant, self._now_ns(), purse.batch_core_ns, 0)

    def settled(self, gpu: int, events: Sequence[Event]) -> None:
        """Everything that device ``gpu`` has reported is in facts now: these."""
        if not self.purses:
            return
        for purse in self.purses.values():
            purse.running.pop(gpu, None)
        for event in events:
            if isinstance(event, UsageRecorded) and event.tenant in self.purses:
                self.purses[event.tenant].remember(
                    gpu, event.serial, self._price(event.tenant, event.from_ns, event.charged_core_ns, event.byte_ms)
                )

    def _price(self, tenant: str, at_ns: int, core_ns: int, byte_ms: int) -> int:
        amount = charge(core_ns, byte_ms, self._tariff.at(self._tiers.tier_of(tenant, at_ns), at_ns))
        return amount.core_micro + amount.vram_micro

    def left_micro(self, purse: Purse) -> int:
        """What the tenant may still use now; not positive: nothing."""
        if self._monotonic_ns() >= purse.until_ns:
            return 0
        left = purse.micro - sum(micro for _, _, micro in purse.facts)
        return left - self._running_micro(purse) if left > 0 else left

    def _running_micro(self, purse: Purse) -> int:
        byte_ms = 0
        now_ns = self._monotonic_ns()
        for meter in self._known_meters():
            elapsed_ms = max(0, now_ns - meter.accounted_ns) // _MS
            held = sum(account.resident_bytes for account in meter.accounts.values() if account.tenant == purse.tenant)
            byte_ms += held * elapsed_ms
        return self._price(purse.tenant, self._now_ns(), sum(purse.running.values()), byte_ms)

    def _known_meters(self) -> list[Meter]:
        return [meter for of in self._meters if (meter := of()) is not None]

    # -- billing -------------------------------------------------------------------------------------------------------------------

    def present(self) -> set[str]:
        """The tenants with a budget that have sessions here."""
        if not self.purses:
            return set()
        return {account.tenant for meter in self._known_meters() for account in meter.accounts.values()} & self.purses.keys()

    def use(self, tenant: str, waiting: bool) -> TenantUse:
        """The report to billing about a tenant."""
        purse = self.purses[tenant]
        busy, purse.busy = purse.busy or waiting, False
        facts = tuple((gpu, serial, min(micro, MICRO_MAX)) for gpu, serial, micro in purse.facts)
        return TenantUse(tenant, facts, min(self._running_micro(purse), MICRO_MAX), busy)

    def fresh(self, serials: Sequence[tuple[int, int]]) -> bool:
        """Whether an answer knows every fact that an earlier one knew; one of a replica that lags is worth nothing."""
        known = dict(serials)
        return all(known.get(gpu, 0) >= serial for gpu, serial in self._serials.items())

    def given(self, serials: Sequence[tuple[int, int]], allowance: Allowance, asked_ns: int) -> bool:
        """Billing's answer to what was asked at ``asked_ns`` (monotonic); False: it does not know of all use before these books began."""
        known = dict(serials)
        self._serials |= known
        purse = self.purses.get(allowance.tenant)
        if purse is None:
            return True
        if any(known.get(gpu, 0) < serial for gpu, serial in purse.since.items()):
            return False
        purse.facts = [fact for fact in purse.facts if fact[1] > known.get(fact[0], 0)]
        purse.micro = allowance.micro
        purse.until_ns = asked_ns + allowance.valid_ms * _MS if allowance.state == GRANTED else 0
        return True


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
