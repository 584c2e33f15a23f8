"""One device's telemetry: shares of the last window, from the dispatcher's exact totals."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from bus_schemas.telemetry import RunningSession, Telemetry, encode_telemetry
from scheduler.dispatch import Totals, percent
from services.server.device import Device
from services.server.sessions import Session

__all__ = ["Gauge", "shared_bytes"]


@dataclass(slots=True)
class Gauge:
    """Where the last window ended. ``sessions``: the running totals of each then."""

    at_ns: int = 0
    busy_ns: int = 0
    fed_ns: int = 0
    sessions: dict[str, Totals] = field(default_factory=dict)

    def read(self, device: Device, node: str, epoch: int) -> bytes | None:
        """The window since the last call, encoded; None while the device has no executor."""
        if device.attached is None:
            return None
        now_ns = time.monotonic_ns()
        busy_ns, fed_ns = device.occupancy_ns()
        if busy_ns < self.busy_ns:  # a new dispatcher counts from zero
            self.busy_ns = self.fed_ns = 0
        window_ns = now_ns - self.at_ns if self.at_ns else 0
        running, totals = [], {}
        for name, session in device.sessions.items():
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
        )
        self.at_ns, self.busy_ns, self.fed_ns, self.sessions = now_ns, busy_ns, fed_ns, totals
        return encode_telemetry(message)


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
