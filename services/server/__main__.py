"""``python -P -m services.server``: one node. Configured by the environment, see settings.py."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from services.kit.bus import connect
from services.kit.errors import BusUnavailable, KitError, SettingError, StartError
from services.kit.log import get_logger, setup_logging
from services.kit.process import ready, run
from services.server.facts import FactLog, last_epoch
from services.server.metrics import Watch
from services.server.node import Node
from services.server.settings import Settings


async def run_node(stop: asyncio.Event) -> int:
    log = get_logger()
    settings = Settings.from_environment(os.environ)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with (settings.data_dir / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StartError(f"another server uses {settings.data_dir}: stop it, or set WOOLY_DATA_DIR") from None
        bus = await connect(settings.nats_url, name="server", deadline_s=30.0)
        try:
            facts = FactLog(settings.data_dir / "facts.journal", settings.node_id, await last_epoch(bus, settings.node_id))
            node = Node(settings, bus, facts)
            await node.start()
            gc.freeze()  # what is loaded stays: looking through it for garbage would keep every tenant waiting for 10 ms now and then
            async with watched(node, os.environ.get("WOOLY_NODE_HTTP", "")) as http:
                log.info("server listening", node=settings.node_name, epoch=facts.epoch, bus=settings.nats_url, http=http)
                ready(f"server listening on {settings.nats_url} as node {settings.node_name} ({settings.node_id}){http and f', {http}'}")
                await first_of(stop.wait(), facts.failed.wait())
            log.info("stopping")
            await node.stop()
        finally:
            await bus.close()
    return 1 if facts.failed.is_set() else 0


@contextlib.asynccontextmanager
async def watched(node: Node, address: str) -> AsyncIterator[str]:
    """Serve health and metrics over HTTP inside the block; yields the URL, empty without an ``address``. Raises StartError,
    SettingError."""
    if not address:
        yield ""
        return
    from services.kit.http import parse_address, serve  # a web server only for those who want one

    async with serve(Watch(node.standing), parse_address(address, "WOOLY_NODE_HTTP")) as url:
        yield url


async def first_of(*events: Coroutine[Any, Any, object]) -> None:
    """Return when one of them is over."""
    tasks = [asyncio.ensure_future(event) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def main() -> int:
    setup_logging("server")
    try:
        return run(run_node)
    except (SettingError, StartError, BusUnavailable, KitError) as error:
        print(f"wooly server: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # its folder: missing rights, a full disk
        print(f"wooly server: {error}: see to WOOLY_DATA_DIR and the disk it is on", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
