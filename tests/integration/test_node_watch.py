"""The node over HTTP: alive, ready, measured."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.node import DEADLINE_S, Node, increment, until
from wooly.link import Flush


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("watch"), WOOLY_NODE_HTTP="127.0.0.1:0") as node:
        yield node


def url(node: Node) -> str:
    """As the node's log says it."""
    lines = [json.loads(line) for line in (node.folder / "server.log").read_text().splitlines() if '"server listening"' in line]
    return str(lines[-1]["http"])


def get(node: Node, path: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url(node) + path, method=method), timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def values(node: Node) -> dict[str, float]:
    """Every sample of the exposition, without labels that vary."""
    status, text = get(node, "/metrics")
    assert status == 200
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


def test_it_is_alive_and_ready_and_counts_what_it_does(node: Node) -> None:
    assert get(node, "/health/live")[0] == get(node, "/health/ready")[0] == get(node, "/health")[0] == 200
    before = values(node)
    session = node.open()
    session.wait(session.submit(Flush(allocs=[(1, 128)])))
    for _ in range(3):
        session.wait(session.submit(increment().flush([1])))
    after = values(node)
    assert after["wooly_node_batches_executed_total"] - before["wooly_node_batches_executed_total"] == 4
    assert after["wooly_node_device_sessions_open"] == before["wooly_node_device_sessions_open"] + 1
    session.close()
    until(lambda: values(node)["wooly_node_device_charged_core_seconds_total"] > 0, "what it was charged is in facts")
    assert values(node)["wooly_node_device_scheduler_core_seconds_total"] > 0
    assert values(node)["process_cpu_seconds_total"] > 0


def test_what_is_not_there_and_what_may_not_be_done(node: Node) -> None:
    assert get(node, "/")[0] == 404
    assert get(node, "/metrics/../../etc/passwd")[0] == 404
    assert get(node, "/health/ready", "POST")[0] == 405


def test_it_is_not_ready_without_its_executor_or_the_bus(node: Node) -> None:
    (pid,) = node.executor_pids()
    os.kill(pid, signal.SIGKILL)
    until(lambda: get(node, "/health/ready")[0] == 200 and values(node)["wooly_node_executor_restarts_total"] == 1, "a new executor")
    node.nats.kill()
    until(lambda: get(node, "/health/ready")[0] == 503, "the bus is missed")
    assert json.loads(get(node, "/health/ready")[1])["detail"] == "the bus is away"
    assert get(node, "/health/live")[0] == 200, "a new start would not bring it back"
    assert values(node)["wooly_node_bus_connected"] == values(node)["wooly_node_ready"] == 0
    node.nats.start()
    until(lambda: get(node, "/health/ready")[0] == 200, "the bus is back")
