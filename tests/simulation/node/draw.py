"""What a seed decides before anything runs: the device, the tenants, the configurations, which troubles there are. Data and its drawing."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from scheduler.dispatch import DispatchConfig

__all__ = ["END", "KIB", "MS", "US", "Batch", "Scenario", "Script", "draw"]

US: Final = 1_000
MS: Final = 1_000_000
KIB: Final = 1 << 10

END: Final = -1
"""An order to end a session's task."""

TROUBLES: Final = ("resend", "fault", "vanish", "disk_full", "corrupt", "configure", "snapshot", "coarse", "repeat", "lowering")


@dataclass(slots=True)
class Batch:
    """``wall_ns`` of device time on ``cores`` cores; a stop takes effect ``grain_ns`` after it was asked for. Of buffers: ``new_bytes``
    each, ``touch`` how many it reads and writes of those there are, ``frees`` how many it gives up, ``work_bytes`` temporaries."""

    wall_ns: int
    cores: int
    grain_ns: int
    new_bytes: tuple[int, ...]
    touch: int
    frees: int
    work_bytes: int


@dataclass(slots=True)
class Script:
    """A tenant. ``sends``: when each batch is ready to go (ns from its opening); ``window`` > 0: at most so many unanswered, with
    ``think_ns`` after each answer, instead."""

    session: str
    opens_ns: int
    priority: int
    weight: int
    sla_ns: int
    pace_permille: int
    quota_bytes: int
    swap: bool
    wait_ns: int
    batches: list[Batch]
    window: int = 0
    think_ns: int = 0
    sends: list[int] = field(default_factory=list)
    vanishes_ns: int = 0


