"""The runs of one runner: starting what the controllers hand over, publishing output (of each script the first and the last 256 KiB),
stopping, reporting ends.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import time
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from bus_schemas.quotas import QUOTAS, Rate
from bus_schemas.runs import LOGS_STREAM, SYNC_S, RunnerSync, RunOrder, RunOrders, RunReport, run_beat, run_log, run_report, run_sync
from scheduler.buckets import Buckets
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.log import get_logger
from services.kit.process import exited
from services.runner.process import ScriptProcess, kill_orphans
from services.runner.settings import Settings

__all__ = ["LogQuota", "Output", "Runs", "boundary"]

HEAD_BYTES: Final = 256 << 10
TAIL_BYTES: Final = 256 << 10


class Output:
    """Bytes in, UTF-8 text out. The head is given out as it comes, the tail at the end."""

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head_left = head_bytes
        self._full = False
        self._tail_bytes = tail_bytes
        self._ready: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0

    def feed(self, data: bytes, *, final: bool = False) -> None:
        """The next bytes of the output. ``final``: there are no more."""
        text = self._decoder.decode(data, final).encode()
        if not self._full:
            cut = boundary(text, self._head_left)
            head, text = text[:cut], text[cut:]
            self._head_left -= len(head)
            if head:
                self._ready.append(head)
            if text:
                self._full = True
                limit = f"\n[the log is longer than its limit: the last {self._tail_bytes >> 10} KiB follow at its end]\n"
                self._ready.append(limit.encode())
        if text:
            self._tail.append(text)
            self._tail_size += len(text)
            while self._tail and self._tail_size - len(self._tail[0]) >= self._tail_bytes:
                gone = self._tail.popleft()
                self._tail_size -= len(gone)
                self._dropped += len(gone)

    def take(self) -> bytes:
        """What of the head has come since the last call."""
        out = b"".join(self._ready)
        self._ready.clear()
        return out

    def rest(self) -> bytes:
        """What is left at the end, with a line that says how much is missing before it."""
        out, tail = self.take(), b"".join(self._tail)
        extra = max(0, len(tail) - self._tail_bytes)
        start = extra + next((at for at, byte in enumerate(tail[extra:]) if byte & 0xC0 != 0x80), 0)
        dropped = self._dropped + start
        self._tail.clear()
        return out + (f"[{dropped} bytes are left out]\n".encode() if dropped else b"") + tail[start:]


def boundary(text: bytes, limit: int) -> int:
    """The largest index up to ``limit`` at which a character begins (or the end)."""
    at = min(limit, len(text))
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return at


class LogQuota:
    """How much each tenant may write to its logs."""

    def __init__(self, rate: Rate | None = None) -> None:
        """None: the rate of the table."""
        self._buckets: Buckets[str] = Buckets(rate or QUOTAS["log_bytes"].rate())
        #: of each task, what was left out since the last text
        self._left_out: Counter[str] = Counter()

    def allowed(self, tenant: str, task: str, text: bytes, now_ns: int) -> bytes:
        """What of the next ``text`` of a log goes into it: all or nothing, after a line that says how much is missing."""
        if self._buckets.wait_ns(tenant, now_ns, len(text)):
            self._left_out[task] += len(text)
            return b""
        self._buckets.take(tenant, now_ns, len(text))
        return self.missing(task) + text

    def missing(self, task: str) -> bytes:
        """The line that says how much of the log was left out since the last text; empty: nothing."""
        nbytes = self._left_out.pop(task, 0)
        return f"\n[{nbytes} bytes are left out: quota log_bytes of the tenant]\n".encode() if nbytes else b""


_ANSWER_S: Final = 5.0
_GRACE_S: Final = 3.0
"""Between SIGTERM, at which a script closes its sessions, and SIGKILL."""
_FLUSH_S: Final = 0.2
_FLUSH_SLOWLY_S: Final = 2.0
_QUICK_FLUSHES: Final = 1000
"""Messages of a log that may follow each other at once; later ones come more slowly, so that a log is not thousands of small messages."""
_READ_BYTES: Final = 64 << 10
_CHUNK_BYTES: Final = 64 << 10
_PIPE_READS_MAX: Final = 32
"""More than a pipe holds."""
_KNOWN_MAX: Final = 10_000
_Announce = Callable[[str], Awaitable[object]]


class Runs:
    """The scripts of one runner. ``run`` does not return; ``close`` kills the scripts that run."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self._bus = bus
        self._settings = settings
        self._instance = uuid.uuid4().hex
        self._log_quota = LogQuota()
        self._running: dict[str, _Run] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: every task whose script this process has started, the oldest first: none is started twice
        self._known: dict[str, None] = {}
        #: set once a controller has answered
        self.connected = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                await self._sync()
            except (BusUnavailable, msgspec.DecodeError) as error:
                get_logger().warning("no controller gives orders", problem=str(error))
            await asyncio.sleep(SYNC_S)

    async def close(self) -> None:
        for run in self._running.values():
            run.stop("its runner was stopped")
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=2 * _GRACE_S)
        for run in self._running.values():
            run.script.kill_rest()
            run.script.discard()

    async def _sync(self) -> None:
        """One question to the controllers, and what follows from the answer. Raises BusUnavailable, msgspec.DecodeError."""
        free = len(self._running) < self._settings.slots
        sync = RunnerSync(self._settings.name, self._instance, self._settings.slots, tuple(self._running), self._settings.tenants, free)
        data = msgspec.msgpack.encode(sync)
        await self._bus.publish(run_beat(sync.runner), data)
        answer = await self._bus.request(run_sync(sync.runner), data, _ANSWER_S)
        orders = msgspec.msgpack.decode(answer, type=RunOrders)
        self.connected.set()
        for task in orders.stop:
            if task in self._running:
                self._running[task].stop("")
        if orders.start is not None:
            self._start(orders.start)

    def _start(self, order: RunOrder) -> None:
        task = order.script.task
        if task in self._known:
            return
        self._known[task] = None
        while len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        try:
            run = _Run(order, self._settings, self._bus, self._log_quota)
        except OSError as error:
            get_logger().error("a script could not be started", task=task, problem=str(error))
            reason = f"the runner could not start it: {error.strerror or type(error).__name__}"
            self._tasks[task] = asyncio.create_task(self._report_end(task, None, 0, reason))
            return
        get_logger().info("a script started", task=task, tenant=order.script.tenant, pid=run.script.process.pid)
        self._running[task] = run
        self._tasks[task] = asyncio.create_task(self._follow(task, run), name=f"run {task}")

    async def _follow(self, task: str, run: _Run) -> None:
        code = await run.wait(lambda reason: self._report(RunReport(self._settings.name, self._instance, task, False, reason=reason)))
        others = [other for name, other in self._running.items() if name != task]
        kill_orphans({other.script.process.pid for other in others}, {other.script.mark for other in others})
        await asyncio.to_thread(run.script.discard)  # its folder may hold millions of files
        get_logger().info("a script ended", task=task, code=code, reason=run.reason)
        await self._report_end(task, code if code >= 0 else None, max(0, -code), run.reason)
        del self._running[task]

    async def _report_end(self, task: str, code: int | None, number: int, reason: str) -> None:
        report = RunReport(self._settings.name, self._instance, task, True, code, number, reason)
        while not await self._report(report):  # noqa: ASYNC110  # a paced retry
            await asyncio.sleep(SYNC_S)
        self._tasks.pop(task, None)

    async def _report(self, report: RunReport) -> bool:
        """Whether a controller has noted it."""
        try:
            await self._bus.request(run_report(self._settings.name), msgspec.msgpack.encode(report), _ANSWER_S)
        except BusUnavailable as error:
            get_logger().warning("no controller notes what became of a script", task=report.task, problem=str(error))
            return False
        return True


