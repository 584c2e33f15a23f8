"""Laws of budgets that hold for every log, every number of billing services, and every order in which nodes ask."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from billing.allowance import LEASE_MS, Leases, Left, lend
from billing.budgets import Budgets, level
from billing.periods import DAY_NS, bounds
from billing.projection import BillingView
from bus_schemas.allowance import EXHAUSTED, GRANTED
from bus_schemas.events import BudgetCrossed, BudgetSet, Event, GrantRecorded, UsageRecorded, decode_events, encode_events

SECOND = 10**9
TENANTS = ("a", "b")


@dataclass
class Log:
    """The stream: messages with their subject, and conditional appends to it, as JetStream does them."""

    messages: list[tuple[str, bytes]] = field(default_factory=list)

    def last(self, subject: str) -> int:
        return max((at for at, (of, _) in enumerate(self.messages, start=1) if of == subject), default=0)

    def append(self, subject: str, events: list[Event], expected: int | None = None) -> bool:
        if expected is not None and self.last(subject) != expected:
            return False
        self.messages.append((subject, encode_events(events)))
        return True

    def fold(self, view: BillingView, end: int) -> BillingView:
        for at in range(view.position, end):
            view.apply(at + 1, decode_events(self.messages[at][1]))
        return view


@dataclass
class Replica:
    view: BillingView = field(default_factory=BillingView)

    def decide(self, log: Log, tenant: str) -> tuple[str, int, list[Event]] | None:
        """What it would append, and the position it decided at: reading the subject's end comes first (services.billing.writer)."""
        expected = log.last(tenant)
        log.fold(self.view, expected)
        facts: list[Event] = [fact for crossing, fact in self.view.budgets.due.items() if crossing[0] == tenant]
        return (tenant, expected, facts) if facts else None


