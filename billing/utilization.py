"""Where the time of devices went: the seven states (``bus_schemas.utilization``) of every accounted interval, and what was not used of its
core time, by tenant, task and model. A part of the projection. Pure, integers only.

For each DeviceAccounted whose accounts add up:

1. states = states_of(wall, busy = charged / cores, launch = launch_ns, blocked = scheduler / cores, ...), rounded down.
2. Busy, underused and blocked time is divided among the tasks of the interval in proportion to the core time that they used; all other time
   in proportion to the memory that they held, for that keeps others out. What no task held belongs to none.
3. Idle and fragmented time of a tenant whose budget is used up is blocked: its batches wait for a grant.
4. waste = wall x cores - charged, divided like the time that is not busy. Its cost is the core price of the tenant that it belongs to (of
   the standard tier, where it belongs to none) at the start of the interval, rounded down once a task and interval.

An interval belongs to the minute that it begins in. Time that no task held is kept exactly, as spans: a device that is idle for a year is
one entry. Usage that is not believed (``evidence``) attributes no time to its tenant.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from bus_schemas.events import (
    ConfigChanged,
    DeviceAccounted,
    Event,
    GroupChanged,
    NodeRegistered,
    TaskDisplaced,
    TaskPlaced,
    TaskStateChanged,
    TaskSubmitted,
)
from bus_schemas.utilization import BLOCKED, BUSY, FRAGMENTED, IDLE, STATES, UNDERUSED, Interval, states_of

_MINUTE_NS: Final = 60_000_000_000
_NS: Final = 1_000_000_000
_MS: Final = 1_000_000
_KEPT_NS: Final = 300 * _NS
"""How long after its end a wait is remembered: intervals are accounted at most a minute after they begin."""
_WAITS_MAX: Final = 256
"""Of those."""
_LOOKED_AT: Final = 256
"""Tasks that wait now, longest first: a long queue costs no more."""
_NO_OWNER: Final = ("", "", "")

Owner = tuple[str, str, str]
"""(tenant, task, model); empty texts: none."""
RowKey = tuple[int, str, int, str, str, str]
"""(minute since 1970, node, device, tenant, task, model)."""
Terms = Callable[[str], tuple[int, bool]]
"""Of a tenant at the start of an interval: its price of a core-second in micro-credits, and whether its budget is used up."""


class Use(msgspec.Struct, array_like=True, frozen=True):
    """A usage event that its device's accounts have not named yet. ``owner`` is empty if it is not believed."""

    owner: Owner
    wall_ns: int
    core_ns: int
    byte_ms: int = 0
    active: bool = False


class Row(msgspec.Struct, array_like=True):
    """A task's part of one device's minute. ``times``: ns in each of STATES."""

    times: list[int] = msgspec.field(default_factory=lambda: [0] * len(STATES))
    used_core_ns: int = 0
    waste_core_ns: int = 0
    waste_micro: int = 0


class Span(msgspec.Struct, array_like=True):
    """[from_ns, to_ns) of a device that no task held, in one state."""

    from_ns: int
    to_ns: int
    cores: int
    state: int
    price_micro: int


class Need(msgspec.Struct, array_like=True):
    """What a task asked for. ``since_ns``: when it began to wait; -1: it does not."""

    vram_bytes: int
    gpu_count: int
    groups: tuple[str, ...]
    since_ns: int = -1


