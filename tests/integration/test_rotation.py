"""Rotation of the keys of a secure stack under load: no request fails, results keep their bits, and a retired key is worth nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import nats.errors
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from bus_schemas.events import KeyIssued
from services.kit.access.access import BUCKET
from services.kit.access.checker import NO_SECRET
from services.kit.access.tokens import Token, make_key, write_token
from services.kit.bus import connect
from services.kit.credentials import Credentials
from services.kit.nats_jwt import read_seeds
from services.kit.seal import Seal, read_seal_keys
from services.kit.tls import client_context, server_context
from tests.adversarial.stack.field import program_of
from tests.support.node import DEADLINE_S, until
from tests.support.secure import SecureStack, line
from tests.support.world import World
from wooly.config import load
from wooly.link import Flush
from wooly.session import Session, open_session

STEPS = 2
"""Requests of every kind between two steps of a rotation."""
PAUSE_S = 0.05
"""Between two requests of a kind: the services are never without one, and the processors have time for what rotates."""
SIZE = 1 << 15
"""Elements of f64: uploads and reads of them go over the data port."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    run = tmp_path / "run"
    run.mkdir()
    with SecureStack(tmp_path, WOOLY_DATA_HOST="127.0.0.1", XDG_RUNTIME_DIR=str(run)) as stack:
        made_s, world = time.monotonic(), World(stack)
        for folder in run.iterdir():
            folder.chmod(0o711)  # the client does not trust the socket in it, and connects over TLS
        # A connection that begins within two seconds after a change of its tenant may be ended, once (services/controller/bus_guard.py).
        until(lambda: time.monotonic() > made_s + 2.5, "connections that stay")
        yield world


class Load:
    """Repeats ``work(number)`` on a thread of its own; the first failure ends it."""

    def __init__(self, name: str, work: Callable[[int], None]) -> None:
        self.name = name
        self.done = 0
        self.failure: BaseException | None = None
        self._work = work
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def more(self) -> None:
        """Return after ``STEPS`` requests that begin from now on. Raises what a request has raised."""
        wanted = self.done + STEPS + 1
        until(lambda: self.failure is not None or self.done >= wanted, f"{self.name} to go on")
        self.check()

    def check(self) -> None:
        if self.failure is not None:
            raise AssertionError(f"{self.name}, request {self.done}") from self.failure

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over.wait(PAUSE_S):
                self._work(self.done)
                self.done += 1
        except BaseException as error:
            self.failure = error


@dataclass
class Browser:
    """A session that began with the admin's key. It keeps its first cookie and its first CSRF token."""

    stack: SecureStack
    cookie: str = ""
    csrf: str = ""

    def log_in(self) -> Browser:
        answer, headers = self.send("POST", "/api/v1/session", {"key": self.stack.admin})
        self.cookie, self.csrf = headers["set-cookie"].partition(";")[0], answer["csrf_token"]
        return self

    def send(self, method: str, path: str, body: Any = None) -> tuple[Any, Any]:
        headers = {"Content-Type": "application/json", "Cookie": self.cookie, "X-CSRF-Token": self.csrf}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.stack.addresses["controller"] + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=DEADLINE_S, context=self.stack.context) as answer:
            return json.loads(answer.read()), answer.headers


class Computing:
    """A session whose every step is compared with what it must give, bit by bit."""

    def __init__(self, world: World) -> None:
        said = {"WOOLY_API_KEY": world.b, "WOOLY_TLS_CA": str(world.stack.ring.ca), "WOOLY_NATS_URL": world.stack.addresses["nats"]}
        self.session: Session = open_session(load(said, environ={}), title="computing")
        self._program = program_of(SIZE)
        self._wanted = np.arange(SIZE, dtype=np.float64)
        self.session.submit(Flush(uploads=[(1, memoryview(self._wanted).cast("B"))]))

    def step(self, number: int = 0) -> None:
        (found,) = self.session.wait(self.session.submit(self._program.flush([1], reads=[(1, 0, 8 * SIZE)])))
        self._wanted = self._wanted * 1.0000001 + 1.0
        assert bytes(found) == self._wanted.tobytes()


