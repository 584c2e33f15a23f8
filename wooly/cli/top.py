"""``wooly top``: the sessions on the devices now, their shares and their costs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bus_schemas import subjects
from bus_schemas.telemetry import Telemetry, telemetry_on
from wooly import config as configuration
from wooly.cli.bus import connect, discover
from wooly.cli.errors import CommandError
from wooly.cli.http import get_json
from wooly.cli.options import billing_flag, json_flag, nats_flag
from wooly.cli.output import columns_within, print_json
from wooly.cli.top_rows import COLUMNS, NUMBERS, OPTIONAL, Prices, device_line, session_json, session_row, sessions, telemetry_of

__all__ = ["top"]

_FIRST_S: Final = 5.0
"""Every node measures once a second: after this long without a word there is none."""
_STALE_S: Final = 10.0
_PRICES_S: Final = 30.0
_POLL_S: Final = 1.0
_LOOK_S: Final = 0.25
"""Without a measurement for so long: has the bus refused?"""


class _Screen:
    """The last measurement of every device, and the prices it is shown with."""

    def __init__(self, names: dict[str, str], billing: str) -> None:
        self._names = names
        self._billing = billing
        self._prices = Prices()
        self._priced_s = 0.0
        self._seen: dict[tuple[str, int], tuple[Telemetry, float]] = {}

    def hear(self, subject: str, data: bytes) -> None:
        with contextlib.suppress(msgspec.DecodeError):  # a node of another version cannot be shown
            seen = telemetry_on(subject, data)
            self._seen[seen.node, seen.gpu] = seen, time.monotonic()

    def read(self, controller: str) -> None:
        """Take what a controller heard last: of sessions, those that the caller may know of."""
        self._names = {node["id"]: node["name"] for node in get_json(controller, "/api/v1/nodes", what="controller")["items"]}
        now_s = time.monotonic()
        for item in get_json(controller, "/api/v1/telemetry", what="controller")["items"]:
            try:
                seen = telemetry_of(item)
            except (KeyError, TypeError):
                continue  # a controller of another version cannot be shown
            self._seen[seen.node, seen.gpu] = seen, now_s - item["age_ms"] / 1000

    def refresh_prices(self) -> None:
        """Ask billing now and then; without it there are no rates."""
        now_s = time.monotonic()
        if not self._priced_s or now_s - self._priced_s > _PRICES_S:
            self._priced_s = now_s
            with contextlib.suppress(CommandError):
                self._prices = Prices.read(get_json(self._billing, "/api/v1/billing/prices", what="billing service"))

    def devices(self) -> list[Telemetry]:
        """Of devices heard lately, by node name and index."""
        oldest_s = time.monotonic() - _STALE_S
        live = [seen for seen, heard_s in self._seen.values() if heard_s > oldest_s]
        return sorted(live, key=lambda seen: (self._name(seen), seen.gpu))

    def as_json(self) -> list[dict[str, object]]:
        return [
            {
                **{key: value for key, value in msgspec.to_builtins(_named(seen)).items() if key != "running"},
                "name": self._name(seen),
                "tasks": [session_json(seen, session, self._prices) for session in sessions(seen)],
            }
            for seen in self.devices()
        ]

    def draw(self, width: int) -> Group:
        """As lines of at most ``width`` characters: what does not fit is left out."""
        parts: list[Text | Table] = []
        for seen in self.devices():
            parts.append(Text(device_line(self._name(seen), seen), style="bold"))
            table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
            rows = [session_row(seen, session, self._prices) for session in sessions(seen)]
            shown = columns_within(COLUMNS, rows, OPTIONAL, width)
            for column in shown:
                table.add_column(column, justify="right" if column in NUMBERS else "left", no_wrap=True)
            for row in rows:
                table.add_row(*(cell for column, cell in zip(COLUMNS, row, strict=True) if column in shown))
            parts.append(table if seen.running else Text("no task", style="dim"))
            parts.append(Text(""))
        return Group(*(parts or [Text("no device has sent measurements lately; wooly nodes lists nodes, wooly server starts one")]))

    def _name(self, seen: Telemetry) -> str:
        return self._names.get(seen.node, seen.node)


class _Named(msgspec.Struct):
    """A device's figures by name."""

    node: str
    gpu: int
    window_ms: int
    utilization_percent: int
    starvation_percent: int
    vram_total_bytes: int
    vram_used_bytes: int
    vram_reserved_bytes: int
    vram_swapped_bytes: int
    vram_shared_bytes: int
    vram_saved_bytes: int


