"""``python -P -m services.up [--dir DIR] [--backend NAME] [--secure] [--runner] [--listen HOST] [--cluster N]``: the embedded stack.

Prints one JSON line when everything is ready: {"nats", "controller", "billing", "node", "dir", "pids"}, and with --secure {"ca",
"admin_key_file"}. Ends on SIGTERM, SIGINT, or with its parent when WOOLY_DIE_WITH_PARENT names it. State is kept under DIR; without one it
is temporary.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from services.kit.errors import KitError, StartError
from services.kit.log import get_logger, setup_logging
from services.kit.nats_server import NatsCluster, NatsServer, has_room, reachable
from services.kit.process import DIE_WITH_PARENT, PRIVATE_UMASK, child_environment, exited, free_port, ready, run, spawn, stop_process
from services.kit.streams import REPLICAS_VARIABLE
from services.up.secure import Secure
from wooly_server import module_command

_READY_S: Final = 60.0
_RESTARTS_MAX: Final = 5
_RESTARTS_WITHIN_S: Final = 30.0
_PAUSE_S: Final = 0.2
_STOP_S: Final = 20.0
_TAIL_BYTES: Final = 3000
_OF_CLIENTS: Final = ("WOOLY_API_KEY", "WOOLY_API_KEY_FILE")
"""A key of the person who starts the stack, perhaps for another one: no service is that person."""


class Child:
    """``module`` run as a process of its own. Its standard error goes to ``<folder>/<name>.log``."""

    def __init__(self, name: str, module: str, folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self._module = module
        self._log_path = folder / f"{name}.log"
        self._env = child_environment(**{**dict.fromkeys(_OF_CLIENTS), **env, DIE_WITH_PARENT: None})
        self._process: subprocess.Popen[bytes] | None = None
        self._starts: deque[float] = deque(maxlen=_RESTARTS_MAX)
        self._log = get_logger()

    async def start(self) -> str:
        """Start it; its ready line. Raises StartError with the end of its log. Call from the main thread."""
        self._starts.append(time.monotonic())
        with self._log_path.open("ab") as log:
            self._process = spawn(module_command(self._module), env=self._env, stdout=subprocess.PIPE, stderr=log)
        stdout = self._process.stdout
        assert stdout is not None
        try:
            line = await asyncio.wait_for(asyncio.to_thread(stdout.readline), _READY_S)
        except TimeoutError:
            self._process.kill()
            raise StartError(f"{self.name} was not ready within {_READY_S:g} s; the end of its log:\n{self.tail()}") from None
        if not line:
            code = await asyncio.to_thread(self._process.wait)
            raise StartError(f"{self.name} ended at start (exit code {code}); the end of its log:\n{self.tail()}")
        return line.decode(errors="replace").strip()

    async def keep(self) -> None:
        """Start it again whenever it ends. Raises StartError when that happens too often."""
        while True:
            assert self._process is not None
            code = await exited(self._process)
            self._log.error("a service ended", name=self.name, code=code)
            if len(self._starts) == _RESTARTS_MAX and time.monotonic() - self._starts[0] < _RESTARTS_WITHIN_S:
                raise StartError(
                    f"{self.name} ended {_RESTARTS_MAX} times within {_RESTARTS_WITHIN_S:g} s; the end of its log:\n{self.tail()}"
                )
            await asyncio.sleep(_PAUSE_S)
            await _room(self._log_path)
            await self.start()

    def stop(self) -> None:
        if self._process is not None:
            stop_process(self._process, grace_s=_STOP_S)
            if self._process.stdout is not None:
                self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def tail(self) -> str:
        """The end of its log."""
        try:
            return self._log_path.read_text(errors="replace")[-_TAIL_BYTES:]
        except OSError:
            return "(no log)"


_NODE_SEEN_S: Final = 10.0
_POLL_S: Final = 0.02
_RENEW_S: Final = 2.0
_ROOM_S: Final = 1.0
_SETTLE_S: Final = 15.0
"""In which a server of a cluster that was started again takes its streams back."""
_HTTP: Final = ("controller", "billing")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="services.up", description="Start the embedded stack.")
    parser.add_argument("--dir", type=Path, default=None, help="keep state here across restarts (default: temporary)")
    parser.add_argument("--backend", default=os.environ.get("WOOLY_BACKEND") or "host", help="the node's backend (default: host)")
    parser.add_argument("--secure", action="store_true", help="TLS and authentication: makes certificates and a first admin key")
    parser.add_argument("--runner", action="store_true", help="also start a runner, which executes submitted scripts as this user")
    parser.add_argument("--listen", metavar="HOST", default=None, help="be there for other machines too; implies --secure")
    parser.add_argument("--cluster", type=int, choices=(1, 3), default=1, help="bus servers: 1 (default), or 3 that store all facts")
    options = parser.parse_args(arguments)
    listen = options.listen or "127.0.0.1"
    setup_logging("up")
    os.umask(PRIVATE_UMASK)
    folder = Path(tempfile.mkdtemp(prefix="wooly-up-")) if options.dir is None else options.dir.expanduser().resolve()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_own(folder)
        with _locked(folder):
            secure = _secure(folder, listen) if options.secure or options.listen is not None else None
            return run(lambda stop: serve(stop, folder, options.backend, secure, runner=options.runner, size=options.cluster))
    except (KitError, OSError) as error:
        print(f"wooly up: {error}", file=sys.stderr)
        return 2
    finally:
        if options.dir is None:
            shutil.rmtree(folder, ignore_errors=True)


def _check_own(folder: Path) -> None:
    """Another user who may write in ``folder``, or owns part of it, could give this stack keys, programs and a configuration. Raises
    StartError."""
    for path in (folder, *sorted(folder.iterdir())):
        about = path.lstat()
        if about.st_uid != os.getuid():
            raise StartError(f"{path} belongs to another user: choose another --dir, or change its owner")
        if about.st_mode & 0o002 and not stat.S_ISLNK(about.st_mode):
            raise StartError(f"{path} can be written by other users: choose another --dir, or run: chmod o-w {path}")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process: two bus servers must not open one store. Raises StartError."""
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            owner = lock.read().strip() or "(unknown)"
            raise StartError(f"{folder} is in use by process {owner}: stop that stack, or choose another --dir") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _secure(folder: Path, listen: str) -> Secure:
    """The keyring of this stack; a new admin key is shown, once."""
    secure = Secure.make(folder / "keyring", listen, _node_name())
    if secure.new:
        print(f"\n  The first admin key, shown once (it stays in {folder}/keyring/controller/admin.key):\n", file=sys.stderr)
        print(f"      {secure.ring.admin_key}\n", file=sys.stderr, flush=True)
    return secure


