"""Prometheus metrics of a node: totals that only grow, made anew for each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.server.counters import Counters
from services.server.device import Device

__all__ = ["Standing", "metrics_text"]


@dataclass(frozen=True, slots=True)
class Standing:
    """How the node stands now. ``problem``: why it does no work that it is sent, or empty; ``failed``: only a new start would help."""

    node: str
    epoch: int
    devices: Sequence[Device]
    counters: Counters
    facts_waiting: int
    connected: bool
    problem: str = ""
    failed: bool = False


def metrics_text(standing: Standing) -> str:
    """The text exposition format."""
    registry = CollectorRegistry()
    registry.register(_Node(standing))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


class _Node(Collector):
    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    def collect(self) -> Iterator[Metric]:
        s, c = self._standing, self._standing.counters
        info = GaugeMetricFamily("wooly_node_info", "1; the labels describe the node", labels=["node", "epoch"])
        info.add_metric([s.node, str(s.epoch)], 1)
        yield info
        yield _gauge("wooly_node_ready", "1 while the node accepts work", not s.problem)
        yield _gauge("wooly_node_bus_connected", "1 while the bus is connected", s.connected)
        yield _gauge("wooly_node_facts_waiting", "Messages with events that the log has not acknowledged", s.facts_waiting)
        for name, text, value in (
            ("batches_received", "Batches received", c.received),
            ("batches_executed", "Batches executed", c.executed),
            ("batches_dropped", "Batches dropped: repetitions, or of sessions that have ended", c.dropped),
            ("batches_refused", "Batches refused", c.refused),
            ("executor_restarts", "Executors lost and restarted", c.restarts),
        ):
            yield CounterMetricFamily(f"wooly_node_{name}", text, value=value)
        for name, text, measure in _GAUGES:
            family = GaugeMetricFamily(f"wooly_node_device_{name}", text, labels=["gpu"])
            for device in s.devices:
                family.add_metric([str(device.gpu)], measure(device))
            yield family
        for name, text, total in _COUNTERS:
            counter = CounterMetricFamily(f"wooly_node_device_{name}", text, labels=["gpu"])
            for device in s.devices:
                counter.add_metric([str(device.gpu)], total(device))
            yield counter


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


_Measure = tuple[str, str, Callable[[Device], float]]

_GAUGES: Final[tuple[_Measure, ...]] = (
    ("up", "1 while the device has an executor", lambda device: float(device.attached is not None)),
    ("cores", "Cores of the device", lambda device: device.attached.cores if device.attached is not None else 0),
    ("sessions_open", "Open sessions", lambda device: len(device.sessions)),
    ("launches_in_flight", "Launches that the executor holds", lambda device: device.in_flight),
    ("vram_total_bytes", "VRAM of the device", lambda device: device.attached.vram_bytes if device.attached is not None else 0),
    ("vram_used_bytes", "VRAM that sessions are charged for", lambda device: device.used_bytes),
    ("vram_reserved_bytes", "Sum of the quotas of open sessions", lambda device: device.reserved_bytes),
)
_COUNTERS: Final[tuple[_Measure, ...]] = (
    ("busy_seconds", "Time with a launch running (since the executor started)", lambda device: device.occupancy_ns()[0] / 1e9),
    (
        "fed_seconds",
        "Time with a further launch waiting while one ran (since the executor started)",
        lambda device: device.occupancy_ns()[1] / 1e9,
    ),
    ("charged_core_seconds", "Core time charged to sessions", lambda device: device.spent.charged_ns / 1e9),
    ("scheduler_core_seconds", "Core time of the executor outside of launches", lambda device: device.spent.scheduler_ns / 1e9),
    ("idle_core_seconds", "Core time that was not used", lambda device: device.spent.idle_ns / 1e9),
)
