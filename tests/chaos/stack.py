"""A bus, a controller, billing and one or two nodes, each a process of its own that is ended and started again alone; and a script that
uses them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from bus_schemas.events import Event
from services.kit.bus import connect
from services.kit.nats_server import NatsCluster, NatsServer
from services.kit.process import free_port, spawn
from tests.support.cluster import hub
from tests.support.node import executor_pids, history
from tests.support.stack import ROOT, plain_environment

__all__ = ["NODES", "PARTS", "WORKS", "Script", "Stack"]

NODES = {"server": "chaos", "second": "second"}
"""Parts that are nodes, and their names. The second is there only for faults that need it."""
PARTS = ("nats", "controller", "billing", *NODES)
_MODULES = {"controller": "services.controller", "billing": "services.billing"} | dict.fromkeys(NODES, "services.server")
_LEAF = "chaos"
_SMALL_MB = 192
_FILLED_BYTES = 4096
_NODE_LEASE_MS = 3000
"""With two nodes: after so long a silence a node is lost."""


_PIDFD_GETFD = 438
"""The system call, on every processor."""


def _copied(process: int, number: int) -> int:
    """A file descriptor of another process, copied into this one. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(_PIDFD_GETFD, process, number, 0))
    if found < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return found


class Link:
    """A TCP port that passes everything on to another while it is ``up``."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._up = True
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and every new one at once."""
        self._up = False
        for end in list(self._sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._up = True

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self._up:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        self._sockets |= {source}
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._sockets -= {source}


class Stack:
    """For the time of a ``with`` block."""

    def __init__(self, folder: Path, *, nodes: int = 1, servers: int = 1, leaf: bool = False, small: str = "") -> None:
        """``nodes``: 1, or 2 with a connection to the bus each that can be cut (``links``), and a short lease at the controller.
        ``servers``: of the bus, 1 or 3. ``leaf``: the node and the scripts use a leaf server of those three, which is not one of their
        parts. ``small``: the part whose files are on a small disk of their own (``fill``); needs root."""
        self.folder = folder
        self._small = folder / small if small else None
        if self._small is not None:
            self._small.mkdir(mode=0o700)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SMALL_MB}m,mode=700", "tmpfs", self._small], check=True)
        self.leaf: NatsServer | None = None
        if leaf:
            self.cluster, make_leaf = hub(folder / "nats")
            self.leaf = make_leaf(folder / "leaf", _LEAF)
        else:
            self.cluster = NatsCluster(folder / "nats", servers)
        self.nats = self.cluster.servers[0]
        self.nodes = dict(list(NODES.items())[:nodes])
        self.links: dict[str, Link] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = {name: free_port() for name in ("controller", "billing")}

    def __enter__(self) -> Self:
        self.start("nats")
        if self.leaf is not None:
            self.leaf.start(deadline_s=60)
        if len(self.cluster.servers) == 1:
            self.links = {part: Link(self.nats.port) for part in self.nodes}
        for part in ("controller", "billing", *self.nodes):
            self.start(part)
        self.link = Link(self.nats.port)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for link in (self.link, *self.links.values()):
            link.close()
        for part in reversed(PARTS):
            self.end(part, signal.SIGKILL)
        for part in self.nodes:
            self.kill_executor(part)
        if self.leaf is not None:
            self.leaf.kill()
        if self._small is not None:
            subprocess.run(["umount", self._small], check=True)

    def fill(self, seconds: float) -> None:
        """Leave no room on the small disk for so long."""
        assert self._small is not None
        filler, deadline_s = self._small / "filler", time.monotonic() + seconds
        with filler.open("wb", buffering=0) as file:
            while time.monotonic() < deadline_s:
                try:
                    file.write(bytes(_FILLED_BYTES))
                except OSError:
                    time.sleep(0.02)  # what is freed meanwhile is filled as well
        filler.unlink()

    def url(self, part: str) -> str:
        return f"http://127.0.0.1:{self._ports[part]}"

    def ask(self, part: str, path: str, body: Any = None) -> Any:
        """GET from controller or billing, or POST ``body``; the answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url(part) + path, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def log(self) -> list[Event]:
        """Every fact in the log now, in order."""

        async def read() -> list[Event]:
            bus = await connect(self.cluster.url, name="chaos", deadline_s=60)
            try:
                return await history(bus)
            finally:
                await bus.close()

        return asyncio.run(read())

    def start(self, part: str) -> None:
        if part == "nats":
            for server in self.cluster.servers:
                server.start(deadline_s=60)
            return
        bus = f"nats://127.0.0.1:{self.links[part].port}" if part in self.links else self.cluster.url
        if self.leaf is not None and part in self.nodes:
            bus = self.leaf.url
        environment = plain_environment(
            WOOLY_NATS_URL=bus,
            CONTROLLER_NATS_URL=bus,
            WOOLY_BUS_REPLICAS=str(len(self.cluster.servers)),
            WOOLY_BILLING_URL=self.url("billing"),
            WOOLY_DATA_DIR=str(self.folder / part),
            WOOLY_CACHE_DIR=str(self._cache(part)),
            NODE_NAME=NODES.get(part, part),
            WOOLY_DEVICE_VRAM_MB="2048",
            PYTHONPATH=str(ROOT),
        )
        if len(self.nodes) > 1:
            environment["CONTROLLER_NODE_LEASE_MS"] = str(_NODE_LEASE_MS)
        if self.leaf is not None and part in self.nodes:
            environment["WOOLY_BUS_LEAF"] = _LEAF
        if part in self._ports:
            environment["WOOLY_HTTP"] = f"127.0.0.1:{self._ports[part]}"
        with (self.folder / f"{part}.log").open("ab") as log:
            process = spawn([sys.executable, "-P", "-m", _MODULES[part]], env=environment, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"{part} did not start:\n{(self.folder / f'{part}.log').read_text()[-4000:]}")
        self._processes[part] = process

    def end(self, part: str, number: int = signal.SIGTERM) -> None:
        """End a part by a signal, and wait for that."""
        if part == "nats":
            for server in self.cluster.servers:
                server.kill()
            return
        process = self._processes.pop(part, None)
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()

    def runs(self, part: str) -> bool:
        """Whether it was not ended, and has not ended by itself."""
        return part in self._processes and self._processes[part].poll() is None

    def signal(self, part: str, number: int) -> None:
        self._processes[part].send_signal(number)

    def _cache(self, part: str) -> Path:
        return self.folder / f"{part}-cache"

    def executors(self, part: str = "server") -> list[int]:
        """Of a node."""
        return executor_pids(self._cache(part))

    def kill_executor(self, part: str = "server") -> None:
        for pid in self.executors(part):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def cut_data_connections(self) -> int:
        """Shut down every connection to the data ports of the first node, as a failing network does; how many."""
        cut = 0
        paths = set(map(str, self.data_sockets()))
        for pid in self.executors():
            process = os.pidfd_open(pid)
            for number in map(int, os.listdir(f"/proc/{pid}/fd")):
                with contextlib.suppress(OSError):
                    if not os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                        continue
                    with socket.socket(fileno=_copied(process, number)) as copy:
                        listens = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                        if copy.family == socket.AF_UNIX and copy.getsockname() in paths and not listens:
                            copy.shutdown(socket.SHUT_RDWR)
                            cut += 1
            os.close(process)
        return cut

    def data_sockets(self) -> list[Path]:
        """The sockets of the first node's data ports that are there now."""
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
        mine = {int(pid): (Path("/proc") / str(pid) / "environ").read_bytes() for pid in self.executors()}
        return [path for path in base.glob(f"wooly-{os.getuid()}-*/d0") if any(bytes(path) in about for about in mine.values())]