class Traffic:
    """Requests of every kind, all the time."""

    def __init__(self, world: World) -> None:
        self.world, self.stack = world, world.stack
        self.tenants: list[str] = []
        self.browser = Browser(self.stack).log_in()
        self.computing = Computing(world)
        works = {
            "controller": lambda number: self.stack.ask("GET", "/api/v1/nodes"),
            "billing": lambda number: self.stack.ask("GET", "/api/v1/billing/credits?by=tenant", service="billing"),
            "relayed": lambda number: self.stack.ask("GET", "/api/v1/billing/credits?by=tenant"),
            "written": lambda number: self._tenant(f"written-{number}", self.stack.tenant),
            "browser": self._browse,
            "computing": self.computing.step,
            "opened": self._open,
        }
        self.loads = [Load(name, work) for name, work in works.items()]

    def _tenant(self, name: str, make: Callable[[str], object]) -> None:
        make(name)
        self.tenants.append(name)

    def _browse(self, number: int) -> None:
        browser = self.browser
        assert browser.send("GET", "/api/v1/session")[0]["role"] == "admin"
        self._tenant(f"browsed-{number}", lambda name: browser.send("POST", "/api/v1/tenants", {"id": name}))

    def _open(self, number: int) -> None:
        computing = Computing(self.world)
        computing.step()
        computing.session.close()

    def more(self) -> None:
        for one in self.loads:
            one.more()

    def stop(self) -> None:
        for one in self.loads:
            one.stop()
            one.check()
        self.computing.session.close()


@pytest.fixture
def traffic(world: World) -> Iterator[Traffic]:
    traffic = Traffic(world)
    yield traffic
    for one in traffic.loads:
        one.stop()


