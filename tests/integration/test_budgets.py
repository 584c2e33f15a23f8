"""Budgets on a real node: a tenant that runs out stops within one batch, other tenants are not affected, nothing is lost, and the ledger
balances to the unit.

Two billing services run, and one is killed with -9 while the budget runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from billing.tariff import BASE_PRICES, charge
from bus_schemas.batch import decode_done
from bus_schemas.events import BudgetCrossed, Event, UsageRecorded
from services.kit.bus import connect
from services.kit.errors import BusRefused
from tests.support.billing import BillingProcess
from tests.support.node import DEADLINE_S, Node, floats, increment, until
from wooly.errors import BudgetExceededError, ConfigError
from wooly.link import Flush
from wooly.session import Session

LEASES_STREAM = "WOOLY_LEASES"
LEASES = "wooly.lease.allow.*"
STEPS = 80
BYTES = 8 << 11
STEP = increment(BYTES // 8)


class Stack:
    """A node and two billing services, all of them processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = Node(folder)

    def start_billing(self, which: int) -> BillingProcess:
        return BillingProcess(self.node.nats.url, self.folder / f"billing{which}")

    def lent(self, tenant: str) -> bool:
        """Whether the node has heard of the tenant's budget, and been lent of it."""

        async def look() -> bool:
            bus = await connect(self.node.nats.url, name="looker")
            try:
                found = await bus.js_api(f"STREAM.INFO.{LEASES_STREAM}", {"subjects_filter": LEASES})
            except BusRefused:  # there is no such stream yet
                return False
            finally:
                await bus.close()
            return LEASES.replace("*", blake3(tenant.encode()).hexdigest()[:32]) in (found["state"].get("subjects") or {})

        return asyncio.run(look())

    def used(self, tenant: str) -> int:
        """Micro-credits that the log charges ``tenant``, counted by hand from its usage facts."""
        return sum(_micro(event) for event in self.node.events() if isinstance(event, UsageRecorded) and event.tenant == tenant)


def _micro(fact: UsageRecorded) -> int:
    amount = charge(fact.core_ns + fact.compile_ns, fact.byte_ms, BASE_PRICES["standard"])
    return amount.core_micro + amount.vram_micro


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    found = Stack(tmp_path_factory.mktemp("budgets"))
    with found.node:
        yield found


class Training(threading.Thread):
    """A tenant that trains: batches on one buffer, each adding 1, until ``steps`` of them were sent (None: until ``finish``), then a look
    at it. After a refusal, and after ``pause`` batches, it waits for ``go_on``."""

    def __init__(self, session: Session, steps: int | None = STEPS, pause: int = 0) -> None:
        super().__init__(daemon=True)
        self.session = session
        self.sent = 0
        self.refused: list[BudgetExceededError] = []
        self.error: BaseException | None = None
        self.result: set[float] = set()
        self._steps = steps
        self._pause = pause
        self._again = threading.Event()

    def go_on(self) -> None:
        self._again.set()

    def finish(self, more: int) -> None:
        """Go on, for so many batches."""
        self._steps = self.sent + more
        self.go_on()

    def run(self) -> None:
        try:
            while self._steps is None or self.sent < self._steps:
                allocs = [] if self.sent else [(1, BYTES)]
                self.sent += 1
                with self._told():  # what is refused here is kept
                    self.session.submit(STEP.flush([1], allocs=allocs))
                if self.sent == self._pause:
                    self._wait()
            while not self.result:
                with self._told():
                    (data,) = self.session.wait(self.session.submit(Flush(reads=[(1, 0, BYTES)])))
                    self.result = set(floats(data))
        except BaseException as error:  # the test looks at it
            self.error = error

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BudgetExceededError as refused:
            self.refused.append(refused)
            self._wait()

    def _wait(self) -> None:
        self._again.wait()
        self._again.clear()


class Answers(threading.Thread):
    """Hears every Done on the bus: (session, seq) -> core-ns; 0 for one that was refused."""

    def __init__(self, nats_url: str) -> None:
        super().__init__(daemon=True)
        self._url = nats_url
        self.core_ns: dict[tuple[str, int], int] = {}
        self.listening = threading.Event()
        self.start()
        assert self.listening.wait(DEADLINE_S)

    def run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        bus = await connect(self._url, name="listener")
        await bus.subscribe("wooly.session.>", self._heard)
        await bus.nc.flush()
        self.listening.set()
        await asyncio.Event().wait()

    async def _heard(self, subject: str, data: bytes) -> None:
        done = decode_done(data)
        if done.fault is None and not done.needs:
            self.core_ns[done.session, done.seq] = done.core_ns

    def last(self, session: str) -> int:
        """What the last batch of a session that ran cost, core-ns."""
        return self.core_ns[max(key for key in self.core_ns if key[0] == session)]


def crossings(events: list[Event], tenant: str) -> list[tuple[str, str]]:
    """Without warnings: one fact of use may lead past both thresholds at once, and then there is none."""
    found = [(e.period, e.threshold) for e in events if isinstance(e, BudgetCrossed) and e.tenant == tenant]
    return [crossing for crossing in found if crossing[1] != "warning"]


