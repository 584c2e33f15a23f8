"""``python -P -m services.controller``: run a controller until SIGTERM or SIGINT.

Environment: WOOLY_NATS_URL (or CONTROLLER_NATS_URL: the bus), WOOLY_HTTP (host:port, default 127.0.0.1:8080), WOOLY_ETCD_URL (configuration
in etcd instead of a bucket on the bus), CONTROLLER_DEFAULT_VRAM_OVERCOMMIT_PERCENT, CONTROLLER_NODE_LEASE_MS, CONTROLLER_START_LEASE_MS.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys

from billing.tiers import TierBook
from services.controller.actions import TaskActions
from services.controller.app import make_app
from services.controller.bootstrap import bootstrap
from services.controller.bus_guard import BusGuard
from services.controller.configuration import Configuration
from services.controller.errors import LogUnreadable
from services.controller.gauges import Gauges
from services.controller.journals import Journals
from services.controller.mirror import Mirror
from services.controller.node_keys import bootstrap_nodes
from services.controller.parts import Parts
from services.controller.placer import Placer
from services.controller.run_book import BudgetCrossings
from services.controller.runs import Runs
from services.controller.sentinel import Sentinel
from services.controller.settings import Settings
from services.controller.store import StoreError, open_store
from services.controller.web.desk import Desk
from services.controller.web.house import WEB_ROUTES, Web
from services.controller.web.rates import PriceBook
from services.controller.writer import Writer
from services.kit.access import AccessView
from services.kit.access.access import open_access
from services.kit.access.mode import hosts_of
from services.kit.bus import connect
from services.kit.errors import KitError
from services.kit.http import serve
from services.kit.log import get_logger, setup_logging
from services.kit.process import ready, run


async def serve_until(stop: asyncio.Event, settings: Settings) -> None:
    """Everything a controller is, for as long as ``stop`` is not set. Raises when a part of it fails."""
    async with contextlib.AsyncExitStack() as stack:
        bus = await connect(settings.nats_url, name="controller")
        stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        store = await open_store(bus, settings.etcd_url)
        stack.push_async_callback(store.close)
        mirror = Mirror(bus)
        mirror.also(AccessView)
        mirror.also(TierBook)
        mirror.also(PriceBook)
        mirror.also(BudgetCrossings)
        await stack.enter_async_context(mirror)
        gc.freeze()  # the history stays: looking through it for garbage again and again would stop every answer for long
        access = await open_access(
            bus,
            os.environ,
            listens_on=[settings.address[0], *hosts_of(settings.nats_url)],
            view=lambda: mirror.fold(AccessView),
            heard=lambda: mirror.connected and mirror.failure is None,
            pages=True,
        )
        stack.callback(access.close)
        writer = Writer(bus, mirror)
        gauges = Gauges(bus)
        placer = Placer(mirror, writer)
        leases = {"node_lease_ms": settings.node_lease_ms, "start_lease_ms": settings.start_lease_ms}
        tasks = TaskActions(mirror, writer, placer)
        runs = Runs(bus, mirror, writer, tasks, access)
        sentinel = Sentinel(bus, store, mirror, gauges, writer, placer, runs, **leases)
        await stack.enter_async_context(gauges)
        configuration = Configuration(store, mirror, writer)
        await configuration.start(settings.overcommit_percent)
        await bootstrap(os.environ, access, mirror, writer)
        await bootstrap_nodes(os.environ, mirror, writer)
        await stack.enter_async_context(BusGuard.from_environment(settings.nats_url, bus, access, mirror))
        await stack.enter_async_context(runs)
        parts = Parts.over(mirror, gauges, writer, placer, configuration, sentinel, access, Journals(settings.nats_url), tasks, runs)
        desk = await stack.enter_async_context(Desk.from_environment())
        web = Web.over(parts, access, desk)
        app = make_app(parts, access, more_routes=WEB_ROUTES)
        app.state.web = web
        http = await stack.enter_async_context(serve(app, settings.address))
        get_logger().info("controller listening", http=http, position=mirror.position)
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(sentinel.run()),
                group.create_task(configuration.follow()),
                group.create_task(web.live.run()),
                group.create_task(web.read_past(bus)),
            ]
            ready({"http": http})
            await stop.wait()
            for task in beside:
                task.cancel()


async def main(stop: asyncio.Event) -> int:
    setup_logging("controller")
    try:
        await serve_until(stop, Settings.from_environment())
    except (KitError, StoreError, LogUnreadable) as error:
        sys.stderr.write(f"controller: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
