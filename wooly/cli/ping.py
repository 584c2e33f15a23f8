"""``wooly ping``."""

from __future__ import annotations

import click
import msgspec

from wooly import config as configuration
from wooly.cli.bus import discover
from wooly.cli.group import CommandError
from wooly.cli.options import json_flag, nats_flag
from wooly.cli.output import bytes_text, print_json, print_table

__all__ = ["ping"]


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
