"""A device's memory and its tenants in the test's own process: real engine, real store, the loop reduced to what waits for memory."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from blake3 import blake3

from bus_schemas.batch import LIMITS, Done, Upload, decode_batch, decode_done
from jit.backends import create_engine
from scheduler.vram import VramState
from services.server.executor.content import Content
from services.server.executor.errors import Awaits, Needs, Unprepared
from services.server.executor.memory import DeviceMemory
from services.server.executor.programs import Programs
from services.server.executor.runner import Runner
from services.server.executor.staging import Staging
from services.server.executor.tenant import Tenant
from services.server.settings import MemorySettings
from tests.support.executor import batch_of
from wooly.link import Flush

__all__ = ["MemoryDevice", "memory_device"]

_DEADLINE_S = 60.0


class MemoryDevice:
    """``run`` waits like a client does; ``begin`` says whether it would have to. ``sent_bytes`` of chunks; ``needs``: how many were asked
    for again."""

    def __init__(self, vram_bytes: int, settings: MemorySettings, backend: str) -> None:
        self.engine = create_engine(backend, cache_dir=None, threads=1, vram_bytes=vram_bytes)
        staging = Staging()
        self.content = content = Content(staging)
        self.memory = DeviceMemory(self.engine, content, settings)
        self._programs = Programs(self.engine)
        self.runner = Runner(self._programs, staging, content, self.memory)
        self._staging = staging
        self.tenants: dict[str, Tenant] = {}
        self.ready: set[str] = set()
        self.sent_bytes = 0
        self.needs = 0

    def open(
        self, session: str, quota_bytes: int = 0, priority: int = 3, *, swap: bool = True, wait_ms: int = 60_000, domain: str = ""
    ) -> Tenant:
        tenant = self.tenants[session] = Tenant(session, self.engine.open_space(), b"", domain or session)
        self._staging.open(session, "token", 1 << 30)
        self.memory.open(tenant, quota_bytes, priority, swap, wait_ms, domain)
        return tenant

    def close(self, session: str) -> None:
        tenant = self.tenants.pop(session)
        self.runner.drop(tenant)
        self._staging.close(session)
        self.memory.close(tenant)

    def begin(self, session: str, flush: Flush) -> Done | None:
        """Execute the session's next batch, its uploads in chunks; None: it waits for memory."""
        tenant = self.tenants[session]
        seq = tenant.seq_done + 1
        batch = decode_batch(batch_of(session, seq, flush))
        batch = msgspec.structs.replace(batch, uploads=tuple(self._put(session, handle, data) for handle, data in flush.uploads))
        try:
            outcome = self.runner.run(tenant, batch, b"")
        except Awaits:
            return None
        except Unprepared:
            self._programs.ready(batch, tenant.whose)
            return self.begin(session, flush)
        except Needs as needs:
            self.needs += len(needs.digests)
            return self.begin(session, flush)
        tenant.faulted |= outcome.faulted
        tenant.finish(seq, b"", outcome.done, outcome.blobs)
        return decode_done(outcome.done)

    def _put(self, session: str, handle: int, data: memoryview) -> Upload:
        """What a client does: only chunks that ``have`` denies are sent."""
        step = LIMITS.chunk_bytes
        chunks = [bytes(data[at : at + step]) for at in range(0, data.nbytes, step)]
        names = tuple(blake3(chunk).digest() for chunk in chunks)
        for name, chunk, held in zip(names, chunks, self.content.have(session, names), strict=True):
            if not held:
                problem = self.content.put(session, name, bytearray(chunk))
                assert not problem, problem
                self.sent_bytes += len(chunk)
        return Upload(handle, data.nbytes, chunks=names)

    def run(self, session: str, flush: Flush) -> Done:
        """Execute the session's next batch, as often as it takes."""
        while True:
            done = self.begin(session, flush)
            if done is not None:
                return done
            self.wait(session)

    def wait(self, session: str) -> None:
        """Until the session's batch may ask again."""
        self.until(lambda: session in self.ready)
        self.ready.discard(session)

    def settle(self) -> None:
        """Until nothing moves, and swapped bytes that are not needed any more are deleted."""
        self.until(lambda: not any(s.moving for s in self.state.sessions.values()))
        while self.memory.store.tidy():
            pass

    def until(self, met: Callable[[], bool]) -> None:
        """Take up what moves and what becomes due until ``met`` is true."""
        deadline = time.monotonic() + _DEADLINE_S
        self.ready.update(self.memory.poll())
        while not met():
            assert time.monotonic() < deadline, "nothing came of it"
            wakeup_ns = self.memory.next_wakeup_ns
            wait_s = _DEADLINE_S if wakeup_ns is None else max(0.0, (wakeup_ns - time.monotonic_ns()) / 1e9)
            select.select([self.memory.fileno()], [], [], min(wait_s, deadline - time.monotonic()))
            self.ready.update(self.memory.poll())

    @property
    def state(self) -> VramState:
        """The core's."""
        return self.memory.core.state

    def shut(self) -> None:
        for session in list(self.tenants):
            self.close(session)
        self.memory.shut()
        self.engine.close()


@contextmanager
def memory_device(
    vram_bytes: int,
    folder: Path | None = None,
    *,
    backend: str = "reference",
    idle_ms: int = 0,
    host_bytes: int = 1 << 30,
    disk_bytes: int = 1 << 30,
    reserve_bytes: int = 0,
) -> Iterator[MemoryDevice]:
    """``folder`` None: nothing goes to disk. ``idle_ms`` 0: who runs nothing may be swapped out at once."""
    settings = MemorySettings(reserve_bytes, idle_ms, host_bytes, disk_bytes, str(folder) if folder is not None else "")
    device = MemoryDevice(vram_bytes, settings, backend)
    try:
        yield device
    finally:
        device.shut()
