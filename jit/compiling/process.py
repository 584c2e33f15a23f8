"""The executor's side of the compile process: one job at a time, with a deadline; a process that dies or overruns is replaced."""

from __future__ import annotations

import contextlib
import os
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import msgspec

from jit.errors import KernelRefused, Unfinished
from wooly_server import module_command

__all__ = ["CompileLimits", "CompileProcess", "pausing_after"]

PATIENCE: Final = 4
"""By how much a job's time by the clock may exceed the processor time that it may take."""
_PIPE_BYTES: Final = 1 << 20
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bool, bytes]).decode


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """What one job may take: processor time (and four times as much by the clock), and the address space of the process."""

    cpu_ms: int = 20_000
    address_space_bytes: int = 8 << 30

    @classmethod
    def within(cls, cpu_ms: int | None) -> CompileLimits:
        """With this processor time; None: the usual one."""
        return cls() if cpu_ms is None else cls(cpu_ms=cpu_ms)

    def left_s(self, cpu_s: float, wall_s: float) -> float:
        """How long a job may go on that took so much. On a busy machine a compiler waits for its turn, which is not its input's fault."""
        limit_s = self.cpu_ms / 1000
        return min(limit_s - cpu_s, PATIENCE * limit_s - wall_s)


@dataclass(slots=True)
class _Pause:
    deadline_s: float
    jobs: int = 0


_pause: Final[ContextVar[_Pause | None]] = ContextVar("pause", default=None)


@contextlib.contextmanager
def pausing_after(wall_ns: int) -> Iterator[None]:
    """Of the jobs that this thread asks for inside, those after the first raise Unfinished once so much time is over. What was compiled
    until then is known to its back end, as far as there is room in the object cache."""
    token = _pause.set(_Pause(time.monotonic() + wall_ns / 1e9))
    try:
        yield
    finally:
        _pause.reset(token)


class CompileProcess:
    """Any thread may call ``compile``; jobs wait for each other. The process is started by the first one, or by ``warm``."""

    def __init__(self, limits: CompileLimits = CompileLimits()) -> None:  # frozen
        self._limits = limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def compile(self, job: str, payload: bytes) -> bytes:
        """The result of ``job`` (a name of ``worker.JOBS``). Raises KernelRefused when the compiler refuses the input, dies, or takes more
        than it may, Unfinished."""
        pause = _pause.get()
        if pause is not None:
            if pause.jobs and time.monotonic() >= pause.deadline_s:
                raise Unfinished
            pause.jobs += 1
        with self._lock:
            process = self._running()
            body = _encode((job, payload))
            try:
                answer = _exchange(process, struct.pack("<I", len(body)) + body, self._limits)
            except TimeoutError:
                self._stop()
                raise KernelRefused(
                    f"compiling took more than {self._limits.cpu_ms} ms (the node's WOOLY_COMPILE_MS); make the kernel smaller"
                ) from None
            except (EOFError, BrokenPipeError):
                self._stop()
                text = "the compiler gave up on this kernel (it ran out of memory, or aborted); make the kernel smaller"
                raise KernelRefused(text) from None
        done, result = _decode(answer)
        if not done:
            raise KernelRefused(f"the compiler refused this kernel: {result.decode(errors='replace')}")
        return result

    def warm(self) -> None:
        """Start the process, so that the first job need not."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """End the process. Safe to call twice."""
        with self._lock:
            self._stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._process is None:
            command = module_command("jit.compiling.worker", str(self._limits.address_space_bytes))
            # Unbuffered, and in a group of its own: a Ctrl-C at the terminal is the executor's business.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    """Processor time that the process has taken, all threads together: Linux's clock of another process, which needs no file. Raises
    EOFError when it has ended."""
    try:
        return time.clock_gettime(~process.pid << 3 | 2)  # make_process_cpuclock, CPUCLOCK_SCHED
    except OSError:
        raise EOFError from None


def _exchange(process: subprocess.Popen[bytes], request: bytes, limits: CompileLimits) -> bytes:
    """Write ``request``, read one frame. Raises TimeoutError past the limits, EOFError or BrokenPipeError when the process ends."""
    assert process.stdin is not None and process.stdout is not None, "opened as pipes"
    rest, received = memoryview(request), bytearray()
    out, back = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(out, False)
    cpu_before_s, began_s = _cpu_s(process), time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_WRITE)
        selector.register(back, selectors.EVENT_READ)
        while True:
            left_s = limits.left_s(_cpu_s(process) - cpu_before_s, time.monotonic() - began_s)
            if left_s <= 0:
                raise TimeoutError
            ready = selector.select(left_s)
            for key, _ in ready:
                if key.fd == out:
                    rest = rest[os.write(out, rest[:_PIPE_BYTES]) :]
                    if not rest:
                        selector.unregister(out)
                    continue
                data = os.read(back, _PIPE_BYTES)
                if not data:
                    raise EOFError
                received += data
                if len(received) >= 4 and len(received) - 4 >= struct.unpack_from("<I", received)[0]:
                    return bytes(received[4:])
