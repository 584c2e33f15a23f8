"""A tenant's member on a secured cluster: why, top and replay of what is theirs, and the messages where their key lacks the right."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Wooly, command_in
from tests.support.node import executors_held, increment
from tests.support.plane import wait_until
from tests.support.secure import SecureStack
from wooly.config import load
from wooly.link import Flush
from wooly.session import Session, open_session

BATCHES = 30
HIDDEN = "another tenant's work"


@dataclass(frozen=True)
class Shared:
    """A device that two tenants share. ``keys``: of a member of each; ``tasks``: the id of each one's task that is over."""

    stack: SecureStack
    keys: dict[str, str]
    tasks: dict[str, str]

    def environment(self, key: str, *, bus: bool = True, controller: bool = True) -> dict[str, str]:
        found = {"WOOLY_API_KEY": key, "WOOLY_TLS_CA": str(self.stack.ring.ca)}
        found |= {"WOOLY_NATS_URL": self.stack.addresses["nats"]} if bus else {}
        found |= {"CONTROLLER_URL": self.stack.addresses["controller"]} if controller else {}
        return found | {"WOOLY_BILLING_URL": self.stack.addresses["billing"]}

    def open(self, tenant: str, title: str, prio: int) -> Session:
        flags = self.environment(self.keys[tenant]) | {"REQUIRED_VRAM": "64", "PRIO": str(prio)}
        return open_session(load(flags, environ={}), title=title)

    def waits(self, tenant: str, key: str) -> Any:
        return self.stack.ask("GET", f"/api/v1/tasks/{self.tasks[tenant]}/waits", key=key)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with SecureStack(tmp_path_factory.mktemp("tenants"), WOOLY_DATA_HOST="127.0.0.1") as stack:
        for tenant in ("acme", "zebra"):
            stack.tenant(tenant)
        keys = {tenant: stack.key(role="member", tenant=tenant) for tenant in ("acme", "zebra")}
        made = Shared(stack, keys, {})
        sessions = {"acme": made.open("acme", "acme-train", 3), "zebra": made.open("zebra", "zebra-serve", 0)}
        work(stack, list(sessions.values()))
        for session in sessions.values():
            session.close()
        items = stack.ask("GET", "/api/v1/tasks")["items"]
        made.tasks.update({task["tenant"]: task["id"] for task in items})
        wait_until(lambda: whole(made), 60)
        later = [made.open("acme", "acme-later", 2), made.open("zebra", "zebra-later", 2)]
        yield made
        for session in later:
            session.close()


def whole(made: Shared) -> bool:
    """Nodes publish their journals about once a second."""
    try:
        return bool(made.waits("acme", made.keys["acme"])["finished"] == BATCHES + 1)
    except urllib.error.HTTPError as error:
        assert error.code == 409, error.read()
        return False


def work(stack: SecureStack, sessions: list[Session]) -> None:
    """All of it has left the clients before the device does any."""
    for session in sessions:
        session.wait(session.submit(Flush(allocs=[(1, 8_000_000)])))
    programs = [increment(1_000_000) for _ in sessions]
    with executors_held(stack.folder):
        tickets = [
            [session.submit(program.flush([1])) for _ in range(BATCHES)] for session, program in zip(sessions, programs, strict=True)
        ]
    for session, last in zip(sessions, tickets, strict=True):
        session.wait(last[-1])


@pytest.fixture
def wooly(tmp_path: Path) -> Wooly:
    return command_in(tmp_path)


def of_others(shared: Shared, story: Any) -> list[Any]:
    """What ran meanwhile for others; a batch may also have waited for one of its own task."""
    return [line for line in story["by_other"] if line["text"] and line["task"] != shared.tasks["acme"]]


def test_of_another_tenant_there_is_only_that_it_ran(shared: Shared) -> None:
    story = shared.waits("acme", shared.keys["acme"])
    (line,) = of_others(shared, story)
    assert (line["text"], line["session"], line["task"], line["priority"], line["core_ns"]) == (HIDDEN, "", "", -1, 0)
    assert line["ns"] > 0
    text = json.dumps(story)
    assert "zebra" not in text and shared.tasks["zebra"] not in text
    for what in ("waits", "timeline"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            shared.stack.ask("GET", f"/api/v1/tasks/{shared.tasks['zebra']}/{what}", key=shared.keys["acme"])
        assert refused.value.code == 404


def test_who_may_see_all_tenants_sees_the_name(shared: Shared) -> None:
    story = shared.waits("acme", shared.stack.admin)
    assert [line["task"] for line in of_others(shared, story)] == [shared.tasks["zebra"]]
    assert shared.waits("acme", shared.keys["acme"])["waited_ns"] == story["waited_ns"]


def test_why_answers_a_member_about_their_own_tasks(shared: Shared, wooly: Wooly) -> None:
    key = shared.keys["acme"]
    for asked in ("acme-train", shared.tasks["acme"], shared.tasks["acme"][:10]):
        done = wooly("why", asked, **shared.environment(key, bus=False))
        assert done.returncode == 0, done.stderr
        assert f"{BATCHES + 1} batches arrived" in done.stdout and HIDDEN in done.stdout and "zebra" not in done.stdout
    for asked in ("zebra-serve", shared.tasks["zebra"]):
        done = wooly("why", asked, **shared.environment(key))
        assert done.returncode == 2 and f"there is no task {asked}" in done.stderr


def test_why_answers_an_admin_about_a_session_too(shared: Shared, wooly: Wooly) -> None:
    (session,) = shared.waits("acme", shared.stack.admin)["sessions"]
    done = wooly("why", session["session"], **shared.environment(shared.stack.admin))
    assert done.returncode == 0 and "(zebra-serve) (P0) ran meanwhile" in done.stdout, done.stderr
    refused = wooly("why", session["session"], **shared.environment(shared.keys["acme"]))
    assert refused.returncode == 2 and "there is no task" in refused.stderr


def test_top_shows_a_member_their_own_sessions(shared: Shared, wooly: Wooly) -> None:
    def rows(key: str) -> set[str]:
        done = wooly("top", "--json", **shared.environment(key, bus=False))
        assert done.returncode == 0, done.stderr
        return {task["title"] for device in json.loads(done.stdout) for task in device["tasks"]}

    wait_until(lambda: rows(shared.keys["acme"]) == {"acme-later"}, 60)
    wait_until(lambda: rows(shared.stack.admin) == {"acme-later", "zebra-later"}, 60)
    shown = wooly("top", "--once", **shared.environment(shared.keys["acme"])).stdout
    assert "local gpu 0" in shown and "acme-later" in shown and "zebra" not in shown


@pytest.mark.parametrize("command", [("replay",), ("why", "acme-train"), ("top", "--once")])
def test_where_a_key_may_not_it_is_said(shared: Shared, wooly: Wooly, command: tuple[str, ...]) -> None:
    """Without a controller there is only the bus, which tells a member nothing of whole devices."""
    done = wooly(*command, **shared.environment(shared.keys["acme"], controller=False))
    assert done.returncode == 2 and "your key may not" in done.stderr and "without a tenant" in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_admin_replays(shared: Shared, wooly: Wooly) -> None:
    done = wooly("replay", **shared.environment(shared.stack.admin))
    assert done.returncode == 0 and "no difference" in done.stdout, done.stderr
