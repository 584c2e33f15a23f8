"""What the node measures: telemetry of each device for the bus (shares of the last window, from the dispatcher's exact totals), and the
node over HTTP, for monitoring: is it alive, is it ready, what does it measure.

``/health/live``: restart the process when this is not 200. ``/health/ready``: it does the work it is sent. ``/metrics``: Prometheus, totals
that only grow, made anew for each scrape. Reveals nothing about tenants, so it needs no authentication: any client that can reach the port
may read it (WOOLY_NODE_HTTP, default: none).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bus_schemas.limits import RUNNING_MAX
from bus_schemas.telemetry import QuotaUse, RunningSession, Telemetry, encode_telemetry
from scheduler.dispatch import Totals, percent
from services.server.accounting import Counters
from services.server.device import Device
from services.server.sessions import Session

__all__ = ["Gauge", "Standing", "Watch", "metrics_text", "heartbeat"]


@dataclass(slots=True)
class Gauge:
    """Where the last window ended. ``sessions``: the running totals of each then."""

    at_ns: int = 0
    busy_ns: int = 0
    fed_ns: int = 0
    sessions: dict[str, Totals] = field(default_factory=dict)

    def read(self, device: Device, node: str, epoch: int, quotas: tuple[QuotaUse, ...] = ()) -> bytes | None:
        """The window since the last call, encoded; None while the device has no executor."""
        if device.attached is None:
            return None
        now_ns = time.monotonic_ns()
        busy_ns, fed_ns = device.occupancy_ns()
        if busy_ns < self.busy_ns:  # a new dispatcher counts from zero
            self.busy_ns = self.fed_ns = 0
        window_ns = now_ns - self.at_ns if self.at_ns else 0
        running, totals = [], {}
        for name, session in islice(device.sessions.items(), RUNNING_MAX):
            totals[name], state = device.totals(name)
            if session.closing is not None:
                state = "closing"
            running.append(_running(session, totals[name], self.sessions.get(name), state))
        once, saved = shared_bytes(device.sessions.values())
        message = Telemetry(
            at_ns=time.time_ns(),
            node=node,
            epoch=epoch,
            gpu=device.gpu,
            window_ms=window_ns // 10**6,
            utilization_percent=min(100, percent(busy_ns - self.busy_ns, window_ns)),
            starvation_percent=min(100, percent(fed_ns - self.fed_ns, window_ns)),
            vram_total_bytes=device.attached.vram_bytes,
            vram_used_bytes=device.used_bytes,
            vram_reserved_bytes=device.reserved_bytes,
            vram_swapped_bytes=sum(session.swapped_bytes for session in device.sessions.values()),
            running=tuple(running),
            cores=device.attached.cores,
            vram_shared_bytes=once,
            vram_saved_bytes=saved,
            quotas=quotas,
        )
        self.at_ns, self.busy_ns, self.fed_ns, self.sessions = now_ns, busy_ns, fed_ns, totals
        return encode_telemetry(message)


def heartbeat(device: Device, node: str, epoch: int) -> bytes:
    """Telemetry of a device that could not be measured: it is there, and that is all."""
    total = device.attached.vram_bytes if device.attached is not None else 0
    return encode_telemetry(Telemetry(time.time_ns(), node, epoch, device.gpu, 0, 0, 0, total, 0))


def shared_bytes(sessions: Iterable[Session]) -> tuple[int, int]:
    """(memory on shared blocks, each block once; what sharing saves). A session is charged for its own memory on the device and for its
    part of shared blocks; the parts of all add up to the blocks."""
    once = held = 0
    for session in sessions:
        allocated, swapped, shared = session.memory
        held += shared
        once += max(0, session.resident_bytes - (allocated - swapped - shared))
    return once, max(0, held - once)


def _running(session: Session, now: Totals, before: Totals | None, state: str) -> RunningSession:
    """``before``: its totals at the end of the last window; None, or more than now: it (or its dispatcher) is new."""
    if before is None or now.waits < before.waits or now.slices < before.slices:
        before = Totals()
    record = session.record
    allocated, swapped, shared = session.memory
    return RunningSession(
        session=record.session,
        task=record.terms.task,
        priority=record.terms.priority,
        resident_bytes=session.resident_bytes,
        tenant=record.terms.tenant,
        title=record.terms.title,
        weight=record.terms.weight,
        core_ns=max(0, now.core_ns - before.core_ns),
        waits=now.waits - before.waits,
        wait_ns=max(0, now.wait_ns - before.wait_ns),
        wait_max_ns=now.wait_max_ns,
        slices=now.slices - before.slices,
        slice_ns=max(0, now.slice_ns - before.slice_ns),
        behind_ns=max(0, now.behind_ns - before.behind_ns),
        allocated_bytes=allocated,
        swapped_bytes=swapped,
        shared_bytes=shared,
        state=state,
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """How the node stands now. ``problem``: why it does no work that it is sent, or empty; ``failed``: only a new start would help."""

    node: str
    epoch: int
    devices: Sequence[Device]
    counters: Counters
    facts_waiting: int
    connected: bool
    #: by quota: the most that a tenant (or key) has used of it, and the limit
    quotas: Mapping[str, tuple[int, int]]
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
        used = GaugeMetricFamily("wooly_node_quota_used", "The most that one tenant or key has used of a quota", labels=["quota"])
        limit = GaugeMetricFamily("wooly_node_quota_limit", "Limit of a quota", labels=["quota"])
        refusals = CounterMetricFamily("wooly_node_quota_refusals", "Requests and batches that a quota refused", labels=["quota"])
        for quota, (most_used, most) in s.quotas.items():
            used.add_metric([quota], most_used)
            limit.add_metric([quota], most)
            refusals.add_metric([quota], c.quota_refusals[quota])
        yield from (used, limit, refusals)
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


_JSON = b"application/json"
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"

Message = MutableMapping[str, Any]


class Watch:
    """An ASGI application; ``standing()`` is asked at every request."""

    def __init__(self, standing: Callable[[], Standing]) -> None:
        self._standing = standing

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["type"] != "http":
            return
        status, media, body = self._answer(scope["method"], scope["path"])
        headers = [(b"content-type", media), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, method: str, path: str) -> tuple[int, bytes, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, _JSON, b'{"status":405,"title":"only GET"}'
        standing = self._standing()
        if path == "/metrics":
            return 200, _TEXT, metrics_text(standing).encode()
        if path in ("/health", "/health/ready", "/health/live"):
            well = not standing.failed if path == "/health/live" else not standing.problem
            said: dict[str, Any] = {"status": "ok" if well else "failed" if standing.failed else "waiting", "node": standing.node}
            if standing.problem:
                said["detail"] = standing.problem
            return 200 if well else 503, _JSON, msgspec.json.encode(said)
        return 404, _JSON, b'{"status":404,"title":"there is /health/live, /health/ready and /metrics"}'
