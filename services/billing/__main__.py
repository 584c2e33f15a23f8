"""``python -P -m services.billing``: run billing until told to stop.

Environment: WOOLY_NATS_URL (the bus), WOOLY_HTTP (host:port, default 127.0.0.1:8082), WOOLY_DATA_DIR (where the saved view lives).
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from services.billing.api import make_app
from services.billing.keeper import Keeper
from services.kit.bus import connect
from services.kit.errors import KitError, SettingError
from services.kit.http import parse_address, serve
from services.kit.log import get_logger, setup_logging
from services.kit.process import ready, run


async def main(stop: asyncio.Event) -> int:
    setup_logging("billing")
    try:
        url = os.environ.get("WOOLY_NATS_URL", "")
        if not url:
            raise SettingError("WOOLY_NATS_URL is not set; give the address of the bus, for example nats://127.0.0.1:4222")
        address = parse_address(os.environ.get("WOOLY_HTTP", "127.0.0.1:8082"))
        folder = Path(os.environ.get("WOOLY_DATA_DIR", ".wooly")) / "billing"
        bus = await connect(url, name="billing")
        try:
            await bus.ensure_streams()
            async with Keeper(bus, folder / "view.json") as keeper, serve(make_app(keeper), address) as http:
                get_logger().info("billing listening", http=http, position=keeper.view.position)
                ready({"http": http})
                await stop.wait()
        finally:
            await bus.close()
    except KitError as error:
        sys.stderr.write(f"billing: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
