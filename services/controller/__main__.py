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
from services.controller.bootstrap import bootstrap, bootstrap_nodes
from services.controller.bus_guard import BusGuard
from services.controller.configuration import Configuration
from services.controller.gauges import Gauges
from services.controller.journals import Journals
from services.controller.log_projection import LogProjection
from services.controller.parts import Parts
from services.controller.placer import Placer
from services.controller.reconciler import Reconciler
from services.controller.run_book import BudgetCrossings
from services.controller.runs import Runs
from services.controller.settings import Settings
from services.controller.store import open_store
from services.controller.web.context import UiContext
from services.controller.web.history import PriceBook
from services.controller.web.site import WEB_ROUTES, Web
from services.controller.writer import Writer
from services.kit.access import AccessView
from services.kit.access.access import hosts_of, open_access
from services.kit.bus import connect
from services.kit.http import serve
from services.kit.log import get_logger
from services.kit.process import ready, run_service


async def serve_until(stop: asyncio.Event, settings: Settings) -> None:
    """Run every part of a controller until ``stop`` is set. Raises when a part fails."""
    async with contextlib.AsyncExitStack() as stack:
        bus = await connect(settings.nats_url, name="controller")
        stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        store = await open_store(bus, settings.etcd_url)
        stack.push_async_callback(store.close)
        projection = LogProjection(bus)
        projection.also(AccessView)
        projection.also(TierBook)
        projection.also(PriceBook)
        projection.also(BudgetCrossings)
        await stack.enter_async_context(projection)
        gc.freeze()  # the history stays: looking through it for garbage again and again would stop every answer for long
        access = await open_access(
            bus,
            os.environ,
            listens_on=[settings.address[0], *hosts_of(settings.nats_url)],
            view=lambda: projection.fold(AccessView),
            follows_log=lambda: projection.connected and projection.failure is None,
            pages=True,
        )
        stack.callback(access.close)
        writer = Writer(bus, projection)
        gauges = Gauges(bus)
        placer = Placer(projection, writer)
        tasks = TaskActions(projection, writer, placer)
        runs = Runs(bus, projection, writer, tasks, access)
        reconciler = Reconciler(
            bus=bus,
            store=store,
            projection=projection,
            gauges=gauges,
            writer=writer,
            placer=placer,
            runs=runs,
            node_lease_ms=settings.node_lease_ms,
            start_lease_ms=settings.start_lease_ms,
        )
        await stack.enter_async_context(gauges)
        configuration = Configuration(store, projection, writer)
        await configuration.start(settings.overcommit_percent)
        await bootstrap(os.environ, access, projection, writer)
        await bootstrap_nodes(os.environ, writer)
        await stack.enter_async_context(BusGuard.from_environment(settings.nats_url, bus, access, projection))
        await stack.enter_async_context(runs)
        parts = Parts(
            projection=projection,
            gauges=gauges,
            writer=writer,
            configuration=configuration,
            reconciler=reconciler,
            access=access,
            journals=Journals(settings.nats_url),
            runs=runs,
            tasks=tasks,
        )
        context = await stack.enter_async_context(UiContext.from_environment())
        web = Web.over(parts, access, context)
        app = make_app(parts, access, more_routes=WEB_ROUTES)
        app.state.web = web
        http = await stack.enter_async_context(serve(app, settings.address))
        get_logger().info("controller listening", http=http, position=projection.position)
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(reconciler.run()),
                group.create_task(configuration.follow()),
                group.create_task(web.live.run()),
                group.create_task(web.read_past(bus)),
            ]
            ready({"http": http})
            await stop.wait()
            for task in beside:
                task.cancel()


if __name__ == "__main__":
    sys.exit(run_service("controller", lambda stop: serve_until(stop, Settings.from_environment())))
