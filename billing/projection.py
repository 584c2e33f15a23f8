"""The billing view: a projection of the event log, with the log position that it has reached; and its comparison with one recomputed from
the log, which names the first difference.

One door: ``BillingView.apply(position, events)``. Positions grow; a message already applied is ignored, and so is a usage fact whose name
(node, epoch, gpu, serial) was seen before. What does not add up is kept as a named finding, never silently mended. Usage that is not
believed (``evidence``) is such a finding, and is not charged.

Every charge is traceable: a row is (minute, tenant, task, node) and the facts of that minute and task in the log are its cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import blake3
import msgspec

from billing.budgets import STOPPED, Budget, Budgets, Crossing, Spent
from billing.errors import CorruptSnapshotError
from billing.evidence import UNDATED, Evidence
from billing.holds import HELD, Holds
from billing.ledger import Ledger
from billing.periods import PERIODS
from billing.tariff import DEFAULT_TIER, Tariff, charge
from billing.tiers import TierBook
from billing.utilization import Need, Span, Use, Utilization
from billing.utilization import Row as UtilizationRow
from billing.utilization import RowKey as UtilizationKey
from bus_schemas.credits import Verification
from bus_schemas.events import (
    BudgetCrossed,
    BudgetSet,
    DeviceAccounted,
    Event,
    GrantRecorded,
    SessionOpenedFact,
    TariffSet,
    TierSet,
    UsageRecorded,
)

__all__ = ["MINUTE_NS", "BillingView", "Grant", "Row", "RowKey", "verify"]

MINUTE_NS: Final = 60_000_000_000
_FINDINGS_MAX: Final = 1_000
_UNACCOUNTED_MAX: Final = 1 << 16
"""Usage events of one device between two of its accounts; an interval has one a session."""

RowKey = tuple[int, str, str, str, str]
"""(minute since 1970, tenant, task, node, model): the model is the title of the session that used it."""


class Row(msgspec.Struct, array_like=True):
    """What one task of one tenant used on one node in one minute, and what it costs."""

    core_ns: int = 0
    byte_ms: int = 0
    instructions: int = 0
    launches: int = 0
    core_micro: int = 0
    vram_micro: int = 0
    facts: int = 0
    recovered_ns: int = 0
    """Core time that repeated lost work, or was lost itself: the operator's, in no charge."""


class Grant(msgspec.Struct, array_like=True, frozen=True):
    """Credits given to a tenant by the message at ``position``."""

    at_ns: int
    tenant: str
    micro: int
    tier: str
    position: int


class Device(msgspec.Struct, array_like=True):
    """What is known of one device in one epoch: the serials seen, and sums for the identity charged + scheduler + idle = wall x cores."""

    usage_serial: int = 0
    account_serial: int = 0
    unaccounted: dict[int, Use] = {}
    wall_core_ns: int = 0
    charged_core_ns: int = 0
    scheduler_core_ns: int = 0
    idle_core_ns: int = 0


