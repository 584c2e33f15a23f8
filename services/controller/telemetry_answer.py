"""API answers about live measurements."""

from __future__ import annotations

import msgspec

from bus_schemas.telemetry import Telemetry
from services.controller.answers import Json, Shown, rfc3339

__all__ = ["telemetry_answer"]


def telemetry_answer(seen: Telemetry, now_ns: int, shown: Shown) -> Json:
    """``now_ns``: Unix time of the question, for the age. ``shown``: whether the caller may know of a tenant's sessions."""
    return {
        "node": seen.node,
        "gpu": seen.gpu,
        "at": rfc3339(seen.at_ns),
        "window_ms": seen.window_ms,
        "age_ms": max(0, (now_ns - seen.at_ns) // 1_000_000),
        "utilization_percent": seen.utilization_percent,
        "starvation_percent": seen.starvation_percent,
        "vram_total_bytes": seen.vram_total_bytes,
        "vram_used_bytes": seen.vram_used_bytes,
        "vram_reserved_bytes": seen.vram_reserved_bytes,
        "vram_swapped_bytes": seen.vram_swapped_bytes,
        "vram_shared_bytes": seen.vram_shared_bytes,
        "vram_saved_bytes": seen.vram_saved_bytes,
        "cores": seen.cores,
        "running": [msgspec.structs.asdict(run) for run in seen.running if shown(run.tenant)],
    }
