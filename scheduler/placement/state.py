"""The state of the cluster: records of tasks, sessions, nodes and groups, membership in groups, settings, and the same as numbers. Pure.

For readers; ``view`` changes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from bus_schemas.events import (
    DeviceFact,
    GroupChanged,
    KeyIssued,
    NodeRegistered,
    Outcome,
    SessionOpenedFact,
    TaskPlaced,
    TaskRefused,
    TaskSubmitted,
)
from scheduler.placement.columns import Columns, Holdings, domain_number
from scheduler.placement.states import (
    DEFAULT_VRAM_MB,
    DEFAULTS,
    DRAINED,
    ENVIRONMENT,
    GLOBAL,
    OVERCOMMIT_GLOBAL,
    OVERCOMMIT_NODE,
    PRIORITY_MAX,
    QUEUED,
    Phase,
)
from scheduler.vram.overcommit import PERCENT_MAX, effective_percent

PAST_SESSIONS_MAX: Final = 32

_WAITING, _PLACED, _STARTED = Phase.WAITING, Phase.PLACED, Phase.STARTED  # attributes of an enumeration cost a call each


@dataclass(frozen=True, slots=True)
class Leaving:
    """A task was displaced: it leaves ``node`` (empty: none that is here), for ``to`` alone while that takes tasks (empty: for any
    other)."""

    node: str
    to: str

    def admits(self, node: str) -> bool:
        """Whether the task may be placed there."""
        return node != self.node and self.to in ("", node)


Shape = tuple[int, int, bool, bool, tuple[str, ...], Leaving | None]
"""(bytes, devices, exclusive, noswap, groups, leaving): of two tasks of one shape and rank one fits where the other does."""


def shape_of(task: TaskSubmitted, leaving: Leaving | None = None) -> Shape:
    return (task.vram_bytes, task.gpu_count, task.exclusive, task.noswap, task.groups, leaving)


@dataclass(frozen=True, slots=True)
class Measured:
    """The last measurement of one device, as far as placement looks at it."""

    utilization_percent: int = 0
    starvation_percent: int = 0
    vram_used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices of one node that are kept for a waiting task since ``since_ns``: no task behind it in the queue gets memory there."""

    node: str
    gpus: tuple[int, ...]
    since_ns: int


@dataclass(slots=True)
class SessionView:
    """An open session with its current ``priority``. ``cut_off``: why it does not count now, or empty. CUT_LOST: its node is held for
    lost, and may recover; CUT_RESTARTED: its node has a new epoch, and has not yet said that the session lives on. ``given_up``: its task
    was displaced while the node was lost, so it counts for the task no longer, and is to be ended."""

    fact: SessionOpenedFact
    cut_off: str = ""
    priority: int = 0
    given_up: bool = False


@dataclass(slots=True)
class TaskView:
    """A task. Times are Unix times in ns, positions are those of the log."""

    submitted: TaskSubmitted
    #: Of its submission.
    position: int
    #: ``ClusterState.next_turn`` at its submission.
    turn: int
    #: Of the last event that changed it.
    revision: int
    #: Changed by ClusterView._transition alone.
    phase: Phase = Phase.WAITING
    #: Why it failed, was cancelled or is lost; else empty.
    reason: str = ""
    updated_ns: int = 0
    #: Its last placement; None before the first one, and when it waits again.
    placed: TaskPlaced | None = None
    #: Nodes on which it was placed, ever: those whose sessions can be its own.
    hosts: frozenset[str] = frozenset()
    #: Nodes that were lost when it was displaced, and where it was not placed again: sessions there are not its own any more.
    given_up: frozenset[str] = frozenset()
    #: It was displaced, and not placed since.
    leaving: Leaving | None = None
    #: What is held for it where it goes, while it runs on the node that it leaves.
    moving: TaskPlaced | None = None
    #: Why it did not move the last time that it was to, and when that was; empty: it moved, or was not to.
    stayed: str = ""
    stayed_ns: int = 0
    #: It was displaced once, so it waits for a place, whether it asked to or not.
    displaced: bool = False
    #: A session of it was ended because it leaves its node: a client continues where it is placed next.
    expected: bool = False
    #: The last placement or refusal.
    decision: TaskPlaced | TaskRefused | None = None
    #: When the last session of a reservation closed; 0: none has.
    idle_from_ns: int = 0
    #: Ids of its open sessions.
    sessions: set[str] = field(default_factory=set)
    #: The current one, 0-4.
    priority: int = 0
    #: Since when it waits, or waits again.
    wait_from_ns: int = 0
    #: Devices that are kept for it while it waits.
    reserved: Reservation | None = None
    #: Ids of the sessions that closed last, the newest last.
    past_sessions: list[str] = field(default_factory=list)
    #: A fact changed its priority, so its open sessions must follow.
    priority_changed: bool = False
    #: What it asks for, as far as it decides where it fits.
    shape: Shape = (0, 1, False, False, (), None)
    #: How its script ended, None: nothing was reported (yet).
    outcome: Outcome | None = None
    #: The last steps of its state machine, (position, from, to).
    story: tuple[tuple[int, Phase, Phase], ...] = ()

    @property
    def state(self) -> str:
        """One of STATES."""
        return QUEUED if self.phase is _WAITING or self.phase is _PLACED else self.phase.value

    @property
    def live(self) -> bool:
        return self.phase is _STARTED or self.phase is _WAITING or self.phase is _PLACED

    @property
    def queues(self) -> bool:
        """Whether it waits where no device fits."""
        return self.submitted.queue or self.displaced

    @property
    def waiting(self) -> bool:
        """Submitted, and neither placed nor over."""
        return self.phase is _WAITING


