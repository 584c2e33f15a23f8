"""``python -P -m services.billing``: run billing until SIGTERM or SIGINT.

Environment: WOOLY_NATS_URL (the bus), WOOLY_HTTP (host:port, default 127.0.0.1:8082), WOOLY_DATA_DIR (where the saved view lives),
WOOLY_AUTH and WOOLY_TRUSTED_PROXIES (see services.kit.access).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from services.billing.allowances import Allowances
from services.billing.parts import Parts
from services.billing.projection import BillingProjection
from services.billing.routes import make_app
from services.billing.writer import Writer, announce_forever
from services.kit.access.access import AccessProjection, hosts_of, open_access
from services.kit.bus import Bus, connect
from services.kit.errors import SettingError
from services.kit.http import parse_address, serve
from services.kit.log import get_logger
from services.kit.process import first_of, history_stays, ready, run_service


async def serve_until(stop: asyncio.Event) -> None:
    """Everything billing is, for as long as ``stop`` is not set.

    Nodes are answered once the history is applied, and only then is billing announced as ready.
    """
    url = os.environ.get("WOOLY_NATS_URL", "")
    if not url:
        raise SettingError("WOOLY_NATS_URL is not set; give the address of the bus, for example nats://127.0.0.1:4222")
    address = parse_address(os.environ.get("WOOLY_HTTP", "127.0.0.1:8082"))
    folder = Path(os.environ.get("WOOLY_DATA_DIR", ".wooly")) / "billing"
    async with contextlib.AsyncExitStack() as stack:
        bus = await connect(url, name="billing")
        stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        projection = await stack.enter_async_context(BillingProjection(bus, folder / "view.json"))
        known = await stack.enter_async_context(AccessProjection(bus))
        access = await open_access(
            bus,
            os.environ,
            listens_on=[address[0], *hosts_of(url)],
            view=lambda: known.view,
            follows_log=lambda: known.receives_revocations,
        )
        stack.callback(access.close)
        writer = Writer(bus, projection)
        http = await stack.enter_async_context(serve(make_app(Parts(projection, writer, access)), address))
        get_logger().info("billing listening", http=http, position=projection.view.position)
        beside = [
            asyncio.create_task(announce_forever(projection, writer), name="announce"),
            asyncio.create_task(_lend(bus, projection, lambda: ready({"http": http})), name="lend"),
        ]
        await first_of(stop, *beside)


async def _lend(bus: Bus, projection: BillingProjection, lending: Callable[[], None]) -> None:
    """Answer nodes once everything that was in the log at the start is applied, and call ``lending`` then: lending on half a log lends
    too much."""
    with history_stays():
        await projection.history_applied()
    await Allowances(bus, projection).start()
    lending()
    await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(run_service("billing", serve_until))