@st.composite
def facts(draw: st.DrawFn, serials: dict[str, int]) -> tuple[str, list[Event]]:
    """One message of any writer, and its subject."""
    tenant, kind = draw(st.sampled_from(TENANTS)), draw(st.sampled_from(["usage", "usage", "usage", "again", "grant", "budget"]))
    day = draw(st.integers(10, 12))
    if kind == "grant":
        return tenant, [GrantRecorded(day * DAY_NS, draw(st.sampled_from("xyz")) + tenant, tenant, draw(st.integers(0, 60)))]
    if kind == "budget":
        limit, warn, stop = draw(st.integers(-1, 100)), draw(st.integers(0, 100)), draw(st.sampled_from([0, 100, 120]))
        return tenant, [BudgetSet(day * DAY_NS, tenant, draw(st.sampled_from(["day", "month", "total"])), limit, warn, stop)]
    node = draw(st.sampled_from(["n1", "n2"]))
    if kind == "usage":
        serials[node] = serials.get(node, 0) + 1
    serial, micro = max(1, serials.get(node, 0)), draw(st.integers(0, 40))
    return node, [UsageRecorded(node, 1, 0, serial, "s", tenant, "t", 0, day * DAY_NS, day * DAY_NS + SECOND, micro, 0, 0, 1)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_crossing_is_in_the_log_once_however_many_services_announce_and_die(data: st.DataObject) -> None:
    log, replicas, serials = Log(), [Replica(), Replica(), Replica()], dict[str, int]()
    for _ in range(data.draw(st.integers(1, 25))):
        subject, events = data.draw(facts(serials))
        log.append(subject, events)
        # Several decide on what they have seen, then write one after the other; some die in between and come back from what they saved.
        chosen = data.draw(st.lists(st.integers(0, 2), max_size=3))
        decided = [found for at in chosen for tenant in TENANTS if (found := replicas[at].decide(log, tenant)) is not None]
        for tenant, expected, due in decided:
            if data.draw(st.booleans()):
                log.append(tenant, due, expected)
        for replica in replicas:
            if data.draw(st.booleans()):
                replica.view = BillingView.decode(log.fold(replica.view, data.draw(st.integers(0, len(log.messages)))).encode())
    for tenant in TENANTS:  # the last one alive says what is left to say
        log.fold(replicas[0].view, len(log.messages))
        found = replicas[0].decide(log, tenant)
        if found is not None:
            assert log.append(tenant, found[2], found[1])
    views = [log.fold(replica.view, len(log.messages)) for replica in replicas]
    whole = log.fold(BillingView(), len(log.messages))
    assert {view.digest() for view in views} == {whole.digest()}
    assert not whole.findings or all("jumps from serial" in text for text in whole.findings)
    assert [crossing for crossing in whole.budgets.due if crossing[0] in TENANTS] == []
    held = [event for _, message in log.messages for event in decode_events(message) if isinstance(event, BudgetCrossed)]
    names = [(fact.tenant, fact.period, fact.period_from_ns, fact.threshold, fact.position) for fact in held]
    assert len(names) == len(set(names))
    for tenant in TENANTS:
        told: dict[str, str] = {}
        for fact in held:
            if fact.tenant == tenant:
                assert told.get(fact.period, "open") != fact.threshold, "only changes are announced"
                told[fact.period] = fact.threshold
        for period, budget in whole.budgets.by_tenant.get(tenant, {}).items():
            assert told.get(period, "open") == budget.level


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_use_of_every_period_is_the_sum_of_its_charges(data: st.DataObject) -> None:
    log, serials = Log(), dict[str, int]()
    for _ in range(data.draw(st.integers(0, 25))):
        log.append(*data.draw(facts(serials)))
    view = log.fold(BillingView(), len(log.messages))
    for tenant in TENANTS:
        by_day = {
            day: sum(
                r.core_micro + r.vram_micro for key, r in view.rows.items() if key[1] == tenant and key[0] * 60 * SECOND // DAY_NS == day
            )
            for day in range(9, 14)
        }
        for day, micro in by_day.items():
            assert view.budgets.used_micro(tenant, day * DAY_NS, (day + 1) * DAY_NS) == micro
        assert (
            view.budgets.used_micro(tenant, 0, 0)
            == sum(by_day.values())
            == view.budgets.granted.get(tenant, 0) - view.ledger.balance_micro(tenant)
        )
        for period, budget in view.budgets.by_tenant.get(tenant, {}).items():
            assert (budget.from_ns, budget.to_ns) == bounds(period, budget.from_ns)
            assert budget.used_micro == view.budgets.used_micro(tenant, budget.from_ns, budget.to_ns)
            effective = view.budgets.effective_micro(tenant, period, budget.limit_micro)
            assert budget.level == level(budget.used_micro, effective, budget.warn_percent, budget.stop_percent)


@dataclass
class Spender:
    """A node with one session: it runs a batch as long as anything is left of what it was lent (services.server.allowance)."""

    used: int = 0
    micro: int = 0
    base: int = 0
    known: int = 0
    until_ms: int = 0

    def left(self, now_ms: int) -> int:
        return self.micro - (self.used - self.base) if now_ms < self.until_ms else 0


BATCH_MAX = 6


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_all_nodes_together_overshoot_by_at_most_a_batch_each(data: st.DataObject) -> None:
    """Nodes ask replicas that lag behind by any amount, answers get lost, nodes die; the leases are one value on the bus."""
    limit, now_ms = data.draw(st.integers(0, 60)), 0
    nodes = {name: Spender() for name in data.draw(st.sampled_from([("n1", "n2", "n3"), ("n1", "n2"), ("n1",)]))}
    seen: list[dict[str, int]] = [dict.fromkeys(nodes, 0) for _ in range(2)]
    leases = Leases()
    for _ in range(data.draw(st.integers(20, 80))):
        name = data.draw(st.sampled_from(sorted(nodes)))
        node, view = nodes[name], data.draw(st.sampled_from(seen))
        match data.draw(st.sampled_from(["ask", "ask", "run", "run", "run", "bill", "lost", "wait"])):
            case "run":
                for cost in data.draw(st.lists(st.integers(1, BATCH_MAX), min_size=1, max_size=12)):
                    node.used += cost if node.left(now_ms) > 0 else 0
            case "bill":
                view[name] = data.draw(st.integers(view[name], node.used))
            case "wait":  # long enough for leases to end; facts take no longer than that
                now_ms += data.draw(st.sampled_from([1_000, LEASE_MS + 5_000]))
                for of in seen:
                    of |= {other: spender.used for other, spender in nodes.items() if spender.until_ms <= now_ms}
            case kind:
                unbilled = node.used - view[name]
                left = Left(limit - sum(view.values()), "total", sum(view.values()), limit, 100, 0)
                leases, answer = lend(
                    leases, name, now_ms, left=left, billed=view, unbilled_micro=unbilled, busy=data.draw(st.booleans()), tenant="t"
                )
                if kind == "ask" and view[name] >= node.known:
                    node.micro, node.base, node.known = answer.micro, view[name], view[name]
                    node.until_ms = now_ms + answer.valid_ms if answer.state == GRANTED else 0
        assert sum(spender.used for spender in nodes.values()) <= limit + len(nodes) * BATCH_MAX


@settings(deadline=None)
@given(st.integers(1, 10_000), st.integers(1, 4), st.integers(1, 50))
def test_everything_that_is_left_can_be_used(limit: int, count: int, batch: int) -> None:
    """Busy nodes that ask in turn use up the budget: nothing stays lent for ever, and no node learns too early that it is used up."""
    nodes = {f"n{i}": Spender() for i in range(count)}
    leases = Leases()
    for now_ms in range(0, 1_000 * 60, 1_000):
        done = True
        for name, node in nodes.items():
            billed = {other: spender.used for other, spender in nodes.items()}
            left = Left(limit - sum(billed.values()), "total", sum(billed.values()), limit, 100, 0)
            leases, answer = lend(leases, name, now_ms, left=left, billed=billed, unbilled_micro=0, busy=True, tenant="t")
            assert (answer.state == EXHAUSTED) == (sum(billed.values()) >= limit)
            node.micro, node.base, node.until_ms = answer.micro, node.used, now_ms + 2_000
            while node.left(now_ms) > 0:
                node.used += batch
            done &= answer.state == EXHAUSTED
        if done:
            break
    assert sum(spender.used for spender in nodes.values()) >= limit


def test_an_empty_view_has_spent_nothing() -> None:
    assert Budgets().used_micro("nobody", 0, 0) == 0
