"""The bus as commands see it: connections, node discovery, and ``wooly ping``."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

import click
import msgspec

from bus_schemas import subjects
from bus_schemas.session import NodeInfo
from wooly import config as configuration
from wooly.cli.group import CommandError
from wooly.cli.options import json_flag, nats_flag
from wooly.cli.output import bytes_text, print_json, print_table
from wooly.errors import NoServerError
from wooly.transport.bus import bus_credentials, where

if TYPE_CHECKING:
    from nats.aio.client import Client

_CONNECT_S: Final = 5.0
_VIOLATION: Final = re.compile(r"permissions violation for (publish|subscription) to \"([^\"]*)\"", re.IGNORECASE)
_node_info: Final = msgspec.msgpack.Decoder(NodeInfo)


def discover(urls: Sequence[str], wait_s: float) -> list[tuple[NodeInfo, float]]:
    """Every node that answers within ``wait_s``, by name, and its round trip in seconds. Raises NoServerError when no bus answers."""
    return asyncio.run(_discover(urls, wait_s))


def principal_of(urls: Sequence[str]) -> str:
    """Who we are on the bus. Raises ConfigError."""
    return bus_credentials(configuration.load(task=False), urls).principal


@contextlib.asynccontextmanager
async def connect(urls: Sequence[str], forbidden: str = "") -> AsyncIterator[Client]:
    """A connection that is closed at the end. A subject that the bus does not permit cancels the body. Raises NoServerError when no bus
    answers, CommandError for such a subject, with ``forbidden`` instead of the general sentence if it is given."""
    import nats

    from wooly.shared.nats_client import ReconnectingClient

    refusals: list[str] = []
    body = asyncio.current_task()

    async def failed(error: Exception) -> None:
        """Connection errors are raised below; nats-py would print them too."""
        found = _VIOLATION.search(str(error))
        if found is not None and not refusals and body is not None:
            refusals.append(f"this key may not {'publish' if found[1] == 'publish' else 'subscribe'} to {found[2]} on the bus")
            body.cancel()

    client = ReconnectingClient()
    credentials = bus_credentials(configuration.load(task=False), urls)
    try:
        inbox = subjects.inbox_prefix(credentials.principal)
        connecting = client.connect(
            list(urls),
            allow_reconnect=False,
            connect_timeout=2,
            max_reconnect_attempts=1,
            error_cb=failed,
            inbox_prefix=inbox,
            **credentials.options(),
        )
        await asyncio.wait_for(connecting, _CONNECT_S)
    except (OSError, nats.errors.Error, TimeoutError) as error:
        why = str(error) or f"no answer within {_CONNECT_S:g} s"
        raise NoServerError(f"no NATS server answers at {where(urls)} ({why}); check WOOLY_NATS_URL, and that the bus runs") from None
    try:
        yield client
    except asyncio.CancelledError:
        if not refusals or body is None:
            raise
        body.uncancel()
        general = f"{refusals[0]}: use a key with a larger role (wooly login; an administrator creates keys)"
        raise CommandError(forbidden or general) from None
    finally:
        await client.close()


async def _discover(urls: Sequence[str], wait_s: float) -> list[tuple[NodeInfo, float]]:
    import nats

    async with connect(urls) as client:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        start = time.perf_counter()
        await client.publish(subjects.discover(principal_of(urls)), b"", reply=inbox)
        found: dict[str, tuple[NodeInfo, float]] = {}
        while (left := start + wait_s - time.perf_counter()) > 0:
            with contextlib.suppress(nats.errors.TimeoutError):
                message = await answers.next_msg(timeout=left)
                if not message.data:
                    break  # no responders
                with contextlib.suppress(msgspec.DecodeError):  # a node of another version cannot be shown
                    node = _node_info.decode(message.data)
                    found.setdefault(node.node, (node, time.perf_counter() - start))
        return sorted(found.values(), key=lambda pair: pair[0].name)


@click.command()
@nats_flag
@click.option("--wait", "wait_s", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Seconds to wait for answers.")
@json_flag
def ping(nats_url: str | None, wait_s: float, as_json: bool) -> None:
    """Ask every node on the bus for an answer."""
    urls = configuration.load({"WOOLY_NATS_URL": nats_url} if nats_url else None, task=False).nats_urls
    if not urls:
        raise CommandError("no bus is named: set WOOLY_NATS_URL, or use --nats-url nats://HOST:4222")
    found = discover(urls, wait_s)
    if as_json:
        print_json([{**msgspec.to_builtins(node), "round_trip_ms": round(seconds * 1e3, 3)} for node, seconds in found])
    if not found:
        raise CommandError("the bus answers, but no node is on it; start one with: wooly server")
    if as_json:
        return
    columns = ("node", "address", "version", "ms", "gpus")
    rows = [
        (
            node.name,
            node.address,
            node.version,
            f"{seconds * 1e3:.1f}",
            ", ".join(f"{device.index}: {device.name} ({bytes_text(device.vram_bytes)})" for device in node.devices),
        )
        for node, seconds in found
    ]
    print_table(columns, rows, numbers=("ms",), empty="")
