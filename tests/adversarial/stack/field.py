"""Where the attacks take place: the stack, the victim's session, and what an attacker can say."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import nats.errors
import numpy as np

from bus_schemas import subjects
from bus_schemas.session import CloseSession, OpenSession, SessionClosed, SessionOpened
from tests.support.builder import Builder
from tests.support.node import Program
from tests.support.secure import Line, line
from tests.support.world import DEADLINE_S, World
from wis.dtypes import DType
from wooly.config import load
from wooly.link import Flush
from wooly.session import Session, open_session

__all__ = ["Attack", "Attacker", "Attacks", "Victim", "connected", "encode"]

encode: Final = msgspec.msgpack.encode
Attack = Callable[["Attacker"], Awaitable[None]]


class Attacks(dict[str, Attack]):
    """By name, in the order of their definition. Each raises AssertionError if it learnt or got something."""

    def __call__(self, function: Attack) -> Attack:
        """Add it."""
        self[function.__name__.replace("_", " ")] = function
        return function


def program_of(size: int) -> Program:
    """x = x * 1.0000001 + 1 on ``size`` f64, in place: every step shows in the bits. Takes one handle."""
    builder = Builder()
    x = builder.external(DType.F64, (size,))
    builder.emit("mul", x, (x, builder.const(1.0000001, DType.F64)))
    builder.emit("add", x, (x, builder.const(1.0, DType.F64)))
    return Program(builder)


def connected(world: World, key: str, title: str, **said: str) -> Session:
    """A session of an ordinary client with this key."""
    stack = world.stack
    said = {"WOOLY_API_KEY": key, "WOOLY_TLS_CA": str(stack.ring.ca), "WOOLY_NATS_URL": stack.addresses["nats"]} | said
    said = {"CONTROLLER_URL": stack.addresses["controller"], "REQUIRED_VRAM": "16", "PRIO": "3"} | said
    said["WOOLY_RECOVERY_MB"] = "0"  # a session that is lost is seen
    return open_session(load(said, environ={}), title=title)


class Victim:
    """A session of another tenant. Every step is compared with what it must give, bit by bit."""

    SIZE: Final = 512

    def __init__(self, world: World) -> None:
        self._session = connected(world, world.b, "victim", REQUIRED_VRAM="64", PRIO="2")
        self._programs = 0
        self._wanted = np.zeros(self.SIZE)
        self._program = program_of(self.SIZE)
        self.steps = 0
        self._session.wait(self._session.submit(Flush(allocs=[(1, 8 * self.SIZE)])))

    @property
    def name(self) -> str:
        return self._session.info.session

    @property
    def task(self) -> str:
        return self._session.info.task

    @property
    def digests(self) -> tuple[bytes, bytes]:
        """Of its program and dims."""
        return self._program.digest, self._program.dims_digest

    def step(self) -> None:
        (found,) = self._session.wait(self._session.submit(self._program.flush([1], reads=[(1, 0, 8 * self.SIZE)])))
        self._wanted = self._wanted * 1.0000001 + 1.0
        assert bytes(found) == self._wanted.tobytes(), "the victim's bits"
        self.steps += 1

    def new_program(self) -> None:
        """One that the node has not compiled."""
        self._programs += 1
        builder = Builder()
        x = builder.external(DType.F64, (8,))
        for _ in range(self._programs):
            builder.emit("add", x, (x, builder.const(1.0, DType.F64)))
        handle = 100 + self._programs
        flush = Program(builder).flush([handle], allocs=[(handle, 64)], reads=[(handle, 0, 64)])
        (found,) = self._session.wait(self._session.submit(flush))
        assert np.frombuffer(found).tolist() == [float(self._programs)] * 8

    def close(self) -> None:
        self._session.close()


class Attacker:
    """A member of another tenant, with a connection to the bus; what it has from the world besides, an attack says."""

    _numbers: Final = itertools.count(1)

    def __init__(self, world: World, victim: Victim, bus: Line, key: str, tenant: str) -> None:
        self.world, self.victim, self.bus, self.key, self.tenant = world, victim, bus, key, tenant
        self.me = key.split("_")[1]
        self.node = world.n1

    @classmethod
    @asynccontextmanager
    async def enter(cls, world: World, victim: Victim, key: str, tenant: str) -> AsyncIterator[Attacker]:
        """``key`` is of a member of ``tenant``."""
        async with line(world.stack, key) as bus:
            yield cls(world, victim, bus, key, tenant)

    def fresh(self) -> int:
        """A number that no attacker has got before."""
        return next(self._numbers)

    # -- the bus

    async def request(self, verb: str, data: bytes) -> bytes:
        """Asked again, as clients do: the node drops what is beyond a quota."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(nats.errors.TimeoutError):
                answer = await self.bus.client.request(subjects.node_request(self.node, verb, self.me), data, timeout=DEADLINE_S / 6)
                return answer.data
            assert time.monotonic() < until_s, f"no answer to {verb} within {DEADLINE_S:g} s"

    async def silent(self, subject: str, data: bytes) -> bool:
        """Ask, where no answer may come."""
        try:
            await self.bus.client.request(subject, data, timeout=0.3)
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
            return True
        return False

    async def open(self, session: str = "", **fields: Any) -> SessionOpened:
        name = session or f"{self.me}-x{self.fresh()}"
        asked = msgspec.structs.replace(OpenSession(name, self.tenant, "", 3, (0,), 1 << 20), **fields)
        return msgspec.msgpack.decode(await self.request("open", encode(asked)), type=SessionOpened)

    async def opened(self, **fields: Any) -> SessionOpened:
        found = await self.open(**fields)
        assert found.fault is None, found.fault
        return found

    async def close(self, session: str) -> SessionClosed:
        return msgspec.msgpack.decode(await self.request("close", encode(CloseSession(session, "done", -1))), type=SessionClosed)

    async def send(self, session: str, *messages: bytes, headers: dict[str, str] | None = None) -> None:
        """Messages of the batch stream."""
        for data in messages:
            await self.bus.client.publish(subjects.batch_subject(self.node, session, self.me), data, headers=headers)
        await self.bus.client.flush()

    # -- REST

    def rest(self, method: str, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> tuple[int, bytes]:
        """Status and body. ``body``: bytes as they are, else as JSON. ``key`` empty: none."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        key = self.key if key is None else key
        said = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}) | headers
        url = self.world.stack.addresses["controller"] + path
        request = urllib.request.Request(url, data=data, method=method, headers=said)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self.world.stack.context) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def refused(self, method: str, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> None:
        """Nothing comes of it, it is no failure of the service, and the answer has no word of the victim."""
        status, text = self.rest(method, path, body, key=key, **headers)
        assert 400 <= status < 500, (method, path, status, text[:300])
        assert self.victim.name.encode() not in text and b"Traceback" not in text, (method, path, text[:300])
