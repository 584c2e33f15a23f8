"""What happens in a recorded run, drawn from its seed: tenants, the node's settings, what is killed and when. Data only."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

__all__ = ["Mix", "Tenant", "mix"]

_TENANTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Tenant:
    """``keys`` of its configuration; ``batches`` on one buffer of ``size`` numbers; ``waits`` for each answer, or for the last; ``faulty``:
    its last batch is a mistake."""

    keys: dict[str, int]
    batches: int
    size: int
    waits: bool
    faulty: bool


@dataclass(frozen=True, slots=True)
class Mix:
    """``rounds`` of tenants that run beside each other; between two of them what ``trouble`` says happens. ``vanishing``: a client process
    that is killed while it works."""

    seed: int
    environment: dict[str, str]
    rounds: tuple[tuple[Tenant, ...], ...]
    trouble: str
    vanishing: bool

    @property
    def text(self) -> str:
        """In a word or two, for the record."""
        policy = self.environment["WOOLY_SCHED_POLICY"]
        tenants = ", ".join("".join(f"P{tenant.keys['prio']}" for tenant in group) for group in self.rounds)
        marks = [policy, tenants, self.trouble, *(["a client killed"] if self.vanishing else [])]
        if "WOOLY_VRAM_OVERCOMMIT_PERCENT" in self.environment:
            marks.append("memory overcommitted")
        return "; ".join(marks)


def mix(seed: int) -> Mix:
    """The run of this seed."""
    draw = random.Random(seed)
    environment = {
        "WOOLY_SCHED_POLICY": draw.choice(("strict", "strict", "strict", "fifo", "timeslice")),
        "WOOLY_SCHED_QUANTUM_MS": str(draw.choice((2, 10))),
        "WOOLY_SCHED_LOW_SLICE_MS": str(draw.choice((2, 20))),
        "WOOLY_SCHED_AGING_MS": str(draw.choice((0, 0, 50))),
        "WOOLY_SCHED_RESERVE_PERCENT": str(draw.choice((0, 0, 10))),
    }
    crowded = draw.random() < 0.4
    if crowded:  # each tenant holds 8 MB and works in as much again
        environment |= {
            "WOOLY_DEVICE_VRAM_MB": "32", "WOOLY_VRAM_OVERCOMMIT_PERCENT": "400", "WOOLY_VRAM_RESERVE_MB": "0", "WOOLY_SWAP_IDLE_MS": "1"
        }  # fmt: skip
    trouble = draw.choice(("nothing else", "server restarted", "server killed", "executor killed"))
    rounds = tuple(tuple(_tenant(draw, crowded) for _ in range(draw.randint(2, _TENANTS_MAX))) for _ in range(2))
    return Mix(seed, environment, rounds, trouble, draw.random() < 0.4)


def _tenant(draw: random.Random, crowded: bool) -> Tenant:
    priority = draw.randrange(5)
    keys = {"prio": priority, "weight": draw.choice((50, 100, 100, 400))}
    if priority == 0 and draw.random() < 0.5:
        keys["sla_ms_p99"] = 5000
    elif draw.random() < 0.25:
        keys["pace_percent"] = draw.choice((20, 60))
    size = 1_000_000 if crowded else draw.choice((1_000, 100_000, 1_000_000))
    return Tenant(keys, draw.randint(5, 30), size, draw.random() < 0.5, draw.random() < 0.1)