def test_one_runs_out_midway_and_others_are_not_affected(stack: Stack) -> None:
    node = stack.node
    answers = Answers(node.nats.url)
    one, two = stack.start_billing(1), stack.start_billing(2)

    alone = Training(node.open(tenant="alone"))
    alone.run()
    assert alone.error is None and alone.result == {float(STEPS)}
    alone.session.close()
    whole = stack.used("alone")
    limit = whole // 2

    answer = one.do("PUT", "budgets/poor/total", {"limit_micro": limit, "warn_percent": 50})
    assert (answer["state"], answer["left_micro"]) == ("open", limit)
    poor, rich = Training(node.open(tenant="poor"), None, pause=1), Training(node.open(tenant="rich"))
    poor.start()
    until(lambda: stack.lent("poor"), "the node has heard of the budget")
    poor.go_on()
    rich.start()

    # It runs out: billing number one is killed meanwhile, the other one knows as much.
    assert one.end(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: poor.refused or poor.error, "the poor tenant runs out")
    assert poor.error is None
    (refused,) = poor.refused
    for part in ("total budget of tenant 'poor' is used up", "ask for a grant", "the session stays"):
        assert part in str(refused)
    rich.join(60)
    assert rich.error is None and rich.result == {float(STEPS)} and not rich.refused
    poor_name = poor.session.info.session
    assert 0 < sum(name == poor_name for name, _ in answers.core_ns) < poor.sent

    # Within one batch of the limit: all but its last batch were below it.
    one = stack.start_billing(1)
    until(lambda: stack.used("poor") >= limit, "the facts of what it used are in the log")
    last = charge(answers.last(poor_name), 0, BASE_PRICES["standard"]).core_micro
    cores = sum(
        charge(e.core_ns, 0, BASE_PRICES["standard"]).core_micro
        for e in node.events()
        if isinstance(e, UsageRecorded) and e.tenant == "poor"
    )
    assert cores - last < limit
    account = one.do("GET", "accounts/poor")
    assert account["budgets"][0]["state"] == "stopped" and account["balance_micro"] < 0

    # After a grant it goes on where it stood: every step was done once, in order.
    one.do("POST", "grants", {"tenant": "poor", "micro": 100 * whole, "id": "more"})
    poor.finish(10)
    until(lambda: poor.result or poor.error, "the poor tenant goes on")
    assert poor.error is None and poor.result == {float(poor.sent)} and len(poor.refused) == 1
    rich.session.close()
    poor.session.close()
    digests = {name: found.totals.launch_digest for name, found in (("alone", alone.session), ("rich", rich.session)) if found.totals}
    assert digests["rich"] == digests["alone"]

    # The ledger balances to the unit, and both services agree with the log.
    ledger = two.do("GET", "ledger")
    accounts = {item["account"]: item["micro"] for item in ledger["accounts"]}
    assert ledger["debits_micro"] == ledger["credits_micro"] and sum(accounts.values()) == 0
    assert accounts["tenant:poor"] == stack.used("poor") - 100 * whole
    assert accounts["tenant:rich"] == stack.used("rich") and accounts["tenant:alone"] == whole
    for billing in (one, two):
        check = billing.do("GET", "verify")
        assert check["ok"], check
    assert one.do("GET", "ledger") == two.do("GET", "ledger") | {"position": one.do("GET", "ledger")["position"]}
    until(lambda: crossings(node.events(), "poor")[-1:] == [("total", "open")], "the crossings are in the log")
    assert crossings(node.events(), "poor") == [("total", "stopped"), ("total", "open")]
    assert crossings(node.events(), "rich") == []
    for billing in (one, two):
        assert billing.end(signal.SIGTERM) == 0


def test_nothing_runs_beyond_what_was_lent_while_billing_is_dead_and_the_refusal_comes_after(stack: Stack) -> None:
    """The only billing service is killed while the tenant runs: the node goes on within its lease, then the batch waits for the answer."""
    node = stack.node
    billing = stack.start_billing(1)
    limit = 20 * stack.used("alone")  # far beyond what a few batches cost, also where the machine holds one of them up
    billing.do("PUT", "budgets/lone/month", {"limit_micro": limit})
    lone = Training(node.open(tenant="lone"), None, pause=5)
    lone.start()
    until(lambda: stack.lent("lone") and stack.used("lone") > 0, "a lease, and the first facts of the tenant")
    assert billing.end(signal.SIGKILL) == -signal.SIGKILL
    lone.go_on()
    until(lambda: stack.used("lone") >= limit, "what was lent is used")
    assert not lone.refused and lone.error is None, "billing has not said that nothing is left"
    billing = stack.start_billing(1)
    until(lambda: lone.refused or lone.error, "the refusal")
    assert lone.error is None and "monthly budget" in str(lone.refused[0]) and "it begins anew at" in str(lone.refused[0])
    assert billing.do("GET", "verify")["ok"]

    billing.do("PUT", "budgets/lone/month", {"limit_micro": None})
    lone.finish(10)
    until(lambda: lone.result or lone.error, "the tenant goes on without a budget")
    assert lone.error is None and lone.result == {float(lone.sent)}
    lone.session.close()
    until(lambda: ("month", "open") in crossings(node.events(), "lone"), "the crossings are in the log")
    assert crossings(node.events(), "lone") == [("month", "stopped"), ("month", "open")]
    assert billing.do("GET", "accounts/lone")["charged_micro"] == stack.used("lone")
    assert billing.end(signal.SIGTERM) == 0


def test_the_ceiling_of_a_tier_holds_where_sessions_open(stack: Stack) -> None:
    billing = stack.start_billing(1)
    billing.do("PUT", "tenants/modest/tier", {"tier": "basic"})
    billing.do("PUT", "tiers/basic", {"priority_ceiling": 3})

    def refusal() -> str:
        try:
            session = stack.node.open(tenant="modest", prio=2)
        except ConfigError as refused:
            return str(refused)
        session.close()
        return ""

    until(lambda: "3 at best" in refusal(), "the node has heard of the ceiling")
    assert "priority: 2" in refusal() and "PRIO=3" in refusal()
    stack.node.open(tenant="modest", prio=3).close()
    assert billing.end(signal.SIGTERM) == 0
