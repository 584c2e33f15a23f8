"""Measurements of the cluster: the last telemetry of every device, and Prometheus metrics, made for each scrape from the view and that
telemetry. Telemetry is a live measurement, not a fact: a decision that uses it records it.

Every controller exports all of them, so one replica is enough; only those that begin with wooly_controller_ are about itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from bus_schemas.quotas import QUOTAS
from bus_schemas.subjects import TELEMETRY_STREAM
from bus_schemas.telemetry import RunningSession, Telemetry, telemetry_on
from scheduler.placement import Measured, capacity
from scheduler.placement.view import STATES
from services.controller.log_projection import LogProjection
from services.kit.bus import Bus
from services.kit.log import get_logger
from services.kit.streams import telemetry_stream_config

_ELSEWHERE: Final = ("services.server", "services.runner")
"""Packages whose refusals the controller does not see."""
_HISTORY: Final = 2_000
"""Messages read from before the start, for devices measured just before it."""


class Gauges:
    """``async with Gauges(bus)`` follows the telemetry stream."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._listeners: list[Callable[[str, int], None]] = []
        self._seen: list[Callable[[Telemetry], None]] = []
        self._live_from = 0
        self._position = 0
        self._last: dict[tuple[str, int], Telemetry] = {}

    async def __aenter__(self) -> Self:
        self._live_from = await self._bus.last_position(TELEMETRY_STREAM) + 1
        begin = max(1, self._live_from - _HISTORY)
        self._follower = self._bus.follow(TELEMETRY_STREAM, begin, self._on_message, made_anew=telemetry_stream_config())
        await self._follower.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self._follower.stop()

    def on_heard(self, listener: Callable[[str, int], None]) -> None:
        """Call ``listener(node, epoch)`` for every measurement published since the start: a heartbeat."""
        self._listeners.append(listener)

    def on_seen(self, listener: Callable[[Telemetry], None]) -> None:
        """Call ``listener(measurement)`` for every one from now on."""
        self._seen.append(listener)

    @property
    def position(self) -> int:
        """Of the last measurement taken, in its stream."""
        return self._position

    @property
    def hearing(self) -> bool:
        """Whether what nodes send would be heard."""
        return self._follower.hearing

    def last(self) -> list[Telemetry]:
        """By node and gpu; also of nodes that left long ago."""
        return [self._last[key] for key in sorted(self._last)]

    def measured(self) -> dict[tuple[str, int], Measured]:
        """The input of placement, by node and gpu. A silent node is declared lost before its last measurement is old."""
        return {key: Measured(seen.utilization_percent, seen.starvation_percent, seen.vram_used_bytes) for key, seen in self._last.items()}

    def _on_message(self, position: int, subject: str, data: bytes) -> None:
        try:
            seen = telemetry_on(subject, data)
        except msgspec.DecodeError as error:
            get_logger().warning("telemetry ignored", subject=subject, position=position, error=str(error))
            return
        before = self._last.get((seen.node, seen.gpu))
        if before is None or seen.epoch >= before.epoch:  # in the order of the stream: a node's clock may be set back
            self._last[seen.node, seen.gpu] = seen
        if position <= self._position:
            self._live_from = 0  # the stream is in memory: the broker restarted, and counts anew
        self._position = position
        for take in self._seen:
            take(seen)
        if position >= self._live_from:
            for listener in self._listeners:
                listener(seen.node, seen.epoch)


_DEVICE = ("node", "gpu")


