"""``python -P -m services.server.health``: does the node of this environment answer on the bus? Exit status 0 or 1, for health checks."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

import msgspec

from bus_schemas.session import Ping, Pong
from bus_schemas.subjects import node_request
from services.kit.bus import connect
from services.kit.errors import KitError
from services.server.settings import Settings

_TIMEOUT_S: Final = 3.0


async def answer() -> Pong:
    """The node's answer. Raises KitError when there is none."""
    settings = Settings.from_environment(os.environ)
    bus = await connect(settings.nats_url, name="health", deadline_s=_TIMEOUT_S)
    try:
        reply = await bus.request(node_request(settings.node_id, "ping", bus.principal), msgspec.msgpack.encode(Ping()), _TIMEOUT_S)
        return msgspec.msgpack.decode(reply, type=Pong)
    finally:
        await bus.close()


def main() -> int:
    try:
        pong = asyncio.run(answer())
    except (KitError, msgspec.DecodeError) as error:
        print(f"unhealthy: {error}", file=sys.stderr)
        return 1
    print(f"healthy: node {pong.node}, epoch {pong.epoch}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
