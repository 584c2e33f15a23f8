"""The node's books of what tenants may use: counted as billing charges, and what the gate lets pass."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from billing.projection import BillingView
from bus_schemas import faults
from bus_schemas.allowance import EXHAUSTED, GRANTED, Allowance, AskAllowances
from bus_schemas.batch import Batch, Fault
from bus_schemas.events import BudgetSet, Event, TariffSet, TierSet, UsageRecorded
from bus_schemas.terms import TaskTerms
from services.server.allowance import PATIENCE_NS, Allowances, Gate, budget_fault
from services.server.meter import INTERVAL_NS, Account, Meter
from services.server.sessions import Pending, Session, SessionRecord

SECOND = 10**9
UNIX_NS = 10**18


@dataclass
class Clock:
    now_ns: int = 0


class World:
    """The books of one device with one session of ``lab``, and a gate before it."""

    def __init__(self, *money: Event) -> None:
        self.clock = Clock()
        self.books = Allowances(lambda: UNIX_NS + self.clock.now_ns, lambda: self.clock.now_ns)
        self.meter = Meter("n", 1, 0, 1, 0, UNIX_NS)
        self.books.watch(lambda: self.meter)
        self.log: list[Event] = list(money)
        for position, event in enumerate(money, start=1):
            self.books.apply(position, event)
        self.session = Session(SessionRecord(session="s", terms=TaskTerms(tenant="lab", task="t", priority=0), epoch=1))
        self.meter.open(Account("s", "lab", "t", 0))
        self.let_go: list[int] = []
        self.refused: list[tuple[int, Fault]] = []
        self.asked: list[str] = []
        self.gate = Gate(
            self.books,
            {"s": self.session},
            lambda pending: self.let_go.append(pending.batch.seq),
            lambda session, seq: session.pending.pop(seq, None) is not None,
            lambda _, seq, fault: self.refused.append((seq, fault)),
            lambda: self.clock.now_ns,
        )
        self.gate.ask = self.asked.append

    def arrive(self, seq: int) -> bool:
        self.session.pending[seq] = Pending(Batch("s", 1, seq), b"", 0, 0)
        return self.gate.passes("s", seq)

    def run(self, core_ns: int, resident: int = 0) -> None:
        """A batch of one slice."""
        start = self.clock.now_ns
        self.clock.now_ns += core_ns
        self.books.ran(0, "lab", "s", core_ns, True)
        self.meter.work(
            "s",
            begin_ns=start,
            start_ns=start,
            end_ns=self.clock.now_ns,
            finish_ns=self.clock.now_ns,
            core_ns=core_ns,
            instructions=1,
            launches=1,
            resident_bytes=resident,
        )

    def settle(self) -> None:
        events = self.meter.cut(self.clock.now_ns)
        self.log += events
        self.books.settled(0, events)

    def charged(self) -> int:
        """What billing charges for the facts so far."""
        view = BillingView()
        for position, event in enumerate(self.log, start=1):
            view.apply(position, [event])
        return view.budgets.used_micro("lab", 0, 0)

    def give(self, micro: int, serial: int = 0) -> bool:
        return self.books.given([(0, serial)], Allowance("lab", GRANTED, micro, 30_000), self.clock.now_ns)


BUDGET = BudgetSet(0, "lab", "day", 10)


def test_what_billing_is_asked_fits_into_a_message_at_every_price() -> None:
    """Else nothing is asked any more, and the batches of all tenants with a budget wait for ever. Billing is away for ten minutes."""
    world = World(BUDGET, TariffSet(0, "standard", 0, 10**15, 10**15))
    for _ in range(600):
        world.run(SECOND, resident=64 << 30)
        world.settle()
    world.books.ran(0, "lab", "s", 10**14, False)
    use = world.books.use("lab", True)
    assert use.running_micro > 10**18 < sum(micro for _, _, micro in use.facts)
    asked = msgspec.msgpack.encode(AskAllowances("n", 1, (use,)))
    assert msgspec.msgpack.decode(asked, type=AskAllowances).tenants == (use,)


def test_without_a_budget_the_books_know_nothing_and_everything_passes() -> None:
    world = World()
    world.run(SECOND)
    world.settle()
    assert world.books.purses == {} and world.books.present() == set() and world.arrive(1) and world.asked == []


@pytest.mark.parametrize(
    "prices",
    [(), (TariffSet(0, "standard", UNIX_NS + SECOND, 3 * SECOND // 7, 11),), (TierSet(0, "basic", 0, "lab", UNIX_NS + 2 * SECOND),)],
)
def test_a_node_counts_what_billing_charges_to_the_unit(prices: tuple[Event, ...]) -> None:
    world = World(BUDGET, *prices)
    for step in range(1, 40):
        world.run(7_777_777 * step % (INTERVAL_NS // 3) + 1, resident=(step * 12_345_678) % (1 << 28))
        if step % 3 == 0:
            world.settle()
    world.settle()
    purse = world.books.purses["lab"]
    assert sum(micro for _, _, micro in purse.facts) == world.charged() > 0
    assert purse.running == {}


def test_what_is_in_no_fact_yet_counts_as_well() -> None:
    world = World(BUDGET)
    world.give(1_000)
    world.run(400)
    purse = world.books.purses["lab"]
    assert world.books.left_micro(purse) == 600
    world.settle()
    assert world.books.left_micro(purse) == 600, "the fact says what was counted before"
    world.meter.resident("s", 1 << 30, world.clock.now_ns)
    world.clock.now_ns += 1
    world.settle()
    world.clock.now_ns += SECOND
    assert world.books.left_micro(purse) == 600 - 1_000 * 1_000_000, "a GiB held for a second"


def test_an_answer_takes_off_the_facts_that_it_knew() -> None:
    world = World(BUDGET)
    world.run(400)
    world.settle()
    world.run(70)
    world.settle()
    assert world.give(500, serial=1)
    assert world.books.left_micro(world.books.purses["lab"]) == 430
    assert not world.books.fresh([(0, 0)]), "an answer of a replica that lags knows less than was known"
    assert world.books.fresh([(0, 2)])


def test_books_opened_midway_wait_for_an_answer_that_knows_what_was_before() -> None:
    world = World()
    world.run(400)
    world.settle()
    world.books.apply(9, BUDGET)
    assert not world.give(1_000, serial=0) and not world.arrive(1)
    assert world.give(1_000, serial=1) and world.arrive(2)


def test_many_facts_without_an_answer_stay_few_and_their_sum_right() -> None:
    world = World(BUDGET)
    for _ in range(700):
        world.run(1_000)
        world.settle()
    facts = world.books.purses["lab"].facts
    assert len(facts) <= 257 and sum(micro for _, _, micro in facts) == world.charged()
    world.give(10_000, serial=700)
    assert world.books.left_micro(world.books.purses["lab"]) == 10_000


def test_an_answer_that_knows_most_of_many_facts_takes_them_off() -> None:
    """Else what billing has charged already counts again, and a tenant near its limit is refused although something is left."""
    world = World(BUDGET)
    for _ in range(300):
        world.run(1_000)
        world.settle()
    world.give(100_000, serial=250)
    assert world.books.left_micro(world.books.purses["lab"]) == 100_000 - 50 * 1_000


def test_a_batch_waits_is_let_go_or_refused_once_and_the_rest_is_forgotten() -> None:
    world = World(BUDGET)
    assert not world.arrive(1) and not world.arrive(2) and world.asked == ["lab", "lab"]
    world.give(1_000_000)
    world.gate.open("lab")
    assert world.let_go == [1, 2] and not world.gate.waits("lab")
    world.books.given([(0, 0)], Allowance("lab", EXHAUSTED), 0)
    assert not world.arrive(1) and not world.arrive(2) and not world.arrive(3)
    world.clock.now_ns += 1
    assert world.gate.shut("lab", budget_fault("used up"), world.clock.now_ns)
    ((seq, fault),) = world.refused
    assert (seq, fault.name, fault.fatal) == (1, faults.BUDGET_EXCEEDED, False) and world.session.pending == {}
    assert fault.message.startswith("used up. ") and fault.message.endswith("what it holds in memory is charged meanwhile")


def test_what_came_after_the_question_is_not_refused_by_its_answer() -> None:
    world = World(BUDGET)
    world.clock.now_ns = 100
    assert not world.arrive(1)
    assert not world.gate.shut("lab", budget_fault("used up"), 99) and world.gate.waits("lab") and not world.refused


def test_near_the_limit_the_next_batch_waits_for_the_one_before() -> None:
    world = World(BUDGET)
    world.run(100)
    world.give(100 + 100 * 65)
    assert world.arrive(1) and world.arrive(2), "far from the limit one may be behind the other"
    world.give(100 + 100 * 2)
    assert world.arrive(1) and not world.arrive(2) and world.asked == []
    world.session.pending.pop(1)
    world.session.seq_done = 1
    world.gate.advance(world.session)
    assert world.let_go == [2] and not world.gate.waits("lab")


def test_a_session_that_ended_waits_no_more_also_under_a_name_used_again() -> None:
    """Else what waited of it would let go a batch of the next session of that name, which may be with the executor already."""
    world = World(BUDGET)
    assert not world.arrive(1) and world.gate.waits("lab")
    world.books.ran(0, "lab", "s", 5, False)
    world.gate.forget(world.session)
    assert not world.gate.waits("lab") and world.gate.tenants == set() and world.books.purses["lab"].batches == {}
    world.give(10**9)
    assert world.arrive(1)
    world.gate.open("lab")
    assert world.let_go == []


def test_a_lease_ends_and_patience_too() -> None:
    world = World(BUDGET)
    world.give(10**9)
    assert world.arrive(1)
    world.clock.now_ns += 30 * SECOND
    assert not world.arrive(2) and not world.gate.overdue("lab")
    world.clock.now_ns += PATIENCE_NS + 1
    assert world.gate.overdue("lab")


def test_a_budget_that_ends_or_never_stops_frees_the_tenant() -> None:
    world = World(BUDGET, BudgetSet(0, "lab", "month", 5))
    heard: list[str] = []
    world.books.on_changed = heard.append
    world.books.apply(3, BudgetSet(0, "lab", "day", 10, 80, 0))
    assert "lab" in world.books.purses
    world.books.apply(4, BudgetSet(0, "lab", "month", -1))
    assert world.books.purses == {} and heard and world.arrive(1)


def test_a_ceiling_is_named_with_its_field() -> None:
    world = World(TierSet(0, "basic", 0, "lab"), TierSet(0, "basic", 3))
    fault = world.books.right_fault(TaskTerms(tenant="lab", priority=2))
    assert fault is not None and fault.name == faults.PRIORITY_CEILING
    assert fault.message.startswith("priority: 2") and fault.places == ("ceiling @ priority: 3",)
    assert (
        world.books.right_fault(TaskTerms(tenant="lab", priority=3)) is None
        and world.books.right_fault(TaskTerms(tenant="shop", priority=0)) is None
    )


def test_a_tier_without_exclusive_devices_has_none_without_a_task_either() -> None:
    world = World(TierSet(0, "basic", 0, "lab"))
    fault = world.books.right_fault(TaskTerms(tenant="lab", priority=3, exclusive=True))
    assert fault is not None and fault.name == faults.ACCESS_DENIED and fault.message.startswith("gpu_mode: tasks of tier basic share")
    assert world.books.right_fault(TaskTerms(tenant="shop", priority=3, exclusive=True)) is None


def test_facts_of_others_are_not_its_business() -> None:
    world = World(BUDGET)
    other = UsageRecorded("n", 1, 0, 1, "x", "shop", "t", 0, 0, 1, 10**6, 0, 1, 1)
    world.books.settled(0, [other])
    assert world.books.purses["lab"].facts == []
