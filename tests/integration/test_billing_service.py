"""Billing beside a real bus: it answers what the log says, whatever happens to the process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from billing.projection import MINUTE_NS
from bus_schemas.events import DeviceAccounted, Event, UsageRecorded
from services.billing.projection import BillingProjection
from services.controller.web.billing import BillingClient
from services.kit.bus import connect
from services.kit.nats_server import NatsServer
from services.kit.process import free_port
from tests.support.billing import BillingProcess
from tests.support.command import command_in
from tests.support.node import until, until_async
from tests.support.plane import Controller
from tests.support.stack import plain_environment

SECOND = 1_000_000_000


class Billing(BillingProcess):
    """The service, asked with paths of its own."""

    def get(self, path: str, accept: str = "application/json") -> str:
        request = urllib.request.Request(self.url + path, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return str(answer.read().decode())


def publish(url: str, *messages: list[Event]) -> None:
    async def body() -> None:
        bus = await connect(url, name="test")
        await bus.ensure_streams()
        for message in messages:
            await bus.publish_events("usage", "n1", message)
        await bus.close()

    asyncio.run(body())


def facts(first: int, last: int) -> list[Event]:
    out: list[Event] = [
        UsageRecorded("n1", 1, 0, i, "s", f"tenant{i % 2}", f"task{i % 3}", 0, i * SECOND, (i + 1) * SECOND, 7 * i, 10**9 + i, i, 1)
        for i in range(first, last + 1)
    ]
    charged = sum(7 * i for i in range(first, last + 1))
    out.append(DeviceAccounted("n1", 1, 0, first, 0, SECOND, 2, charged, 3, 2 * SECOND - charged - 3, first, last))
    return out


def numbers(answer: str) -> Any:
    return {key: value for key, value in json.loads(answer).items() if key in ("items", "total")}


def test_killed_and_restarted_it_bills_the_same(nats: NatsServer, tmp_path: Path) -> None:
    """kill -9 between two batches of facts, with the saved view either intact, torn or deleted."""
    publish(nats.url, facts(1, 250))
    billing = Billing(nats.url, tmp_path / "a")
    billing.get("/api/v1/billing/credits?by=task")
    assert billing.end(signal.SIGKILL) == -signal.SIGKILL
    publish(nats.url, [f for f in facts(251, 300) if isinstance(f, UsageRecorded)])

    billing = Billing(nats.url, tmp_path / "a")
    again = numbers(billing.get("/api/v1/billing/credits?by=task"))
    assert billing.end(signal.SIGTERM) == 0
    (tmp_path / "a" / "billing" / "view.json").write_bytes(b"[12,")
    results = [again]
    for folder in ("a", "b"):
        billing = Billing(nats.url, tmp_path / folder)
        results.append(numbers(billing.get("/api/v1/billing/credits?by=task")))
        check = json.loads(billing.get("/api/v1/billing/verify"))
        assert check["ok"] and check["first_difference"] is None
        assert billing.end(signal.SIGTERM) == 0
    assert results[0] == results[1] == results[2]
    assert again["total"]["instructions"] == sum(range(1, 301))


def test_the_view_is_saved_beside_the_service(nats: NatsServer, tmp_path: Path) -> None:
    """By a child that ends when the service does, and leaves no part of a file."""
    publish(nats.url, facts(1, 30))
    file = tmp_path / "billing" / "view.json"

    async def a_copy() -> bool:
        return bool(copies())

    async def body() -> None:
        bus = await connect(nats.url, name="billing")
        async with BillingProjection(bus, file) as projection:
            await projection.fresh_view()
            assert projection._unsaved()
            await projection._save()
            assert file.read_bytes() == projection.view.encode() and not projection._unsaved()

            more = [UsageRecorded("n1", 1, 0, 31, "s", "tenant1", "task1", 0, 31 * SECOND, 32 * SECOND, 217, 10**9, 31, 1)]
            await bus.publish_events("usage", "n1", more)
            await projection.fresh_view()
            before = file.read_bytes()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(projection, "_write", lambda: False)  # the child's disk is full
                await projection._save()
            assert projection._unsaved() and file.read_bytes() == before

            file.with_name("view.json.1.new").write_bytes(before[:9])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(projection, "_write", signal.pause)  # the child takes long
                saving = asyncio.create_task(projection._save())
                await until_async(a_copy, "the child")
                saving.cancel()
                await asyncio.wait([saving])
            assert saving.cancelled() and not copies() and projection._unsaved()
            assert [path.name for path in file.parent.iterdir()] == ["view.json"] and file.read_bytes() == before
        assert file.read_bytes() == projection.view.encode(), "saved at the end"
        await bus.close()

    asyncio.run(body())


def copies() -> list[str]:
    """Ids of children that are copies of this process."""
    children = [pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
    return [pid for pid in children if Path(f"/proc/{pid}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes()]


def test_a_changed_bill_is_found_and_named(nats: NatsServer, tmp_path: Path) -> None:
    publish(nats.url, facts(1, 20))
    billing = Billing(nats.url, tmp_path)
    billing.get("/api/v1/billing/credits")
    assert billing.end(signal.SIGTERM) == 0
    file = tmp_path / "billing" / "view.json"
    saved = json.loads(file.read_text())
    saved[3][0][1][4] += 1  # one micro-credit more in the first row
    file.write_text(json.dumps(saved))
    billing = Billing(nats.url, tmp_path)
    check = json.loads(billing.get("/api/v1/billing/verify"))
    assert not check["ok"] and check["first_difference"].startswith("row minute=0 tenant=tenant1 task=task1 node=n1")
    billing.end(signal.SIGTERM)


def test_a_log_that_begins_anew_is_billed_from_its_beginning(nats: NatsServer, tmp_path: Path) -> None:
    """The bus lost its disk while billing runs: what is in the log now is the bill, not what was."""
    publish(nats.url, facts(1, 250))
    billing = Billing(nats.url, tmp_path / "a")
    assert numbers(billing.get("/api/v1/billing/credits"))["total"]["launches"] == 250
    nats.kill()
    shutil.rmtree(nats.folder / "store")
    nats.start()
    publish(nats.url, facts(1, 20))
    until(lambda: numbers(billing.get("/api/v1/billing/credits"))["total"]["launches"] == 20, "the new log is billed")
    assert json.loads(billing.get("/api/v1/billing/verify"))["ok"]
    assert billing.end(signal.SIGTERM) == 0


def test_a_view_that_was_saved_of_another_log_is_discarded(nats: NatsServer, tmp_path: Path) -> None:
    """The bus lost its disk while billing was down, and its new log has grown beyond the old one since."""
    publish(nats.url, facts(1, 20))
    billing = Billing(nats.url, tmp_path / "a")
    assert numbers(billing.get("/api/v1/billing/credits"))["total"]["launches"] == 20
    assert billing.end(signal.SIGTERM) == 0
    nats.kill()
    shutil.rmtree(nats.folder / "store")
    nats.start()
    publish(nats.url, facts(1, 250))
    billing = Billing(nats.url, tmp_path / "a")
    assert numbers(billing.get("/api/v1/billing/credits"))["total"]["launches"] == 250
    assert json.loads(billing.get("/api/v1/billing/verify"))["ok"]
    assert billing.end(signal.SIGTERM) == 0


def test_it_gives_no_bill_when_it_cannot_read_the_log(nats: NatsServer, tmp_path: Path) -> None:
    """A service of a newer version has written an event: what follows it is not in the view, so no sum of it is right."""
    publish(nats.url, facts(1, 20))
    billing = Billing(nats.url, tmp_path)
    billing.do("PUT", "budgets/tenant1/total", {"limit_micro": 1000})

    async def newer() -> None:
        bus = await connect(nats.url, name="test")
        await bus.publish_acked("wooly.evt.tier.premium", b"\x91\x92\xactier.set.v99\x01")
        await bus.close()

    asyncio.run(newer())
    publish(nats.url, facts(21, 40))
    for path in ("credits", "accounts/tenant1", "budgets", "statements/tenant1", "ledger", "tiers", "utilization", "verify"):
        status, text, _ = billing.ask("GET", path)
        assert (status, json.loads(text)["type"]) == (503, "urn:wooly:problem:unavailable"), path
    assert billing.end(signal.SIGTERM) == 0


def test_rest_answers(nats: NatsServer, tmp_path: Path) -> None:
    publish(nats.url, facts(1, 100))
    billing = Billing(nats.url, tmp_path)
    csv = billing.get("/api/v1/billing/credits?by=node", accept="text/csv").splitlines()
    assert csv[0].startswith("node,core_credits") and csv[1].startswith("n1,") and csv[2].startswith("total,")
    part = json.loads(billing.get(f"/api/v1/billing/credits?by=tenant&from={MINUTE_NS // SECOND}&to=1970-01-01T00:02:00"))
    assert part["total"]["launches"] == 41
    waste = json.loads(billing.get("/api/v1/billing/utilization?by=node&to=1970-01-01T00:02:00"))
    line = waste["items"][0]
    assert (line["key"], line["wall_ns"], line["used_core_ns"] + line["waste_core_ns"]) == ("n1", SECOND, 2 * SECOND)
    csv = billing.get("/api/v1/billing/utilization", accept="text/csv").splitlines()
    assert csv[0].startswith("device,busy_ns,underused_ns") and csv[1].startswith("n1/0,") and csv[2].startswith("total,")
    series = json.loads(billing.get("/api/v1/billing/utilization/series?step=minute&from=0&to=120"))
    assert [sum(line) for line in zip(*series["devices"][0]["times_ns"], strict=True)] == [SECOND, 0]
    ledger = json.loads(billing.get("/api/v1/billing/ledger"))
    assert ledger["debits_micro"] == ledger["credits_micro"] > 0 and sum(a["micro"] for a in ledger["accounts"]) == 0
    assert "wooly_billing_core_credits_total" in billing.get("/metrics", accept="text/plain")
    for query, field in (("by=colour", "by"), ("from=yesterday", "from"), ("from=9&to=3", "to")):
        for report in ("credits", "utilization"):
            with pytest.raises(urllib.error.HTTPError) as raised:
                billing.get(f"/api/v1/billing/{report}?{query}")
            problem = json.loads(raised.value.read())
            assert raised.value.code == 400 and problem["errors"][0]["field"] == field
    nats.kill()
    assert json.loads(billing.get("/health"))["status"] == "ok"
    assert billing.end(signal.SIGTERM) == 0


def test_a_relayed_request_waits_for_the_bus_as_billing_does(nats: NatsServer, tmp_path: Path) -> None:
    """A bus that is started again on a busy machine is away for longer than a page waits for billing."""
    billing = Billing(nats.url, tmp_path)
    controller = Controller(nats.url, tmp_path, WOOLY_BILLING_URL=billing.url)
    controller.start()
    nats.kill()
    with ThreadPoolExecutor(1) as asking:
        began_s = time.monotonic()
        asked = asking.submit(controller.ask, "GET", "/api/v1/billing/credits?by=tenant")
        until(lambda: asked.done() or time.monotonic() - began_s > 7, "a long outage")
        nats.start()
        assert asked.result().json["items"] == []
    assert controller.stop() == billing.end(signal.SIGTERM) == 0


def test_a_verification_may_take_long(nats: NatsServer, tmp_path: Path) -> None:
    """Longer than other requests, for it reads the whole log; also where a controller relays it."""
    publish(nats.url, facts(1, 5))
    billing = Billing(nats.url, tmp_path)
    billing.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as asking:
        began_s = time.monotonic()
        asked = asking.submit(command_in(tmp_path), "billing", "verify", WOOLY_BILLING_URL=billing.url)
        until(lambda: asked.done() or time.monotonic() - began_s > 14, "a long verification")
        billing.process.send_signal(signal.SIGCONT)
        assert asked.result().returncode == 0, asked.result().stderr
    assert billing.end(signal.SIGTERM) == 0

    reads_s: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        reads_s.append(request.extensions["timeout"]["read"])
        return httpx.Response(200)

    async def relayed() -> None:
        async with BillingClient("http://billing.example") as client:
            await client._http.aclose()
            client._http = httpx.AsyncClient(base_url=client.url, transport=httpx.MockTransport(answer), timeout=1.0)
            for path in ("verify", "ledger"):
                await client.send_raw("GET", f"/api/v1/billing/{path}")

    asyncio.run(relayed())
    assert reads_s[0] >= 600 and reads_s[1] == 1


def test_it_is_ready_only_when_the_log_is_applied(tmp_path: Path) -> None:
    """Asked from the moment it listens, over a log that takes a while."""
    nats = NatsServer(tmp_path / "nats", sync_always=False)
    nats.start()
    facts = [[UsageRecorded("n1", 1, 0, serial, "s", "t", "", 0, 0, SECOND, SECOND, 1, 1, 1)] for serial in range(1, 3_001)]
    publish(nats.url, *facts)
    address = f"127.0.0.1:{free_port()}"
    environment = plain_environment(
        WOOLY_DIE_WITH_PARENT=str(os.getpid()), WOOLY_NATS_URL=nats.url, WOOLY_HTTP=address, WOOLY_DATA_DIR=str(tmp_path / "billing")
    )
    with subprocess.Popen([sys.executable, "-P", "-m", "services.billing"], stdout=subprocess.DEVNULL, env=environment) as process:
        answers: list[dict[str, Any]] = []

        def is_ready() -> bool:
            try:
                with urllib.request.urlopen(f"http://{address}/health/ready", timeout=20) as answer:
                    answers.append(json.loads(answer.read()))
                    return True
            except urllib.error.HTTPError as error:
                answers.append(json.loads(error.read()))
            except OSError:
                pass  # it does not listen yet
            return False

        until(is_ready, "billing is ready")
        process.terminate()
    nats.stop()
    assert answers[-1]["status"] == "ok" and answers[-1]["position"] >= len(facts)
    assert all(answer["status"] == "behind" and "messages of the log are applied" in answer["detail"] for answer in answers[:-1])