def metrics_text(
    projection: LogProjection,
    gauges: Gauges,
    *,
    on_duty: bool = False,
    log_bytes: int | None = None,
    log_copies: tuple[int, int] | None = None,
    quotas: Mapping[str, tuple[int, int]] | None = None,
    refusals: Mapping[str, int] | None = None,
) -> str:
    """The text exposition format. ``on_duty``: this controller does the periodic work. ``log_bytes``: of the event log, None: unknown.
    ``log_copies``: on how many bus servers the event log is whole, and on how many it is to be; None: unknown. ``quotas``: the greatest
    part that one tenant or key has used of each, and the limit; ``refusals``: of this controller, by quota."""
    registry = CollectorRegistry()
    view = projection.view

    def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"wooly_{name}", text, labels, registry=registry)

    gauge("controller_log_position", "Position of the last event applied").set(projection.position)
    gauge("controller_following", "1 while the event log is followed").set(0 if projection.failure else 1)
    gauge("controller_bus_connected", "1 while the bus is connected").set(projection.connected)
    gauge("controller_on_duty", "1 for the controller that does the periodic work").set(on_duty)

    if log_bytes is not None:
        gauge("event_log_bytes", "Bytes of the event log on the bus").set(log_bytes)
    if log_copies is not None:
        gauge("event_log_copies", "Servers of the bus that hold the whole event log").set(log_copies[0])
        gauge("event_log_copies_wanted", "Servers of the bus that are to hold it").set(log_copies[1])

    used = gauge("quota_used", "What one tenant or key has used of a quota, the one with the greatest part", ("quota",))
    limit = gauge("quota_limit", "The limit of that tenant or key", ("quota",))
    for quota, (most_used, most) in (quotas or {}).items():
        used.labels(quota).set(most_used)
        limit.labels(quota).set(most)
    registry.register(_Refusals(refusals or {}))

    counts = Counter(task.state for task in view.tasks.values())
    states = gauge("tasks", "Tasks by state", ("state",))
    for state in STATES:
        states.labels(state).set(counts[state])
    waiting = [view.tasks[name] for name in view.queue]
    now_ns = time.time_ns()
    longest_ns = max((now_ns - task.wait_from_ns for task in waiting), default=0)
    gauge("tasks_waiting", "Tasks in the queue").set(len(waiting))
    gauge("task_wait_max_seconds", "Waiting time of the task that has waited longest").set(max(0, longest_ns) / 1e9)
    gauge("sessions_open", "Open sessions").set(len(view.sessions))

    up = gauge("node_up", "1 while the node is not considered lost", ("node",))
    drained = gauge("node_drained", "1 while the node takes no new tasks", ("node",))
    schedulable = gauge("device_vram_schedulable_bytes", "VRAM that may be promised", _DEVICE)
    promised = gauge("device_vram_promised_bytes", "VRAM promised to tasks and sessions", _DEVICE)
    for name, node in sorted(view.nodes.items()):
        up.labels(name).set(0 if node.lost is not None else 1)
        drained.labels(name).set(view.drained(name))
        for device in node.registered.devices:
            room = capacity(view, name, device)
            schedulable.labels(name, device.index).set(room.schedulable_bytes)
            promised.labels(name, device.index).set(room.promised_bytes)

    utilization = gauge("device_utilization_percent", "Share of the last window with a launch running", _DEVICE)
    starvation = gauge("device_starvation_percent", "Share of the last window with a further launch waiting while one ran", _DEVICE)
    age = gauge("device_telemetry_age_seconds", "Age of the last measurement", _DEVICE)
    total = gauge("device_vram_total_bytes", "VRAM of the device", _DEVICE)
    reserved = gauge("device_vram_reserved_bytes", "Sum of the quotas of open sessions", _DEVICE)
    used = gauge("device_vram_used_bytes", "VRAM in use", _DEVICE)
    swapped = gauge("device_vram_swapped_bytes", "VRAM of sessions that is swapped out", _DEVICE)
    shared = gauge("device_vram_shared_bytes", "VRAM that several sessions share, counted once", _DEVICE)
    saved = gauge("device_vram_saved_bytes", "VRAM that sharing saves", _DEVICE)
    live = [seen for seen in gauges.last() if not _lost(projection, seen.node)]
    for seen in live:
        for measure, value in (
            (utilization, seen.utilization_percent), (starvation, seen.starvation_percent), (used, seen.vram_used_bytes),
            (total, seen.vram_total_bytes), (reserved, seen.vram_reserved_bytes), (age, max(0, now_ns - seen.at_ns) / 1e9),
            (swapped, seen.vram_swapped_bytes), (shared, seen.vram_shared_bytes), (saved, seen.vram_saved_bytes),
        ):  # fmt: skip
            measure.labels(seen.node, seen.gpu).set(value)
    for name, text, value_of in _SESSION:
        of_session = gauge(f"session_{name}", text, (*_DEVICE, "session", "task", "tenant", "priority"))
        for seen in live:
            for run in seen.running:
                of_session.labels(seen.node, seen.gpu, run.session, run.task, run.tenant, run.priority).set(value_of(run))
    return generate_latest(registry).decode()


def log_copies(info: Mapping[str, Any], wanted: int) -> tuple[int, int]:
    """``log_copies`` of ``metrics_text``, from JetStream's information about the stream. A server alone reports no cluster. ``wanted``: as
    configured; the stream may be configured for more already."""
    followers = (info.get("cluster") or {}).get("replicas") or ()
    whole = 1 + sum(bool(server["current"] and not server.get("offline")) for server in followers)
    return whole, max(wanted, int(info["config"].get("num_replicas", 1)))


class _Refusals(Collector):
    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        text = "Requests that this controller refused at a quota"
        family = CounterMetricFamily("wooly_controller_quota_refusals", text, labels=["quota"])
        for quota in QUOTAS.values():
            if not quota.enforced.startswith(_ELSEWHERE):
                family.add_metric([quota.name], self._counts.get(quota.name, 0))
        yield family


def _lost(projection: LogProjection, name: str) -> bool:
    """Whether the node is lost: then its last measurement is outdated."""
    node = projection.view.nodes.get(name)
    return node is not None and node.lost is not None


_SESSION: Final[tuple[tuple[str, str, Callable[[RunningSession], float]], ...]] = (
    ("core_seconds", "Core time used in the last window", lambda run: run.core_ns / 1e9),
    ("waits", "Batches launched in the last window", lambda run: run.waits),
    ("wait_seconds", "Sum of the waiting times of the batches launched in the last window", lambda run: run.wait_ns / 1e9),
    ("wait_max_seconds", "Longest waiting time of a batch launched in the last window", lambda run: run.wait_max_ns / 1e9),
    ("slices", "Slices run in the last window", lambda run: run.slices),
    ("slice_seconds", "Sum of the run times of the slices", lambda run: run.slice_ns / 1e9),
    ("behind_seconds", "Time of the last window in which a batch was ready while another session ran", lambda run: run.behind_ns / 1e9),
    ("vram_resident_bytes", "VRAM that the session is charged for", lambda run: run.resident_bytes),
    ("vram_swapped_bytes", "Allocated memory of the session that is swapped out", lambda run: run.swapped_bytes),
    ("vram_shared_bytes", "Allocated memory of the session that is shared with others", lambda run: run.shared_bytes),
)