class Utilization(msgspec.Struct, array_like=True):
    """``rows`` and ``spans`` by device; what waits, and which nodes it could use."""

    rows: dict[RowKey, Row] = {}
    spans: dict[tuple[str, int], list[Span]] = {}
    needs: dict[str, Need] = {}
    """Of tasks that are queued, or may be again."""
    waiting: dict[str, None] = {}
    waited: list[tuple[int, int, Need]] = []
    """Waits that ended lately: (from, to, what for)."""
    declared: dict[str, tuple[str, ...]] = {}
    """Groups that a node names itself."""
    groups: dict[str, tuple[str, ...]] = {}
    drained: dict[str, None] = {}

    def apply(self, event: Event) -> None:
        """Fold in an event about tasks that wait, or about nodes that could take them."""
        match event:
            case TaskSubmitted() if event.task not in self.needs:
                self.needs[event.task] = Need(event.vram_bytes, event.gpu_count, event.groups)
                if event.queue:
                    self._wait(event.task, event.at_ns)
            case TaskDisplaced() if event.task in self.needs and not event.gpus:
                self._wait(event.task, event.at_ns)
            case TaskPlaced():
                self._end_wait(event.task, event.at_ns)
            case TaskStateChanged() if event.state not in ("queued", "started"):
                self._end_wait(event.task, event.at_ns)
                if event.state != "failed":  # a failed one may be displaced: its node was lost
                    self.needs.pop(event.task, None)
            case NodeRegistered():
                self.declared[event.node] = event.groups
            case GroupChanged():
                self.groups[event.group] = () if event.deleted else event.nodes
            case ConfigChanged() if event.key == "drained":
                self.drained.pop(event.scope, None)
                if event.value:
                    self.drained[event.scope] = None
            case _:
                pass

    def _wait(self, task: str, at_ns: int) -> None:
        self.needs[task].since_ns = at_ns
        self.waiting[task] = None

    def _end_wait(self, task: str, at_ns: int) -> None:
        if task not in self.waiting:
            return
        del self.waiting[task]
        need = self.needs[task]
        if at_ns > need.since_ns:
            kept = [wait for wait in self.waited if wait[1] > at_ns - _KEPT_NS]
            self.waited = [*kept[1 - _WAITS_MAX :], (need.since_ns, at_ns, msgspec.structs.replace(need, since_ns=-1))]
        need.since_ns = -1

    def account(self, fact: DeviceAccounted, uses: Iterable[Use], devices: Mapping[int, tuple[int, int]], terms: Terms) -> None:
        """Add an interval whose accounts add up. ``uses``: the usage that it names; ``devices``: (cores, bytes) of its node's."""
        owners = _owners(fact, uses)
        used_ns = sum(use.core_ns for use in owners)
        if not fact.wall_ns or not fact.cores or fact.launch_ns < 0:
            return
        active = any(use.active for use in owners)
        waits = [] if active else self._waits(fact, devices)
        if not owners and not fact.scheduler_core_ns:
            self._free(fact, waits, terms("")[0])
            return
        memory_byte_ms = devices.get(fact.gpu, (0, 0))[1] * fact.wall_ns // _MS
        held = sum(use.byte_ms for use in owners)
        seen = Interval(
            wall_ns=fact.wall_ns,
            busy_ns=used_ns // fact.cores,
            launch_ns=fact.launch_ns,
            blocked_ns=fact.scheduler_core_ns // fact.cores,
            active=active,
            held_percent=held * 100 // memory_byte_ms if memory_byte_ms else 0,
            waited_ns=sum(to_ns - from_ns for from_ns, to_ns in waits),
        )
        self._held(fact, [*owners, Use(_NO_OWNER, fact.wall_ns, 0)], states_of(seen), terms)

    def _held(self, fact: DeviceAccounted, owners: Sequence[Use], states: Sequence[int], terms: Terms) -> None:
        """Divide an interval among its owners, the last of which is none of the others."""
        by_core = [use.core_ns for use in owners]
        by_memory = [use.byte_ms for use in owners]
        parts = [[0] * len(STATES) for _ in owners]
        for state, time_ns in enumerate(states):
            if time_ns:
                weights = by_core if state in (BUSY, UNDERUSED, BLOCKED) and any(by_core) else by_memory
                for part, share in zip(parts, _shares(time_ns, weights), strict=True):
                    part[state] = share
        waste_ns = fact.wall_ns * fact.cores - sum(by_core)
        wastes = _shares(waste_ns, [sum(part) - part[BUSY] for part in parts])
        for use, part, waste in zip(owners, parts, wastes, strict=True):
            if not (any(part) or use.core_ns or waste):
                continue
            price_micro, stopped = terms(use.owner[0])
            if stopped:
                part[BLOCKED] += part[FRAGMENTED] + part[IDLE]
                part[FRAGMENTED] = part[IDLE] = 0
            row = self.rows.setdefault((fact.from_ns // _MINUTE_NS, fact.node, fact.gpu, *use.owner), Row())
            row.times = [before + more for before, more in zip(row.times, part, strict=True)]
            row.used_core_ns += use.core_ns
            row.waste_core_ns += waste
            row.waste_micro += waste * price_micro // _NS

    def _free(self, fact: DeviceAccounted, waits: Sequence[tuple[int, int]], price_micro: int) -> None:
        """Nothing ran, and no task held memory."""
        at_ns, end_ns = fact.from_ns, fact.from_ns + fact.wall_ns
        for from_ns, to_ns in (*waits, (end_ns, end_ns)):
            self._extend(fact, Span(at_ns, from_ns, fact.cores, IDLE, price_micro))
            self._extend(fact, Span(from_ns, to_ns, fact.cores, FRAGMENTED, price_micro))
            at_ns = to_ns

    def _extend(self, fact: DeviceAccounted, span: Span) -> None:
        if span.to_ns == span.from_ns:
            return
        spans = self.spans.setdefault((fact.node, fact.gpu), [])
        last = spans[-1] if spans else None
        same = last is not None and (last.to_ns, last.cores, last.state, last.price_micro) == (span.from_ns, *_kind(span))
        if last is not None and same:
            last.to_ns = span.to_ns
        else:
            spans.append(span)

    def _waits(self, fact: DeviceAccounted, devices: Mapping[int, tuple[int, int]]) -> list[tuple[int, int]]:
        """When, in the interval, a task waited that the whole device could hold: in order, apart from each other."""
        if fact.node in self.drained or fact.gpu not in devices:
            return []
        begin_ns, end_ns = fact.from_ns, fact.from_ns + fact.wall_ns
        groups = {*self.declared.get(fact.node, ()), *(group for group, nodes in self.groups.items() if fact.node in nodes)}
        open_waits = ((self.needs[task].since_ns, end_ns, self.needs[task]) for task in itertools.islice(self.waiting, _LOOKED_AT))
        found: list[tuple[int, int]] = []
        for from_ns, to_ns, need in (*open_waits, *self.waited):
            from_ns, to_ns = max(from_ns, begin_ns), min(to_ns, end_ns)
            if from_ns < to_ns and _could_hold(need, groups, devices, fact.gpu):
                found.append((from_ns, to_ns))
                if (from_ns, to_ns) == (begin_ns, end_ns):
                    return [(begin_ns, end_ns)]
        return list(_apart(sorted(found)))


def _kind(span: Span) -> tuple[int, int, int]:
    return span.cores, span.state, span.price_micro


def _could_hold(need: Need, groups: set[str], devices: Mapping[int, tuple[int, int]], gpu: int) -> bool:
    aimed = bool(groups.intersection(need.groups)) if need.groups or groups else True
    return aimed and need.gpu_count <= len(devices) and need.vram_bytes <= devices[gpu][1]


def _apart(waits: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Sorted intervals, with those that overlap or touch as one."""
    held: tuple[int, int] | None = None
    for from_ns, to_ns in waits:
        if held is not None and from_ns <= held[1]:
            held = (held[0], max(held[1], to_ns))
            continue
        if held is not None:
            yield held
        held = (from_ns, to_ns)
    if held is not None:
        yield held


def _owners(fact: DeviceAccounted, uses: Iterable[Use]) -> list[Use]:
    """One a task, in order of the log. Usage of another length than the interval has no owner."""
    found: dict[Owner, Use] = {}
    for use in uses:
        owner = use.owner if use.wall_ns == fact.wall_ns else _NO_OWNER
        known = found.get(owner, Use(owner, fact.wall_ns, 0))
        core_ns, byte_ms = known.core_ns + use.core_ns, known.byte_ms + use.byte_ms
        found[owner] = Use(owner, fact.wall_ns, core_ns, byte_ms, known.active or use.active)
    return list(found.values())


def _shares(total: int, weights: Sequence[int]) -> list[int]:
    """``total`` divided in proportion to ``weights``, by differences of floors, so that the parts sum to it; to the last if there are no
    weights."""
    whole = sum(weights)
    if not whole:
        return [0] * (len(weights) - 1) + [total]
    shares, before, reached = [], 0, 0
    for weight in weights:
        reached += weight
        upto = total * reached // whole
        shares.append(upto - before)
        before = upto
    return shares