class BillingView(msgspec.Struct):
    """Everything billing knows. Equal logs give equal views, byte for byte (``digest``)."""

    position: int = 0
    stored_ns: int = UNDATED
    """When the broker stored the message at ``position``: another log has another one there."""
    rows: dict[RowKey, Row] = {}
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    tariff: Tariff = msgspec.field(default_factory=Tariff)
    tiers: TierBook = msgspec.field(default_factory=TierBook)
    grants: dict[str, Grant] = {}
    devices: dict[tuple[str, int, int], Device] = {}
    findings: list[str] = []
    budgets: Budgets = msgspec.field(default_factory=Budgets)
    evidence: Evidence = msgspec.field(default_factory=Evidence)
    unbelieved: dict[str, int] = {}
    """By node: usage events that are not believed."""
    doubts: dict[str, None] = {}
    """Node and kind of the findings about what nodes wrote."""
    revisions: dict[str, int] = {}
    """Of every tenant and every tier (``tier:<name>``) the position of the last fact that a person wrote."""
    holds: Holds = msgspec.field(default_factory=Holds)
    utilization: Utilization = msgspec.field(default_factory=Utilization)

    def apply(self, position: int, events: Iterable[Event], stored_ns: int = UNDATED) -> None:
        """Fold in one message of the events stream (``position``: its stream sequence; ``stored_ns``: when the broker stored it)."""
        if position <= self.position:
            return
        for event in events:
            self._apply(event, position, stored_ns)
        self.position, self.stored_ns = position, stored_ns

    def _apply(self, event: Event, position: int, stored_ns: int) -> None:
        why = self.evidence.apply(event, stored_ns)
        self.utilization.apply(event)
        if not why:
            self.holds.apply(event, stored_ns)
        match event:
            case SessionOpenedFact() if why:
                self._doubt(event.node, f"sessions of {event.tenant}", why)
            case UsageRecorded():
                self._usage(event, position, stored_ns)
            case DeviceAccounted():
                self._accounted(event, position, stored_ns)
                self.budgets.reach(self.evidence.reached_ns(event, stored_ns), position)
            case TariffSet():
                self.tariff.record(event)
                self.revisions[f"tier:{event.tier}"] = position
            case GrantRecorded():
                self._granted(event, position)
            case BudgetSet():
                self._budget_set(event, position)
            case TierSet():
                self.tiers.apply(position, event)
                self.revisions[event.tenant or f"tier:{event.tier}"] = position
            case BudgetCrossed():
                if not self.budgets.announced(event):
                    self._find(f"position {position}: budget of {event.tenant} crossed ({event.threshold}) does not follow from the log")
            case _:
                pass

    def _usage(self, fact: UsageRecorded, position: int, stored_ns: int) -> None:
        device = self.devices.setdefault((fact.node, fact.epoch, fact.gpu), Device())
        if fact.serial <= device.usage_serial:
            return
        where = f"{fact.node}/{fact.epoch}/{fact.gpu}"
        if fact.serial != device.usage_serial + 1:
            self._find_of(fact.node, "usage jumps", f"usage of {where} jumps from serial {device.usage_serial} to {fact.serial}")
        device.usage_serial = fact.serial
        wall_ns = fact.to_ns - fact.from_ns
        active = fact.core_ns > 0 or fact.launches > 0 or fact.compile_ns > 0
        device.unaccounted[fact.serial] = Use(("", "", ""), wall_ns, fact.core_ns, active=active)
        if len(device.unaccounted) > _UNACCOUNTED_MAX:
            device.unaccounted.clear()
            self._doubt(fact.node, f"device {fact.gpu}", "its accounts do not follow its usage")
        # No meter says so; credits are given by grants.
        repeated = (
            fact.recovered_ns,
            fact.displaced_ns,
            fact.displaced_instructions,
            fact.displaced_launches,
            fact.begun_ns,
            fact.resumed_ns,
        )
        others = (fact.instructions - fact.displaced_instructions, fact.launches - fact.displaced_launches)
        if (
            min(fact.core_ns - fact.recovered_ns - fact.displaced_ns - fact.resumed_ns, *repeated, *others, fact.byte_ms, fact.compile_ns)
            < 0
        ):
            self._find_of(fact.node, "negative usage", f"usage of {where} serial {fact.serial} is less than nothing")
            return
        why = self.evidence.refusal(fact, stored_ns)
        if why:
            self.unbelieved[fact.node] = self.unbelieved.get(fact.node, 0) + 1
            self._doubt(fact.node, f"usage of {fact.tenant}, not charged", why)
            return
        model = self.evidence.title(fact)
        device.unaccounted[fact.serial] = Use((fact.tenant, fact.task, model), wall_ns, fact.core_ns, fact.byte_ms, active)
        key = (fact.from_ns // MINUTE_NS, fact.tenant, fact.task, fact.node, model)
        row = self.rows.setdefault(key, Row())
        if self.evidence.given_up(fact):
            row.recovered_ns += fact.core_ns
            return
        price = self.tariff.at(self.tiers.tier_of(fact.tenant, fact.from_ns), fact.from_ns)
        work = self.evidence.counted(fact)
        amount = charge(work.core_ns, fact.byte_ms, price)
        row.core_ns += work.core_ns
        row.recovered_ns += fact.core_ns + fact.compile_ns - work.core_ns
        row.byte_ms += fact.byte_ms
        row.instructions += work.instructions
        row.launches += work.launches
        row.core_micro += amount.core_micro
        row.vram_micro += amount.vram_micro
        row.facts += 1
        self.ledger.charge(fact.tenant, amount)
        self.budgets.charge(fact.tenant, fact.node, fact.from_ns, amount.core_micro + amount.vram_micro, position)

    def _accounted(self, fact: DeviceAccounted, position: int, stored_ns: int) -> None:
        """Check the identity of one interval of one device against the usage facts it names."""
        where = f"{fact.node}/{fact.epoch}/{fact.gpu} serial {fact.serial}"
        device = self.devices.setdefault((fact.node, fact.epoch, fact.gpu), Device())
        if fact.serial <= device.account_serial:
            return
        if fact.serial != device.account_serial + 1:
            self._find_of(fact.node, "accounts jump", f"accounts of {where} follow serial {device.account_serial}")
        device.account_serial = fact.serial
        if min(fact.wall_ns, fact.cores, fact.charged_core_ns, fact.scheduler_core_ns, fact.idle_core_ns) < 0:  # it would be a credit
            self._find_of(fact.node, "negative accounts", f"accounts of {where} are less than nothing")
            return
        serials = [serial for serial in device.unaccounted if fact.serial_first <= serial <= fact.serial_last]
        uses = [device.unaccounted.pop(serial) for serial in serials]
        named = sum(use.core_ns for use in uses)
        if named != fact.charged_core_ns:
            found = f"{where}: usage facts sum to {named} core-ns, the device charged {fact.charged_core_ns}"
            self._find_of(fact.node, "charged", found)
        total = fact.charged_core_ns + fact.scheduler_core_ns + fact.idle_core_ns
        if total != fact.wall_ns * fact.cores:
            found = f"{where}: charged + scheduler + idle is {total} core-ns, wall x cores is {fact.wall_ns * fact.cores}"
            self._find_of(fact.node, "accounts", found)
        if named == fact.charged_core_ns and total == fact.wall_ns * fact.cores:
            self.utilization.account(fact, uses, self.evidence.devices.get(fact.node, {}), lambda tenant: self._terms(tenant, fact.from_ns))
            self._held(fact, position, stored_ns)
        device.wall_core_ns += fact.wall_ns * fact.cores
        device.charged_core_ns += fact.charged_core_ns
        device.scheduler_core_ns += fact.scheduler_core_ns
        device.idle_core_ns += fact.idle_core_ns

    def _held(self, fact: DeviceAccounted, position: int, stored_ns: int) -> None:
        """Charge tasks for what they held of the device and did not use, at the start of the interval, which was no later than it was
        stored."""
        at_ns = min(fact.from_ns, stored_ns) if stored_ns != UNDATED else fact.from_ns
        cores = self.evidence.devices.get(fact.node, {}).get(fact.gpu, (0, 0))[0]
        for hold, core_ns, byte_ms in self.holds.account(fact, cores, stored_ns):
            price = self.tariff.at(self.tiers.tier_of(hold.tenant, at_ns), at_ns)
            amount = charge(core_ns * hold.percent // 100, byte_ms * hold.percent // 100, price)
            row = self.rows.setdefault((at_ns // MINUTE_NS, hold.tenant, hold.task, fact.node, HELD), Row())
            row.core_ns += core_ns
            row.byte_ms += byte_ms
            row.core_micro += amount.core_micro
            row.vram_micro += amount.vram_micro
            row.facts += 1
            self.ledger.charge(hold.tenant, amount)
            self.budgets.charge(hold.tenant, HELD, at_ns, amount.core_micro + amount.vram_micro, position)

    def _terms(self, tenant: str, at_ns: int) -> tuple[int, bool]:
        """A tenant's price of a core-second, and whether its budget is used up; of no tenant, the price of the default tier."""
        tier = self.tiers.tier_of(tenant, at_ns) if tenant else DEFAULT_TIER
        stopped = any(budget.level == STOPPED for budget in self.budgets.by_tenant.get(tenant, {}).values())
        return self.tariff.at(tier, at_ns).core_second_micro, stopped

    def _granted(self, fact: GrantRecorded, position: int) -> None:
        if fact.grant in self.grants:
            return
        self.grants[fact.grant] = Grant(fact.at_ns, fact.tenant, fact.micro, fact.tier, position)
        self.ledger.grant(fact.tenant, fact.micro)
        self.tiers.apply(position, fact)
        self.budgets.grant(fact.tenant, fact.micro, position)
        self.revisions[fact.tenant] = position

    def _budget_set(self, fact: BudgetSet, position: int) -> None:
        if fact.period not in PERIODS:
            self._find(f"position {position}: a budget of {fact.tenant} names the period {fact.period!r}")
            return
        self.budgets.set(fact, position)
        self.revisions[fact.tenant] = position

    def _doubt(self, node: str, what: str, why: str) -> None:
        """Why something that a node wrote is not believed."""
        self._find_of(node, why, f"node {node}, {what}: {why}")

    def _find_of(self, node: str, kind: str, text: str) -> None:
        """A finding about what a node wrote, the first of its kind: a node cannot fill the list."""
        named = f"{node}: {kind}"
        if named not in self.doubts:
            self.doubts[named] = None
            self._find(text)

    def _find(self, text: str) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(text)

    def encode(self) -> bytes:
        """The view with its position, as one value: saving it is atomic or it is nothing."""
        b = self.budgets
        spent = [(tenant, node, list(on.days.items()), on.total_micro) for tenant, nodes in b.spent.items() for node, on in nodes.items()]
        budgets = _SavedBudgets(b.by_tenant, spent, b.granted, list(b.due.items()), b.reached_ns, b.last_announced)
        rest = (self.ledger, self.tariff, self.tiers, self.grants, list(self.devices.items()), self.findings)
        u = self.utilization
        kept = (u.needs, u.waiting, u.waited, u.declared, u.groups, u.drained)
        utilization = _SavedUtilization(list(u.rows.items()), list(u.spans.items()), *kept)
        rows = list(self.rows.items())
        return _encoder.encode(_Saved(_FORM, self.position, self.stored_ns, rows, *rest, budgets, *self._marks(), utilization))

    def _marks(self) -> tuple[Evidence, dict[str, int], dict[str, None], dict[str, int], Holds]:
        return self.evidence, self.unbelieved, self.doubts, self.revisions, self.holds

    @classmethod
    def decode(cls, data: bytes) -> BillingView:
        """Raises CorruptSnapshotError."""
        try:
            saved = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptSnapshotError(f"the saved billing view cannot be read ({error}); delete it, the log gives it back") from error
        if saved.form != _FORM:
            raise CorruptSnapshotError("the saved billing view is of another version; the log gives it back")
        spent: dict[str, dict[str, Spent]] = {}
        for tenant, node, days, total in saved.budgets.spent:
            spent.setdefault(tenant, {})[node] = Spent(dict(days), total)
        b = saved.budgets
        budgets = Budgets(b.by_tenant, spent, b.granted, dict(b.due), b.reached_ns, b.last_announced)
        u = saved.utilization
        utilization = Utilization(dict(u.rows), dict(u.spans), u.needs, u.waiting, u.waited, u.declared, u.groups, u.drained)
        rest = (saved.ledger, saved.tariff, saved.tiers, saved.grants, dict(saved.devices), saved.findings)
        marks = (saved.evidence, saved.unbelieved, saved.doubts, saved.revisions, saved.holds)
        return cls(saved.position, saved.stored_ns, dict(saved.rows), *rest, budgets, *marks, utilization)

    def digest(self) -> str:
        """blake3 of the encoded view, hex."""
        return blake3.blake3(self.encode()).hexdigest()


class _SavedBudgets(msgspec.Struct, array_like=True):
    by_tenant: dict[str, dict[str, Budget]]
    spent: list[tuple[str, str, list[tuple[int, int]], int]]
    granted: dict[str, int]
    due: list[tuple[Crossing, BudgetCrossed]]
    reached_ns: int
    last_announced: dict[str, int]


class _SavedUtilization(msgspec.Struct, array_like=True):
    rows: list[tuple[UtilizationKey, UtilizationRow]]
    spans: list[tuple[tuple[str, int], list[Span]]]
    needs: dict[str, Need]
    waiting: dict[str, None]
    waited: list[tuple[int, int, Need]]
    declared: dict[str, tuple[str, ...]]
    groups: dict[str, tuple[str, ...]]
    drained: dict[str, None]


class _Saved(msgspec.Struct, array_like=True):
    """The view as it is saved. JSON, because sums of micro-credits outgrow the 64 bits of msgpack; pairs, because its keys are text.
    ``form``: of all that is in it; a view saved by a version with other fields is derived anew, for it lacks what they sum up."""

    form: str
    position: int
    stored_ns: int
    rows: list[tuple[RowKey, Row]]
    ledger: Ledger
    tariff: Tariff
    tiers: TierBook
    grants: dict[str, Grant]
    devices: list[tuple[tuple[str, int, int], Device]]
    findings: list[str]
    budgets: _SavedBudgets
    evidence: Evidence
    unbelieved: dict[str, int]
    doubts: dict[str, None]
    revisions: dict[str, int]
    holds: Holds
    utilization: _SavedUtilization


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_Saved)
_FORM: Final = blake3.blake3(msgspec.json.encode(msgspec.json.schema(_Saved))).hexdigest(16)


def verify(view: BillingView, recomputed: BillingView) -> Verification:
    """Compare ``view`` with the fold of the log up to the same position."""
    difference = next(_differences(view, recomputed), None)
    return Verification(
        ok=difference is None and not recomputed.findings,
        position=recomputed.position,
        rows=len(recomputed.rows),
        core_credits_micro=sum(row.core_micro for row in recomputed.rows.values()),
        vram_credits_micro=sum(row.vram_micro for row in recomputed.rows.values()),
        first_difference=difference,
        findings=tuple(recomputed.findings),
        view_digest=view.digest(),
        log_digest=recomputed.digest(),
    )


def _differences(view: BillingView, log: BillingView) -> Iterator[str]:
    if view.position != log.position:
        yield f"position: the view stands at {view.position}, the log at {log.position}"
    for key in sorted(view.rows.keys() | log.rows.keys()):
        have, want = view.rows.get(key), log.rows.get(key)
        if have != want:
            where = f"minute={key[0]} tenant={key[1]} task={key[2]} node={key[3]} model={key[4]}"
            yield f"row {where}: the view has {have}, the log gives {want}"
    for account in sorted(view.ledger.balances.keys() | log.ledger.balances.keys()):
        a, b = view.ledger.balances.get(account, 0), log.ledger.balances.get(account, 0)
        if a != b:
            yield f"account {account}: the view has {a} micro-credits, the log gives {b}"
    if view.digest() != log.digest():
        yield "the views differ outside rows and balances (tariff, tiers, budgets, devices, utilization, holds or findings)"
