"""Tasks and the placement decisions on them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from bus_schemas.events import Considered, TaskPlaced, TaskRefused, TaskSubmitted
from bus_schemas.runs import RunState
from scheduler.placement import ClusterView, TaskView
from scheduler.placement import reasons as why
from scheduler.placement.decide import SCORE_MAX, WEIGHTS
from services.controller.bodies import MIB
from services.controller.presenters import Json, Shown, everyone, node_name, rfc3339

_EXAMPLES: Final = 3

REASON_TITLES: Final[dict[str, str]] = {
    why.NO_NODES: "No node has joined yet",
    why.UNKNOWN_GROUP: "The groups that the task targets do not exist",
    why.NODE_LOST: "The node is lost",
    why.NODE_LEFT: "The task is moved to another node",
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
    why.OTHER_DOMAIN: "The device serves one trust domain at a time, and now another one",
    why.RESERVED: "Reserved for a task ahead of it in the queue",
    why.GANG_INCOMPLETE: "Other tasks of its gang are not submitted yet",
    why.GANG_SHORT: "There is no room for its whole gang",
}
_PART_TITLES: Final = {"utilization": "idle device", "starvation": "no queue", "vram": "VRAM left", "priority": "few competitors"}


# -- a task ------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it was when the row was made: the view's own object changes."""

    submitted: TaskSubmitted
    id: str
    title: str
    tenant: str
    priority: int
    state: str
    reason: str
    vram_bytes: int
    gpu_count: int
    exclusive: bool
    node: str  #: empty: it has no place
    groups: tuple[str, ...]
    waiting: bool
    position: int  #: log position of its submission
    submitted_ns: int
    updated_ns: int
    since_ns: int  #: since when it waits for room
    decided: bool  #: a placement was decided, or refused
    refusal: str  #: while it waits: the commonest reason of the last refusal, in words
    serial: int  #: grows with every change of any task
    text: str  #: what search looks in, case folded


def task_row(view: ClusterView, task: TaskView, serial: int = 0) -> TaskRow:
    said, node = task.submitted, task.placed.node if task.placed is not None else ""
    return TaskRow(
        submitted=said,
        id=said.task,
        title=said.title,
        tenant=said.tenant,
        priority=task.priority,
        state=task.state,
        reason=task.reason,
        vram_bytes=said.vram_bytes,
        gpu_count=said.gpu_count,
        exclusive=said.exclusive,
        node=node,
        groups=said.groups,
        waiting=task.waiting,
        position=task.position,
        submitted_ns=said.at_ns,
        updated_ns=task.updated_ns,
        since_ns=task.wait_from_ns or said.at_ns,
        decided=task.decision is not None,
        refusal=_commonest(task) if task.waiting else "",
        serial=serial,
        text="\n".join((said.task, said.title, said.tenant, node, node_name(view, node), *said.groups)).casefold(),
    )


def _commonest(task: TaskView) -> str:
    decision = task.decision
    if not isinstance(decision, TaskRefused) or not decision.refusals:
        return "not looked at yet"
    # the refusals are a few examples of each reason, so they are counted only where an older log has no counts
    counts = dict(decision.refused) or Counter(reason for _, _, reason, _ in decision.refusals)
    reason = max(sorted(counts), key=lambda name: counts[name])
    return REASON_TITLES.get(reason, reason)


def task_answer(view: ClusterView, task: TaskView, shown: Shown = everyone) -> Json:
    row, placed = task_row(view, task), task.placed
    said = row.submitted
    return {
        "id": row.id,
        "tenant": row.tenant,
        "title": row.title,
        "priority": row.priority,
        "state": row.state,
        "reason": row.reason,
        "outcome": _outcome(task),
        "required_vram_mb": row.vram_bytes // MIB,
        "vram_grows": said.vram_grows,
        "gpu_count": row.gpu_count,
        "gpu_mode": "Exclusive" if row.exclusive else "Shared",
        "groups": list(row.groups),
        "noswap": said.noswap,
        "queue": said.queue,
        "queue_timeout_ms": said.queue_timeout_ms,
        "reservation": said.reservation,
        "start_lease_ms": said.start_lease_ms,
        "gang": said.gang,
        "gang_size": said.gang_size,
        "weight": said.weight,
        "sla_ms_p99": said.sla_ms_p99,
        "pace_percent": said.pace_percent,
        "node": row.node or None,
        "node_name": node_name(view, row.node) if row.node in view.nodes else None,
        "gpus": list(placed.gpus) if placed is not None else [],
        "move": _move(view, task),
        "stayed": task.stayed or None,
        "sessions": len(task.sessions),
        "submitted_at": rfc3339(row.submitted_ns),
        "updated_at": rfc3339(row.updated_ns),
        "placement": placement_answer(view, task.decision, shown) if task.decision is not None else None,
    }


