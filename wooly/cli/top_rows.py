"""Rows of ``wooly top``: telemetry of a session as figures and as text. Pure.

A rate of credits is what billing would charge for a second like the last window; the bill itself comes from the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from bus_schemas.telemetry import RunningSession, Telemetry
from wooly.cli.output import bytes_text

__all__ = ["COLUMNS", "NUMBERS", "OPTIONAL", "Prices", "device_line", "session_json", "session_row", "sessions", "telemetry_of"]

COLUMNS: Final = (
    "task", "tenant", "prio", "weight", "state", "share", "waits", "wait", "max", "behind", "slice", "resident", "swapped", "shared",
    "credits/s",
)  # fmt: skip
NUMBERS: Final = frozenset(COLUMNS) - {"task", "tenant", "prio", "state"}
OPTIONAL: Final = ("weight", "slice", "behind", "max", "shared", "swapped", "tenant", "waits", "wait")
"""Columns that a narrow terminal does without, first to last."""

_MICRO: Final = 10**6
_GIB: Final = 1 << 30
_TITLE_CHARS: Final = 32


@dataclass(frozen=True, slots=True)
class Prices:
    """Micro-credits a core-second and a GiB-second, by tier; which tier a tenant has. Empty: not known."""

    tiers: dict[str, tuple[int, int]] = field(default_factory=dict)
    tenants: dict[str, str] = field(default_factory=dict)
    default: str = ""

    @staticmethod
    def read(answer: dict[str, Any]) -> Prices:
        """From billing's answer on ``/prices``."""
        tiers = {tier["tier"]: (tier["core_second_micro"], tier["gib_second_micro"]) for tier in answer["items"]}
        return Prices(tiers, answer["tenants"], answer["default_tier"])

    def credits_per_s(self, seen: Telemetry, session: RunningSession) -> float | None:
        price = self.tiers.get(self.tenants.get(session.tenant, self.default))
        if price is None or not seen.window_ms:
            return None
        cores = session.core_ns / (seen.window_ms * 10**6)
        return (cores * price[0] + session.resident_bytes / _GIB * price[1]) / _MICRO


def telemetry_of(item: dict[str, Any]) -> Telemetry:
    """A measurement as the controller shows it. Raises KeyError, TypeError where it lacks something: it is of another version."""
    known = {name: item[name] for name in Telemetry.__struct_fields__ if name in item and name != "running"}
    fields = RunningSession.__struct_fields__
    running = tuple(RunningSession(**{name: run[name] for name in fields if name in run}) for run in item["running"])
    return Telemetry(at_ns=0, epoch=0, running=running, **known)


def sessions(seen: Telemetry) -> list[RunningSession]:
    """By priority, then by what they use."""
    return sorted(seen.running, key=lambda session: (session.priority, -session.core_ns, session.session))


def share_percent(seen: Telemetry, session: RunningSession) -> float:
    """Core time of the window, of all the device's cores."""
    whole_ns = seen.window_ms * 10**6 * max(1, seen.cores)
    return 100 * session.core_ns / whole_ns if whole_ns else 0.0


def device_line(name: str, seen: Telemetry) -> str:
    """One line about a device."""
    parts = [
        f"{name} gpu {seen.gpu}",
        f"utilization {seen.utilization_percent} %",
        f"starvation {seen.starvation_percent} %",
        f"VRAM {bytes_text(seen.vram_used_bytes)} of {bytes_text(seen.vram_total_bytes)}",
        f"promised {bytes_text(seen.vram_reserved_bytes)}",
    ]
    if seen.vram_swapped_bytes:
        parts.append(f"swapped {bytes_text(seen.vram_swapped_bytes)}")
    if seen.vram_shared_bytes:
        parts.append(f"shared {bytes_text(seen.vram_shared_bytes)} (saves {bytes_text(seen.vram_saved_bytes)})")
    return " · ".join(parts)


def session_json(seen: Telemetry, session: RunningSession, prices: Prices) -> dict[str, Any]:
    """Every figure, by name."""
    return {
        **{field: getattr(session, field) for field in session.__struct_fields__},
        "share_percent": round(share_percent(seen, session), 2),
        "credits_per_s": prices.credits_per_s(seen, session),
    }


def session_row(seen: Telemetry, session: RunningSession, prices: Prices) -> tuple[str, ...]:
    """The cells of COLUMNS."""
    rate = prices.credits_per_s(seen, session)
    behind = 100 * session.behind_ns / (seen.window_ms * 10**6) if seen.window_ms else 0.0
    return (
        _name(session),
        session.tenant,
        f"P{session.priority}",
        str(session.weight),
        session.state,
        f"{share_percent(seen, session):.1f} %",
        str(session.waits),
        _ms(session.wait_ns // session.waits if session.waits else 0),
        _ms(session.wait_max_ns),
        f"{behind:.0f} %",
        _ms(session.slice_ns // session.slices if session.slices else 0),
        bytes_text(session.resident_bytes),
        bytes_text(session.swapped_bytes) if session.swapped_bytes else "-",
        bytes_text(session.shared_bytes) if session.shared_bytes else "-",
        "-" if rate is None else f"{rate:,.1f}",
    )


def _name(session: RunningSession) -> str:
    """The script's title; else the task's or the session's id."""
    name = session.title or session.task or session.session
    return name if len(name) <= _TITLE_CHARS else name[: _TITLE_CHARS - 1] + "…"


def _ms(duration_ns: int) -> str:
    return "-" if not duration_ns else f"{duration_ns / 1e6:.1f} ms"