def rotate(stack: SecureStack, *step: str) -> str:
    command = [sys.executable, "-P", "-m", "services.up.keyring", str(stack.ring.folder), *step]
    done = subprocess.run(command, env=stack.client_environment(), capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def presents(address: tuple[str, int], authority: str) -> bool:
    """Whether the server there has a certificate of this authority (PEM), and of no other."""
    try:
        with socket.create_connection(address, DEADLINE_S) as plain:
            ssl.create_default_context(cadata=authority).wrap_socket(plain, server_hostname=address[0]).close()
    except ssl.SSLCertVerificationError:
        return False
    return True


def renewed(address: tuple[str, int], old: str, new: str) -> bool:
    return presents(address, new) and not presents(address, old)


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return host.rpartition(":")[2], int(port)


def test_every_key_under_load(world: World, traffic: Traffic) -> None:
    stack = world.stack
    ring = stack.ring
    traffic.more()

    # -- the seal, and the secret of sessions
    (old_key,) = read_seal_keys((ring.folder / "controller" / "seal.key").read_text())
    old_browser = traffic.browser
    for step in ("add", "use"):
        rotate(stack, step, "seal")
        traffic.more()
    new_key, _ = read_seal_keys((ring.folder / "billing" / "seal.key").read_text())
    traffic.browser = Browser(stack).log_in()  # renewed tokens are signed with the new secret
    traffic.more()
    end = rotate(stack, "retire", "seal")
    assert f"{old_key.id} accepted up to event " in end
    traffic.more()

    # -- the authority, and every certificate
    stolen = shutil.copytree(ring.folder / "controller", stack.folder / "stolen")
    rotate(stack, "add", "ca")
    traffic.more()
    rotate(stack, "use", "ca")
    old, new = (one.public_bytes(Encoding.PEM).decode() for one in x509.load_pem_x509_certificates(ring.ca.read_bytes()))
    port = next(address for address in traffic.computing.session.info.node.data_port if address.startswith("tls:"))
    for address in (stack.addresses["controller"], stack.addresses["billing"], stack.addresses["nats"], port):
        until(partial(renewed, address_of(address), old, new), f"the new certificate of {address}")
    traffic.more()
    rotate(stack, "retire", "ca")
    traffic.more()

    # -- the users of the bus, and the issuer of its callout
    assert admitted(stack, stolen / "nats.nk") and admitted(stack, stolen / "guard.nk")
    rotate(stack, "add", "bus")
    traffic.more()
    rotate(stack, "use", "bus")
    log = (stack.folder / "state" / "nats" / "nats.log").read_bytes
    until(lambda: log().count(b"Server is ready") == 2, "the bus, started again with the new issuer")
    traffic.more()
    assert admitted(stack, stolen / "nats.nk") and admitted(stack, ring.folder / "controller" / "nats.nk")
    rotate(stack, "retire", "bus")
    until(lambda: not admitted(stack, stolen / "nats.nk"), "the end of the old users")
    traffic.more()
    traffic.stop()
    assert not admitted(stack, stolen / "guard.nk") and admitted(stack, ring.folder / "controller" / "guard.nk")

    # -- what was retired is worth nothing
    with pytest.raises(urllib.error.HTTPError, match="401"):
        old_browser.send("GET", "/api/v1/session")
    assert forged_session(world, Seal(lambda: (new_key,))) == 200
    assert forged_session(world, Seal(lambda: (old_key,))) == 401
    assert forged_key(world, Seal(lambda: (new_key,)))
    assert not forged_key(world, Seal(lambda: (old_key,)))
    thief = server_context({"WOOLY_TLS_CERT": f"{stolen}/cert.pem", "WOOLY_TLS_KEY": f"{stolen}/key.pem"})
    assert thief is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(thief, client_context(ring.environment("billing")))

    # -- the log, most of it sealed with the old key, reads the same after a restart
    expected = tenants(stack)
    assert expected >= {"acme", "best", *traffic.tenants}
    stack.stop()
    for folder in (stack.folder / "run").iterdir():
        folder.chmod(0o700)
    stack.__enter__()
    assert tenants(stack) == expected
    checked = stack.ask("GET", "/api/v1/billing/verify", service="billing")
    assert not checked["findings"], checked["findings"]
    command = [sys.executable, "-m", "wooly.cli", "replay", "--json"]
    done = subprocess.run(command, env=stack.client_environment(stack.admin), capture_output=True, text=True, timeout=120)
    assert (done.returncode, json.loads(done.stdout)["equal"]) == (0, True), done.stderr


def tenants(stack: SecureStack) -> set[str]:
    found: set[str] = set()
    while True:
        page = stack.ask("GET", f"/api/v1/tenants?limit=1000&offset={len(found)}")
        found |= {tenant["id"] for tenant in page["items"]}
        if len(found) == page["total"]:
            return found


def forged_session(world: World, seal: Seal) -> int:
    """The answer to a session of the admin that was signed with what follows from ``seal``."""
    kept = world.log(lambda bus: bus.message(f"KV_{BUCKET}", last_by_subj=f"$KV.{BUCKET}.session_secret"))
    assert kept is not None
    now_s = int(time.time())
    token = Token("session", "forged", "", world.stack.admin.split("_")[1], "", now_s, now_s, now_s + 60)
    browser = Browser(world.stack, f"__Host-wooly_session={write_token(seal.secrets(kept[1])[0], token)}")
    try:
        browser.send("GET", "/api/v1/session")
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def admitted(stack: SecureStack, seeds: Path) -> bool:
    """Whether the bus admits the user whose seed is the first in this file."""

    async def once() -> bool:
        try:
            async with line(stack, seed=read_seeds(seeds)[0]):
                return True
        except (nats.errors.Error, OSError):  # nats-py writes to a connection that the bus has ended
            return False

    return asyncio.run(once())


def forged_key(world: World, seal: Seal) -> bool:
    """Whether an admin's key counts whose event is stored with a seal by ``seal``."""
    stack, forged = world.stack, make_key()

    async def store() -> None:
        url = stack.addresses["nats"]
        shown = replace(Credentials.from_environment(stack.ring.environment("controller"), url), seal=seal)
        bus = await connect(url, name="controller", credentials=shown)
        await bus.publish_events("access", forged.id, [KeyIssued(time.time_ns(), forged.id, "", "", "admin", NO_SECRET)])
        await bus.close()

    asyncio.run(store())
    stack.tenant(f"after-{forged.id}")  # the controller has read past it
    return forged.id in json.dumps(stack.ask("GET", "/api/v1/keys?limit=1000"))


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Raises what the client raises."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs, contextlib.suppress(OSError):
            server.wrap_socket(theirs, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours:
            client.wrap_socket(ours, server_hostname="localhost").close()
    finally:
        thread.join()