@dataclass(slots=True)
class Scenario:
    """``hop_ns``: server to executor and back. ``bytes_us``: a move carries so many bytes a microsecond. ``orders``: what an operator does
    when to which session: its new priority, or END."""

    seed: int
    config: DispatchConfig
    cores: int
    physical_bytes: int
    reserve_bytes: int
    swap_bytes: int
    idle_ns: int
    percent: int
    hop_ns: int
    bytes_us: int
    scripts: list[Script]
    troubles: frozenset[str]
    configs: list[tuple[int, DispatchConfig]]
    snapshots_ns: list[int]
    orders: list[tuple[int, str, int]]


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    r = random.Random(seed)
    troubles = frozenset(name for name in TROUBLES if r.random() < 0.35)
    cores = r.choice((1, 1, 2, 4))
    physical = r.choice((256, 1024, 4096)) * KIB
    idle_ns = r.choice((2, 5, 30, 200)) * MS
    config = _config(r, cores, calm=r.random() < 0.6)
    scripts = [_script(r, at, physical, troubles) for at in range(r.randint(2, 7))]
    span_ns = 400 * MS
    configs = [(r.randrange(span_ns), _config(r, cores, calm=False)) for _ in range(2)] if "configure" in troubles else []
    return Scenario(
        seed,
        config,
        cores,
        physical,
        reserve_bytes=r.choice((0, physical // 16, physical // 8)),
        swap_bytes=r.choice((0, physical, 16 * physical, 16 * physical)),
        idle_ns=idle_ns,
        percent=r.choice((0, 300, 1000, 1000)),
        hop_ns=r.choice((5, 40, 150)) * US,
        bytes_us=r.choice((64, 1024, 8192)),
        scripts=scripts,
        troubles=troubles,
        configs=configs,
        snapshots_ns=[r.randrange(span_ns) for _ in range(3)] if "snapshot" in troubles else [],
        orders=_orders(random.Random(f"orders {seed}"), scripts, span_ns),
    )


def _orders(r: random.Random, scripts: list[Script], span_ns: int) -> list[tuple[int, str, int]]:
    """Of their own source of chance, so that what else a seed draws does not depend on them."""
    if r.random() < 0.5:
        return []
    orders = [(r.randrange(span_ns), r.choice(scripts).session, r.randrange(5)) for _ in range(r.randint(1, 6))]
    if r.random() < 0.6:
        orders.append((r.randrange(span_ns), r.choice(scripts).session, END))
    return orders


def _config(r: random.Random, cores: int, *, calm: bool) -> DispatchConfig:
    """``calm``: as a node is set up by default, but for its sizes; the invariants that hold then are the strictest."""
    depth = r.choice((1, 2, 2, 3))
    slice_min = r.choice((100 * US, MS))
    more = {}
    if not calm:
        more = {
            "policy": r.choice(("strict", "strict", "fifo", "timeslice")),
            "aging_ns": r.choice((0, 20 * MS, 60 * MS)),
            "reserve_percent": r.choice((0, 0, 10, 40)),
        }
    return DispatchConfig(
        in_flight_max=depth,
        in_flight_low_max=r.randint(1, depth),
        parked_batches_max=r.choice((8, 64)),
        quantum_ns=r.choice((2, 5, 10)) * MS,
        low_slice_ns=r.choice((1, 5, 20)) * MS,
        slice_min_ns=slice_min,
        cores=cores,
        reserve_window_ns=r.choice((20, 100)) * MS,
        pace_burst_ns=r.choice((5, 50)) * MS,
        deadline_lead_ns=r.choice((0, 10, 100)) * MS,
        **more,  # type: ignore[arg-type]  # a dict of mixed values
    )


def _script(r: random.Random, at: int, physical: int, troubles: frozenset[str]) -> Script:
    priority = r.choice((0, 0, 1, 2, 3, 4))
    sla = priority == 0 and r.random() < 0.4
    count = r.randint(3, 30)
    short = r.random() < 0.6
    coarse = "coarse" in troubles and r.random() < 0.5
    greed = r.choice((0.1, 0.4, 0.8))
    batches = [_batch(r, physical, short, coarse, greed) for _ in range(count)]
    script = Script(
        f"t{at}",
        opens_ns=r.choice((0, r.randrange(100 * MS))),
        priority=priority,
        weight=r.choice((100, 100, 1, 300, 10_000)),
        sla_ns=r.choice((2, 30, 100, 400)) * MS if sla else 0,
        pace_permille=r.choice((50, 300, 900)) if not sla and r.random() < 0.25 else 0,
        quota_bytes=r.choice((0, physical // 4, physical // 2, physical, physical)),
        swap=r.random() < 0.75,
        wait_ns=r.choice((0, 50 * MS, 2_000 * MS)),
        batches=batches,
    )
    if r.random() < 0.5:
        script.window, script.think_ns = r.choice((1, 2, 8)), r.choice((0, MS, 30 * MS, 100 * MS))
    else:
        script.sends = _bursts(r, count)
    if "vanish" in troubles and r.random() < 0.3:
        script.vanishes_ns = r.randrange(1, 300 * MS)
    return script


def _batch(r: random.Random, physical: int, short: bool, coarse: bool, greed: float) -> Batch:
    wall = int(10 ** r.uniform(4.5, 6.3)) if short else int(10 ** r.uniform(6.0, 7.9))
    grain = r.choice((2 * US, 50 * US, 400 * US)) if not coarse else r.choice((50 * US, 5 * MS))
    new = (
        tuple(r.choice((KIB, physical // 24, physical // 10, physical // 6)) for _ in range(r.choice((1, 1, 2))))
        if r.random() < greed
        else ()
    )
    return Batch(wall, r.choice((1, 1, 2, 4)), grain, new, r.randint(0, 4), r.choice((0, 0, 0, 1)), r.choice((0, 0, physical // 50)))


def _bursts(r: random.Random, count: int) -> list[int]:
    """Open loop: bursts at random times."""
    gap_ns = r.choice((4, 12, 60)) * MS
    out: list[int] = []
    at = 0
    while len(out) < count:
        at += int(r.expovariate(1 / gap_ns))
        out += [at] * r.choice((1, 1, 3, 6))
    return out[:count]
