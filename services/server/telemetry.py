"""One device's telemetry: shares of the last window, from the dispatcher's exact totals."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bus_schemas.telemetry import RunningSession, Telemetry, encode_telemetry
from scheduler.dispatch import percent
from services.server.device import Device

__all__ = ["Gauge"]


@dataclass(slots=True)
class Gauge:
    """Where the last window ended."""

    at_ns: int = 0
    busy_ns: int = 0
    fed_ns: int = 0

    def read(self, device: Device, node: str, epoch: int) -> bytes | None:
        """The window since the last call, encoded; None while the device has no executor."""
        if device.attached is None:
            return None
        now_ns = time.monotonic_ns()
        busy_ns, fed_ns = device.occupancy_ns()
        if busy_ns < self.busy_ns:  # a new dispatcher counts from zero
            self.busy_ns = self.fed_ns = 0
        window_ns = now_ns - self.at_ns if self.at_ns else 0
        running = tuple(
            RunningSession(s.record.session, s.record.task, s.record.priority, s.resident_bytes) for s in device.sessions.values()
        )
        message = Telemetry(
            time.time_ns(),
            node,
            epoch,
            device.gpu,
            window_ns // 10**6,
            min(100, percent(busy_ns - self.busy_ns, window_ns)),
            min(100, percent(fed_ns - self.fed_ns, window_ns)),
            device.attached.vram_bytes,
            device.used_bytes,
            device.reserved_bytes,
            0,
            running,
        )
        self.at_ns, self.busy_ns, self.fed_ns = now_ns, busy_ns, fed_ns
        return encode_telemetry(message)
