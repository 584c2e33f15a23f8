"""A bus and a node server as real processes, and programs to run on them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import numpy as np
from blake3 import blake3

from bus_schemas import subjects
from bus_schemas.events import Event
from bus_schemas.session import NodeInfo, NodeStats, OpenSession, SessionOpened
from services.kit.bus import Bus, connect
from services.kit.nats_server import NatsServer
from tests.support.builder import Builder
from tests.support.fork_server import ForkedProcess, start_service
from tests.support.stack import ROOT, plain_environment
from wis.dtypes import DType
from wis.encoding import encode_program
from wooly.config import Config
from wooly.link import Flush
from wooly.session import Session, open_session
from wooly.transport.bus import BusThread

__all__ = [
    "DEADLINE_S",
    "Node",
    "Program",
    "Waiting",
    "add_one",
    "asked",
    "beyond_its_table",
    "executor_pids",
    "executors_held",
    "history",
    "increment",
    "until",
    "until_async",
]

T = TypeVar("T")
E = TypeVar("E")
DEADLINE_S = 60.0
"""Against hanging for ever: what is waited for comes within moments, on a busy machine within seconds."""


def until(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Poll until ``condition()`` is true; its value."""
    deadline = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {deadline_s:g} s")
        time.sleep(0.01)


class Waiting(threading.Thread):
    """``work()`` on a thread of its own; ``ended`` returns what it returned, or raises what it raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work, self._result, self._failure = work, None, None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # raised by ``ended``
            self._failure = error

    def ended(self) -> Any:
        self.join(DEADLINE_S)
        assert not self.is_alive(), "it still waits"
        if self._failure is not None:
            raise self._failure
        return self._result


async def until_async(condition: Callable[[], Awaitable[T]], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Like ``until`` for an awaitable condition."""
    deadline = time.monotonic() + deadline_s
    while True:
        value = await condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {deadline_s:g} s")
        await asyncio.sleep(0.01)


async def asked(bus: Bus, subject: str, data: bytes, kind: type[T]) -> T:
    """A request of a node, and its answer."""
    return msgspec.msgpack.decode(await bus.request(subject, data, DEADLINE_S), type=kind)


async def history(bus: Bus, from_position: int = 1) -> list[Event]:
    """Every fact in the log now, in order."""
    replay = bus.replay(subjects.EVENTS_STREAM, from_position)
    end = await replay.history_end()
    out: list[Event] = []
    if end >= from_position:
        async for position, events in replay:
            out += events
            if position >= end:
                break
    await replay.close()
    return out


