"""``wooly top``: the sessions on the devices now, their shares and their costs.

A rate of credits is what billing would charge for a second like the last window; the bill itself comes from the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bus_schemas import subjects
from bus_schemas.telemetry import RunningSession, Telemetry, telemetry_on
from bus_schemas.texts import printable
from wooly import config as configuration
from wooly.cli.bus import connect, discover
from wooly.cli.group import CommandError
from wooly.cli.http import get_json
from wooly.cli.options import billing_flag, json_flag, nats_flag
from wooly.cli.output import bytes_text, columns_within, print_json

__all__ = ["COLUMNS", "OPTIONAL", "Prices", "device_line", "session_json", "session_row", "sessions", "top"]

COLUMNS: Final = (
    "task", "tenant", "prio", "weight", "state", "share", "waits", "wait", "max", "behind", "slice", "resident", "swapped", "shared",
    "credits/s",
)  # fmt: skip
NUMBERS: Final = frozenset(COLUMNS) - {"task", "tenant", "prio", "state"}
OPTIONAL: Final = ("weight", "slice", "behind", "max", "shared", "swapped", "tenant", "waits", "wait")
"""Columns that a narrow terminal does without, first to last."""

_MICRO: Final = 10**6
_GIB: Final = 1 << 30
_HIDDEN: Final = ("at_ns", "epoch", "running", "cores", "quotas")
"""Fields of a measurement that the JSON of a device does not have."""
_TITLE_CHARS: Final = 32


@dataclass(frozen=True, slots=True)
class Prices:
    """Micro-credits a core-second and a GiB-second, by tier; which tier a tenant has. Empty: not known."""

    tiers: dict[str, tuple[int, int]] = field(default_factory=dict)
    tenants: dict[str, str] = field(default_factory=dict)
    default: str = ""

    @staticmethod
    def read(answer: dict[str, Any]) -> Prices:
        """From billing's answer on ``/prices``."""
        tiers = {tier["tier"]: (tier["core_second_micro"], tier["gib_second_micro"]) for tier in answer["items"]}
        return Prices(tiers, answer["tenants"], answer["default_tier"])

    def credits_per_s(self, seen: Telemetry, session: RunningSession) -> float | None:
        price = self.tiers.get(self.tenants.get(session.tenant, self.default))
        if price is None or not seen.window_ms:
            return None
        cores = session.core_ns / (seen.window_ms * 10**6)
        return (cores * price[0] + session.resident_bytes / _GIB * price[1]) / _MICRO


def telemetry_of(item: dict[str, Any]) -> Telemetry:
    """A measurement as the controller shows it. Raises KeyError, TypeError where it lacks something: it is of another version."""
    known = {name: item[name] for name in Telemetry.__struct_fields__ if name in item and name != "running"}
    fields = RunningSession.__struct_fields__
    running = tuple(RunningSession(**{name: run[name] for name in fields if name in run}) for run in item["running"])
    return Telemetry(at_ns=0, epoch=0, running=running, **known)


def sessions(seen: Telemetry) -> list[RunningSession]:
    """By priority, then by what they use."""
    return sorted(seen.running, key=lambda session: (session.priority, -session.core_ns, session.session))


def share_percent(seen: Telemetry, session: RunningSession) -> float:
    """Core time of the window, of all the device's cores."""
    whole_ns = seen.window_ms * 10**6 * max(1, seen.cores)
    return 100 * session.core_ns / whole_ns if whole_ns else 0.0


def device_line(name: str, seen: Telemetry) -> str:
    """One line about a device."""
    parts = [
        f"{name} gpu {seen.gpu}",
        f"utilization {seen.utilization_percent} %",
        f"starvation {seen.starvation_percent} %",
        f"VRAM {bytes_text(seen.vram_used_bytes)} of {bytes_text(seen.vram_total_bytes)}",
        f"promised {bytes_text(seen.vram_reserved_bytes)}",
    ]
    if seen.vram_swapped_bytes:
        parts.append(f"swapped {bytes_text(seen.vram_swapped_bytes)}")
    if seen.vram_shared_bytes:
        parts.append(f"shared {bytes_text(seen.vram_shared_bytes)} (saves {bytes_text(seen.vram_saved_bytes)})")
    return " · ".join(parts)


def session_json(seen: Telemetry, session: RunningSession, prices: Prices) -> dict[str, Any]:
    """Every figure, by name."""
    return {
        **{field: getattr(session, field) for field in session.__struct_fields__},
        "share_percent": round(share_percent(seen, session), 2),
        "credits_per_s": prices.credits_per_s(seen, session),
    }


def session_row(seen: Telemetry, session: RunningSession, prices: Prices) -> tuple[str, ...]:
    """The cells of COLUMNS."""
    rate = prices.credits_per_s(seen, session)
    behind = 100 * session.behind_ns / (seen.window_ms * 10**6) if seen.window_ms else 0.0
    return (
        _name(session),
        session.tenant,
        f"P{session.priority}",
        str(session.weight),
        session.state,
        f"{share_percent(seen, session):.1f} %",
        str(session.waits),
        _ms(session.wait_ns // session.waits if session.waits else 0),
        _ms(session.wait_max_ns),
        f"{behind:.0f} %",
        _ms(session.slice_ns // session.slices if session.slices else 0),
        bytes_text(session.resident_bytes),
        bytes_text(session.swapped_bytes) if session.swapped_bytes else "-",
        bytes_text(session.shared_bytes) if session.shared_bytes else "-",
        "-" if rate is None else f"{rate:,.1f}",
    )


def _name(session: RunningSession) -> str:
    """The script's title; else the task's or the session's id."""
    name = session.title or session.task or session.session
    return name if len(name) <= _TITLE_CHARS else name[: _TITLE_CHARS - 1] + "…"


def _ms(duration_ns: int) -> str:
    return "-" if not duration_ns else f"{duration_ns / 1e6:.1f} ms"


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
                **{name: getattr(seen, name) for name in Telemetry.__struct_fields__ if name not in _HIDDEN},
                "name": self._name(seen),
                "tasks": [session_json(seen, session, self._prices) for session in sessions(seen)],
            }
            for seen in self.devices()
        ]

    def draw(self, width: int) -> Group:
        """As lines of at most ``width`` characters: what does not fit is left out."""
        parts: list[Text | Table] = []
        for seen in self.devices():
            parts.append(Text(printable(device_line(self._name(seen), seen)), style="bold"))
            table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
            rows = [session_row(seen, session, self._prices) for session in sessions(seen)]
            shown = columns_within(COLUMNS, rows, OPTIONAL, width)
            for column in shown:
                table.add_column(column, justify="right" if column in NUMBERS else "left", no_wrap=True)
            for row in rows:
                table.add_row(*(Text(printable(cell)) for column, cell in zip(COLUMNS, row, strict=True) if column in shown))
            parts.append(table if seen.running else Text("no task", style="dim"))
            parts.append(Text(""))
        return Group(*(parts or [Text("no device has sent measurements lately; wooly nodes lists nodes, wooly server starts one")]))

    def _name(self, seen: Telemetry) -> str:
        return self._names.get(seen.node, seen.node)


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
