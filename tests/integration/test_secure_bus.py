"""Every identity on the bus of a real secure stack, and everything that it must not do, tried."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import secrets
import socket
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from bus_schemas import faults, subjects
from bus_schemas.access import Principal, WhoIs, who_subject
from bus_schemas.allowance import AskAllowances, allowance_request
from bus_schemas.dataport import Denied, Hello, decode_answer
from bus_schemas.events import (
    ActionTaken,
    DeviceFact,
    Event,
    KeyIssued,
    NodeLost,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    UsageRecorded,
    encode_events,
)
from bus_schemas.frames import HEAD, frame
from bus_schemas.session import EndTask, OpenSession, Ping, Pong, SessionOpened
from services.kit.access.access import BUCKET
from services.kit.access.checker import NO_SECRET
from services.kit.access.tokens import Token, make_key, write_token
from services.kit.bus import Bus
from services.kit.errors import BusRefused
from services.kit.nats_jwt import USER, new_seed
from tests.support.bus_matrix import hearing, may_hear, may_publish, publishing
from tests.support.command import Wooly, in_the_end
from tests.support.node import until
from tests.support.secure import Line, SecureStack, line
from tests.support.stack import ROOT
from tests.support.world import DEADLINE_S, END, World, last_facts, refused, settled
from wooly.config import Config
from wooly.errors import NoServerError, TaskCancelledError
from wooly.link import Flush
from wooly.session import open_session

SCRIPT = """
import torch
torch.manual_seed(1)
x = torch.randn(64, 8, device="cuda")
model = torch.nn.Linear(8, 1).cuda()
opt = torch.optim.SGD(model.parameters(), 0.1)
first = None
for _ in range(20):
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    first = first if first is not None else loss.item()
big = torch.arange(1 << 20, dtype=torch.float32)
assert torch.equal(big.cuda().cpu(), big)
print("learned", loss.item() < first / 10)
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with SecureStack(tmp_path_factory.mktemp("secure"), WOOLY_DATA_HOST="127.0.0.1") as stack:
        yield World(stack)


def wooly_as(world: World, key: str) -> Wooly:
    environment = world.stack.client_environment(key, PYTHONPATH=str(ROOT))

    def wooly(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "wooly.cli", *arguments]
        return subprocess.run(command, env=environment | environ, capture_output=True, text=True, timeout=120)

    return wooly


@pytest.mark.parametrize("command", [["ping"], ["replay", "--json"]])
def test_the_command_line_comes_in_with_a_key(world: World, command: list[str]) -> None:
    """``wooly replay`` reads the whole log: the admin's key may. First in this file: later tests leave garbage in the journals."""
    said = in_the_end(wooly_as(world, world.a if command == ["ping"] else world.stack.admin), *command)
    assert "local" in said or world.n1 in said


@pytest.mark.parametrize("role", ["admin", "member"])
def test_the_model_cache_is_open_to_admin_and_member(world: World, tmp_path: Path, role: str) -> None:
    wooly = wooly_as(world, {"admin": world.stack.admin, "member": world.a}[role])
    save_file({"weight": np.ones((8, 8), np.float32)}, tmp_path / "base.safetensors")
    name = f"base-of-{role}"
    said = in_the_end(wooly, "model-cache", "add", "--source", str(tmp_path / "base.safetensors"), "--name", name)
    assert said.startswith(f"{name}: 1 tensors")
    assert name in in_the_end(wooly, "model-cache", "list")
    assert "deleted" in in_the_end(wooly, "model-cache", "delete", name)


@pytest.mark.parametrize(
    ("who", "command", "says"),
    [
        ("viewer", ["model-cache", "list"], r"this key may not publish to wooly\.node\..*\.req\.model-cache\."),
        ("member", ["top", "--once"], "your key may not hear the measurements of all tenants .*; with CONTROLLER_URL set"),
    ],
)
def test_the_command_line_names_what_the_key_may_not_do(world: World, who: str, command: list[str], says: str) -> None:
    wooly = wooly_as(world, {"viewer": world.watcher, "member": world.a}[who])
    in_the_end(wooly, "ping")
    done = wooly(*command)
    assert done.returncode == 2
    assert re.search(f"wooly: {says}", done.stderr), done.stderr


