"""Prometheus metrics of the cluster, made anew for each scrape from the view and the last telemetry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from scheduler.placement import capacity
from scheduler.placement.view import STATES
from services.controller.gauges import Gauges
from services.controller.mirror import Mirror

__all__ = ["metrics_text"]

_DEVICE = ("node", "gpu")


def metrics_text(mirror: Mirror, gauges: Gauges) -> str:
    """The text exposition format."""
    registry = CollectorRegistry()
    view = mirror.view

    def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"wooly_{name}", text, labels, registry=registry)

    gauge("controller_log_position", "Position of the last event applied").set(mirror.position)
    gauge("controller_following", "1 while the event log is followed").set(0 if mirror.failure else 1)

    states = gauge("tasks", "Tasks by state", ("state",))
    for state in STATES:
        states.labels(state).set(sum(1 for task in view.tasks.values() if task.state == state))
    gauge("tasks_waiting", "Tasks that wait for room").set(sum(1 for task in view.tasks.values() if task.waiting))
    gauge("sessions_open", "Open sessions").set(len(view.sessions))

    up = gauge("node_up", "1 while the node is not held for lost", ("node",))
    schedulable = gauge("device_vram_schedulable_bytes", "VRAM that may be promised", _DEVICE)
    promised = gauge("device_vram_promised_bytes", "VRAM promised to tasks and sessions", _DEVICE)
    for name, node in sorted(view.nodes.items()):
        up.labels(name).set(0 if node.lost is not None else 1)
        for device in node.registered.devices:
            room = capacity(view, name, device)
            schedulable.labels(name, device.index).set(room.schedulable_bytes)
            promised.labels(name, device.index).set(room.promised_bytes)

    utilization = gauge("device_utilization_percent", "Share of the last window with a launch running", _DEVICE)
    starvation = gauge("device_starvation_percent", "Share of the last window with a further launch waiting while one ran", _DEVICE)
    used = gauge("device_vram_used_bytes", "VRAM in use", _DEVICE)
    for seen in gauges.last():
        utilization.labels(seen.node, seen.gpu).set(seen.utilization_percent)
        starvation.labels(seen.node, seen.gpu).set(seen.starvation_percent)
        used.labels(seen.node, seen.gpu).set(seen.vram_used_bytes)
    return generate_latest(registry).decode()
