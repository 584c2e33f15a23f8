"""What a seed decides before anything runs: sizes, limits, the scripts of clients, and when which fault begins and ends. Data and its
drawing."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.system.kernel import MS, S

__all__ = ["FAULTS", "Fault", "Plan", "Script", "Step", "draw"]

FAULTS: Final = (
    "kill client", "stop client", "kill executor", "kill executor", "kill executor", "stop executor", "kill server", "stop server",
    "end server", "fail node", "fail node", "kill controller", "stop controller", "kill billing", "stop billing", "kill bus", "fail bus",
    "stop bus", "cut", "cut bus", "set clock", "fill node", "fill bus", "slow node", "move", "move", "move",
)  # fmt: skip
"""What may befall the system, as often as it stands here. *fail*: the machine loses its power, and what was not synced."""


@dataclass(frozen=True, slots=True)
class Step:
    """A batch. ``kind``: upload, alloc, run, read, free. ``cost_ms``: core time of a run."""

    kind: str
    to: int
    sources: tuple[int, ...] = ()
    nbytes: int = 0
    salt: int = 0
    cost_ms: int = 0
    #: the script waits for the answer at once
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """A client. ``think_ns``: between two batches."""

    name: str
    tenant: str
    priority: int
    vram_mb: int
    begins_ns: int
    think_ns: int
    queue: bool
    log_bytes: int
    target_s: float
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    at_ns: int
    for_ns: int
    #: which client, node, controller
    which: int
    other: int
    amount: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``skews_ns``: of the clocks of machines in turn; controllers have none, for they compare their times. ``loss``: the part of core
    messages that get lost. ``ends_ns``: no fault lasts longer."""

    seed: int
    nodes: int
    controllers: int
    loss: float
    skews_ns: tuple[int, ...]
    lease_ms: int
    unlinked_lease_ms: int
    orphan_s: float
    stop_grace_s: float
    node_lease_ms: int
    start_lease_ms: int
    recovery_wait_s: float
    scripts: tuple[Script, ...]
    faults: tuple[Fault, ...]
    ends_ns: int = field(default=0)


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    r = random.Random(f"system {seed}")
    scripts = tuple(_script(r, at) for at in range(r.choice((1, 1, 1, 2, 2, 3))))
    last_ns = max(script.begins_ns + len(script.steps) * (script.think_ns + 50 * MS) for script in scripts) + S
    faults = tuple(sorted((_fault(r, last_ns) for _ in range(r.choice((0, 1, 1, 2, 2, 3, 4, 6)))), key=lambda fault: fault.at_ns))
    return Plan(
        seed,
        nodes=r.choice((1, 2, 2)),
        controllers=r.choice((1, 1, 1, 2)),
        loss=r.choice((0.0, 0.0, 0.0, 0.01, 0.05)),
        skews_ns=tuple(r.choice((0, 0, 40 * MS, -2 * S, 90 * S)) for _ in range(4)),
        lease_ms=r.choice((15_000, 30_000)),
        unlinked_lease_ms=r.choice((6_000, 12_000)),
        orphan_s=r.choice((4.0, 10.0)),
        stop_grace_s=r.choice((0.0, 0.0, 3.0)),
        node_lease_ms=r.choice((2_500, 5_000)),
        start_lease_ms=20_000,
        recovery_wait_s=40.0,
        scripts=scripts,
        faults=faults,
        ends_ns=max([fault.at_ns + fault.for_ns for fault in faults], default=0),
    )


def _script(r: random.Random, at: int) -> Script:
    steps: list[Step] = []
    held: dict[int, int] = {}
    count = r.randint(6, 20)
    cost = r.choice((3, 30, 100))
    for number in range(count):
        kinds = ["upload", "upload", "alloc"] if len(held) < 2 else ["upload", "run", "run", "run", "run", "read", "free"]
        kind = r.choice(kinds)
        if kind in ("upload", "alloc"):
            nbytes = r.choice((8, 24, 100))
            to = 1 + number
            held[to] = nbytes
            steps.append(Step(kind, to, nbytes=nbytes, salt=r.getrandbits(32)))
            continue
        to = r.choice(sorted(held))
        if kind == "free" and len(held) > 2:
            steps.append(Step("free", to))
            del held[to]
        elif kind == "read":
            steps.append(Step("read", to, nbytes=held[to], waits=r.random() < 0.7))
        else:
            sources = tuple(r.sample(sorted(held), k=min(len(held), r.randint(1, 2))))
            steps.append(Step("run", to, sources, salt=r.getrandbits(32), cost_ms=r.randint(1, cost)))
    steps += [Step("read", to, nbytes=held[to], waits=True) for to in sorted(held)]  # everything that is left is looked at
    return Script(
        f"client-{at}",
        tenant=r.choice(("acme", "beta")),
        priority=r.choice((0, 2, 2, 4)),
        vram_mb=r.choice((16, 24, 40)),
        begins_ns=r.choice((0, r.randrange(3 * S))) + 450 * MS,
        think_ns=r.choice((0, 30, 150, 300)) * MS,
        queue=r.random() < 0.7,
        log_bytes=r.choice((1 << 20, 1 << 20, 1 << 20, 4096, 0)),
        target_s=r.choice((0.5, 2.0, 30.0)),
        steps=tuple(steps),
    )


def _fault(r: random.Random, last_ns: int) -> Fault:
    kind = r.choice(FAULTS)
    for_ns = r.choice((r.randrange(50 * MS, S), r.randrange(50 * MS, S), r.randrange(S, 4 * S), r.randrange(4 * S, 12 * S)))
    return Fault(kind, 400 * MS + r.randrange(last_ns), for_ns, r.randrange(12), r.randrange(12), r.choice((-3600, -20, -2, 2, 20, 3600)))
