"""The auditor's own books of a cluster, folded from the same log, the plain way: one dictionary a device. No line is the scheduler's."""

from __future__ import annotations

from dataclasses import dataclass, field

from bus_schemas.events import (
    ConfigChanged,
    Event,
    GroupChanged,
    LoadObserved,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    TaskDisplaced,
    TaskPlaced,
    TaskPriorityChanged,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
)

__all__ = ["MS", "Books", "Task", "Node", "Held"]

MS = 1_000_000
Device = tuple[str, int]


@dataclass
class Held:
    """What one holder has on one device."""

    nbytes: int
    noswap: bool
    exclusive: bool
    tenant: str


@dataclass
class Task:
    """``guarded_ns``: since when nothing but the end of what runs there keeps a holder of reserved devices waiting."""

    wish: TaskSubmitted
    position: int
    turn: int
    priority: int
    state: str = "queued"
    node: str = ""
    gpus: tuple[int, ...] = ()
    wait_from_ns: int = 0
    session: str = ""
    #: it failed because its node was lost
    cut: bool = False
    displaced: bool = False
    #: (the node that it leaves, the only one it may go to), either may be empty
    leaving: tuple[str, str] = ("", "")
    reserved: tuple[str, tuple[int, ...]] = ("", ())
    guarded_ns: int = 0


@dataclass
class Node:
    devices: dict[int, int]
    declared: frozenset[str]
    epoch: int
    #: Of trust domains with several tenants; None: its devices serve all beside each other.
    domains: tuple[tuple[str, ...], ...] | None
    here: bool = True


