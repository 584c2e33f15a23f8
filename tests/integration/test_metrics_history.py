"""Charts further back than an hour: the pages of a real controller, its own metrics, and a server that answers range queries over them as
Prometheus does (tests.support.promql evaluates them)."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.plane import Plane, wait_until
from tests.support.promql import Series, evaluate

HOUR_S = 3_600


class Store(ThreadingHTTPServer):
    """``series``: what it holds."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.series: list[Series] = []
        self.asked: list[str] = []
        self.daemon_threads = True
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def hold(self, controllers: list[str], since_s: float) -> None:
        """The metrics of these controllers as they are now, as if they had been so since then."""
        times = range(int(since_s), int(time.time()) + 60, 30)
        self.series = [
            Series(sample.name, {**sample.labels, "instance": str(number)}, tuple((float(at), sample.value) for at in times))
            for number, url in enumerate(controllers)
            for family in text_string_to_metric_families(urllib.request.urlopen(url + "/metrics").read().decode())
            for sample in family.samples
        ]


class Answers(BaseHTTPRequestHandler):
    server: Store

    def do_GET(self) -> None:
        found = urlsplit(self.path)
        body: Any = {}
        if found.path == "/api/v1/query_range":
            given = {name: values[0] for name, values in parse_qs(found.query).items()}
            self.server.asked.append(given["query"])
            lines: dict[Any, list[Any]] = {}
            for at in range(int(given["start"]), int(given["end"]) + 1, int(given["step"])):
                vector = evaluate(given["query"], self.server.series, at)
                assert isinstance(vector, dict)
                for labels, value in vector.items():
                    lines.setdefault(labels, []).append([at, str(value)])
            result = [{"metric": dict(labels), "values": values} for labels, values in lines.items()]
            body = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        self.send_response(200 if found.path in ("/api/v1/query_range", "/-/ready") else 404)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as started:
        yield started
        started.shutdown()


@pytest.fixture(scope="module")
def plane(store: Store) -> Iterator[Plane]:
    with Plane(WOOLY_METRICS_URL=store.url) as running:
        running.register("n1", gib=(10, 10))
        running.register("n2", gib=(10,))
        with running.measuring("n1", utilization=80), running.measuring("n2", utilization=20):
            wait_until(lambda: running.controller.ask("GET", "/metrics").body.decode().count("wooly_device_utilization_percent{") == 2)
        store.hold([running.controller.url] * 2, time.time() - 2 * HOUR_S)
        yield running


def chart(plane: Plane, path: str, name: str) -> dict[str, Any]:
    page = plane.controller.ask("GET", path).body.decode()
    found = re.search(rf'<script type="application/json" id="{name}-data">(.*?)</script>', page)
    assert found is not None, page[:2000]
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_cluster_over_six_hours(plane: Plane) -> None:
    data = chart(plane, "/?range=6h", "past-chart-load")
    assert data["span"] == 6 * HOUR_S and len(data["t"]) == 360
    values = data["series"][0]["values"]
    assert values[-1] == values[-60] == 50 and values[60] is None  # the mean over devices; held for two hours only
    memory = chart(plane, "/?range=week", "past-chart-vram")
    assert memory["span"] == 7 * 24 * HOUR_S and memory["series"][0]["values"][-1] is not None


def test_a_node_shows_its_own_devices(plane: Plane) -> None:
    assert chart(plane, "/nodes/n1?range=6h", "past-load-0")["series"][0]["values"][-1] == 80
    assert set(chart(plane, "/nodes/n1?range=6h", "past-load-1")["series"][0]["values"]) == {None}


def test_a_range_is_picked_by_links_and_the_hour_needs_no_store(plane: Plane, store: Store) -> None:
    asked = len(store.asked)
    for path in ("/", "/?range=century", "/nodes/n2?range=hour"):
        page = plane.controller.ask("GET", path).body.decode()
        assert 'range=day">24 hours</a>' in page and "past-" not in page and "last hour" in page
    assert len(store.asked) == asked


def test_a_store_that_is_away_or_something_else_is_said_and_the_hour_shown(plane: Plane, store: Store) -> None:
    other = Plane(WOOLY_METRICS_URL="http://127.0.0.1:1")
    with other:
        other.register("n1")
        for path in ("/?range=day", "/nodes/n1?range=day"):
            page = other.controller.ask("GET", path).body.decode()
            assert "The metrics store does not answer (ConnectError). The charts show the last hour." in page and "last hour" in page
        assert "24 hours" not in other.controller.ask("GET", "/").body.decode()
    wrong = Plane(WOOLY_METRICS_URL=store.url + "/nowhere")
    with wrong:
        assert "does not answer (HTTPStatusError)" in wrong.controller.ask("GET", "/?range=day").body.decode()
