"""``python -P -m services.up [--dir DIR] [--backend NAME]``: the embedded stack.

Prints one JSON line when everything is ready: {"nats", "controller", "billing", "node", "dir", "pids"}. Ends on SIGTERM, SIGINT, or with
its parent when WOOLY_DIE_WITH_PARENT names it. State is kept under DIR; without one it is temporary.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from services.kit.errors import KitError, StartError
from services.kit.log import setup_logging
from services.kit.nats_server import NatsServer
from services.kit.process import exited, free_port, ready, run
from services.up.children import Child

_NODE_SEEN_S: Final = 10.0
_POLL_S: Final = 0.02
_HTTP: Final = ("controller", "billing")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="services.up", description="Start the embedded stack.")
    parser.add_argument("--dir", type=Path, default=None, help="keep state here across restarts (default: temporary)")
    parser.add_argument("--backend", default=os.environ.get("WOOLY_BACKEND") or "host", help="the node's backend (default: host)")
    options = parser.parse_args(arguments)
    setup_logging("up")
    folder = Path(tempfile.mkdtemp(prefix="wooly-up-")) if options.dir is None else options.dir.expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return run(lambda stop: serve(stop, folder, options.backend))
    except (KitError, OSError) as error:
        print(f"wooly up: {error}", file=sys.stderr)
        return 2
    finally:
        if options.dir is None:
            shutil.rmtree(folder, ignore_errors=True)


async def serve(stop: asyncio.Event, folder: Path, backend: str) -> int:
    nats = NatsServer(folder / "nats")
    nats.start()
    children = _children(folder, nats.url, backend)
    watching: list[asyncio.Task[None]] = []
    stopping = asyncio.create_task(stop.wait())
    try:
        addresses = await _or_stop(_start(children), stopping)
        if addresses is None:
            return 0
        ready({"nats": nats.url, **addresses, "dir": str(folder), "pids": {child.name: child.pid for child in children}})
        watching = [asyncio.create_task(_keep_nats(nats)), *(asyncio.create_task(child.keep()) for child in children)]
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


def _children(folder: Path, nats_url: str, backend: str) -> list[Child]:
    common = {"WOOLY_NATS_URL": nats_url, "CONTROLLER_NATS_URL": nats_url}
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    ports = _ports(folder)
    children = []
    for name in _HTTP:
        env = {**common, "WOOLY_HTTP": f"127.0.0.1:{ports[name]}", "WOOLY_DATA_DIR": str(folder / name)}
        children.append(Child(name, f"services.{name}", logs, env))
    node_name = os.environ.get("NODE_NAME") or "local"
    env = {**common, "WOOLY_BACKEND": backend, "NODE_NAME": node_name, "WOOLY_DATA_DIR": str(folder / "server")}
    children.append(Child("server", "services.server", logs, env))
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


async def _start(children: list[Child]) -> dict[str, Any]:
    """Start all at once; their addresses from their ready lines."""
    lines = await asyncio.gather(*(child.start() for child in children))
    addresses: dict[str, Any] = {}
    for child, line in zip(children, lines, strict=True):
        if child.name in _HTTP:
            addresses[child.name] = json.loads(line)["http"]
    addresses["node"] = await asyncio.to_thread(_node_seen, addresses["controller"])
    return addresses


def _node_seen(controller: str) -> str:
    """Wait until the controller knows the node; its id."""
    deadline = time.monotonic() + _NODE_SEEN_S
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{controller}/api/v1/nodes", timeout=5) as answer:
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


async def _keep_nats(nats: NatsServer) -> None:
    """Start the bus again, on its port, whenever it ends."""
    while True:
        assert nats.process is not None
        await exited(nats.process)
        nats.start()


if __name__ == "__main__":
    sys.exit(main())
