"""What is watched is there: every query of the rules and of the dashboard, against the expositions of a running stack."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.house import GUESTS, WAITING, House, NodeSpec
from tests.support.node import until
from tests.support.promql import Series, evaluate, uses

ROOT = Path(__file__).resolve().parents[2]
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
DASHBOARD = json.loads((ROOT / "deploy/grafana/wooly.json").read_text())
PANELS = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    if "targets" in panel
    for target in panel["targets"]
}
TARGET = frozenset({"job", "instance"})
"""Labels that Prometheus itself gives to what it scrapes."""
UNITS = ("_seconds", "_bytes", "_percent", "_total", "_info", "_credits")
COUNTS = re.compile(
    r"wooly_(event_log_copies(_wanted)?|controller_(log_position|following|bus_connected|on_duty)|tasks|tasks_waiting|sessions_open|session_(waits|slices)"
    r"|quota_(used|limit)|controller_quota_refusals|node_quota_(used|limit|refusals)"
    r"|node_(up|drained|ready|bus_connected|facts_waiting)|node_device_(up|cores|sessions_open|launches_in_flight)"
    r"|billing_(log_position|following|bus_connected|findings|unbelieved_usage_events|budgets_warning|budgets_stopped))"
)
"""Names without a unit: numbers of things, and 0 or 1."""


@dataclass(frozen=True)
class Seen:
    """The series of one scrape of every service, and the type of each family."""

    series: list[Series]
    types: dict[str, str]

    def labels(self, metric: str) -> set[str]:
        return {label for series in self.series if series.name == metric for label in series.labels}


def scrape(job: str, url: str) -> Seen:
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    instance = url.removeprefix("http://")
    series = [Series("up", {"job": job, "instance": instance}, ((86_200, 1.0), (86_400, 1.0)))]
    for family in families:
        for sample in family.samples:
            labels = {**sample.labels, "job": job, "instance": instance}
            series.append(Series(sample.name, labels, ((86_200, sample.value), (86_400, sample.value))))
    return Seen(series, {family.name: family.type for family in families})


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("house"), nodes=(NodeSpec("atlas", 3072),), watch=True) as house:
        house.fill(GUESTS[:2], WAITING[:1])
        yield house


@pytest.fixture(scope="module")
def seen(house: House) -> Seen:
    services = (("controller", house.url), ("billing", house.billing), ("node", house.watched["atlas"]))

    def measured() -> Seen | None:
        parts = [scrape(job, url) for job, url in services]
        whole = Seen([s for p in parts for s in p.series], parts[0].types | parts[1].types | parts[2].types)
        sessions = [s for s in whole.series if s.name == "wooly_session_core_seconds"]
        return whole if len(sessions) == 2 else None

    return until(measured, "both sessions are in the telemetry")


@pytest.mark.parametrize("where", [*(("rule", name) for name in RULES), *(("panel", name) for name in PANELS)], ids=lambda where: where[1])
def test_every_query_asks_for_metrics_and_labels_that_there_are(seen: Seen, where: tuple[str, str]) -> None:
    query = RULES[where[1]]["expr"] if where[0] == "rule" else PANELS[where[1]]
    for use in uses(query):
        labels = seen.labels(use.metric)
        assert labels, f"there is no metric {use.metric}"
        asked = {label for label, _ in use.matched} | set(use.grouped)
        assert asked <= labels | TARGET, f"{use.metric} has the labels {sorted(labels)}"


@pytest.mark.parametrize("name", PANELS)
def test_every_panel_shows_something(seen: Seen, name: str) -> None:
    assert evaluate(PANELS[name].replace("$node", ".*"), seen.series), "an empty panel"


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule["labels"]["severity"] != "info"])
def test_nothing_is_the_matter_with_a_stack_that_is_well(seen: Seen, name: str) -> None:
    assert evaluate(RULES[name]["expr"], seen.series) == {}


def test_every_metric_says_what_it_counts_in(seen: Seen) -> None:
    ours = [name for name in seen.types if name.startswith("wooly_")]
    assert len(ours) > 40
    for name in ours:
        assert seen.types[name] in ("gauge", "counter"), name
        assert seen.types[name] == "counter" or name.endswith(UNITS) or COUNTS.fullmatch(name), f"{name}: in which unit?"


def test_a_node_reveals_nothing_of_tenants_over_http(seen: Seen) -> None:
    node = [series for series in seen.series if series.labels["job"] in ("node", "billing")]
    assert node and not {label for series in node for label in series.labels} & {"tenant", "task", "session"}


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert DASHBOARD["uid"] == "wooly" and DASHBOARD["schemaVersion"] >= 39
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0]["uid"]
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        assert 0 <= grid["x"] and grid["x"] + grid["w"] <= 24
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == source


def lines(house: House, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (house.folder / f"{name}.log").read_text().splitlines() if line.startswith("{")]


def test_logs_name_task_session_and_tenant(house: House, seen: Seen) -> None:
    """From the request that caused it to the node that ran it, one task can be followed through all services' logs."""
    task = house.controller.ask("POST", "/api/v1/tasks", {"tenant": "acme", "required_vram_mb": 1, "title": "to be seen"}).json["id"]
    written = [line for line in lines(house, "controller") if line["event"] == "fact written" and line.get("task") == task]
    assert [(line["fact"], line["tenant"]) for line in written][:2] == [("TaskSubmitted", "acme"), ("TaskPlaced", "acme")]
    assert all(line["service"] == "controller" and line["path"] == "/api/v1/tasks" and line["asker"] == "local" for line in written)
    assert len({line["request"] for line in written}) == 1
    opened = [line for line in lines(house, "atlas") if line["event"] == "session opened"]
    assert {str(line["tenant"]) for line in opened} == {guest.tenant for guest in GUESTS[:2]}
    assert all(line["task"] and line["session"] and line["service"] == "server" for line in opened)
    body = json.dumps({"tenant": "acme", "micro": 1_000_000}).encode()
    request = urllib.request.Request(f"{house.billing}/api/v1/billing/grants", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 201
    (granted, taken) = [line for line in lines(house, "billing") if line["event"] == "fact written"]
    assert (granted["fact"], granted["tenant"], taken["fact"], taken["actor"]) == ("GrantRecorded", "acme", "ActionTaken", "local")
