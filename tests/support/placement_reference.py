"""Placement the slow, obvious way: one device at a time, every sum made anew from tasks and sessions. What the scheduler's columns are
compared with. Uses its sentences (feasible) and nothing else of how it decides."""

from __future__ import annotations

from dataclasses import dataclass

from bus_schemas.events import DeviceFact, TaskSubmitted
from scheduler.placement import ClusterView, TaskView
from scheduler.placement.columns import SEVERAL
from scheduler.placement.feasible import Capacity, Refusal, refuse_cluster, refuse_count, refuse_device, refuse_node, refuse_reserved
from scheduler.placement.states import PACK, QUEUE_AGE_MS, QUEUE_PROTECT_MS, QUEUE_RESERVATIONS

MS = 1_000_000
Device = tuple[str, int]


@dataclass(frozen=True)
class Reference:
    """``scores``: every candidate, best first, with its parts; ``refusals``: everything else."""

    node: str
    gpus: tuple[int, ...]
    scores: tuple[tuple[str, int, int], ...]
    parts: dict[Device, tuple[int, ...]]
    refusals: tuple[Refusal, ...]
    reserved: tuple[str, tuple[int, ...]]


def groups_of(view: ClusterView, node: str) -> set[str]:
    return set(view.nodes[node].registered.groups) | {name for name, group in view.groups.items() if node in group.nodes}


def room(view: ClusterView, node: str, device: DeviceFact) -> Capacity:
    """What is promised on a device, counted from every task and session there is."""
    promised = noswap = 0
    exclusive = False
    priorities: list[int] = []
    tenants: set[str] = set()
    covered: set[str] = set()
    for task in view.tasks.values():
        submitted = task.submitted
        places = [place for place in (task.placed, task.moving) if place is not None and place.node == node]
        if not task.live or not any(device.index in place.gpus for place in places):
            continue
        promised += submitted.vram_bytes
        noswap += submitted.vram_bytes if submitted.noswap else 0
        exclusive = exclusive or submitted.exclusive
        priorities.append(task.priority)
        tenants.add(submitted.tenant)
        covered.add(submitted.task)
    for name in view.nodes[node].sessions:
        session = view.sessions[name]
        if session.fact.gpu != device.index or session.cut_off or (session.fact.task in covered and not session.given_up):
            continue
        promised += session.fact.quota_bytes
        noswap += 0 if session.fact.swap else session.fact.quota_bytes
        priorities.append(session.priority)
        tenants.add(session.fact.tenant)
    schedulable = device.vram_bytes * (100 + view.overcommit_percent(node)) // 100
    here = {view.nodes[node].domain_number(tenant) for tenant in tenants}
    domain = here.pop() if len(here) == 1 else SEVERAL if here else 0
    return Capacity(device.vram_bytes, schedulable, promised, noswap, exclusive, tuple(sorted(priorities)), domain)


def rank(view: ClusterView, wish: TaskSubmitted, at_ns: int) -> tuple[int, int, float, str]:
    """Smallest first. A wish that is only asked about ranks as if it were submitted now."""
    known = view.tasks.get(wish.task)
    if known is None or known.submitted != wish:
        return (wish.priority, view.next_turn(wish.tenant, wish.priority), float("inf"), wish.task)
    level, period_ns = known.priority, view.setting(QUEUE_AGE_MS) * MS
    waited_ns = at_ns - wish.at_ns
    while level > 0 and period_ns and waited_ns >= period_ns:
        level, waited_ns = level - 1, waited_ns - period_ns
    return (level, known.turn, known.position, wish.task)


def reference(view: ClusterView, wish: TaskSubmitted, at_ns: int) -> Reference:
    everywhere = refuse_cluster(view, wish)
    if everywhere is not None:
        return Reference("", (), (), {}, (everywhere,), ("", ()))
    known = view.tasks.get(wish.task)
    if known is not None and known.submitted != wish:
        known = None  # only asked about, under an id that the log knows
    priority = known.priority if known is not None else wish.priority
    refusals: list[Refusal] = []
    scores: list[tuple[str, int, int]] = []
    parts: dict[Device, tuple[int, ...]] = {}
    for name, node in view.nodes.items():
        whole = refuse_node(view, wish, name, node)
        if whole is not None:
            refusals.append(whole)
            continue
        fit: list[tuple[str, int, int]] = []
        for device in node.registered.devices:
            refusal = _refuse(view, wish, name, device, at_ns)
            if refusal is not None:
                refusals.append(refusal)
                continue
            made_of = _parts(view, wish, name, device, priority)
            parts[name, device.index] = made_of
            fit.append((name, device.index, 3 * made_of[0] + 3 * made_of[1] + 2 * made_of[2] + 2 * made_of[3]))
        if len(fit) < wish.gpu_count:
            refusals += [refuse_count(name, gpu, wish.gpu_count, len(fit)) for _, gpu, _ in fit]
        else:
            scores += fit
    scores.sort(key=lambda item: (-item[2], item[0], item[1]))
    refusals.sort(key=lambda refusal: refusal[:3])
    best: tuple[int, str, tuple[int, ...]] | None = None
    for name in sorted({node for node, _, _ in scores}):
        mine = [item for item in scores if item[0] == name][: wish.gpu_count]
        total = sum(score for _, _, score in mine)
        if best is None or total > best[0]:
            best = (total, name, tuple(sorted(gpu for _, gpu, _ in mine)))
    reserved: tuple[str, tuple[int, ...]] = ("", ())
    if best is None and known is not None and known.waiting:
        reserved = _reserved(view, known, at_ns)
    return Reference(best[1] if best else "", best[2] if best else (), tuple(scores), parts, tuple(refusals), reserved)