def _named(seen: Telemetry) -> _Named:
    return _Named(**{field: getattr(seen, field) for field in _Named.__struct_fields__})


@click.command()
@nats_flag
@billing_flag
@click.option("--once", is_flag=True, help="Print one table and end.")
@json_flag
def top(nats_url: str | None, billing: str, once: bool, as_json: bool) -> None:
    """Watch the tasks on every device: priority, share of the cores, waits, memory, credits a second. Ends with Ctrl-C."""
    config = configuration.load({"WOOLY_NATS_URL": nats_url} if nats_url else None, task=False)
    if config.controller_url and config.api_key and not nats_url:
        controller = config.controller_url.rstrip("/")
        screen = _Screen({}, billing)
        first = partial(screen.read, controller)
        follow = partial(_poll, screen, controller)
    else:
        urls = config.nats_urls
        if not urls:
            raise CommandError("no bus is named: set WOOLY_NATS_URL, or use --nats-url nats://HOST:4222")
        names = {node.node: node.name for node, _ in discover(urls, 0.5)}
        if not names:
            raise CommandError("the bus answers, but no node is on it; start one with: wooly server")
        screen = _Screen(names, billing)
        first = partial(_hear, urls, screen, lambda: len(screen.devices()) >= len(names), _FIRST_S)
        follow = partial(_hear, urls, screen, timeout_s=None)
    _show(screen, first, follow, once=once, as_json=as_json)


def _show(screen: _Screen, first: Callable[[], None], follow: Callable[[Callable[[], bool]], None], *, once: bool, as_json: bool) -> None:
    """``first()`` fills the screen once; ``follow(enough)`` keeps it up to date and asks ``enough`` after each measurement."""
    console = Console()
    if once or as_json:
        first()
        screen.refresh_prices()
        if as_json:
            print_json(screen.as_json())
        else:
            width = console.width if console.is_terminal else max(console.width, 200)
            Console(width=width).print(screen.draw(width))
        return
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:

        def draw() -> bool:
            screen.refresh_prices()
            live.update(screen.draw(console.width), refresh=True)
            return False

        follow(draw)


def _poll(screen: _Screen, controller: str, enough: Callable[[], bool]) -> None:
    """Ask a controller about once a second, until ``enough``."""
    while True:
        screen.read(controller)
        if enough():
            return
        time.sleep(_POLL_S)


def _hear(urls: Sequence[str], screen: _Screen, enough: Callable[[], bool], timeout_s: float | None) -> None:
    """Hear telemetry on the bus until ``enough``, or for ``timeout_s``. Raises CommandError where the key may not."""
    asyncio.run(_listen(urls, screen, enough, timeout_s))


async def _listen(urls: Sequence[str], screen: _Screen, enough: Callable[[], bool], timeout_s: float | None) -> None:
    """Hear telemetry until ``enough`` (asked after each message), or for ``timeout_s``."""
    import nats

    forbidden = (
        "your key may not hear the measurements of all tenants on the bus: that needs a role without a tenant; "
        "with CONTROLLER_URL set, wooly top shows what is yours"
    )
    async with connect(urls, forbidden) as client:
        heard = await client.subscribe(subjects.TELEMETRY_ALL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        message = await heard.next_msg(timeout=_LOOK_S)
                    except nats.errors.TimeoutError:
                        continue
                    except nats.errors.Error as error:
                        raise CommandError(f"the connection to the bus is closed ({error}); is it running?") from None
                    screen.hear(message.subject, message.data)
                    if await asyncio.to_thread(enough):
                        return