STEPS = 400
"""Of a training."""
WORKS = ("mlp", "gpt", "generate")
"""What ``train.py`` can do, beside ``copy``."""


class Script:
    """``train.py`` as a process of its own, and its lines."""

    def __init__(
        self, stack: Stack, task: str, tenant: str = "default", steps: int = STEPS, work: str = WORKS[0], *, paced: bool = False
    ) -> None:
        """``paced``: it prints one line, and more as ``allow`` says."""
        bus = f"nats://127.0.0.1:{stack.link.port}" if len(stack.cluster.servers) == 1 else stack.cluster.url
        environment = plain_environment(
            WOOLY_NATS_URL=stack.leaf.url if stack.leaf is not None else bus,
            WOOLY_TENANT=tenant,
            CONTROLLER_URL=stack.url("controller"),
            WOOLY_RECOVERY_TARGET_S="1",  # images while the training runs, which is short
            PYTHONPATH=str(ROOT),
        )
        self._pace: IO[bytes] | None = None
        self._allowed = 1
        if paced:
            pace = stack.folder / f"{task}.pace"
            os.mkfifo(pace)
            environment["PACED"] = str(pace)
            self._pace = pace.open("r+b", buffering=0)
        self._errors = stack.folder / f"{task}.err"
        self._command = [sys.executable, str(Path(__file__).with_name("train.py")), str(steps), work]
        self._environment, self._folder = environment, stack.folder
        self._changed = threading.Condition()
        self.run_again()

    def run_again(self) -> None:
        """From its beginning; the run before was killed."""
        self.lines: list[str] = []
        self._times_s: list[float] = []
        with self._errors.open("ab") as errors:
            self.process = spawn(self._command, env=self._environment, stdout=subprocess.PIPE, stderr=errors, cwd=self._folder)
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout, self.lines), daemon=True)
        self._reader.start()

    @property
    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    @property
    def longest_pause_s(self) -> float:
        """Between two of its lines."""
        return max((after - before for before, after in zip(self._times_s, self._times_s[1:], strict=False)), default=0.0)

    def allow(self, lines: int) -> None:
        """Let it print so many lines in all, if it is paced."""
        if self._pace is not None:
            self._pace.write(b"\n" * (lines - self._allowed))
            self._allowed = lines

    def reaches(self, lines: int, timeout_s: float) -> bool:
        """Wait until it has printed so many lines, or has ended."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while len(self.lines) < lines and self._reader.is_alive() and time.monotonic() < deadline:
                self._changed.wait(0.2)
        return len(self.lines) >= lines

    def ends(self, timeout_s: float) -> int | None:
        """Its exit code; None when it hangs."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
        self._reader.join(10)
        return code

    def _read(self, output: IO[bytes], lines: list[str]) -> None:
        for line in output:
            with self._changed:
                lines.append(line.decode().rstrip())
                self._times_s.append(time.monotonic())
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()