def _refuse(view: ClusterView, wish: TaskSubmitted, name: str, device: DeviceFact, at_ns: int) -> Refusal | None:
    refusal = refuse_device(wish, view.nodes[name], device, room(view, name, device), view.measured(name, device.index).vram_used_bytes)
    holder = view.reservations.get((name, device.index))
    if refusal is None and holder is not None and holder != wish.task:
        if rank(view, view.tasks[holder].submitted, at_ns) < rank(view, wish, at_ns):
            return refuse_reserved(name, device.index, holder)
    return refusal


def _parts(view: ClusterView, wish: TaskSubmitted, name: str, device: DeviceFact, priority: int) -> tuple[int, ...]:
    now, here = view.measured(name, device.index), room(view, name, device)
    left = max(0, here.free_bytes - wish.vram_bytes)
    rivals = sum(1 for other in here.priorities if other <= priority)
    free, alone = 100 * left // here.schedulable_bytes if here.schedulable_bytes else 0, 100 // (1 + rivals)
    if view.setting(PACK):
        free, alone = 100 - free, 100 - alone
    return 100 - min(100, max(0, now.utilization_percent)), 100 - min(100, max(0, now.starvation_percent)), free, alone


def _missing(view: ClusterView, task: TaskView, name: str, device: DeviceFact) -> int | None:
    """Bytes that must be given back on a device, None when nothing helps."""
    wish, here = task.submitted, room(view, name, device)
    if wish.vram_bytes > (here.physical_bytes if wish.noswap else here.schedulable_bytes):
        return None
    if refuse_node(view, wish, name, view.nodes[name]) is not None:
        return None
    if view.reservations.get((name, device.index), wish.task) != wish.task:
        return None
    of_others = here.domain not in (0, view.nodes[name].domain_number(wish.tenant))
    if here.exclusive or of_others or (wish.exclusive and here.priorities):
        return max(1, here.promised_bytes)
    left = here.schedulable_bytes - here.promised_bytes
    if wish.noswap:
        used = view.measured(name, device.index).vram_used_bytes
        left = min(left, here.physical_bytes - max(here.promised_noswap_bytes, used))
    return max(0, wish.vram_bytes - left)


def _reserved(view: ClusterView, task: TaskView, at_ns: int) -> tuple[str, tuple[int, ...]]:
    protect_ns = view.setting(QUEUE_PROTECT_MS) * MS
    if not protect_ns or not task.queues or at_ns < task.wait_from_ns + protect_ns:
        return ("", ())
    held = task.reserved
    if held is None and len(set(view.reservations.values())) >= view.setting(QUEUE_RESERVATIONS):
        return ("", ())
    options: list[tuple[int, str, tuple[int, ...]]] = []
    held_missing: int | None = None
    for name, node in view.nodes.items():
        found = {device.index: _missing(view, task, name, device) for device in node.registered.devices}
        cheapest = sorted((bytes_, gpu) for gpu, bytes_ in found.items() if bytes_ is not None)[: task.submitted.gpu_count]
        if len(cheapest) == task.submitted.gpu_count:
            options.append((sum(bytes_ for bytes_, _ in cheapest), name, tuple(sorted(gpu for _, gpu in cheapest))))
        if held is not None and held.node == name:
            of_held = [found.get(gpu) for gpu in held.gpus]
            held_missing = None if None in of_held else sum(bytes_ for bytes_ in of_held if bytes_ is not None)
    if held is not None and held_missing is not None:
        nearer = [option for option in options if option[0] < held_missing]
        if at_ns - held.since_ns < protect_ns or not nearer:
            return (held.node, held.gpus)
        return min(nearer)[1:]
    return min(options)[1:] if options else ("", ())
