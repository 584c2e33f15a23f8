"""Money over REST and on the command line: who changes what, what is refused and how, and what the log says about it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from billing.periods import month_bounds, month_name
from bus_schemas.events import ActionTaken, Event, SessionOpenedFact, UsageRecorded
from services.kit.bus import connect
from services.kit.nats_server import NatsServer
from tests.support.billing import BillingProcess
from tests.support.stack import plain_environment

SECOND = 10**9
MICRO = 10**6
MONTH_LEFT_NS = 300 * SECOND
EVIL = '=1+1"><script>alert(1)</script>'


class Money:
    """A bus, two billing services over it, and some use in the log: 12 credits of ``lab`` in this month."""

    def __init__(self, folder: Path) -> None:
        now_ns = time.time_ns()
        self.month = month_name(now_ns)
        start_ns, end_ns = month_bounds(self.month)
        if end_ns - now_ns < MONTH_LEFT_NS:
            pytest.skip("the month ends within five minutes, and the services go by the clock")
        self.nats = NatsServer(folder / "nats")
        self.nats.start()
        opened = SessionOpenedFact(now_ns, "s", "lab", "t", "n", 0, 0, 0, title=EVIL)
        used = [UsageRecorded("n", 1, 0, i, "s", "lab", "t", 0, start_ns, start_ns + SECOND, 4 * MICRO, 0, 1, 1) for i in (1, 2, 3)]
        self.publish("session", "s", [opened])
        self.publish("usage", "n", list(used))
        self.one = BillingProcess(self.nats.url, folder / "one")
        self.two = BillingProcess(self.nats.url, folder / "two")

    def publish(self, area: str, entity: str, events: list[Event]) -> None:
        async def body() -> None:
            bus = await connect(self.nats.url, name="test")
            await bus.ensure_streams()
            await bus.publish_events(area, entity, events)
            await bus.close()

        asyncio.run(body())

    def events(self) -> list[list[Event]]:
        """Every message of the log."""

        async def body() -> list[list[Event]]:
            bus = await connect(self.nats.url, name="test")
            replay = bus.replay()
            end = await replay.history_end()
            out = []
            async for position, events in replay:
                out.append(events)
                if position >= end:
                    break
            await replay.close()
            await bus.close()
            return out

        return asyncio.run(body())

    def stop(self) -> None:
        for billing in (self.one, self.two):
            assert billing.end(signal.SIGTERM) == 0
        self.nats.stop()

    def wooly(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "wooly.cli", "credits", *arguments, "--billing", self.one.url]
        return subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def money(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Money]:
    found = Money(tmp_path_factory.mktemp("money"))
    yield found
    found.stop()


def test_a_grant_is_made_once_and_every_service_shows_it(money: Money) -> None:
    body = {"tenant": "given", "micro": 5 * MICRO, "id": "g1", "note": "welcome"}
    assert money.one.ask("POST", "grants", body)[0] == 201
    assert money.two.ask("POST", "grants", body)[0] == 200, "the same again"
    status, text, media = money.two.ask("POST", "grants", body | {"micro": 6 * MICRO})
    assert (status, media) == (409, "application/problem+json") and json.loads(text)["errors"][0]["field"] == "id"
    for billing in (money.one, money.two):
        account = billing.do("GET", "accounts/given")
        assert (account["balance_micro"], account["granted_micro"], account["tier"]) == (5 * MICRO, 5 * MICRO, "standard")
    (message,) = [events for events in money.events() if any(getattr(event, "grant", "") == "g1" for event in events)]
    assert isinstance(message[1], ActionTaken), "who did it is in the same message"
    assert (message[1].action, message[1].actor, message[1].target) == ("credits.grant", "local", "given")
    assert "5 credits" in message[1].detail and "welcome" in message[1].detail


def test_one_id_given_to_two_tenants_at_once_is_one_grant_and_the_other_is_refused(money: Money) -> None:
    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            bodies = [{"tenant": tenant, "micro": MICRO, "id": f"raced{number}"} for tenant in ("left", "right")]
            asked = [pool.submit(billing.ask, "POST", "grants", body) for billing, body in zip((money.one, money.two), bodies, strict=True)]
            assert sorted(answer.result()[0] for answer in asked) == [201, 409]
    given = [money.one.do("GET", f"accounts/{tenant}")["granted_micro"] for tenant in ("left", "right")]
    assert sum(given) == 20 * MICRO


def test_a_budget_has_revisions_and_its_state_shows_at_once(money: Money) -> None:
    made = money.one.do("PUT", "budgets/lab/month", {"limit_micro": 10 * MICRO})
    assert (made["state"], made["used_micro"], made["left_micro"]) == ("stopped", 12 * MICRO, -2 * MICRO)
    status, text, _ = money.two.ask("PUT", "budgets/lab/month", {"limit_micro": 20 * MICRO}, If_Match="0")
    assert status == 409 and json.loads(text)["revision"] == made["revision"]
    raised = money.two.do("PUT", "budgets/lab/month", {"limit_micro": 15 * MICRO, "warn_percent": 80}, If_Match=f'"{made["revision"]}"')
    assert raised["state"] == "warning" and raised["revision"] > made["revision"]
    assert money.one.do("GET", "budgets")["items"][0]["state"] == "warning"
    gone = money.one.do("PUT", "budgets/lab/month", {"limit_micro": None})
    assert gone["limit_micro"] is None and money.two.do("GET", "budgets/lab")["items"] == []


def test_prices_and_tiers_never_work_backwards(money: Money) -> None:
    before = money.one.do("GET", "credits?by=tenant")
    price = {"core_second_micro": 9 * SECOND, "gib_second_micro": 0}
    for past in ("2020-01-01", "0", str(time.time_ns() // SECOND - 3600)):
        status, text, _ = money.one.ask("PUT", "prices/standard", price | {"from": past})
        assert status == 400 and json.loads(text)["errors"][0]["field"] == "from" and "lies in the past" in text
    assert money.one.ask("PUT", "tiers/basic", {"priority_ceiling": 1, "from": "1999-12-31"})[0] == 400
    changed = money.one.do("PUT", "prices/premium", price | {"from": "2100-01-01T00:00:00Z"})
    assert changed["core_second_micro"] == 1_500_000_000 and len(changed["windows"]) == 2
    assert changed["windows"][1]["core_second_micro"] == 9 * SECOND
    money.one.do("PUT", "prices/standard", price)
    after = money.two.do("GET", "credits?by=tenant")
    assert {key: after[key] for key in ("items", "total")} == {key: before[key] for key in ("items", "total")}
    assert money.two.do("GET", "verify")["ok"]
    assert money.one.do("PUT", "tenants/given/tier", {"tier": "basic"})["tier"] == "basic"
    found = money.two.do("GET", "tiers")
    assert found["tenants"] == {"given": "basic"} and [tier["priority_ceiling"] for tier in found["items"]] == [0, 0, 2]
    stale = money.two.ask("PUT", "tiers/premium", {"priority_ceiling": 1}, If_Match="1")
    assert stale[0] == 409


def test_the_default_vram_of_a_tier_stays_until_it_is_set_or_unset(money: Money) -> None:
    def put(**body: object) -> tuple[int, int]:
        tier = money.one.do("PUT", "tiers/premium", body)
        return tier["priority_ceiling"], tier["default_vram_mb"]

    assert put(priority_ceiling=0) == (0, 0)
    assert put(priority_ceiling=0, default_vram_mb=512) == (0, 512)
    assert put(priority_ceiling=1) == (1, 512), "left out: as it was"
    assert put(priority_ceiling=0, **{"from": "2100-01-01", "default_vram_mb": 9}) == (1, 512), "not before its time"
    assert put(priority_ceiling=0, default_vram_mb=None) == (0, 0)
    assert money.two.do("GET", "verify")["ok"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "field"),
    [
        ("POST", "grants", {"tenant": "lab"}, 400, "micro"),
        ("POST", "grants", {"tenant": "lab", "micro": 0}, 400, "micro"),
        ("POST", "grants", {"tenant": "lab", "micro": 1.5}, 400, "micro"),
        ("POST", "grants", {"tenant": "", "micro": 1}, 400, "tenant"),
        ("POST", "grants", {"tenant": "lab", "micro": 10**19}, 400, "micro"),
        ("POST", "grants", {"tenant": "lab", "micro": 1, "amount": 2}, 400, "amount"),
        ("POST", "grants", {"tenant": "lab", "micro": 1, "id": "a b"}, 400, "id"),
        ("POST", "grants", b"{", 400, "body"),
        ("PUT", "budgets/lab/week", {"limit_micro": 1}, 400, "period"),
        ("PUT", "budgets/lab/day", {"limit_micro": -1}, 400, "limit_micro"),
        ("PUT", "budgets/lab/day", {"limit_micro": 1, "warn_percent": 1001}, 400, "warn_percent"),
        ("PUT", "prices/gold", {"core_second_micro": 1, "gib_second_micro": 1}, 404, None),
        ("PUT", "tiers/basic", {"priority_ceiling": 5}, 400, "priority_ceiling"),
        ("PUT", "tiers/basic", {"priority_ceiling": 1, "default_vram_mb": 0}, 400, "default_vram_mb"),
        ("PUT", "tiers/basic", {"priority_ceiling": 1, "default_vram_mb": 1 << 27}, 400, "default_vram_mb"),
        ("PUT", "tiers/basic", {"priority_ceiling": 1, "from": "soon"}, 400, "from"),
        ("PUT", "tenants/lab/tier", {"tier": "gold"}, 400, "tier"),
        ("GET", "statements/lab?month=2026-13", None, 400, "month"),
        ("GET", "statements/lab?month=" + "9" * 30, None, 400, "month"),
        ("GET", "series?step=week", None, 400, "step"),
        ("GET", "series?to=1&from=99999999999999999999", None, 400, "from"),
        ("GET", "credits?colour=red", None, 400, "colour"),
        ("GET", "accounts/../../secret", None, 404, None),
    ],
)
def test_what_is_wrong_is_named(money: Money, method: str, path: str, body: Any, status: int, field: str | None) -> None:
    found, text, media = money.one.ask(method, path, body)
    assert (found, media) == (status, "application/problem+json"), text
    if field is not None:
        assert json.loads(text)["errors"][0]["field"] == field


def test_a_body_that_is_too_large_is_refused(money: Money) -> None:
    assert money.one.ask("POST", "grants", b"[" + b" " * (1 << 20))[0] == 413


def test_the_statement_is_safe_in_every_form(money: Money) -> None:
    found = money.one.do("GET", "statements/lab")
    assert found["month"] == money.month and found["core_micro"] == 12 * MICRO == -found["closing_micro"]
    status, text, media = money.one.ask("GET", f"statements/lab?month={money.month}&format=csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert (status, media) == (200, "text/csv") and [row["model"] for row in rows if row["kind"] == "use"] == [f"'{EVIL}"]
    status, page, media = money.one.ask("GET", "statements/lab", Accept="text/html")
    assert (status, media) == (200, "text/html") and "<script" not in page and "12.000000" in page
    times = f"from={month_bounds(money.month)[0] // SECOND}&to={time.time_ns() // SECOND + 60}"
    series = money.one.do("GET", f"series?by=model&step=day&{times}")
    assert [(line["key"], sum(line["micro"])) for line in series["lines"]] == [(EVIL, 12 * MICRO)]


@pytest.mark.parametrize(
    ("path", "media"),
    [("statements/lab", "text/csv"), ("statements/lab", "text/html"), ("credits", "text/csv"), ("statements/lab", "application/json")],
)
def test_what_is_no_json_is_described_too(money: Money, path: str, media: str) -> None:
    with urllib.request.urlopen(f"{money.one.url}/schema/openapi.json", timeout=30) as answer:
        described = json.load(answer)["paths"]
    route = "/api/v1/billing/" + path.replace("/lab", "/{tenant}")
    assert media in described[route]["get"]["responses"]["200"]["content"]
    asked = urllib.request.Request(f"{money.one.url}/api/v1/billing/{path}", headers={"Accept": media})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.headers["Content-Type"] in (media, f"{media}; charset=utf-8")


def test_the_command_line_gives_limits_and_accounts(money: Money) -> None:
    def said(*arguments: str) -> str:
        done = money.wooly(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "granted 2.500000 credits to cli" in said("grant", "cli", "2.5", "--note", "hello")
    shown = said("budget", "cli", "--month", "100", "--total", "0", "--warn", "50")
    assert "month" in shown and "total" in shown and "50 %" in shown and "2.5" in shown
    assert json.loads(said("balance", "cli", "--json"))[0]["balance_micro"] == 2_500_000
    assert "is in tier premium" in said("tier", "cli", "premium") and "best priority" in said("tier")
    said("budget", "cli", "--month", "none")
    assert [item["period"] for item in json.loads(said("budget", "cli", "--json"))] == ["total"]
    assert "closing 2.5" in said("statement", "cli")
    assert said("statement", "cli", "--csv").startswith("kind,task,") and said("statement", "cli", "--html").startswith("<!doctype html>")
    assert [line["key"] for line in json.loads(said("--by", "model", "--json"))["items"]] == [EVIL]
    for wrong, part in (
        (("grant", "cli", "many"), "is not a number of credits"),
        (("grant", "cli", "0.0000001"), "finer than a micro-credit"),
        (("budget", "--month", "3"), "name the tenant"),
        (("tier", "cli"), "into which tier?"),
        (("statement", "cli", "--month", "May"), "is not a month"),
    ):
        done = money.wooly(*wrong)
        assert done.returncode == 2 and part in done.stderr
