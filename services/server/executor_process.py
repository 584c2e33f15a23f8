"""The executor of one device, seen from the server: found or started, attached to, talked to, replaced when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bus_schemas.frames import Frames, frame
from services.kit.errors import StartError
from services.kit.log import get_logger
from services.kit.process import spawn
from services.server.protocol import PROTOCOL, Attach, Attached, Command, Report, Shutdown, UseCertificate, decode_report
from services.server.settings import EXECUTOR_VARIABLE, ExecutorSettings
from services.server.stop_page import stop_page_path
from wooly.shared.files import revision_of
from wooly_server import module_command
from wooly_server.cgroup import group_of, ran_out_of_memory

_START_S: Final = 60.0
_POLL_S: Final = 0.01
_STOP_S: Final = 10.0


_NEEDED: Final = (
    "PATH", "HOME", "LANG", "LC_", "TZ", "PYTHON", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "XDG_CACHE_HOME", "WOOLY_LOG",
    "WOOLY_SANDBOX", "OMP_", "OPENBLAS_", "MKL_", "CUDA", "NVIDIA_", "CUPY_", "HIP_", "ROCM_", "ROCR_", "HSA_", "GPU_", "OCL_", "OPENCL_",
    "PYOPENCL_", "POCL_", "COVERAGE_", "ASAN_", "MALLOC_", "GLIBC_",
)  # fmt: skip
"""How the names of variables begin that drivers, compilers and libraries read. The service's keys and addresses are not among them."""


_MALLOC: Final = {"MALLOC_MMAP_THRESHOLD_": str(4 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""For glibc: an executor keeps the pages that answers were in, for clearing fresh ones takes twice as long as the copies themselves."""


def _needed(name: str) -> bool:
    return name.startswith(_NEEDED)


class _Wire(asyncio.Protocol):
    def __init__(self, on_report: Callable[[Report], None], on_lost: Callable[[], None]) -> None:
        self._frames = Frames()
        self._on_report = on_report
        self._on_lost = on_lost

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._on_report(decode_report(body))

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost()


class ExecutorProcess:
    """``on_report`` is called for every report after Attached, ``on_lost`` once when an attached executor has ended."""

    def __init__(self, settings: ExecutorSettings, on_report: Callable[[Report], None], on_lost: Callable[[], None]) -> None:
        self._settings = settings
        self._on_report = on_report
        self._on_lost = on_lost
        self._transport: asyncio.WriteTransport | None = None
        self._attached: asyncio.Future[Attached] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._group: Path | None = None
        """The control group that the executor made for itself."""
        self._certificate = revision_of(())
        """Revision of the files of the certificate that was sent last."""
        self._log = get_logger()

    async def start(self) -> Attached:
        """Attach to the executor that an earlier server left, or to a new one. Raises StartError."""
        with contextlib.suppress(OSError, StartError):
            attached = await self._attach()
            if attached.protocol == PROTOCOL:
                self._log.info("took over the executor", gpu=self._settings.gpu, pid=attached.pid, sessions=len(attached.held))
                return attached
            self._drop()
            await self._end(attached.pid)
        self._drop()
        own = {EXECUTOR_VARIABLE: msgspec.json.encode(self._settings).decode(), "OPENBLAS_NUM_THREADS": "1"}
        env = _MALLOC | {name: value for name, value in os.environ.items() if _needed(name)} | own
        # Not tied to this process: it outlives a server that crashes, and ends by itself when no other comes.
        self._process = spawn(module_command("services.server.executor"), env=env, stdout=subprocess.DEVNULL, tied=False)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_S
        while loop.time() < deadline:
            if self._process.poll() is not None:
                code = self._process.returncode
                raise StartError(f"the executor of device {self._settings.gpu} ended at start (exit code {code}); see the log above")
            with contextlib.suppress(OSError):
                return await self._attach()
            await asyncio.sleep(_POLL_S)
        self._process.kill()
        raise StartError(f"the executor of device {self._settings.gpu} was not ready within {_START_S:g} s")

    @property
    def exceeded_memory(self) -> bool:
        """Whether the executor was killed, and it or its compile process had more memory than WOOLY_EXECUTOR_MEMORY_MB allows."""
        code = self._process.poll() if self._process is not None else None
        return code in (None, -signal.SIGKILL) and self._group is not None and ran_out_of_memory(self._group)

    def send(self, command: Command) -> None:
        """Send, or do nothing when the executor has ended (``on_lost`` reports that)."""
        if self._transport is not None:
            self._transport.write(frame(command))

    def renew_certificate(self) -> None:
        """Send the certificate of the data port if its files were replaced. Raises OSError."""
        files = self._settings.tls_files or ()
        revision = revision_of(files)
        if revision != self._certificate and self._transport is not None:
            self._certificate = revision
            self.send(UseCertificate(b"".join(Path(file).read_bytes() for file in files)))

    async def stop(self) -> None:
        """End it: it drops all memory."""
        self.send(Shutdown())
        on_lost, self._on_lost = self._on_lost, lambda: None
        del on_lost
        if self._pid:
            await self._end(self._pid)
        self._drop()
        for file in (Path(self._settings.socket), stop_page_path(Path(self._settings.socket)), Path(self._settings.data_socket)):
            file.unlink(missing_ok=True)

    def leave(self) -> None:
        """Close the connection: the executor continues without a server for `orphan_s`."""
        self._drop()

    def kill(self) -> None:
        """End it the hard way."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._process is not None and self._process.pid == self._pid:
            self._process.wait()

    async def _attach(self) -> Attached:
        loop = asyncio.get_running_loop()
        self._attached = loop.create_future()
        transport, _ = await loop.create_unix_connection(lambda: _Wire(self._received, self._lost), self._settings.socket)
        self._transport = transport
        self.send(Attach(PROTOCOL))
        try:
            attached = await asyncio.wait_for(self._attached, _START_S)
        except TimeoutError:
            self._drop()
            raise StartError("the executor does not answer") from None
        self._pid = attached.pid
        self._group = group_of(attached.pid)
        return attached

    def _received(self, report: Report) -> None:
        if isinstance(report, Attached):
            if self._attached is not None and not self._attached.done():
                self._attached.set_result(report)
            return
        self._on_report(report)

    def _lost(self) -> None:
        self._transport = None
        if self._attached is not None and not self._attached.done():
            self._attached.set_exception(StartError("the executor closed the connection"))
        elif self._pid:
            self._on_lost()

    def _drop(self) -> None:
        """Forget the connection without calling it a loss."""
        self._pid = 0
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    async def _end(self, pid: int) -> None:
        """Wait for a process to end, and make it after a while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _STOP_S
        while _alive(pid, self._process):
            if loop.time() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_POLL_S)


def _alive(pid: int, child: subprocess.Popen[bytes] | None) -> bool:
    if child is not None and child.pid == pid:
        return child.poll() is None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
