"""Where a task was put, with what scores, and why not elsewhere. Pure: a view in, what the templates show out.

May live here: choosing and wording. May not: why it waits (waiting), what happened (history), money (billing answers that), markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bus_schemas.events import Considered, TaskPlaced, TaskRefused
from scheduler.placement import ClusterView, TaskView
from scheduler.placement import reasons as why
from scheduler.placement.rank import SCORE_MAX, WEIGHTS
from services.controller.web.scope import Scope

__all__ = ["Candidate", "Part", "Placement", "REASON_TITLES", "WhyNot", "name_of", "placement_of"]

_EXAMPLES: Final = 3
_CANDIDATES: Final = 8

REASON_TITLES: Final[dict[str, str]] = {
    why.NO_NODES: "No node has joined yet",
    why.UNKNOWN_GROUP: "The groups that the task targets do not exist",
    why.NODE_LOST: "The node is lost",
    why.NODE_DRAINED: "The node is drained: it takes no new tasks",
    why.NOT_IN_GROUP: "The node is in none of the task's groups",
    why.GROUP_ONLY: "The node serves only tasks that target its group",
    why.NO_DEVICE: "The node has no device",
    why.GPU_COUNT: "Too few GPUs of one node fit",
    why.VRAM_SHORT: "Not enough VRAM is left",
    why.VRAM_PHYSICAL_SHORT: "Not enough physical VRAM for a task that cannot be swapped out",
    why.EXCLUSIVE_CONFLICT: "Other tasks use the device, and this task is exclusive",
    why.DEVICE_EXCLUSIVE: "An exclusive task uses the device",
    why.GROUP_EMPTY: "No node is in the groups that the task targets",
    why.RESERVED: "Reserved for a task ahead of it in the queue",
}
_PART_TITLES: Final = {"utilization": "idle device", "starvation": "no queue", "vram": "VRAM left", "priority": "few competitors"}


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a score: ``value`` of 100, times ``weight``."""

    name: str
    title: str
    value: int
    weight: int

    @property
    def points(self) -> int:
        return self.value * self.weight


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that would do. ``chosen``: the task is on it."""

    node: str
    node_name: str
    gpu: int
    score: int
    parts: tuple[Part, ...]
    chosen: bool
    utilization_percent: int
    starvation_percent: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class WhyNot:
    """A reason why places would not do: how many, and a few of them with the sentence they got."""

    reason: str
    title: str
    count: int
    examples: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """The last decision. ``candidates``: the best few of ``fits``, best first; ``why_not``: the commonest reason first."""

    placed: bool
    node: str
    node_name: str
    gpus: tuple[int, ...]
    decided_ns: int
    position: int
    fits: int
    candidates: tuple[Candidate, ...]
    why_not: tuple[WhyNot, ...]
    score_max: int = SCORE_MAX


def placement_of(view: ClusterView, task: TaskView, scope: Scope) -> Placement | None:
    """None: there is no decision on it yet. ``scope``: the reader's rights; no sentence names another tenant's task."""
    decision = task.decision
    if decision is None:
        return None
    placed = decision if isinstance(decision, TaskPlaced) else None
    seen = {(one.node, one.gpu): one for one in decision.considered}
    scores = placed.scores if placed is not None else ()
    chosen = {(placed.node, gpu) for gpu in placed.gpus} if placed is not None else set()
    candidates = tuple(
        _candidate(view, node, gpu, score, seen.get((node, gpu)), (node, gpu) in chosen) for node, gpu, score in scores[:_CANDIDATES]
    )
    return Placement(
        placed=placed is not None,
        node=placed.node if placed is not None else "",
        node_name=name_of(view, placed.node) if placed is not None else "",
        gpus=placed.gpus if placed is not None else (),
        decided_ns=decision.at_ns,
        position=decision.position,
        fits=max(len(scores), placed.candidates) if placed is not None else 0,
        candidates=candidates,
        why_not=_why_not(view, decision, scope),
    )


def name_of(view: ClusterView, node: str) -> str:
    """What people call a node; its id when it is not known (any more)."""
    known = view.nodes.get(node)
    return known.registered.name if known is not None else node


def _candidate(view: ClusterView, node: str, gpu: int, score: int, seen: Considered | None, chosen: bool) -> Candidate:
    values = dict(zip(WEIGHTS, seen.parts, strict=True)) if seen is not None and seen.parts else {}
    return Candidate(
        node=node,
        node_name=name_of(view, node),
        gpu=gpu,
        score=score,
        parts=tuple(Part(name, _PART_TITLES[name], value, WEIGHTS[name]) for name, value in values.items()),
        chosen=chosen,
        utilization_percent=seen.utilization_percent if seen is not None else 0,
        starvation_percent=seen.starvation_percent if seen is not None else 0,
        free_bytes=seen.free_bytes if seen is not None else 0,
    )


def _why_not(view: ClusterView, decision: TaskPlaced | TaskRefused, scope: Scope) -> tuple[WhyNot, ...]:
    by_reason: dict[str, list[tuple[str, str]]] = {}
    for node, gpu, reason, detail in decision.refusals:
        where = "the cluster" if not node else name_of(view, node) if gpu == why.NODE_WIDE else f"{name_of(view, node)}, GPU {gpu}"
        hidden = reason == why.RESERVED and scope.tenant
        by_reason.setdefault(reason, []).append((where, "reserved for a task that has waited long" if hidden else detail))
    counts = dict(decision.refused)
    found = [
        WhyNot(reason, REASON_TITLES.get(reason, reason), counts.get(reason, len(places)), tuple(places[:_EXAMPLES]))
        for reason, places in by_reason.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.count, one.reason)))
