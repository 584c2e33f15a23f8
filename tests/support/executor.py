"""Starts a real executor process and speaks to it over its socket, in place of a server."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from bus_schemas.batch import Batch, Done, Read, decode_done, encode_batch
from bus_schemas.frames import Frames, frame
from bus_schemas.terms import TaskTerms
from services.server.protocol import (
    AWAITS,
    PROTOCOL,
    Attach,
    Attached,
    Command,
    Execute,
    Executed,
    MemoryFreed,
    OpenSpace,
    Prepare,
    Prepared,
    Report,
    SpaceOpened,
    decode_report,
)
from services.server.settings import EXECUTOR_VARIABLE, ExecutorSettings
from services.server.stop_page import StopPage
from tests.support.builder import Builder
from tests.support.node import Program
from tests.support.stack import ROOT, plain_environment
from wis.dtypes import DType
from wooly.link import Flush
from wooly.transport.batches import pack_handles

__all__ = ["TERMS", "Wire", "batch_of", "chain_of", "executor_settings"]

R = TypeVar("R", bound=Report)
_DEADLINE_S = 60.0
TERMS = TaskTerms(tenant="acme", priority=0)


def batch_of(session: str, seq: int, flush: Flush) -> bytes:
    """A flush as the encoded batch of a session, with its bodies."""
    return encode_batch(
        Batch(
            session=session,
            epoch=1,
            seq=seq,
            program=flush.program,
            dims=flush.dims_digest,
            program_body=flush.program_body,
            dims_body=flush.dims,
            scalars=tuple((value.real, value.imag) if isinstance(value, complex) else value for value in flush.scalars),
            handles=pack_handles(flush.handles) if flush.program else b"",
            allocs=tuple(flush.allocs),
            reads=tuple(Read(at, handle, offset, nbytes) for at, (handle, offset, nbytes) in enumerate(flush.reads)),
            frees=tuple(flush.frees),
        )
    )


def executor_settings(folder: Path, **settings: object) -> ExecutorSettings:
    """Of a reference device whose files are in ``folder``."""
    return ExecutorSettings(
        **{
            "gpu": 0,
            "backend": "reference",
            "threads": 1,
            "vram_bytes": 1 << 28,
            "cache_dir": str(folder / "cache"),
            "socket": str(folder / "x"),
            "data_socket": str(folder / "d"),
            "data_host": "127.0.0.1",
            "data_host_advertised": "127.0.0.1",
            **settings,
        }  # type: ignore[arg-type]  # a dict of mixed values
    )


class Wire:
    """An executor, and a server's connection to it (``connect`` again after ``drop``: the next server's)."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self._settings = executor_settings(folder, **settings)
        self._folder = folder
        self._serial = 0
        self._waiting: list[Report] = []

    def __enter__(self) -> Self:
        env = plain_environment(**{EXECUTOR_VARIABLE: msgspec.json.encode(self._settings).decode(), "PYTHONPATH": str(ROOT)})
        with (self._folder / "executor.log").open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-P", "-m", "services.server.executor"], env=env, stdout=log, stderr=log)
        self.attached = self.connect()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        self._socket.close()

    def connect(self) -> Attached:
        """Attach as a new server."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._socket.connect(self._settings.socket)
                break
            except OSError:
                self._socket.close()
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError("no executor:\n" + (self._folder / "executor.log").read_text()[-4000:]) from None
                time.sleep(0.01)  # between two tries, up to the deadline
        self._socket.settimeout(_DEADLINE_S)
        self._frames = Frames()
        self._waiting = []
        self.send(Attach(PROTOCOL))
        attached = self.next(Attached)
        self.page = StopPage.open(Path(attached.stop_page))
        self._serial = 0
        return attached

    def drop(self) -> None:
        """Close the connection, as a server that has ended."""
        self._socket.close()

    def send(self, *commands: Command) -> None:
        """In one piece: they are taken up without a look at the socket between them."""
        self._socket.sendall(b"".join(frame(command) for command in commands))

    def next(self, kind: type[R]) -> R:
        """The next report of this kind; others that come before it are left out."""
        while True:
            while self._waiting:
                report = self._waiting.pop(0)
                if isinstance(report, kind):
                    return report
            data = self._socket.recv(1 << 16)
            if not data:
                raise AssertionError("the executor closed the connection:\n" + (self._folder / "executor.log").read_text()[-4000:])
            self._waiting += [decode_report(body) for body in self._frames.feed(data)]

    # -- a session -----------------------------------------------------------------------------------------------------------------

    def open(self, session: str = "s", **terms: Any) -> None:
        self.send(OpenSpace(session, "token", b"", msgspec.structs.replace(TERMS, **terms)))
        self.next(SpaceOpened)

    def command(self, seq: int, batch: bytes, *, session: str = "s", limit_ns: int = 0, priority: int = 3) -> Execute:
        self._serial += 1
        return Execute(session, seq, b"chain %d" % seq, batch, self._serial, priority, limit_ns)

    def prepare(self, seq: int, batch: bytes, *, session: str = "s") -> None:
        """Bring the batch and wait until it is ready to be launched."""
        self.send(Prepare(session, seq, batch))
        assert self.next(Prepared).ready

    def execute(self, seq: int, flush: Flush | None, *, session: str = "s", limit_ns: int = 0, priority: int = 3) -> Executed:
        """One slice; ``flush`` None: go on."""
        batch = b"" if flush is None else batch_of(session, seq, flush)
        self.send(self.command(seq, batch, session=session, limit_ns=limit_ns, priority=priority))
        executed = self.next(Executed)
        while executed.status == AWAITS:
            self.next(MemoryFreed)
            self.send(self.command(seq, b"", session=session, limit_ns=limit_ns, priority=priority))
            executed = self.next(Executed)
        return executed

    @staticmethod
    def done(executed: Executed) -> Done:
        return decode_done(executed.done)


def chain_of(steps: int, size: int) -> Program:
    """x = x * 1.0009765625 + step, ``steps`` times, in place: order and count of every step show in the bits. Takes one handle."""
    builder = Builder()
    x = builder.external(DType.F64, (size,))
    for step in range(steps):
        builder.emit("mul", x, (x, builder.const(1.0009765625, DType.F64)))
        builder.emit("add", x, (x, builder.const(float(step), DType.F64)))
    return Program(builder)