class _Run:
    """One script that runs. ``reason``: why it is stopped, empty: by its own end, or by a cancellation."""

    def __init__(self, order: RunOrder, settings: Settings, bus: Bus, quota: LogQuota) -> None:
        self.script = ScriptProcess(order, settings)
        self.reason = ""
        self._order = order
        self._bus = bus
        self._quota = quota
        self._output = Output()
        self._stopping = asyncio.Event()
        self._flushes = 0
        self._ended = asyncio.Event()
        self._closed = False

    def stop(self, reason: str) -> None:
        if not self._stopping.is_set():
            self.reason = reason
            self._stopping.set()

    async def wait(self, announce: _Announce) -> int:
        """Until the script has ended and its output is published; its return code, negative for a signal. ``announce(reason)`` is awaited
        before the script is killed for a reason."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self.script.output, self._read)
        publishing = asyncio.create_task(self._publish_all())
        ending = asyncio.create_task(self._end_in_time(announce))
        try:
            code = await exited(self.script.process)
        finally:
            ending.cancel()
        self.script.kill_rest()
        for _ in range(_PIPE_READS_MAX):  # what lies in the pipe; a process that still holds its other end is not waited for
            if not self._read():
                break
        self._close()
        self._ended.set()
        await publishing
        self._output.feed(b"", final=True)
        await self._publish(self._output.rest())
        await self._append(self._quota.missing(self._order.script.task))
        return code

    async def _end_in_time(self, announce: _Announce) -> None:
        wall_s = self._order.script.wall_s
        try:
            async with asyncio.timeout(wall_s):
                await self._stopping.wait()
        except TimeoutError:
            self.stop(f"stopped at its limit of {wall_s} s")
        if self.reason:
            await announce(self.reason)
        self.script.signal(signal.SIGTERM)
        await asyncio.sleep(_GRACE_S)
        self.script.signal(signal.SIGKILL)

    def _read(self) -> bool:
        """Take what has been written; whether there was something."""
        try:
            data = os.read(self.script.output, _READ_BYTES) if not self._closed else b""
        except BlockingIOError:
            return False
        if not data:
            self._close()
            return False
        self._output.feed(data)
        return True

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().remove_reader(self.script.output)

    async def _publish_all(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_S if self._flushes < _QUICK_FLUSHES else _FLUSH_SLOWLY_S):
                    await self._ended.wait()
            await self._publish(self._output.take())

    async def _publish(self, text: bytes) -> None:
        """Append to the log, in order, what the tenant's quota allows."""
        script = self._order.script
        while text:
            self._flushes += 1
            cut = boundary(text, _CHUNK_BYTES)
            chunk, text = text[:cut], text[cut:]
            await self._append(self._quota.allowed(script.tenant, script.task, chunk, time.monotonic_ns()))

    async def _append(self, text: bytes) -> None:
        """Output that the bus refuses is lost; the script keeps running."""
        task = self._order.script.task
        try:
            if text:
                await self._bus.publish_acked(run_log(task), text)
        except (BusUnavailable, BusRefused) as error:
            get_logger().warning("a part of a log is lost", task=task, stream=LOGS_STREAM, problem=str(error))