@dataclass
class Books:
    """``waiting``: ids without a place; ``held``: by device, then by holder."""

    nodes: dict[str, Node] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    held: dict[Device, dict[str, Held]] = field(default_factory=dict)
    sessions: dict[str, SessionOpenedFact] = field(default_factory=dict)
    made: dict[str, frozenset[str]] = field(default_factory=dict)
    used: dict[Device, int] = field(default_factory=dict)
    config: dict[tuple[str, str], int] = field(default_factory=dict)
    kept: dict[Device, str] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    """Sessions of an earlier epoch of their node."""
    given_up: set[str] = field(default_factory=set)
    """Sessions that were left on a lost node: their tasks run elsewhere."""
    turn: int = 0
    last_turns: dict[tuple[str, int], int] = field(default_factory=dict)

    def groups(self, node: str) -> set[str]:
        return set(self.nodes[node].declared) | {name for name, nodes in self.made.items() if node in nodes}

    def setting(self, key: str, default: int) -> int:
        return self.config.get(("global", key), default)

    def schedulable(self, node: str, gpu: int) -> int:
        percent = self.config.get((node, "overcommit_vram_percent"), self.setting("default_vram_overcommit_percent", 0))
        return self.nodes[node].devices[gpu] * (100 + percent) // 100

    def rank(self, name: str, at_ns: int) -> tuple[int, int, int, str]:
        task, period_ns = self.tasks[name], self.setting("queue_age_ms", 600_000) * MS
        risen = (at_ns - task.wish.at_ns) // period_ns if period_ns else 0
        return (max(0, task.priority - risen), task.turn, task.position, name)

    def fits(self, wish: TaskSubmitted, node: str, gpu: int) -> str:
        """Why a task may not be on a device of a node that would have it, or nothing; who is kept out for whom is not asked."""
        held = self.held.get((node, gpu), {}).values()
        if any(other.exclusive for other in held):
            return "another task has the device for itself"
        if wish.exclusive and held:
            return "others are on a device that is wanted exclusively"
        domains = self.nodes[node].domains
        if domains is not None:
            trusted = {tenant for members in domains if wish.tenant in members for tenant in members} | {wish.tenant}
            if not trusted.issuperset(other.tenant for other in held):
                return "another trust domain has the device"
        if sum(other.nbytes for other in held) + wish.vram_bytes > self.schedulable(node, gpu):
            return "the device's memory is sold twice"
        if wish.noswap:
            pinned = sum(other.nbytes for other in held if other.noswap)
            if max(pinned, self.used.get((node, gpu), 0)) + wish.vram_bytes > self.nodes[node].devices[gpu]:
                return "the device's physical memory is sold twice"
        return ""

    def serves(self, wish: TaskSubmitted, node: str) -> str:
        """Why a node as a whole may not serve a task, or nothing."""
        here = self.nodes[node]
        groups = self.groups(node)
        if not here.here:
            return "the node is lost"
        if self.config.get((node, "drained")):
            return "the node is drained"
        if (wish.groups and not groups & set(wish.groups)) or (groups and not wish.groups):
            return "the node is in other groups"
        left, to = self.tasks[wish.task].leaving
        if node == left or (to and node != to and self.nodes[to].here and not self.config.get((to, "drained"))):
            return "the task leaves the node, or goes to another"
        return ""

    # -- folding -----------------------------------------------------------------------------------------------------------------------

    def apply(self, position: int, event: Event) -> None:
        match event:
            case NodeRegistered():
                self._joined(event)
            case NodeLost():
                self._lost(event)
            case NodeRecovered():
                self.nodes[event.node].here = True
                self._unguard(event.node, event.at_ns)
                for session in [s for s in self.sessions.values() if s.node == event.node and s.session not in self.dead]:
                    self._resume(session)
            case LoadObserved():
                self.used.update({(node, gpu): used for node, gpu, _, _, used in event.devices})
            case GroupChanged():
                self.made[event.group] = frozenset(() if event.deleted else event.nodes)
            case ConfigChanged():
                if isinstance(event.value, int):
                    self.config[event.scope, event.key] = event.value
                else:
                    self.config.pop((event.scope, event.key), None)
                for node in self.nodes if event.scope == "global" else [event.scope]:
                    self._unguard(node, event.at_ns)
            case TaskSubmitted():
                behind = max(self.turn, self._last_turn(event))
                self.tasks[event.task] = Task(event, position, behind + 1, event.priority, wait_from_ns=event.at_ns)
                self._wait(event.task)
            case TaskPriorityChanged():
                self.tasks[event.task].priority = event.priority
            case TaskPlaced():
                self._placed(event)
            case TaskRefused():
                self._refused(event)
            case SessionOpenedFact():
                self.sessions[event.session] = event
                if event.task:
                    self.tasks[event.task].state, self.tasks[event.task].session = "started", event.session
                else:
                    self._hold_session(event)
            case SessionClosedFact():
                self._closed(self.sessions.pop(event.session), event)
            case TaskDisplaced():
                self._left(event)
            case TaskStateChanged():
                self._stated(event)
            case _:
                raise AssertionError(f"the world does not know {type(event).__name__}")

    def _closed(self, session: SessionOpenedFact, event: SessionClosedFact) -> None:
        self.held.get((session.node, session.gpu), {}).pop(event.session, None)
        if not session.task or event.session in self.given_up:
            return
        if self.tasks[session.task].cut and not event.failed:
            self.tasks[session.task].state, self.tasks[session.task].cut = "completed", False  # its node was only cut off
        elif self.tasks[session.task].state == "started":
            if any(self.tasks[session.task].leaving) and event.reason == "displaced":
                self._wait_again(session.task, event.at_ns)
            else:
                self.over(session.task, "failed" if event.failed else "completed")

    def _left(self, event: TaskDisplaced) -> None:
        task = self.tasks[event.task]
        task.displaced = True
        task.leaving = ("" if event.lost else event.node, event.to)
        if event.lost:
            self.given_up.add(task.session)
            self._wait_again(event.task, event.at_ns)

    def _wait_again(self, name: str, at_ns: int) -> None:
        task = self.tasks[name]
        for gpu in task.gpus:
            self.held.get((task.node, gpu), {}).pop(name, None)
        task.state, task.cut, task.node, task.gpus, task.wait_from_ns = "queued", False, "", (), at_ns
        self._wait(name)

    def over(self, name: str, state: str) -> None:
        task = self.tasks[name]
        task.state = state
        self.waiting.discard(name)
        self._unkeep(name)
        for gpu in task.gpus:
            self.held.get((task.node, gpu), {}).pop(name, None)

    def _joined(self, event: NodeRegistered) -> None:
        self._unguard(event.node, event.at_ns)
        devices = {device.index: device.vram_bytes for device in event.devices}
        self.nodes[event.node] = Node(devices, frozenset(event.groups), event.epoch, event.domains)
        for session in [s for s in self.sessions.values() if s.node == event.node]:  # a new epoch of the node, without its sessions
            self.dead.add(session.session)
            self.held.get((session.node, session.gpu), {}).pop(session.session, None)

    def _lost(self, event: NodeLost) -> None:
        self.nodes[event.node].here = False
        self._unguard(event.node, event.at_ns)
        for gpu in self.nodes[event.node].devices:
            for name in list(self.held.get((event.node, gpu), {})):
                if name in self.tasks:
                    self._displaced(name, event.at_ns)
            self.held.pop((event.node, gpu), None)

    def _displaced(self, name: str, at_ns: int) -> None:
        task = self.tasks[name]
        if task.state == "queued" and (task.wish.queue or task.displaced):
            self._wait_again(name, at_ns)
        else:
            self.over(name, "failed")
            task.cut = True

    def _resume(self, session: SessionOpenedFact) -> None:
        """The node was only cut off: what ran there runs still."""
        if not session.task or session.session in self.given_up:
            self._hold_session(session)
        elif self.tasks[session.task].cut:
            self.tasks[session.task].state, self.tasks[session.task].cut = "started", False
            self._hold(session.task)

    def _last_turn(self, wish: TaskSubmitted) -> int:
        """The greatest turn of its tenant and priority since one of them waits."""
        chain = wish.tenant, wish.priority
        alike = any((self.tasks[name].wish.tenant, self.tasks[name].wish.priority) == chain for name in self.waiting)
        return self.last_turns.get(chain, 0) if alike else 0

    def _wait(self, name: str) -> None:
        task = self.tasks[name]
        self.last_turns[task.wish.tenant, task.wish.priority] = max(self._last_turn(task.wish), task.turn)
        self.waiting.add(name)

    def _hold(self, name: str) -> None:
        task = self.tasks[name]
        wish = task.wish
        for gpu in task.gpus:
            self.held.setdefault((task.node, gpu), {})[name] = Held(wish.vram_bytes, wish.noswap, wish.exclusive, wish.tenant)

    def _hold_session(self, session: SessionOpenedFact) -> None:
        held = Held(session.quota_bytes, not session.swap, False, session.tenant)
        self.held.setdefault((session.node, session.gpu), {})[session.session] = held

    def _placed(self, event: TaskPlaced) -> None:
        task = self.tasks[event.task]
        for gpu in event.gpus:
            holder = self.kept.get((event.node, gpu))
            if holder is not None and holder != event.task:
                self.tasks[holder].guarded_ns = event.at_ns  # a task ahead took of its room
        self._unkeep(event.task)
        task.node, task.gpus, task.leaving = event.node, event.gpus, ("", "")
        self.turn = max(self.turn, task.turn)
        self.waiting.discard(event.task)
        self._hold(event.task)

    def _refused(self, event: TaskRefused) -> None:
        task = self.tasks[event.task]
        if not (task.wish.queue or task.displaced):
            self.over(event.task, "failed")
            return
        reserved = (event.reserved_node, event.reserved_gpus)
        if reserved != task.reserved:
            self._unkeep(event.task)
            task.reserved, task.guarded_ns = reserved, event.at_ns
            for gpu in event.reserved_gpus:
                self.kept[event.reserved_node, gpu] = event.task

    def _stated(self, event: TaskStateChanged) -> None:
        if self.tasks[event.task].state in ("queued", "started"):
            self.over(event.task, event.state)

    def _unkeep(self, name: str) -> None:
        node, gpus = self.tasks[name].reserved
        for gpu in gpus:
            self.kept.pop((node, gpu), None)
        self.tasks[name].reserved = ("", ())

    def _unguard(self, node: str, at_ns: int) -> None:
        """Something befell the node: the promise to those who have reserved there begins anew."""
        for (on, _), name in self.kept.items():
            if on == node:
                self.tasks[name].guarded_ns = at_ns