def _move(view: ClusterView, task: TaskView) -> Json | None:
    """Where a task goes that runs elsewhere; ``sessions``: open there; ``position``: of the decision in the log; ``urgent``: the node that
    it leaves is being stopped."""
    moving, placed = task.moving, task.placed
    if moving is None or placed is None:
        return None
    return {
        "node": moving.node,
        "node_name": node_name(view, moving.node),
        "gpus": list(moving.gpus),
        "sessions": sum(1 for name in task.sessions if view.sessions[name].fact.node == moving.node),
        "position": moving.position,
        "urgent": placed.node in view.nodes and view.nodes[placed.node].leaving,
    }


def _outcome(task: TaskView) -> Json | None:
    """How the script of a finished task ended, None where no client reported it."""
    ended = task.outcome
    if ended is None or ended.lost or task.live:
        return None
    return {"exit_code": ended.exit_code, "error": ended.error or None, "signal": ended.signal or None}


def run_answer(state: RunState) -> Json:
    """``exit_code`` and ``signal`` null: not known, or none. ``webhook``: without its path, which may hold a secret."""
    hook = urlsplit(state.webhook)
    return {
        "task": state.task,
        "script": state.name,
        "state": state.state,
        "runner": state.runner or None,
        "wanted_runner": state.wanted or None,
        "wall_limit_s": state.wall_s,
        "submitted_at": rfc3339(state.submitted_ns),
        "started_at": rfc3339(state.taken_ns) if state.taken_ns else None,
        "ended_at": rfc3339(state.ended_ns) if state.ended_ns else None,
        "exit_code": state.exit_code,
        "signal": state.signal or None,
        "reason": state.reason,
        "webhook": f"{hook.scheme}://{hook.netloc}" if state.webhook else None,
        "webhook_result": state.notified or None,
    }


# -- a placement decision ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a score."""

    name: str
    title: str
    value: int  #: of 100
    weight: int

    @property
    def points(self) -> int:
        return self.value * self.weight


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device on which the task fits."""

    node: str
    node_name: str
    gpu: int
    score: int
    parts: tuple[Part, ...]
    chosen: bool
    seen: Considered | None  #: what the decision knew of the device; None: the log does not say

    @property
    def free_bytes(self) -> int:
        return self.seen.free_bytes if self.seen is not None else 0


@dataclass(frozen=True, slots=True)
class WhyNot:
    """A reason for which places were refused."""

    reason: str
    title: str
    count: int
    examples: tuple[tuple[str, str], ...]  #: (place, sentence)


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision on a task."""

    placed: bool
    node: str
    node_name: str
    gpus: tuple[int, ...]
    decided_ns: int
    position: int  #: log position of the last event that the decision saw
    fits: int  #: how many devices fitted
    candidates: tuple[Candidate, ...]  #: the best of them, best first
    why_not: tuple[WhyNot, ...]  #: the commonest reason first
    score_max: int = SCORE_MAX


def placement_of(view: ClusterView, task: TaskView, shown: Shown) -> Placement | None:
    """The last decision on a task; None: there is none yet."""
    return _placement(view, task.decision, shown) if task.decision is not None else None


def _placement(view: ClusterView, decision: TaskPlaced | TaskRefused, shown: Shown) -> Placement:
    """No sentence names a task of a tenant that is not ``shown``."""
    placed = decision if isinstance(decision, TaskPlaced) else None
    candidates = _candidates(view, decision)
    return Placement(
        placed=placed is not None,
        node=placed.node if placed is not None else "",
        node_name=node_name(view, placed.node) if placed is not None else "",
        gpus=placed.gpus if placed is not None else (),
        decided_ns=decision.at_ns,
        position=decision.position,
        fits=max(len(candidates), placed.candidates) if placed is not None else 0,
        candidates=candidates,
        why_not=_why_not(view, decision, shown),
    )