def executor_pids(folder: Path) -> list[int]:
    """Executors that have ``folder`` in their configuration."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if b"services.server.executor" in (entry / "cmdline").read_bytes() and bytes(folder) in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


@contextlib.contextmanager
def executors_held(folder: Path) -> Iterator[None]:
    """Inside, these executors stand still."""
    pids = executor_pids(folder)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # the test has killed it
                os.kill(pid, signal.SIGCONT)


NO_IMAGES_S = 86_400
"""Images of sessions are batches, and so in launch digests: none are taken unless a test asks."""


class Node:
    """nats-server and ``python -P -m services.server`` (reference backend) for the time of a ``with`` block."""

    def __init__(self, folder: Path, *, beside: Self | None = None, bus: NatsServer | None = None, **environment: str) -> None:
        """``beside``: the node whose nats-server it uses; ``bus``: one that runs already."""
        self.folder = folder
        self._own_nats = beside is None and bus is None
        self.nats = beside.nats if beside is not None else bus or NatsServer(folder / "nats")
        self._environment = environment
        self.server: ForkedProcess | None = None
        self._sessions: list[Session] = []

    def __enter__(self) -> Self:
        if self._own_nats:
            self.nats.start()
        self.start_server()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for session in self._sessions:
            session.close()
        self.stop_server()
        self.kill_executor()
        if self._own_nats:
            self.nats.stop()

    def environment(self) -> dict[str, str]:
        return (
            plain_environment(
                WOOLY_NATS_URL=self.nats.url,
                NODE_NAME="test-node",
                WOOLY_BACKEND="reference",
                WOOLY_DEVICE_VRAM_MB="2048",
                WOOLY_ON_STOP="end",
                WOOLY_DATA_DIR=str(self.folder / "server"),
                WOOLY_CACHE_DIR=str(self.folder / "cache"),
                PYTHONPATH=str(ROOT),
            )
            | self._environment
        )

    def change(self, **environment: str) -> None:
        """What the next server is started with, beside what this one was."""
        self._environment |= environment

    def start_server(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.server = start_service("services.server", env=self.environment(), stderr=log)
        assert self.server.stdout is not None
        if not self.server.stdout.readline():
            raise AssertionError("the server did not start:\n" + self.log())

    def stop_server(self) -> int | None:
        """SIGTERM and wait; the exit code."""
        return self._end_server(signal.SIGTERM)

    def kill_server(self) -> None:
        self._end_server(signal.SIGKILL)

    def _end_server(self, number: int) -> int | None:
        if self.server is None:
            return None
        server, self.server = self.server, None
        return server.stop(number)

    def executor_pids(self) -> list[int]:
        """Executors of this node: found by their configuration, which names this folder's node."""
        return executor_pids(self.folder / "cache")

    def kill_executor(self) -> None:
        for pid in self.executor_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def executor_held(self) -> AbstractContextManager[None]:
        """Inside, executors stand still: what the node launches meanwhile is under way, and does not end before the block does."""
        return executors_held(self.folder / "cache")

    def log(self) -> str:
        return (self.folder / "server.log").read_text()[-4000:]

    # -- asking --------------------------------------------------------------------------------------------------------------------

    def config(self, **keys: Any) -> Config:
        return Config(nats_urls=(self.nats.url,), **{"recovery_target_s": NO_IMAGES_S} | keys)

    def open(self, **keys: Any) -> Session:
        """A session with this configuration; closed at the end of the block."""
        session = open_session(self.config(**keys))
        self._sessions.append(session)
        return session

    def open_for(self, task: str, **keys: Any) -> Session:
        """Like ``open``, as a client that a controller has given this task."""
        config = self.config(**keys)
        bus = BusThread(config.nats_urls, "wooly_test")
        bus.start()
        request = OpenSession(
            secrets.token_hex(8), "default", task, config.prio, (0,), config.vram_quota_bytes, sla_ms_p99=config.sla_ms_p99
        )
        asking = bus.request(subjects.node_request(self.info().node, "open"), msgspec.msgpack.encode(request), DEADLINE_S)
        opened = msgspec.msgpack.decode(bus.call(asking, DEADLINE_S), type=SessionOpened)
        assert opened.fault is None, opened.fault
        session = Session(bus, msgspec.structs.replace(opened, task=task))
        bus.call(session.start(), DEADLINE_S)
        self._sessions.append(session)
        return session

    def ask(self, verb: str, request: Any, kind: type[T]) -> T:
        """A request of the node, and its answer. ``request``: a struct, or bytes as they are."""
        data = request if isinstance(request, bytes) else msgspec.msgpack.encode(request)

        async def body(bus: Bus) -> T:
            info = await asked(bus, subjects.discover(), b"", NodeInfo)
            return await asked(bus, subjects.node_request(info.node, verb), data, kind)

        return self.run(body)

    def run(self, work: Callable[[Bus], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` with a connection to the bus."""

        async def body() -> T:
            bus = await connect(self.nats.url, name="test")
            try:
                return await work(bus)
            finally:
                await bus.close()

        return asyncio.run(body())

    def info(self) -> NodeInfo:
        return self.run(lambda bus: asked(bus, subjects.discover(), b"", NodeInfo))

    def stats(self) -> NodeStats:
        return self.ask("stats", b"", NodeStats)

    def facts(self, kind: type[E], count: int = 1) -> list[E]:
        """Every fact of this kind, in order, once there are ``count`` in the log: the node publishes them behind its answers."""

        def found() -> list[E]:
            facts: list[E] = [event for event in self.events() if isinstance(event, kind)]
            return facts if len(facts) >= count else []

        return until(found, f"{count} x {kind.__name__} in the log")

    def events(self) -> list[Event]:
        """Every fact in the log now, in order."""
        return self.run(history)


class Program:
    """A program ready to be flushed: ``flush(handles, ...)``."""

    def __init__(self, builder: Builder) -> None:
        program, self.dims, self.scalars = builder.finish()
        self.body = encode_program(program)
        self.digest = blake3(self.body).digest()
        self.dims_digest = blake3(self.dims).digest()

    def flush(self, handles: list[int], **more: Any) -> Flush:
        return Flush(
            program=self.digest,
            program_body=self.body,
            dims_digest=self.dims_digest,
            dims=self.dims,
            scalars=self.scalars,
            handles=handles,
            **more,
        )


def increment(size: int = 16, by: float = 1.0) -> Program:
    """x += by, in place: every execution shows, and so does every repeat. Takes one handle."""
    builder = Builder()
    x = builder.external(DType.F64, (size,))
    builder.emit("add", x, (x, builder.const(by, DType.F64)))
    return Program(builder)


def add_one(size: int = 16) -> Program:
    """y = x + 1 into a new buffer. Takes two handles: x, y."""
    builder = Builder()
    x = builder.external(DType.F64, (size,))
    y = builder.created(DType.F64, (size,))
    builder.emit("add", y, (x, builder.const(1.0, DType.F64)))
    return Program(builder)


def beyond_its_table(size: int = 1) -> Program:
    """Looks up what no table of four has. Takes two handles: x (f64, not negative), y (new)."""
    builder = Builder()
    x, y = builder.external(DType.F64, (size,)), builder.created(DType.F64, (size,))
    table, index = builder.temp(DType.F64, (4,)), builder.temp(DType.I64, (size,))
    builder.emit("cast", table, (builder.const(0.0, DType.F64),))
    builder.emit("cast", index, (x,))
    builder.emit("add", index, (index, builder.const(4, DType.I64)))
    builder.emit("gather", y, (table, index), (0,))
    return Program(builder)


def floats(data: bytes | bytearray | memoryview) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.frombuffer(data, np.float64)
