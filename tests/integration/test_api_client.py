"""wooly.api against real services with authentication on: every method, every operation of the OpenAPI documents, every field."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import pytest

from bus_schemas.events import DeviceAccounted, SessionOpenedFact, UsageRecorded
from bus_schemas.telemetry import RunningSession, Telemetry
from tests.support.plane import GIB, wait_until
from tests.support.secured import HOME, OTHER, Secured
from wooly.api import Client
from wooly.errors import ApiError, ConfigError, NoServerError, ProtocolError

LEFT_OUT = {
    ("DELETE", "/api/v1/session"), ("GET", "/api/v1/audit/export"), ("GET", "/api/v1/billing/budgets/{tenant}"),
    ("GET", "/api/v1/billing/ledger"), ("GET", "/api/v1/keys/{key}"), ("GET", "/api/v1/placements"), ("GET", "/api/v1/tenants/{tenant}"),
    ("GET", "/api/v1/users/{user}"), ("POST", "/api/v1/placements/query"), ("POST", "/api/v1/session"),
    ("POST", "/api/v1/session/oidc"), ("POST", "/api/v1/session/password"), ("POST", "/api/v1/tokens"), ("PUT", "/api/v1/session/totp"),
    ("POST", "/api/v1/session/totp/removal"),
}  # fmt: skip
"""Operations that the client has no method for."""


NOT_FOR_CLIENTS = {"csrf_token", "position"}
"""Of browsers, and of lists that say at which position of the log they were made."""


class Recorded(Client):
    """A client that keeps what it asked and what was answered."""

    asked: list[tuple[str, str, set[str]]]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.asked = []
        self.left_out: list[str] = []

    def _ask(self, method: str, path: str, answer: Any, data: bytes | None, headers: dict[str, str], more_s: float = 0.0) -> Any:
        self.asked.append((method, f"/api/v1/{path}", set(json.loads(data)) if data else set()))
        raw = super()._ask(method, path, Any, data, headers, more_s) if answer is not type(None) else None
        found = msgspec.convert(raw, answer) if answer is not type(None) else super()._ask(method, path, answer, data, headers)
        self.left_out += missing(raw, msgspec.to_builtins(found), path)
        return found


def missing(raw: Any, kept: Any, where: str) -> list[str]:
    """The names in an answer that its struct does not have."""
    if isinstance(raw, dict) and isinstance(kept, dict):
        return [f"{where}: {name}" for name in raw.keys() - kept.keys() - NOT_FOR_CLIENTS] + [
            text for name in raw.keys() & kept.keys() for text in missing(raw[name], kept[name], f"{where} {name}")
        ]
    if isinstance(raw, list) and isinstance(kept, list):
        return [text for one, other in zip(raw, kept, strict=True) for text in missing(one, other, where)]
    return []


@pytest.fixture(scope="module")
def house() -> Iterator[Secured]:
    with Secured() as house:
        now_ns = time.time_ns()
        key, _ = house.key(user=f"{HOME}-member")  # usage counts for sessions of a tenant's keys
        opened = SessionOpenedFact(now_ns - 10**9, f"{key}-s", HOME, f"{HOME}-task", "node-a", 0, 2, GIB)
        house.plane.publish("session", opened.session, opened)
        usage = UsageRecorded(
            "node-a", 1, 0, 1, opened.session, HOME, f"{HOME}-task", 0, now_ns - 10**9, now_ns, 10**9, 10**6, 1, 1
        )  # fmt: skip
        accounts = DeviceAccounted("node-a", 1, 0, 1, now_ns - 10**9, 10**9, 2, 10**9, 0, 10**9, 1, 1, 10**9)
        unused = DeviceAccounted("node-a", 1, 0, 2, now_ns, 10**9, 2, 0, 0, 2 * 10**9, 2, 1)
        house.plane.publish("usage", "node-a", usage, accounts, unused)
        running = RunningSession(f"{HOME}-session", f"{HOME}-task", 2, GIB, HOME, core_ns=7)
        house.plane.publish_telemetry(Telemetry(now_ns, "node-a", 1, 0, 1000, 50, 5, 8 * GIB, GIB, running=(running,), cores=2))
        wait_until(lambda: bool(house.admin("GET", "/api/v1/telemetry").json["items"]))
        yield house


@pytest.fixture(scope="module")
def client(house: Secured) -> Recorded:
    found = Recorded(house.plane.controller.url, api_key=house.admin_key)
    use(found)
    return found


def use(client: Client) -> None:
    """Call every method, with every argument that is sent."""
    assert client.identity().role == "admin"
    placed = client.submit(100, title="first", tenant=HOME)
    assert placed.node == "node-a" and placed.placement is not None and placed.placement.candidates[0].measured is not None
    alone = client.submit(
        100, id="alone", tenant=HOME, priority=0, gpu_mode="Exclusive", queue=True, queue_timeout_ms=10**6, title="alone", weight=200,
    )  # fmt: skip
    assert alone.node is None and client.waiting("alone").remedies
    assert client.tasks(state="queued", tenant=HOME, search="alone").total == 1
    assert client.tasks(priority=0, node="node-a", group="team", sort="id", limit=5, offset=0).items == []
    assert client.set_priority("alone", 3, revision=client.task("alone").revision).priority == 3
    assert client.cancel("alone").state == "cancelled"
    assert client.stay("alone", "it is not being moved").move is None
    held = client.submit(
        100, id="held", tenant=HOME, gpu_mode="Exclusive", queue=True, reservation=True, start_lease_ms=10**6, gang="pair", gang_size=2
    )
    assert (held.reservation, held.start_lease_ms, held.node) == (True, 10**6, None)
    assert [client.release("held", failed=failed, reason="done").state for failed in (False, True)] == ["completed"] * 2
    for moves, why in (
        (lambda: client.release("alone"), "is not a reservation"),
        (lambda: client.move("alone", "node-a"), "does not run"),
        (lambda: client.place_again("alone"), "has not lost its node"),
    ):
        with pytest.raises(ApiError, match=why) as refused:
            moves()
        assert refused.value.status == 409
    assert client.placement(placed.id).state == "placed"
    with pytest.raises(ApiError, match="no runner takes scripts of tenant") as refused:  # there is none in this house
        client.submit_run("pass", 100, tenant=HOME)
    assert refused.value.status == 400
    assert client.log(placed.id).ended and client.log(placed.id).run is None
    for of_the_journal in (lambda: client.timeline("alone"), lambda: client.waits("alone"), lambda: client.programs("alone")):
        with pytest.raises(ApiError, match="has not run") as refused:
            of_the_journal()
        assert refused.value.status == 409
    assert client.nodes(state="ready", search="node-a").items[0].devices[0].vram_bytes == 8 * GIB
    assert client.drain("node-a").state == "drained" and client.resume("node-a").state == "ready"
    node = client.configure_node("node-a", overcommit_vram_percent=50, drained=False)
    assert client.configure_node("node-a", overcommit_vram_percent=None, revision=node.revision).overcommit_vram_percent is None
    assert client.node("node-a").name == "node-a-name" and client.nodes(group="nights").total == 0
    seen = client.telemetry().items[0]
    assert (seen.node, seen.running[0].task, seen.running[0].core_ns) == ("node-a", f"{HOME}-task", 7) and seen.at.tzinfo is not None
    config = client.configure(20, queue_age_ms=1000, queue_protect_ms=2000, queue_reservations_max=3, default_vram_mb=64, pack=1)
    assert client.configure(20, defragment_after_ms=60_000).defragment_after_ms == 60_000
    config = client.configure(20, defragment_after_ms=None)
    assert (config.default_vram_overcommit_percent, config.source, config.default_vram_mb, config.pack) == (20, "stored", 64, 1)
    kept = client.configure(None, queue_age_ms=None, queue_protect_ms=None, default_vram_mb=None, revision=config.revision)
    assert client.config() == kept and (kept.queue_age_ms, kept.queue_reservations_max, kept.default_vram_mb) == (600_000, 3, 4096)
    assert client.create_group("night", title="Night", nodes=("node-a",)).own_nodes == ["node-a"]
    assert client.edit_group("night", title="Nights", nodes=()).title == "Nights"
    assert client.group("night").nodes == [] and client.groups().total == 2
    assert client.delete_group("night") is None
    assert client.credits("task", from_="2020-01-01", to="2100-01-01", tenant=HOME, task=f"{HOME}-task").items[0].launches == 1
    assert client.grant(HOME, 7_000_000, id="seven", note="test").credits == "7.000000"
    assert client.grants(tenant=HOME).total == 2
    budget = client.set_budget(HOME, "day", 5_000_000, warn_percent=50, stop_percent=90, note="test")
    assert client.set_budget(HOME, "day", None, revision=budget.revision).limit_micro is None
    assert client.budgets(tenant=HOME).items[0].period == "month"
    assert client.account(HOME).balance_micro == client.accounts(tenant=HOME).items[0].balance_micro
    assert client.set_tier(HOME, "premium", from_="2100-01-01").next_tier == "premium" and len(client.tiers().items) == 3
    tier = client.configure_tier("premium", 1, default_vram_mb=512, live_tasks=900, exclusive=True, queued_tasks=90, hold_percent=50)
    assert client.configure_tier("premium", 0, from_="", revision=tier.revision).default_vram_mb == 512
    priced = client.set_price("premium", core_second_micro=1, gib_second_micro=2, from_="2100-01-01")
    assert client.prices().items[0] == priced and priced.windows[-1].gib_second_micro == 2
    series = client.series("task", from_="", to="", step="minute", tenant=HOME, top=2)
    assert sum(series.lines[0].micro) > 0 and len(series.lines[0].micro) == len(series.times)
    report = client.utilization("task", from_="2020-01-01", to="2100-01-01", tenant=HOME, task=f"{HOME}-task")
    assert report.items[0].waste_core_ns == 10**9 and report.total.busy_ns + report.total.underused_ns == 10**9 == report.total.wall_ns
    buckets = client.utilization_series(from_="", to="", step="minute", tenant=HOME, top=1)
    assert sum(map(sum, buckets.devices[0].times_ns)) == 10**9 and len(buckets.states) == len(buckets.devices[0].times_ns)
    assert client.verify().ok and client.verify().first_difference is None
    found = client.statement(HOME, time.strftime("%Y-%m", time.gmtime()))
    assert found.opening_micro + found.granted_micro - found.core_micro - found.vram_micro == found.closing_micro and found.lines
    assert client.create_tenant("initech", title="Initech").id == "initech"
    assert client.change_tenant("initech", title="Initech Inc.", disabled=False).title == "Initech Inc."
    (tasks,) = [use for use in client.quotas(HOME).items if use.quota == "live_tasks"]
    assert (tasks.tenant, tasks.limit, tasks.regained) == (HOME, 1_000, 0) and tasks.used
    assert {tenant.id for tenant in client.tenants().items} >= {HOME, OTHER, "initech"}
    user = client.create_user("peter", "member", tenant="initech", title="Peter", password="a cover sheet on each")
    assert user.has_password
    changed = client.change_user(
        "peter", role="viewer", tenant="initech", title="P.", disabled=False, password="", oidc_name="peter@example.org"
    )
    assert (changed.role, changed.has_password) == ("viewer", False) and client.users(tenant="initech").total == 1
    key = client.create_key(title="of peter", user="peter", tenant="initech", role="viewer", scopes=("read",), expires_in_s=3600)
    assert key.key.startswith("wk_") and key.key not in repr(key)
    assert client.keys(tenant="initech", user="peter").items[0].expires_at is not None
    assert client.create_key(role="node", node="node-a").node == "node-a"
    assert client.revoke_key(key.id).state == "revoked"
    with pytest.raises(ApiError, match="no second factor"):
        client.remove_totp("peter")
    erased = client.erase_user("peter")
    assert (erased.title, erased.oidc_name, erased.disabled) == ("", None, True)
    assert client.erase_tenant("initech").disabled
    hour = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)
    done = client.audit(action="key.write", tenant="initech", target=key.id, after=hour[0], before=hour[1], limit=1, offset=0)
    assert done.total == 2 and done.items[0].source is not None
    assert client.audit(actor=done.items[0].actor, limit=1).items[0].actor == done.items[0].actor


def operations(house: Secured) -> dict[tuple[str, str], dict[str, Any]]:
    """(method, path) -> operation, of both documents, under /api/."""
    found = {}
    for document in ("openapi", "billing"):
        with urllib.request.urlopen(f"{house.plane.controller.url}/schema/{document}.json") as answer:
            described = json.loads(answer.read())
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                if path.startswith("/api/"):
                    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
                    schema = described["components"]["schemas"].get(str(body.get("$ref", "")).rpartition("/")[2], {})
                    names = {parameter["name"] for parameter in operation.get("parameters", ())}
                    found[method.upper(), path] = {"parameters": names, "body": set(schema.get("properties", {}))}
    return found


def test_every_method_has_an_operation_with_these_parameters_and_fields(house: Secured, client: Recorded) -> None:
    described = operations(house)
    sent: dict[tuple[str, str], set[str]] = {}
    for method, address, fields in client.asked:
        path, _, query = address.partition("?")
        matching = [key for key in described if key[0] == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", key[1]), path)]
        assert matching, f"no document describes {method} {path}"
        key = min(matching, key=lambda found: found[1].count("{"))
        assert {name for name, _ in parse_qsl(query)} <= described[key]["parameters"], key
        sent.setdefault(key, set()).update(fields)
    for key, fields in sent.items():
        assert fields == described[key]["body"], key
    assert described.keys() - sent.keys() == LEFT_OUT


def test_every_method_was_called_and_no_field_of_an_answer_is_left_out(client: Recorded) -> None:
    assert client.left_out == []
    public = {name for name in vars(Client) if not name.startswith("_")} - {"configured"}
    import inspect

    called = set(re.findall(r"client\.(\w+)\(", inspect.getsource(use)))
    assert called == public


def test_refusals_say_status_sentence_and_fields(house: Secured, client: Recorded) -> None:
    with pytest.raises(ApiError, match="there is no task none") as found:
        client.task("none")
    assert found.value.status == 404
    with pytest.raises(ApiError) as found:
        client.submit(0)
    assert found.value.status == 400 and found.value.fields[0][0] == "required_vram_mb"
    with pytest.raises(ApiError, match="its revision is") as found:
        client.configure_node("node-a", drained=True, revision=1)
    assert found.value.status == 409
    stranger = Client(house.plane.controller.url, api_key=house.askers["revoked"].key)
    for refused in (stranger.nodes, stranger.credits):
        with pytest.raises(ApiError, match="wooly login") as found:
            refused()
        assert found.value.status == 401
    member = Client(house.plane.controller.url, api_key=house.askers[f"{HOME} member"].key)
    with pytest.raises(ApiError) as found:
        member.grant(HOME, 1)
    assert found.value.status == 403


def test_a_tenant_sees_the_utilization_of_its_own_tasks_only(house: Secured, client: Recorded) -> None:
    """The device was held by a task of one tenant for a second, and by none for another."""
    assert {line.key: line.wall_ns for line in client.utilization("tenant").items} == {HOME: 10**9, "": 10**9}
    url = house.plane.controller.url
    member = Client(url, api_key=house.askers[f"{HOME} member"].key)
    other = Client(url, api_key=house.askers[f"{OTHER} member"].key)
    assert [line.key for line in member.utilization("tenant").items] == [HOME]
    assert member.utilization("device").total.wall_ns == member.utilization("device", tenant=HOME).total.wall_ns == 10**9
    assert other.utilization("device").items == () == other.utilization("task", task=f"{HOME}-task").items
    assert other.utilization_series(step="minute").devices == ()
    for asked in (lambda: other.utilization("task", tenant=HOME), lambda: other.utilization_series(tenant=HOME)):
        with pytest.raises(ApiError) as refused:
            asked()
        assert refused.value.status in (403, 404)
    everything = read(house, house.admin_key, "/utilization?by=task")
    assert "States of node-a-name GPU 0" in everything and "(none)" in everything
    own, nothing = (read(house, house.askers[f"{tenant} member"].key, "/utilization?by=task") for tenant in (HOME, OTHER))
    assert f"/tasks/{HOME}-task" in own and "(none)" not in own
    assert "No device has accounted for this period" in nothing and HOME not in nothing
    rows = read(house, house.askers[f"{HOME} member"].key, "/utilization/export.csv?by=tenant").splitlines()
    assert [row.partition(",")[0] for row in rows] == ["tenant", HOME, "total"]


def read(house: Secured, key: str, path: str) -> str:
    """A page, as this key sees it."""
    request = urllib.request.Request(house.plane.controller.url + path, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def test_wrong_addresses(house: Secured) -> None:
    with pytest.raises(NoServerError, match="does not answer"):
        Client("http://127.0.0.1:1").nodes()
    with pytest.raises(ConfigError, match="plain text"):
        Client("http://controller.example", api_key="wk_x").nodes()
    with pytest.raises((ProtocolError, ApiError)):
        Client(house.billing_url, api_key=house.admin_key).nodes()


def test_the_client_of_the_configuration(house: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(house.folder))
    monkeypatch.delenv("CONTROLLER_URL", raising=False)
    with pytest.raises(ConfigError, match="CONTROLLER_URL"):
        Client.configured()
    monkeypatch.setenv("CONTROLLER_URL", house.plane.controller.url)
    monkeypatch.setenv("WOOLY_API_KEY", house.admin_key)
    assert Client.configured().nodes().total == 1
