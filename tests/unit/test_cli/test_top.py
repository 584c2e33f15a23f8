"""What ``wooly top`` makes of telemetry: figures, order, and what it says when something is not known."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from bus_schemas import subjects
from bus_schemas.session import NodeInfo
from bus_schemas.telemetry import RunningSession, Telemetry, encode_telemetry
from services.kit.nats_server import NatsServer
from tests.support.command import Wooly
from wooly.cli.output import columns_within
from wooly.cli.top import COLUMNS, OPTIONAL, Prices, device_line, session_json, session_row, sessions

GIB = 1 << 30
SERVE = RunningSession(
    "s1", "t1", 0, GIB, "acme", "serve.py", 100, core_ns=500_000_000, waits=4, wait_ns=8_000_000, wait_max_ns=5_000_000, slices=5,
    slice_ns=400_000_000, behind_ns=10_000_000, allocated_bytes=2 * GIB, swapped_bytes=0, shared_bytes=GIB, state="running",
)  # fmt: skip
TRAIN = RunningSession("s2", "", 3, 0, "lab", "", 300, core_ns=1_000_000_000, swapped_bytes=3 * GIB, state="ready")
SEEN = Telemetry(0, "n1", 1, 0, 1000, 80, 30, 8 * GIB, GIB, 4 * GIB, 3 * GIB, (TRAIN, SERVE), 2, GIB, GIB)
PRICES = Prices({"standard": (1_000_000_000, 2_000_000_000), "basic": (10_000_000, 0)}, {"lab": "basic"}, "standard")


def test_rows_are_by_priority_and_say_what_each_gets() -> None:
    assert [session.session for session in sessions(SEEN)] == ["s1", "s2"]
    serve = dict(zip(COLUMNS, session_row(SEEN, SERVE, PRICES), strict=True))
    assert serve == {
        "task": "serve.py", "tenant": "acme", "prio": "P0", "weight": "100", "state": "running", "share": "25.0 %", "waits": "4",
        "wait": "2.0 ms", "max": "5.0 ms", "behind": "1 %", "slice": "80.0 ms", "resident": "1.0 GiB", "swapped": "-", "shared": "1.0 GiB",
        "credits/s": "2,500.0",
    }  # fmt: skip
    train = dict(zip(COLUMNS, session_row(SEEN, TRAIN, PRICES), strict=True))
    assert (train["task"], train["share"], train["swapped"], train["credits/s"]) == ("s2", "50.0 %", "3.0 GiB", "10.0")


def test_a_narrow_terminal_shows_fewer_columns_whole() -> None:
    rows = [session_row(SEEN, session, PRICES) for session in sessions(SEEN)]
    assert columns_within(COLUMNS, rows, OPTIONAL, 200) == list(COLUMNS) == columns_within(COLUMNS, [], OPTIONAL, 200)
    assert columns_within(COLUMNS, rows, OPTIONAL, 80) == [
        "task",
        "tenant",
        "prio",
        "state",
        "share",
        "waits",
        "wait",
        "resident",
        "credits/s",
    ]
    assert columns_within(COLUMNS, rows, OPTIONAL, 10) == ["task", "prio", "state", "share", "resident", "credits/s"]


def test_without_prices_there_is_no_rate_and_without_a_window_no_share() -> None:
    assert session_row(SEEN, SERVE, Prices())[-1] == "-"
    blank = msgspec.structs.replace(SEEN, window_ms=0)
    assert session_json(blank, SERVE, PRICES)["credits_per_s"] is None
    assert session_json(blank, SERVE, PRICES)["share_percent"] == 0


def test_a_device_line_names_what_there_is() -> None:
    line = device_line("node-a", SEEN)
    assert line == (
        "node-a gpu 0 · utilization 80 % · starvation 30 % · VRAM 1.0 GiB of 8.0 GiB · promised 4.0 GiB · swapped 3.0 GiB · "
        "shared 1.0 GiB (saves 1.0 GiB)"
    )
    assert "swapped" not in device_line("node-a", msgspec.structs.replace(SEEN, vram_swapped_bytes=0))


class _Node:
    """Answers discovery and measures, from a thread: what a node says of itself, without a device."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> _Node:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    async def _serve(self) -> None:
        client = Client()
        await client.connect(self._url)
        about = msgspec.msgpack.encode(NodeInfo("n1", "node-a", "127.0.0.1", 1, (), ()))
        heard = await client.subscribe(subjects.discover())
        await client.flush()
        self._ready.set()
        while not self._over.is_set():
            try:
                question = await heard.next_msg(timeout=0.05)
                await question.respond(about)
            except TimeoutError:
                await client.publish(subjects.telemetry_subject("n1", 0), b"not telemetry")
                await client.publish(
                    subjects.telemetry_subject("n1", 0), encode_telemetry(msgspec.structs.replace(SEEN, at_ns=time.time_ns()))
                )
        await client.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[str]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    with _Node(server.url):
        yield server.url
    server.stop()


def test_one_table_from_the_bus(wooly: Wooly, node: str) -> None:
    shown = wooly("top", "--once", "--nats-url", node, "--billing", "http://127.0.0.1:1")
    assert shown.returncode == 0, shown.stderr
    assert "node-a gpu 0 · utilization 80 %" in shown.stdout
    rows = [line for line in shown.stdout.splitlines() if "serve.py" in line or line.startswith("s2")]
    assert "P0" in rows[0] and "P3" in rows[1]


def test_json_from_the_bus(wooly: Wooly, node: str) -> None:
    (device,) = json.loads(wooly("top", "--json", "--nats-url", node, "--billing", "http://127.0.0.1:1").stdout)
    assert (device["name"], device["vram_saved_bytes"]) == ("node-a", GIB)
    assert [task["session"] for task in device["tasks"]] == ["s1", "s2"]
    assert device["tasks"][0]["wait_max_ns"] == 5_000_000


def test_no_bus_and_no_node_are_said(wooly: Wooly, tmp_path: Path) -> None:
    assert "no bus is named" in wooly("top", "--once").stderr
    server = NatsServer(tmp_path / "nats")
    server.start()
    try:
        assert "no node is on it" in wooly("top", "--once", "--nats-url", server.url).stderr
    finally:
        server.stop()
