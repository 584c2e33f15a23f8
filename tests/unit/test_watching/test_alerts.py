"""Every alert rule fires on series for which it should, and not on others that are close."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.promql import QueryError, Series, evaluate, uses

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in DOCUMENT["groups"] for rule in group["rules"]}

flat, growing = Series.flat, Series.growing
UP = [flat("up", 1, job="controller", instance="c:1"), flat("up", 1, job="billing", instance="b:1")]


def spans(charged: float, beside: float) -> list[Series]:
    about = {"gpu": "0", "instance": "n:1", "job": "node"}
    return [
        growing("wooly_node_device_charged_core_seconds_total", charged, **about),
        growing("wooly_node_device_scheduler_core_seconds_total", beside, **about),
    ]


def at_last(name: str, before: float, after: float, **labels: str) -> Series:
    """Changed ten minutes before the end of the day."""
    return Series(name, labels, tuple((at, before if at < 85_800 else after) for at in range(0, 86_401, 30)))


CASES: dict[str, tuple[list[Series], list[Series]]] = {
    "WoolyControllerDown": ([flat("up", 0, job="controller")], [*UP, flat("up", 0, job="controller", instance="c:2")]),
    "WoolyControllerNotFollowing": (
        [flat("wooly_controller_following", 1, instance="c:1"), flat("wooly_controller_bus_connected", 0, instance="c:1")],
        [flat("wooly_controller_following", 1, instance="c:1"), flat("wooly_controller_bus_connected", 1, instance="c:1")],
    ),
    "WoolyNobodyOnDuty": (
        [flat("wooly_controller_on_duty", 0, instance="c:1"), flat("wooly_controller_on_duty", 0, instance="c:2")],
        [flat("wooly_controller_on_duty", 0, instance="c:1"), flat("wooly_controller_on_duty", 1, instance="c:2")],
    ),
    "WoolyBillingNotFollowing": (
        [*UP, flat("wooly_billing_following", 0), flat("wooly_billing_bus_connected", 1)],
        [*UP, flat("wooly_billing_following", 1), flat("wooly_billing_bus_connected", 1)],
    ),
    "WoolyBillingBehind": (
        [flat("wooly_controller_log_position", 9_000, instance="c:1"), flat("wooly_billing_log_position", 3_000)],
        [flat("wooly_controller_log_position", 9_000, instance="c:1"), flat("wooly_billing_log_position", 8_900)],
    ),
    "WoolyBillDoesNotAddUp": ([flat("wooly_billing_findings", 1)], [flat("wooly_billing_findings", 0)]),
    "WoolyEventLogLarge": ([flat("wooly_event_log_bytes", 101e9)], [flat("wooly_event_log_bytes", 99e9)]),
    "WoolyBusServerLost": (
        [flat("wooly_event_log_copies", 2), flat("wooly_event_log_copies_wanted", 3)],
        [flat("wooly_event_log_copies", 3), flat("wooly_event_log_copies_wanted", 3)],
    ),
    "WoolyCollectorDown": (
        [flat("up", 0, job="otel-collector", instance="o:1")],
        [flat("up", 0, job="node"), flat("up", 1, job="otel-collector")],
    ),
    "WoolyNodeLost": (
        [flat("wooly_node_up", 0, node="a", instance="c:1"), flat("wooly_node_up", 1, node="b", instance="c:1")],
        [flat("wooly_node_up", 1, node="a", instance="c:1"), flat("wooly_node_up", 0, node="a", instance="c:2")],  # one replica is behind
    ),
    "WoolyNodeNotReady": ([flat("wooly_node_ready", 0, instance="n:1")], [flat("wooly_node_ready", 1, instance="n:1")]),
    "WoolyNodeSilent": (
        [flat("wooly_device_telemetry_age_seconds", 90, node="a", gpu="0"), flat("wooly_node_up", 1, node="a")],
        [flat("wooly_device_telemetry_age_seconds", 90, node="a", gpu="0"), flat("wooly_node_up", 0, node="a")],  # lost: another alert
    ),
    "WoolyExecutorRestarts": (
        [at_last("wooly_node_executor_restarts_total", 1, 4, instance="n:1")],
        [at_last("wooly_node_executor_restarts_total", 1, 2, instance="n:1")],
    ),
    "WoolyFactsWaiting": (
        [flat("wooly_node_facts_waiting", 500, instance="n:1")],
        [Series("wooly_node_facts_waiting", {"instance": "n:1"}, tuple((at, 500.0 * (at % 60 == 0)) for at in range(0, 86_401, 30)))],
    ),
    "WoolyExecutorBusyBesideLaunches": (spans(0.5, 0.5), spans(0.01, 0.1)),  # hardly anything to do
    "WoolyTaskWaitsLong": ([flat("wooly_task_wait_max_seconds", 3_600)], [flat("wooly_task_wait_max_seconds", 600)]),
    "WoolyIdleWhileTasksWait": (
        [flat("wooly_tasks_waiting", 2), flat("wooly_device_utilization_percent", 3, node="a", gpu="0")],
        [flat("wooly_tasks_waiting", 2), flat("wooly_device_utilization_percent", 60, node="a", gpu="0")],
    ),
    "WoolyVramNearlyFull": (
        [flat("wooly_device_vram_used_bytes", 99, node="a", gpu="0"), flat("wooly_device_vram_total_bytes", 100, node="a", gpu="0")],
        [flat("wooly_device_vram_used_bytes", 99, node="a", gpu="0"), flat("wooly_device_vram_total_bytes", 100, node="a", gpu="1")],
    ),
    "WoolyHighPriorityWaits": (
        [flat("wooly_session_wait_max_seconds", 3, node="a", gpu="0", session="s", priority="0")],
        [flat("wooly_session_wait_max_seconds", 3, node="a", gpu="0", session="s", priority="4")],
    ),
    "WoolyQuotaNearlyUsed": (
        [flat("wooly_quota_used", 950, quota="live_tasks"), flat("wooly_quota_limit", 1_000, quota="live_tasks")],
        [flat("wooly_quota_used", 95, quota="live_tasks"), flat("wooly_quota_limit", 100, quota="runs")],  # of different quotas
    ),
    "WoolyQuotaRefusals": (
        [at_last("wooly_node_quota_refusals_total", 5, 95, instance=f"n:{node}", quota="messages") for node in (1, 2)],
        [at_last("wooly_node_quota_refusals_total", 5, 95, instance="n:1", quota=quota) for quota in ("messages", "opens")],
    ),
    "WoolyBudgetUsedUp": ([flat("wooly_billing_budgets_stopped", 1)], [flat("wooly_billing_budgets_stopped", 0)]),
}


def test_every_rule_has_its_cases() -> None:
    assert CASES.keys() == RULES.keys()


@pytest.mark.parametrize("name", RULES)
def test_the_rule_fires_when_it_should_and_only_then(name: str) -> None:
    query = RULES[name]["expr"]
    fires, quiet = CASES[name]
    assert evaluate(query, fires), "it does not fire"
    assert evaluate(query, quiet) == {}, "it fires for nothing"


@pytest.mark.parametrize("name", RULES)
def test_the_rule_is_whole(name: str) -> None:
    rule = RULES[name]
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"] and rule["annotations"]["description"]
    fires = evaluate(rule["expr"], CASES[name][0])
    assert isinstance(fires, dict)
    told = {label for key in fires for label, _ in key}
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert named <= told, "its text names a label that the result does not have"


def test_the_evaluator_does_what_prometheus_documents() -> None:
    series = [flat("m", 4, a="1", b="x"), flat("m", 6, a="2", b="x"), growing("c_total", 2, a="1")]
    assert evaluate("sum(m)", series) == {frozenset(): 10}
    assert evaluate("sum by (a) (m) > 5", series) == {frozenset({("a", "2")}): 6}
    assert evaluate('m{a="1"} * 2 - 1', series) == {frozenset({("a", "1"), ("b", "x")}): 7}
    assert evaluate("rate(c_total[5m])", series) == {frozenset({("a", "1")}): pytest.approx(2)}
    assert evaluate("increase(c_total[1h])", series) == {frozenset({("a", "1")}): pytest.approx(7200)}
    assert evaluate("absent(nothing)", series) == {frozenset(): 1}
    assert evaluate("absent(m)", series) == {}
    assert evaluate("m and on (a) c_total", series) == {frozenset({("a", "1"), ("b", "x")}): 4}
    assert evaluate("m unless on (a) c_total", series) == {frozenset({("a", "2"), ("b", "x")}): 6}
    assert evaluate("sum by (a) (m) / on (a) sum by (a) (c_total)", series) == {frozenset({("a", "1")}): pytest.approx(4 / 172_800)}
    for wrong in ("m >", "m[5m]", "rate(m)", "m{a=1}", "topk(1, m)", "m m", "sum(1)"):
        with pytest.raises(QueryError):
            evaluate(wrong, series)


def test_uses_names_every_metric_with_its_labels() -> None:
    (first, second) = uses('sum by (a) (m{b="x"}) / on (a) c_total')
    assert (first.metric, first.matched, first.grouped) == ("m", (("b", "x"),), ("a",))
    assert (second.metric, second.grouped) == ("c_total", ("a",))