@dataclass(slots=True)
class NodeView:
    """``lost``: the reason it is lost, None while it is here. ``refused``: its registration is out of bounds, so it
    stays lost. ``tasks`` and ``sessions``: placed or open on it, in no order.
    ``leaving``: it is being stopped. ``revision``: the log position of the last fact about it that counted."""

    registered: NodeRegistered
    lost: str | None = None
    refused: bool = False
    leaving: bool = False
    tasks: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    revision: int = 0

    @property
    def epoch(self) -> int:
        return self.registered.epoch

    def domain_number(self, tenant: str) -> int:
        """Of the trust domain of a tenant here, 0: the node's devices serve all tenants beside each other."""
        domains = self.registered.domains
        return 0 if domains is None else domain_number(domains, tenant)

    def device(self, gpu: int) -> DeviceFact | None:
        return next((device for device in self.registered.devices if device.index == gpu), None)


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group that was made by a person. ``nodes``: its members beside those that name it themselves; not all need have joined."""

    group: str
    title: str
    nodes: frozenset[str]
    updated_ns: int
    revision: int


_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class Membership:
    """``made``: groups that a person made, by id. ``declared``: what each node that joined says of itself."""

    made: dict[str, GroupView] = field(default_factory=dict)
    declared: dict[str, frozenset[str]] = field(default_factory=dict)
    _put: dict[str, set[str]] = field(default_factory=dict)
    """Groups made by a person, by node; of nodes that have not joined too."""
    _members: dict[str, frozenset[str]] | None = field(default=None, compare=False)

    def of(self, node: str) -> frozenset[str]:
        return self.declared.get(node, _NONE) | self._put.get(node, _NONE)

    def members(self, group: str) -> frozenset[str]:
        """The nodes of a group that have joined."""
        return self._by_group().get(group, _NONE)

    def known(self) -> list[str]:
        """Every group there is, by id: those that nodes name, and those that were made, also without members."""
        return sorted(self._by_group())

    def declare(self, node: str, groups: tuple[str, ...]) -> None:
        self.declared[node] = frozenset(groups)
        self._members = None

    def change(self, event: GroupChanged, position: int) -> list[str]:
        """Take a group as it is from now on; the nodes whose groups may have changed."""
        before = self.made[event.group].nodes if event.group in self.made else _NONE
        after = _NONE if event.deleted else frozenset(event.nodes)
        for node in before - after:
            self._put[node].discard(event.group)
            if not self._put[node]:
                del self._put[node]
        for node in after:
            self._put.setdefault(node, set()).add(event.group)
        if event.deleted:
            self.made.pop(event.group, None)
        else:
            self.made[event.group] = GroupView(event.group, event.title, after, event.at_ns, position)
        self._members = None
        return sorted(before | after)

    def _by_group(self) -> dict[str, frozenset[str]]:
        if self._members is None:
            found: dict[str, set[str]] = {group: set() for group in self.made}
            for node in self.declared:
                for group in self.of(node):
                    found.setdefault(group, set()).add(node)
            self._members = {group: frozenset(nodes) for group, nodes in found.items()}
        return self._members


@dataclass(slots=True)
class ClusterState:
    """The cluster as the log describes it."""

    #: Of the last event applied.
    position: int = 0
    nodes: dict[str, NodeView] = field(default_factory=dict)
    tasks: dict[str, TaskView] = field(default_factory=dict)
    #: Ids of the tasks that are not over.
    live: set[str] = field(default_factory=set)
    #: Of those, the members of gangs, by (tenant, gang).
    gangs: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    #: Those that wait, were never placed, and of whose gang one was: they go before all others.
    begun: set[str] = field(default_factory=set)
    #: By tenant, how many tasks are not over.
    live_of: dict[str, int] = field(default_factory=dict)
    #: Ids of those that wait for room.
    queue: set[str] = field(default_factory=set)
    #: Of those, the ones about which the log has no decision yet.
    untold: set[str] = field(default_factory=set)
    #: Those that wait, by what they ask for.
    shapes: dict[Shape, set[str]] = field(default_factory=dict)
    #: The greatest turn of a task that was placed.
    turn: int = 0
    #: (tenant, priority as submitted): how many tasks wait, and the greatest turn among those that did since one does.
    turns: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    #: Task id to the position of the last event that changed it, the newest last.
    recent: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, SessionView] = field(default_factory=dict)
    config: dict[tuple[str, str], int | str] = field(default_factory=dict)
    #: Config scope to the position of its last change.
    revisions: dict[str, int] = field(default_factory=dict)
    #: (node, gpu) to its last measurement in the log.
    load: dict[tuple[str, int], Measured] = field(default_factory=dict)
    #: (node, gpu) to the task it is kept for.
    reservations: dict[tuple[str, int], str] = field(default_factory=dict)
    #: Open sessions of cancelled tasks.
    to_end: set[str] = field(default_factory=set)
    #: Open sessions whose task was given another priority than theirs.
    to_reprioritise: set[str] = field(default_factory=set)
    #: Counts what may let a waiting task in, beside what becomes free on single nodes (``holdings.freed``).
    changes: int = 0
    #: The divisions of nodes into trust domains, by their number (``columns.trust_number``).
    divisions: dict[int, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    #: Keys of nodes that are not revoked, by node and id.
    node_keys: dict[str, dict[str, KeyIssued]] = field(default_factory=dict)
    membership: Membership = field(default_factory=Membership)
    columns: Columns = field(default_factory=Columns)
    holdings: Holdings = field(init=False, compare=False)
    _of_task: dict[str, set[str]] = field(default_factory=dict)
    """Open sessions by the task they name, whether it is known or not."""

    def __post_init__(self) -> None:
        self.holdings = Holdings(self.columns)

    def leaving(self, task: TaskSubmitted) -> Leaving | None:
        """Where a task of the log may not be placed, because it was displaced. A node that is lost or drained by now is no target any
        more."""
        known = self.tasks.get(task.task)
        leaving = known.leaving if known is not None and known.submitted == task else None
        if leaving is None or not leaving.to or self._takes_tasks(leaving.to):
            return leaving
        return Leaving(leaving.node, "")

    def _takes_tasks(self, node: str) -> bool:
        return node in self.nodes and self.nodes[node].lost is None and not self.drained(node)

    def admits(self, task: TaskSubmitted, node: str) -> bool:
        leaving = self.leaving(task)
        return leaving is None or leaving.admits(node)

    def gang_waiting(self, task: TaskSubmitted) -> list[TaskView]:
        """The members of the task's gang that wait and were never placed, in no order."""
        members = (self.tasks[name] for name in self.gangs.get((task.tenant, task.gang), ()))
        return [member for member in members if member.waiting and not member.hosts]

    def next_turn(self, tenant: str, priority: int) -> int:
        """The turn of a task that is submitted now: behind what its tenant has waiting at that priority, and behind what was placed. So
        every tenant has one task with each number, and how many another one has waiting does not matter (start-time fair queueing; Goyal,
        Vin and Cheng 1996, with one unit a task)."""
        return max(self.turn, self.turns.get((tenant, priority), (0, 0))[1]) + 1

    @property
    def groups(self) -> dict[str, GroupView]:
        """The groups that were made by a person, by id; those that only nodes name themselves are not among them."""
        return self.membership.made

    def groups_of(self, node: str) -> frozenset[str]:
        """Every group a node is in: those it names itself and those it was put into."""
        return self.membership.of(node)

    def overcommit_percent(self, node: str) -> int:
        """The overcommit that holds on a node (0-1000)."""
        own, stored = self.number(node, OVERCOMMIT_NODE), self.number(GLOBAL, OVERCOMMIT_GLOBAL)
        return effective_percent(_percent(own), _percent(stored), _percent(self.overcommit_default()) or 0)

    def overcommit_default(self) -> int:
        """The percent of the controller's environment, 0 when it has none."""
        return self.number(ENVIRONMENT, OVERCOMMIT_GLOBAL) or 0

    def setting(self, key: str) -> int:
        """A global key of ``states.DEFAULTS``: the stored value, else the environment's, else the default."""
        for scope in (GLOBAL, ENVIRONMENT):
            value = self.number(scope, key)
            if value is not None:
                return max(0, value)
        return DEFAULTS[key]

    def drained(self, node: str) -> bool:
        """Whether it takes no new tasks, because an operator says so or it is being stopped."""
        known = self.nodes.get(node)
        return bool(self.number(node, DRAINED)) or (known is not None and known.leaving)

    def number(self, scope: str, key: str) -> int | None:
        """A configured integer, None when unset."""
        value = self.config.get((scope, key))
        return value if isinstance(value, int) else None

    def measured(self, node: str, gpu: int) -> Measured:
        """What the log says was last measured on a device; zeros when nothing was."""
        return self.load.get((node, gpu), _NOTHING)

    def queued(self) -> Counter[str]:
        """By tenant, how many tasks wait for room."""
        found: Counter[str] = Counter()
        for (tenant, _), (count, _) in self.turns.items():
            found[tenant] += count
        return found

    def live_tasks(self) -> list[TaskView]:
        """The tasks that are not over, by id."""
        return [self.tasks[name] for name in sorted(self.live)]

    def tasks_on(self, node: str, gpu: int) -> list[TaskView]:
        """Live tasks placed on a device, or on their way to it, by id."""
        tasks = (self.tasks[name] for name in sorted(self.nodes[node].tasks))
        return [task for task in tasks if any(at is not None and at.node == node and gpu in at.gpus for at in (task.placed, task.moving))]

    def sessions_on(self, node: str, gpu: int) -> list[SessionOpenedFact]:
        """Open sessions on a device, by id."""
        sessions = (self.sessions[name] for name in sorted(self.nodes[node].sessions))
        return [session.fact for session in sessions if session.fact.gpu == gpu and not session.cut_off]


_NOTHING = Measured()


def _percent(value: int | None) -> int | None:
    """What the log says, within what there can be."""
    return None if value is None else min(max(value, 0), PERCENT_MAX)


_DEVICE_PART = 4
_MIB_SHIFT = 20


def default_vram_bytes(view: ClusterState, tier_mb: int) -> int:
    """The memory by which a task is placed that names none: the default of its tenant's tier (``tier_mb``, MiB) or, when that is 0, the
    cluster's; on small devices a quarter of the largest, so that several such tasks fit beside each other. 0: tasks must name it."""
    setting_bytes = (tier_mb or view.setting(DEFAULT_VRAM_MB)) << _MIB_SHIFT
    largest = max((device.vram_bytes for node in view.nodes.values() for device in node.registered.devices), default=0)
    quarter = largest // _DEVICE_PART >> _MIB_SHIFT << _MIB_SHIFT
    return min(setting_bytes, quarter or setting_bytes)


def default_priority(ceiling: int, *, latency_target: bool = False) -> int:
    """The middle of what a tier allows (from ``ceiling``, its best priority, to the lowest); of two the better one. A task with a latency
    target gets 0, which it needs."""
    return 0 if latency_target else (ceiling + PRIORITY_MAX) // 2