def _candidates(view: ClusterView, decision: TaskPlaced | TaskRefused) -> tuple[Candidate, ...]:
    if not isinstance(decision, TaskPlaced):
        return ()
    seen = {(one.node, one.gpu): one for one in decision.considered}
    found = []
    for node, gpu, score in decision.scores:
        known = seen.get((node, gpu))
        values = dict(zip(WEIGHTS, known.parts, strict=False)) if known is not None else {}
        parts = tuple(Part(name, _PART_TITLES[name], value, WEIGHTS[name]) for name, value in values.items())
        chosen = node == decision.node and gpu in decision.gpus
        found.append(Candidate(node, node_name(view, node), gpu, score, parts, chosen, known))
    return tuple(found)


def _why_not(view: ClusterView, decision: TaskPlaced | TaskRefused, shown: Shown) -> tuple[WhyNot, ...]:
    counts = dict(decision.refused)
    found = [
        WhyNot(reason, REASON_TITLES.get(reason, reason), counts.get(reason, len(places)), tuple(places[:_EXAMPLES]))
        for reason, places in _by_reason(view, decision, shown).items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.count, one.reason)))


def _by_reason(view: ClusterView, decision: TaskPlaced | TaskRefused, shown: Shown) -> dict[str, list[tuple[str, str]]]:
    """Reason to (place, sentence) of each refusal."""
    out: dict[str, list[tuple[str, str]]] = {}
    for node, gpu, reason, detail in decision.refusals:
        where = "the cluster" if not node else node_name(view, node) + ("" if gpu == why.NODE_WIDE else f", GPU {gpu}")
        out.setdefault(reason, []).append((where, _detail(reason, detail, shown)))
    return out


def _detail(reason: str, detail: str, shown: Shown) -> str:
    """The sentence of a refusal, without the task that a device is kept for where the caller may not know of all tenants."""
    return "reserved for a task that has waited long and goes first" if reason == why.RESERVED and not shown("") else detail


def placement_answer(view: ClusterView, decision: TaskPlaced | TaskRefused, shown: Shown = everyone) -> Json:
    """A decision: the choice, the best candidates' scores with their parts, and examples of why not the others, with all counts."""
    found = _placement(view, decision, shown)
    node = view.nodes.get(found.node)
    return {
        "task": decision.task,
        "state": "placed" if found.placed else "refused",
        "node": found.node or None,
        "node_name": node.registered.name if node is not None else None,
        "node_address": node.registered.address if node is not None else None,
        "gpus": list(found.gpus),
        "decided_at": rfc3339(found.decided_ns),
        "position": found.position,
        "candidates": [_candidate_answer(one) for one in found.candidates],
        "candidates_total": found.fits,
        "refusals": refusals_answer(decision.refusals, shown),
        "refused": [{"reason": reason, "count": count} for reason, count in decision.refused],
    }


def _candidate_answer(one: Candidate) -> Json:
    measured = ("utilization_percent", "starvation_percent", "vram_used_bytes", "free_bytes")
    return {
        "node": one.node,
        "gpu": one.gpu,
        "score": one.score,
        "parts": {part.name: part.value for part in one.parts},
        "measured": {name: getattr(one.seen, name) for name in measured} if one.seen is not None else None,
    }


def refusals_answer(refusals: tuple[tuple[str, int, str, str], ...], shown: Shown) -> list[Json]:
    """gpu null: the whole node; node null: the whole cluster."""
    return [
        {"node": node or None, "gpu": None if gpu == why.NODE_WIDE else gpu, "reason": reason, "detail": _detail(reason, detail, shown)}
        for node, gpu, reason, detail in refusals
    ]


def only_lost(decision: TaskRefused) -> bool:
    """Whether the task could run, for all that is known, were it not that the nodes for it are lost."""
    return {reason for reason, _ in decision.refused} - why.ASIDE == {why.NODE_LOST}


def refusal_sentence(view: ClusterView, decision: TaskPlaced | TaskRefused, shown: Shown = everyone) -> str:
    """One sentence for the user whose task fits nowhere: every distinct reason, with how often and an example."""
    counts = dict(decision.refused)
    parts = []
    for reason, places in sorted(_by_reason(view, decision, shown).items()):
        count = max(len(places), counts.get(reason, 0))
        where, detail = places[0]
        example = detail if where == "the cluster" else f"{where}: {detail}"
        parts.append(f"{why.reason_text(reason, count)} ({'e.g. ' if count > 1 else ''}{example})")
    return "no device fits: " + "; ".join(parts)