IDENTITIES = ["A", "B", "watcher", "node 1", "node 2", "controller", "billing", "runner"]


@pytest.mark.parametrize("identity", IDENTITIES)
def test_publishing(world: World, identity: str) -> None:
    table = publishing(world.names)

    async def body() -> set[str]:
        async with line(world.stack, **world.way_in(identity)) as bus:
            for subject in [*table.values(), END]:
                await bus.client.publish(subject, b"\x90")
            await settled(bus, "publish")
            return {name for name, subject in table.items() if not refused(bus.refused, "publish", subject)}

    assert asyncio.run(body()) == may_publish(world.names)[identity]


@pytest.mark.parametrize("identity", IDENTITIES)
def test_hearing(world: World, identity: str) -> None:
    table = hearing(world.names)

    async def body() -> set[str]:
        async with line(world.stack, **world.way_in(identity)) as bus:
            for subject in [*table.values(), END]:
                await bus.client.subscribe(subject)
            await settled(bus, "subscription")
            return {name for name, subject in table.items() if not refused(bus.refused, "subscription", subject)}

    assert asyncio.run(body()) == may_hear(world.names)[identity]


class TestComingIn:
    def test_no_connection_without_a_good_key(self, world: World) -> None:
        stack = world.stack
        expired = stack.key(role="member", tenant="acme", expires_in_s=1)
        revoked = stack.key(role="member", tenant="acme")
        stack.ask("DELETE", f"/api/v1/keys/{revoked.split('_')[1]}")
        until(lambda: _denied(stack, expired), "the key to expire")
        for key in ("", _other_secret(world.a), make_key().text, expired, revoked, world.viewer):
            with pytest.raises(nats.errors.Error, match="Authorization"):
                asyncio.run(_connect(stack, key))

    def test_a_seed_that_is_not_the_services(self, world: World) -> None:
        with pytest.raises(nats.errors.Error, match="Authorization"):
            asyncio.run(_connect(world.stack, "", new_seed(USER)))

    def test_plain_text_is_not_spoken(self, world: World) -> None:
        port = int(world.stack.addresses["nats"].rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as plain:
            plain.sendall(b'CONNECT {"user":"x","pass":"y"}\r\nPING\r\n')
            plain.settimeout(DEADLINE_S)
            said = _rest(plain)
            assert b"PONG" not in said
            assert b"INFO" not in said

    def test_an_unknown_authority_is_not_believed(self, world: World) -> None:
        host, port = "127.0.0.1", int(world.stack.addresses["nats"].rsplit(":", 1)[1])
        with socket.create_connection((host, port), DEADLINE_S) as raw, pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(raw, server_hostname=host)
        with socket.create_connection((host, port), DEADLINE_S) as raw, pytest.raises(ssl.SSLCertVerificationError):
            world.stack.context.wrap_socket(raw, server_hostname="somebody.example")

    def test_a_node_with_a_key_of_another_does_not_start(self, world: World, tmp_path: Path) -> None:
        environment = world.stack.client_environment(
            world.node2, NODE_NAME="somebody", WOOLY_BACKEND="reference", WOOLY_DATA_DIR=str(tmp_path), PYTHONPATH=str(ROOT)
        )
        command = [sys.executable, "-P", "-m", "services.server"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert "is WOOLY_API_KEY a key of this node?" in done.stderr


class TestRevoking:
    def test_a_connection_ends_at_once(self, world: World) -> None:
        key = world.stack.key(role="member", tenant="acme")

        async def body() -> None:
            async with line(world.stack, key) as bus:
                await asyncio.to_thread(world.stack.ask, "DELETE", f"/api/v1/keys/{key.split('_')[1]}")
                await asyncio.wait_for(bus.ended.wait(), DEADLINE_S)

        asyncio.run(body())

    def test_a_disabled_tenant_is_out(self, world: World) -> None:
        world.stack.tenant("gone")
        key = world.stack.key(role="member", tenant="gone")

        async def body() -> None:
            async with line(world.stack, key) as bus:
                await asyncio.to_thread(world.stack.ask, "PATCH", "/api/v1/tenants/gone", {"disabled": True})
                await asyncio.wait_for(bus.ended.wait(), DEADLINE_S)

        asyncio.run(body())
        with pytest.raises(nats.errors.Error, match="Authorization"):
            asyncio.run(_connect(world.stack, key))

    def test_its_sessions_end(self, world: World) -> None:
        key = world.stack.key(role="member", tenant="acme")

        async def body() -> None:
            principal = key.split("_")[1]
            async with line(world.stack, key) as bus:
                opened = await _open(bus.client, world.n1, principal, f"{principal}-doomed")
                assert opened.fault is None
            await asyncio.to_thread(world.stack.ask, "DELETE", f"/api/v1/keys/{principal}")

        asyncio.run(body())
        doomed = f"{key.split('_')[1]}-doomed"
        until(lambda: any(isinstance(fact, SessionClosedFact) for fact in world.facts(doomed)), "the session to end")


class TestSessions:
    def test_the_tenant_is_the_keys(self, world: World) -> None:
        async def body() -> SessionOpened:
            principal = world.names.a
            async with line(world.stack, world.a) as bus:
                return await _open(bus.client, world.n1, principal, f"{principal}-mine", tenant="best")

        opened = asyncio.run(body())
        assert (opened.fault, opened.tenant) == (None, "acme"), "the client shows who pays"
        found = until(lambda: world.facts(f"{world.names.a}-mine"), "the fact of the session")
        assert isinstance(found[0], SessionOpenedFact)
        assert found[0].tenant == "acme"

    def test_a_name_of_another_principal(self, world: World) -> None:
        async def body() -> list[SessionOpened]:
            async with line(world.stack, world.b) as bus:
                return [await _open(bus.client, world.n1, world.names.b, name) for name in (f"{world.names.a}-mine", "anything", "")]

        for opened in asyncio.run(body()):
            assert opened.fault is not None
            assert opened.fault.name == faults.MALFORMED
            assert not opened.token

    def test_a_task_of_another_tenant(self, world: World) -> None:
        task = world.stack.ask("POST", "/api/v1/tasks", {"required_vram_mb": 10, "tenant": "acme", "title": "x"})

        async def body() -> SessionOpened:
            async with line(world.stack, world.b) as bus:
                return await _open(bus.client, world.n1, world.names.b, f"{world.names.b}-thief", task=task["id"])

        opened = asyncio.run(body())
        assert opened.fault is not None
        assert opened.fault.name == faults.ACCESS_DENIED

    def test_a_task_on_a_node_where_it_was_not_placed(self, world: World) -> None:
        """It could not be billed there."""
        task = world.stack.ask("POST", "/api/v1/tasks", {"required_vram_mb": 10, "tenant": "acme", "title": "x"})["id"]
        asked = msgspec.msgpack.encode(WhoIs(world.names.a, task))

        async def body() -> list[bool]:
            said = []
            for node in ("node 1", "node 2"):
                async with line(world.stack, **world.way_in(node)) as bus:
                    name = world.n1 if node == "node 1" else "n2"
                    answer = await bus.client.request(who_subject(name), asked, timeout=DEADLINE_S)
                    said.append(msgspec.msgpack.decode(answer.data, type=Principal).task_good)
            return said

        assert asyncio.run(body()) == [True, False]

    def test_an_answer_goes_to_the_asker_only(self, world: World) -> None:
        """The bus does not look at reply subjects: the node does."""

        async def body() -> list[bytes]:
            async with line(world.stack, world.a) as mine, line(world.stack, world.b) as other:
                box = await mine.client.subscribe(f"{subjects.inbox_prefix(world.names.a)}.x.y")
                await mine.client.flush()
                await other.client.publish(subjects.discover(world.names.b), b"", reply=f"{subjects.inbox_prefix(world.names.a)}.x.y")
                answer = await other.client.request(subjects.discover(world.names.b), b"", timeout=DEADLINE_S)  # is answered later
                assert answer.data
                await mine.client.flush()
                return [message.data for message in [await box.next_msg(0.2)]] if box.pending_msgs else []

        assert asyncio.run(body()) == []


def _made_up(session: str, task: str, serial: int, at_ns: int) -> UsageRecorded:
    return UsageRecorded("n2", 1, 0, serial, session, "best", task, 0, at_ns - 10**9, at_ns, 10**15, 0, 1, 1)


class TestForgery:
    """What the bus lets happen, and does no harm."""

    def test_usage_that_a_node_makes_up_is_not_charged(self, world: World) -> None:
        session = f"{world.names.b}-made-up"
        now_ns = time.time_ns()
        device = DeviceFact(0, "d", "host", 1 << 18, 1 << 40)
        task = world.stack.ask("POST", "/api/v1/tasks", {"required_vram_mb": 10, "tenant": "best", "title": "x"})["id"]
        said: list[tuple[str, Event]] = [
            ("node.n2", NodeRegistered(now_ns, "n2", "n2", "", 1, (device,))),
            ("usage.n2", _made_up("unknown", "", 1, now_ns)),
            (f"session.{session}.n2", SessionOpenedFact(now_ns, session, "best", task, "n2", 0, 2, 1 << 20)),
            ("usage.n2", _made_up(session, task, 2, now_ns)),
            ("node.n2", NodeLost(now_ns, "n2", 1, "stopped")),
        ]

        async def body() -> None:
            async with line(world.stack, **world.way_in("node 2")) as bus:
                for subject, event in said:
                    await bus.client.publish(f"wooly.evt.{subject}", encode_events([event]))
                await bus.client.flush()

        asyncio.run(body())
        found = until(lambda: world.stack.ask("GET", "/api/v1/billing/verify", service="billing")["findings"], "the findings")
        assert all("node n2, " in text for text in found)
        assert len(found) == 2, found
        assert world.stack.ask("GET", "/api/v1/billing/accounts/best", service="billing")["charged_micro"] < 10**12

    def test_a_batch_has_no_acknowledgement_to_aim(self, world: World) -> None:
        async def body() -> None:
            async with line(world.stack, world.a) as bus:
                subject = subjects.batch_subject(world.n1, f"{world.names.a}-s", world.names.a)
                for reply in ("wooly.evt.access.forged", "wooly.evt.task.forged"):
                    await bus.client.publish(subject, b"garbage", reply=reply)
                await bus.client.flush()

        asyncio.run(body())
        assert world.log(lambda bus: last_facts(bus, "wooly.evt.*.forged")) is None

    def test_a_node_answers_into_inboxes_and_nowhere_else(self, world: World) -> None:
        """Also not where a requester, itself included, asks it to answer."""
        others = (f"wooly.node.{world.n1}.req.end_task.controller", "wooly.evt.access.forged", f"$KV.{BUCKET}.forged",
                  "$JS.API.STREAM.PURGE.NONE", "$JS.API.STREAM.MSG.GET.KV_wooly_access", "wooly.access.gone")  # fmt: skip

        async def body() -> list[str]:
            async with line(world.stack, world.a) as client, line(world.stack, **world.way_in("node 2")) as node:
                asked = await node.client.subscribe("wooly.node.n2.req.>")
                await node.client.flush()
                for subject in others:
                    await client.client.publish(subjects.node_request("n2", "ping", world.names.a), b"", reply=subject)
                    question = await asked.next_msg(DEADLINE_S)
                    await node.client.publish(question.reply, b"forged")
                asking = asyncio.create_task(client.client.request(subjects.node_request("n2", "ping", world.names.a), b"", DEADLINE_S))
                await (await asked.next_msg(DEADLINE_S)).respond(b"true")
                assert (await asking).data == b"true"
                await node.client.publish(END, b"")
                await settled(node, "publish")
                return [subject for subject in others if not refused(node.refused, "publish", subject)]

        assert asyncio.run(body()) == []

    def test_what_a_node_asks_is_answered_into_an_inbox(self, world: World) -> None:
        """Controller and billing may publish what a node may not: it does not choose where."""
        kept = f"$KV.{BUCKET}.forged"
        who = who_subject(world.n1), msgspec.msgpack.encode(WhoIs(world.names.a))
        allow = allowance_request(world.n1), msgspec.msgpack.encode(AskAllowances(world.n1, 1, ()))

        async def body() -> None:
            async with line(world.stack, **world.way_in("node 1")) as node:
                for subject, question in (who, allow):
                    await node.client.publish(subject, question, reply=kept)
                    assert (await node.client.request(subject, question, timeout=DEADLINE_S)).data

        asyncio.run(body())
        assert world.log(lambda bus: _kept(bus, kept)) == b""

    def test_an_order_is_the_controllers(self, world: World) -> None:
        """What a stream delivers onto a request's subject is no request, also when the session in its own subject is called ``local``."""
        task = world.stack.ask("POST", "/api/v1/tasks", {"required_vram_mb": 10, "tenant": "acme", "title": "x"})["id"]
        session = f"{world.names.a}-ordered"

        async def body() -> Pong:
            async with line(world.stack, world.a) as client, line(world.stack, **world.way_in("controller")) as bus:
                assert (await _open(client.client, world.n1, world.names.a, session, task=task)).fault is None
                order = subjects.batch_subject("n2", "local", world.names.a), msgspec.msgpack.encode(EndTask(task, "nobody"))
                for verb in ("end_task.controller", "end_task.local"):
                    await _deliver(client, bus, "n2", *order, f"wooly.node.{world.n1}.req.{verb}")
                ping = subjects.node_request(world.n1, "ping", world.names.a), msgspec.msgpack.encode(Ping(session))
                return msgspec.msgpack.decode((await client.client.request(*ping, timeout=DEADLINE_S)).data, type=Pong)

        assert asyncio.run(body()).session_known

    def test_what_the_bus_keeps_is_not_the_secret_of_sessions(self, world: World) -> None:
        """An attacker with access to the bus's disk, or has other bytes stored there, cannot forge a session."""
        kept = world.log(lambda bus: _kept(bus, f"$KV.{BUCKET}.session_secret"))
        now_s = int(time.time())
        forged = Token("session", "x", "", world.stack.admin.split("_")[1], "", now_s, now_s, now_s + 60)
        asked = urllib.request.Request(
            world.stack.addresses["controller"] + "/api/v1/session", headers={"Cookie": f"__Host-wooly_session={write_token(kept, forged)}"}
        )
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asked, timeout=60, context=world.stack.context)

    def test_a_fact_that_no_service_wrote_does_not_count(self, world: World) -> None:
        """Getting bytes stored on a subject of facts does not make a client an admin."""
        forged = make_key()
        fact = KeyIssued(time.time_ns(), forged.id, "", "", "admin", NO_SECRET)
        took = ActionTaken(time.time_ns(), "nobody", "", "key.write", forged.id)

        async def body() -> None:
            async with line(world.stack, world.a) as client, line(world.stack, **world.way_in("controller")) as bus:
                batch = subjects.batch_subject(world.n1, f"{world.names.a}-s", world.names.a)
                await _deliver(client, bus, world.n1, batch, encode_events([fact, took]), f"wooly.evt.access.{forged.id}")

        asyncio.run(body())
        batch = subjects.batch_subject(world.n1, f"{world.names.a}-s", world.names.a)  # it keeps its own subject among the facts
        until(lambda: world.log(lambda bus: last_facts(bus, batch)), "the forged fact to be stored: it is, and must not count")
        world.stack.tenant("after-the-forgery")  # the controller has read past it
        assert forged.id not in json.dumps(world.stack.ask("GET", "/api/v1/keys?limit=500"))
        assert forged.id not in json.dumps(world.stack.ask("GET", "/api/v1/audit?limit=500"))

    def test_a_node_speaks_of_itself_only(self, world: World) -> None:
        other = KeyIssued(time.time_ns(), make_key().id, "", "", "admin", NO_SECRET)

        async def body() -> None:
            async with line(world.stack, **world.way_in("node 1")) as node:
                for data in (b"\xc1garbage", encode_events([other])):
                    await node.client.publish(subjects.event_subject("node", world.n1), data)
                await node.client.flush()

        asyncio.run(body())
        world.stack.tenant("after-the-garbage")
        assert other.key not in json.dumps(world.stack.ask("GET", "/api/v1/keys?limit=500"))


class TestDataPort:
    def test_unauthenticated_clients(self, world: World) -> None:
        """Plain text, garbage, a wrong token, another's session: nothing comes of it, and the next one is served."""

        async def body() -> tuple[SessionOpened, SessionOpened]:
            async with line(world.stack, world.a) as a, line(world.stack, world.b) as b:
                first = await _open(a.client, world.n1, world.names.a, f"{world.names.a}-port")
                return first, await _open(b.client, world.n1, world.names.b, f"{world.names.b}-port")

        first, second = asyncio.run(body())
        assert first.node is not None
        port = next(address for address in first.node.data_port if not address.startswith("unix:"))
        kind, host, number = port.split(":")
        assert kind == "tls"
        for junk in (b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", secrets.token_bytes(4096), frame(Hello(first.session, first.token))):
            with socket.create_connection((host, int(number)), DEADLINE_S) as plain:
                plain.sendall(junk)
                assert not _rest(plain).strip(b"\x00").startswith(b"\x81")
        for hello, good in (
            (Hello(first.session, first.token), True),
            (Hello(first.session, second.token), False),
            (Hello(second.session, first.token), False),
            (Hello(first.session, ""), False),
            (Hello("", ""), False),
            (Hello(second.session, second.token), True),
        ):
            assert _welcome(world, host, int(number), hello) == good


def test_other_users_read_nothing_that_a_stack_writes(world: World) -> None:
    """Journals, logs, saved views and streams hold titles, tenants and bills."""
    folder = world.stack.folder / "state"
    modes = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a view on its way to its name
            modes[path] = path.lstat().st_mode
    made = {path: mode for path, mode in modes.items() if stat.S_ISREG(mode) or stat.S_ISDIR(mode)}
    assert {"facts.journal", "view.json", "server.log"} <= {path.name for path in made}, sorted(path.name for path in made)
    assert not [path for path, mode in made.items() if mode & 0o077]


def test_a_script_learns(world: World) -> None:
    """torch on a client with a key, over TLS, placed by the controller; the bill goes to the key's tenant."""
    environment = world.stack.client_environment(
        world.a, CONTROLLER_URL=world.stack.addresses["controller"], REQUIRED_VRAM="100", PYTHONPATH=":".join(sys.path)
    )
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip().endswith("learned True"), done.stderr[-3000:]
    mine = world.stack.ask("GET", "/api/v1/tasks?limit=500", key=world.a)["items"]
    assert [task for task in mine if task["tenant"] == "acme"]
    assert not [task for task in world.stack.ask("GET", "/api/v1/tasks?limit=500", key=world.b)["items"] if task["tenant"] == "acme"]
    until(lambda: world.stack.ask("GET", "/api/v1/billing/accounts/acme", service="billing")["charged_micro"], "the bill")
    found = world.stack.ask("GET", "/api/v1/billing/verify", service="billing")
    assert not found["first_difference"] and not [text for text in found["findings"] if not text.startswith("node n2, ")]


@pytest.mark.parametrize(("key", "says"), [("", "asks for an API key"), ("other", "does not accept the API key")])
def test_a_script_without_a_good_key_gets_an_error(world: World, key: str, says: str) -> None:
    text = _other_secret(world.a) if key else ""
    with pytest.raises(NoServerError, match=says):
        open_session(Config(nats_urls=(world.stack.addresses["nats"],), api_key=text, tls_ca=str(world.stack.ring.ca)))


def test_a_script_that_starts_while_no_controller_runs_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bus admits no key then: no service answers its callout."""
    said: list[str] = []
    monkeypatch.setattr("wooly.progress.say", said.append)
    monkeypatch.setattr("wooly.config.START_WAIT_S_MAX", 120.0)  # a busy machine may take long to start a controller
    stack = world.stack
    config = Config(
        nats_urls=(stack.addresses["nats"],), controller_url=stack.addresses["controller"], api_key=world.a, tls_ca=str(stack.ring.ca),
        required_vram_mb=64,
    )  # fmt: skip
    up = psutil.Process(stack.process.pid)
    (controller,) = [child for child in up.children() if "services.controller" in " ".join(child.cmdline())]
    up.suspend()  # or it would start the next controller at once
    controller.kill()
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(open_session, config)
        until(lambda: any("waiting, at most" in line for line in said) or opening.done(), "it waits")
        up.resume()
        session = opening.result(150)
    session.close()
    assert session.totals is not None


def test_orders_of_the_controller_reach_a_node_on_a_bus_with_keys(world: World) -> None:
    """A running session is ended when its task is cancelled."""
    stack = world.stack
    config = Config(
        nats_urls=(stack.addresses["nats"],), controller_url=stack.addresses["controller"], api_key=world.a, tls_ca=str(stack.ring.ca),
        required_vram_mb=64,
    )  # fmt: skip
    session = open_session(config)
    stack.ask("POST", f"/api/v1/tasks/{session.info.task}/cancel", key=world.a)
    until(lambda: session._state.fault, "the session is over")
    with pytest.raises(TaskCancelledError, match="was cancelled by"):
        session.submit(Flush(allocs=[(1, 8)]))
    session.close()


# -- helpers -------------------------------------------------------------------------------------------------------------------------


async def _connect(stack: SecureStack, key: str, seed: str = "") -> None:
    async with line(stack, key, seed=seed):
        pass


def _other_secret(key: str) -> str:
    return "_".join([*key.split("_")[:2], make_key().secret])


def _denied(stack: SecureStack, key: str) -> bool:
    try:
        stack.ask("GET", "/api/v1/session", key=key)
    except urllib.error.HTTPError as error:
        return error.code == 401
    return False


async def _open(client: Any, node: str, principal: str, session: str, tenant: str = "acme", task: str = "") -> SessionOpened:
    request = OpenSession(session, tenant, task, 2, (0,), 0)
    answer = await client.request(subjects.node_request(node, "open", principal), msgspec.msgpack.encode(request), timeout=DEADLINE_S)
    return msgspec.msgpack.decode(answer.data, type=SessionOpened)


async def _deliver(client: Line, node: Line, name: str, batch: str, data: bytes, subject: str) -> None:
    """What a client with access to JetStream can do: have the bus deliver a client's bytes to ``subject``. Returns when that is done."""
    consumer, stream = f"_{secrets.token_hex(8)}", subjects.batch_stream(name)
    config = {"name": consumer, "ack_policy": "none", "deliver_policy": "new", "mem_storage": True}
    create = json.dumps({"stream_name": stream, "config": config, "action": "create"}).encode()
    made = await node.client.request(f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}", create, timeout=DEADLINE_S)
    assert "error" not in json.loads(made.data)
    await client.client.publish(batch, data)
    await client.client.flush()
    pull = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    await node.client.publish(pull, b'{"batch":1,"expires":5000000000}', reply=subject)
    async with asyncio.timeout(DEADLINE_S):  # until there is nothing more to deliver
        while ((await node.client.request(pull, b'{"batch":1,"no_wait":true}', timeout=DEADLINE_S)).headers or {}).get("Status") != "404":
            pass


async def _kept(bus: Bus, subject: str) -> bytes:
    """The last message of the bucket of access on ``subject``, empty when there is none."""
    try:
        answer = await bus.js_api(f"STREAM.MSG.GET.KV_{BUCKET}", {"last_by_subj": subject})
    except BusRefused:
        return b""
    return base64.b64decode(answer["message"].get("data", ""))


def _rest(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    out = b""
    try:
        while part := connection.recv(65536):
            out += part
    except ConnectionError:
        pass
    return out


def _welcome(world: World, host: str, port: int, hello: Hello) -> bool:
    with socket.create_connection((host, port), DEADLINE_S) as raw, world.stack.context.wrap_socket(raw, server_hostname=host) as safe:
        safe.sendall(frame(hello))
        head = safe.recv(HEAD.size)
        answer = decode_answer(safe.recv(HEAD.unpack(head)[0]))
        return not isinstance(answer, Denied)