async def serve(stop: asyncio.Event, folder: Path, backend: str, secure: Secure | None, *, runner: bool, size: int) -> int:
    """``size``: how many servers the bus has."""
    security, host = (None, "127.0.0.1") if secure is None else (secure.bus_config, secure.listen)
    nats = NatsCluster(folder / "nats", size, security=security, host=host)
    nats.start()
    children = _children(folder, nats, backend, secure, runner=runner)
    watching: list[asyncio.Task[None]] = []
    stopping = asyncio.create_task(stop.wait())
    try:
        addresses = await _or_stop(_start(children, secure), stopping)
        if addresses is None:
            return 0
        if secure is not None:
            addresses.update(ca=str(secure.ring.ca), admin_key_file=str(secure.ring.folder / "controller" / "admin.key"))
        ready({"nats": nats.url, **addresses, "dir": str(folder), "pids": {child.name: child.pid for child in children}})
        watching = [asyncio.create_task(_keep_nats(server)) for server in nats.servers]
        watching += [asyncio.create_task(child.keep()) for child in children]
        watching.append(asyncio.create_task(_renew_nats(nats)))
        done, _ = await asyncio.wait([stopping, *watching], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            task.result()  # a child that cannot be kept up ends the stack
        return 0
    finally:
        for task in (stopping, *watching):
            task.cancel()
        # The node first: it ends its sessions and says so on the bus; the bus last.
        for child in reversed(children):
            child.stop()
        nats.stop()


def _node_name() -> str:
    return os.environ.get("NODE_NAME") or "local"


def _children(folder: Path, nats: NatsCluster, backend: str, secure: Secure | None, *, runner: bool) -> list[Child]:
    common = {"WOOLY_NATS_URL": nats.url, "CONTROLLER_NATS_URL": nats.url, REPLICAS_VARIABLE: str(len(nats.servers))}
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    ports = _ports(folder)
    listen, scheme = ("127.0.0.1", "http") if secure is None else (secure.listen, "https")
    common["WOOLY_BILLING_URL"] = f"{scheme}://{reachable(listen)}:{ports['billing']}"
    environments = {name: {"WOOLY_HTTP": f"{listen}:{ports[name]}", "WOOLY_DATA_DIR": str(folder / name)} for name in _HTTP}
    environments["server"] = {
        "WOOLY_BACKEND": backend, "NODE_NAME": _node_name(), "WOOLY_DATA_DIR": str(folder / "server"), "WOOLY_ON_STOP": "end",
    }  # fmt: skip
    if runner:
        at = f"{scheme}://{reachable(listen)}:{ports['controller']}"
        environments["runner"] = {"RUNNER_NAME": _node_name(), "CONTROLLER_URL": at, "WOOLY_DATA_DIR": str(folder / "runner")}
    children = []
    for name, env in environments.items():
        more = secure.environment(name) if secure is not None else {}
        children.append(Child(name, f"services.{name}", logs, {**common, **env, **more}))
    return children


def _ports(folder: Path) -> dict[str, int]:
    """The HTTP ports, the same at every start with this folder."""
    path = folder / "ports.json"
    with contextlib.suppress(OSError, ValueError):
        ports = json.loads(path.read_text())
        if all(isinstance(ports.get(name), int) for name in _HTTP):
            return {name: ports[name] for name in _HTTP}
    fresh = {name: free_port() for name in _HTTP}
    path.write_text(json.dumps(fresh))
    return fresh


async def _start(children: list[Child], secure: Secure | None) -> dict[str, Any]:
    """Start all at once; their addresses from their ready lines."""
    lines = await asyncio.gather(*(child.start() for child in children))
    addresses: dict[str, Any] = {}
    for child, line in zip(children, lines, strict=True):
        if child.name in _HTTP:
            addresses[child.name] = json.loads(line)["http"].replace("//0.0.0.0:", "//127.0.0.1:")
    addresses["node"] = await asyncio.to_thread(_node_seen, addresses["controller"], secure)
    return addresses


def _node_seen(controller: str, secure: Secure | None) -> str:
    """Wait until the controller knows the node; its id."""
    deadline = time.monotonic() + _NODE_SEEN_S
    while time.monotonic() < deadline:
        request = urllib.request.Request(f"{controller}/api/v1/nodes", headers=dict(secure.headers()) if secure is not None else {})
        with urllib.request.urlopen(request, timeout=5, context=secure.context() if secure is not None else None) as answer:
            ids = [str(node["id"]) for node in json.loads(answer.read())["items"] if node["state"] == "ready"]
        if ids:
            return ids[0]
        time.sleep(_POLL_S)
    raise StartError(f"the controller did not see the node within {_NODE_SEEN_S:g} s")


async def _or_stop(work: Any, stopping: asyncio.Task[bool]) -> Any:
    """The result of ``work``, or None when the stop comes first."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    task.cancel()
    return None


async def _room(log_path: Path) -> None:
    """Wait until the disk of this log has room: what is started before would end again."""
    said = False
    while True:
        if has_room(log_path.parent):
            return
        if not said:
            get_logger().error("the disk is full: services wait until there is room", folder=str(log_path.parent))
        said = True
        await asyncio.sleep(_ROOM_S)


async def _keep_nats(nats: NatsServer) -> None:
    """Start a server of the bus again, on its port, whenever it ends."""
    while True:
        assert nats.process is not None
        await exited(nats.process)
        await _room(nats.log_path)
        nats.start()


async def _renew_nats(nats: NatsCluster) -> None:
    """Stop, one after another, the servers that must be started again: their issuer was replaced (``services.kit.rotation``), or their
    disk was full. ``_keep_nats`` does that."""
    while True:
        await asyncio.sleep(_RENEW_S)
        server = next((server for server in nats.servers if server.outdated), None)
        if server is not None and server.process is not None:
            server.process.terminate()
            await asyncio.sleep(_SETTLE_S if len(nats.servers) > 1 else 0)


if __name__ == "__main__":
    sys.exit(main())
