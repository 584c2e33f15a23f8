"""Audit records on a real controller: exported, continued, verified offline with the public key; and of what was refused."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from services.kit.access.refusals import BUCKETS_MAX
from services.kit.access.tokens import make_key
from services.kit.keyring import make_audit_key
from tests.support.command import Wooly, command_in
from tests.support.plane import Plane
from tests.support.secured import PASSWORD, Reply, ask
from tests.support.stack import ROOT

ADMIN = make_key().text


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_audit_key(folder)
    return folder


@pytest.fixture(scope="module")
def plane(keys: Path) -> Iterator[Plane]:
    with Plane(
        WOOLY_AUTH="on", WOOLY_BOOTSTRAP_KEY=ADMIN, WOOLY_AUDIT_KEY=str(keys / "audit.key"), WOOLY_TRUSTED_PROXIES="127.0.0.1"
    ) as plane:
        for tenant in ("acme", "zebra"):
            assert asked(plane, "POST", "/api/v1/tenants", {"id": tenant}).status == 201
        body = {"id": "carl", "role": "admin", "tenant": "acme", "password": PASSWORD}
        assert asked(plane, "POST", "/api/v1/users", body).status == 201
        yield plane


@pytest.fixture
def wooly(plane: Plane, tmp_path: Path) -> Wooly:
    call = command_in(tmp_path)
    environment = {"CONTROLLER_URL": plane.controller.url, "WOOLY_API_KEY": ADMIN, "PYTHONPATH": str(ROOT)}
    return lambda *arguments: call(*arguments, **environment)


def asked(plane: Plane, method: str, path: str, body: Any = None, key: str = ADMIN, **headers: str) -> Reply:
    address = urlsplit(plane.controller.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    try:
        return ask(connection, method, path, body, **({"Authorization": f"Bearer {key}"} if key else {}), **headers)
    finally:
        connection.close()


def lines_of(reply: Reply) -> list[Any]:
    assert reply.status == 200 and reply.headers.get_content_type() == "application/x-ndjson"
    return [json.loads(line) for line in reply.body.splitlines()]


def test_a_file_that_is_continued_holds_every_record_once_and_is_verified_offline(
    plane: Plane, wooly: Wooly, keys: Path, tmp_path: Path
) -> None:
    file, public = tmp_path / "audit.jsonl", str(keys / "audit.pub")
    assert wooly("audit", "export", str(file)).returncode == 0
    assert asked(plane, "POST", "/api/v1/tenants", {"id": "later"}).status == 201
    more = wooly("audit", "export", str(file))
    assert more.stdout.startswith("1 new audit records in ")
    same = file.read_bytes()
    assert wooly("audit", "export", str(file)).stdout.startswith("0 new") and file.read_bytes() == same
    listed = asked(plane, "GET", "/api/v1/audit?limit=1000").json["items"][::-1]
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [{**record, "digest": ""} for record in records if "position" in record] == [{**one, "digest": ""} for one in listed]
    right = wooly("audit", "verify", str(file), "--key", public)
    assert right.returncode == 0 and right.stdout.startswith(f"the file is right: {len(listed)} audit records, after event 0"), right.stderr
    file.write_bytes(same.replace(b'"target":"later"', b'"target":"other"'))
    wrong = wooly("audit", "verify", str(file), "--key", public)
    assert wrong.returncode == 2 and "its digest is wrong" in wrong.stderr
    assert wooly("audit", "export", str(file)).returncode == 2, "a damaged file is not continued"
    make_audit_key(tmp_path)
    file.write_bytes(same)
    assert "signature by this key" in wooly("audit", "verify", str(file), "--key", str(tmp_path / "audit.pub")).stderr


def test_a_large_export_comes_in_parts_that_continue_each_other(plane: Plane) -> None:
    whole = lines_of(asked(plane, "GET", "/api/v1/audit/export"))
    found, position, digest = [], 0, ""
    for _ in range(len(whole)):
        part = lines_of(asked(plane, "GET", f"/api/v1/audit/export?limit=2&position={position}&previous={digest}"))
        if len(part) == 2:
            break
        assert part[0]["export"]["previous"] == digest
        found += part[1:-1]
        position, digest = part[-2]["position"], part[-2]["digest"]
    assert [one["position"] for one in found] == [one["position"] for one in whole[1:-1]] and found
    assert whole[0]["export"]["complete"] is True and whole[-1].keys() == {"signature"}


def test_a_tenants_admin_exports_the_tenants_records_alone(plane: Plane) -> None:
    login = asked(plane, "POST", "/api/v1/session", {"user": "carl", "password": PASSWORD}, "")
    session = {"Cookie": login.headers["Set-Cookie"].partition(";")[0]}
    lines = lines_of(asked(plane, "GET", "/api/v1/audit/export", None, "", **session))
    assert {line["tenant"] for line in lines[1:-1]} == {"acme"} and lines[0]["export"]["tenant"] == "acme"


@pytest.mark.parametrize("query", ["previous=zz", "position=-1", "limit=0", f"previous={'A' * 64}"])
def test_malformed_questions_are_refused(plane: Plane, query: str) -> None:
    assert asked(plane, "GET", f"/api/v1/audit/export?{query}").status == 400


def test_a_controller_without_a_key_exports_nothing(tmp_path: Path) -> None:
    with Plane(tmp_path) as plane:
        answer = plane.controller.ask("GET", "/api/v1/audit/export")
        assert answer.status == 409 and b"WOOLY_AUDIT_KEY" in answer.body


def refused(plane: Plane, query: str = "", key: str = ADMIN, **headers: str) -> list[dict[str, Any]]:
    """The records of refusals, the newest first, with the counts of the running minute: a controller writes those when it stops."""
    plane.controller.stop()
    plane.controller.start()
    items = asked(plane, "GET", f"/api/v1/audit?limit=1000{query}", None, key, **headers).json["items"]
    return [item for item in items if item["action"] in ("session.fail", "access.deny")]


def test_failures_and_denials_are_counted_by_caller_and_address(plane: Plane) -> None:
    wrong = {"user": "carl", "password": "not his password"}
    for address in ("203.0.113.1", "203.0.113.1", "203.0.113.2"):
        assert asked(plane, "POST", "/api/v1/session", wrong, "", X_Forwarded_For=address).status == 401
    mistyped = {"user": PASSWORD, "password": "carl"}
    assert asked(plane, "POST", "/api/v1/session", mistyped, "", X_Forwarded_For="203.0.113.1").status == 401
    made = asked(plane, "POST", "/api/v1/keys", {"user": "carl", "title": "k"}).json
    for _ in range(2):
        denied = asked(plane, "POST", "/api/v1/tenants", {"id": "mine"}, made["key"], X_Forwarded_For="2001:db8::1")
        assert denied.status == 403
    assert asked(plane, "DELETE", f"/api/v1/keys/{made['id']}").status == 200
    assert asked(plane, "GET", "/api/v1/tasks", None, made["key"], X_Forwarded_For="203.0.113.3").status == 401
    found = refused(plane)
    shown = {(one["action"], one["actor"], one["target"], one["detail"], one["tenant"], one["source"]) for one in found}
    assert shown == {
        ("session.fail", "carl", "", "wrong password, 2 times", "acme", "203.0.113.1"),
        ("session.fail", "carl", "", "wrong password, 1 time", "acme", "203.0.113.2"),
        ("session.fail", "", "", "wrong password, 1 time", None, "203.0.113.1"),
        ("session.fail", made["id"], "", "the key is not valid (revoked), 1 time", "acme", "203.0.113.3"),
        ("access.deny", "carl", "tenant.write", "denied, 2 times", "acme", "2001:db8::/64"),
    }
    assert PASSWORD not in json.dumps(found), "what is typed instead of a name is not kept"
    login = asked(plane, "POST", "/api/v1/session", {"user": "carl", "password": PASSWORD}, "")
    session = {"Cookie": login.headers["Set-Cookie"].partition(";")[0]}
    assert len(refused(plane, "", "", **session)) == 4, "those of the tenant's own user and key"
    page = asked(plane, "GET", "/settings/audit?action=session.fail").body.decode()
    assert page.count("wrong password, ") == 3


def test_a_flood_of_unauthenticated_callers_writes_few_records(plane: Plane) -> None:
    before = len(refused(plane))
    for number in range(100):
        found = asked(plane, "GET", "/api/v1/tasks", None, make_key().text, X_Forwarded_For=f"198.51.100.{number}")
        assert found.status == 401
    more = refused(plane)[: len(refused(plane)) - before]
    assert len(more) == BUCKETS_MAX + 1
    assert sum(int(one["detail"].split(", ")[1].split()[0]) for one in more) == 100
