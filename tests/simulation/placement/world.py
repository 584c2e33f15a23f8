"""Everything that happens to a cluster by itself, by seed, in virtual time: tasks come, start and end, nodes go and come back, people
change things. ``run(plan)`` is one run with a controller and an auditor."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from blake3 import blake3

from bus_schemas.events import (
    ConfigChanged,
    DeviceFact,
    Event,
    GroupChanged,
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
    encode_events,
)
from scheduler.placement import ClusterView, Measured
from tests.simulation.placement.auditor import Auditor
from tests.simulation.placement.books import MS
from tests.simulation.placement.controller import START_LEASE_MS, Controller
from tests.support.recorded_decisions import check_recorded

__all__ = ["Plan", "Outcome", "run", "replay"]

GIB = 1 << 30
S = 1000 * MS
SIZES_GIB = (1, 2, 2, 4, 4, 8, 16, 72)
TENANTS = ("acme",) * 6 + ("beta",) * 3 + ("gamma",)
GROUPS = ("red", "blue", "green")


@dataclass(frozen=True)
class Plan:
    """``fill``: how much is asked for, against what there is (1: as much). ``every``: see Auditor. ``task_s``: mean duration; none takes
    longer than three of them. ``calm``: how many tasks come for each thing that befalls nodes or that people change."""

    seed: int
    nodes: int
    gpus: int
    tasks: int
    fill: float = 1.4
    every: int = 1
    task_s: int = 1200
    tick_s: int = 10
    calm: int = 10

    @property
    def hold_max_ns(self) -> int:
        """No task holds memory for longer: its time to start, and its duration."""
        return 3 * self.task_s * S + START_LEASE_MS * MS


@dataclass
class Outcome:
    log: list[Event]
    view: ClusterView
    counts: Counter[str]
    digest: str
    decision_ns: list[int] = field(repr=False)
    fold_ns: list[int] = field(repr=False)


class World:
    """``due``: what happens when, by virtual time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.draw = Random(plan.seed)
        self.auditor = Auditor(plan.hold_max_ns, plan.every)
        self.controller = Controller(self.auditor.apply)
        self.now_ns = 0
        self.due: list[tuple[int, int, Callable[[], None]]] = []
        self.names = [f"n{number:04}" for number in range(plan.nodes)]
        self.durations_s: dict[str, int] = {}
        self.coming = plan.tasks
        self._order = 0

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self.due, (self.now_ns + int(delay_s * S), self._order, what))

    def add(self, event: Event) -> None:
        self.controller.append(event)

    # -- nodes and tasks ---------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for number, name in enumerate(self.names):
            self.join(name, 1, ("red",) if number % 10 == 9 else ())
        self.add(GroupChanged(0, "blue", "made by hand", tuple(self.names[1::25])))
        self.add(ConfigChanged(0, "global", "default_vram_overcommit_percent", 10))
        self.at(0, self.arrive)
        self.at(self.plan.tick_s, self.tick)
        self.at(60, self.trouble)

    def join(self, name: str, epoch: int, groups: tuple[str, ...]) -> None:
        size = (24, 40, 80, 80)[hash_of(name) % 4] * GIB
        devices = tuple(DeviceFact(gpu, "gpu", "host", 100, size) for gpu in range(self.plan.gpus))
        domains = None if hash_of(f"{name}'s domains") % 5 else (("acme", "gamma"),)
        self.add(NodeRegistered(self.now_ns, name, name, "", epoch, devices, groups, domains=domains))

    def arrive(self) -> None:
        draw = self.draw
        name = f"t{self.plan.tasks - self.coming}"
        self.coming -= 1
        gpus = draw.choices((1, 2, 4, 8), (80, 10, 7, 3))[0]
        self.durations_s[name] = min(int(draw.expovariate(1 / self.plan.task_s)) + 5, 3 * self.plan.task_s)
        wish = TaskSubmitted(
            self.now_ns, name, TENANTS[hash_of(name) % len(TENANTS)], draw.choices(range(5), (1, 2, 4, 2, 2))[0],
            draw.choice(SIZES_GIB) * GIB, min(gpus, self.plan.gpus),
            draw.random() < 0.02, draw.choices(((), ("red",), ("blue",), ("green",), ("blue", "red")), (85, 8, 4, 1, 2))[0],
            draw.random() < 0.1, "", draw.random() < 0.95, queue_timeout_ms=draw.choice((0, 0, 0, 0, 600_000)),
        )  # fmt: skip
        self.add(wish)
        for placed in self.controller.go_through(self.now_ns, name):
            self.placed(placed)
        if self.coming:
            self.at(draw.expovariate(self.rate()), self.arrive)

    def rate(self) -> float:
        """Arrivals a second, in waves around what fills the cluster: a task holds about 22 GiB-devices, a device has 56 in the mean."""
        fills = self.plan.nodes * self.plan.gpus * 56 / 22 / self.plan.task_s
        wave = 1.3 if self.now_ns // (2 * self.plan.task_s * S) % 2 else 0.7
        return fills * self.plan.fill * wave

    def placed(self, event: TaskPlaced) -> None:
        if self.draw.random() < 0.98:  # some clients never come
            self.at(self.draw.random() * 20, lambda: self.open(event))

    def open(self, event: TaskPlaced) -> None:
        task = self.auditor.books.tasks[event.task]
        if task.state == "queued" and task.gpus and (task.node, task.gpus) == (event.node, event.gpus):
            session = f"s{self._order}"
            wish = task.wish
            self.add(
                SessionOpenedFact(self.now_ns, session, wish.tenant, event.task, task.node, task.gpus[0], task.priority, wish.vram_bytes)
            )
            self.at(self.durations_s[event.task], lambda: self.close(session))

    def close(self, session: str) -> None:
        if session in self.auditor.books.sessions:
            node = self.auditor.books.sessions[session].node
            self.add(SessionClosedFact(self.now_ns, session, node, "done", 1, 1, 1, 1, "", self.draw.random() < 0.05))

    # -- time ------------------------------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        for placed in self.controller.tick(self.now_ns, self.measure()):
            self.placed(placed)
        counts, view = self.auditor.counts, self.controller.view
        counts["most live"] = max(counts["most live"], len(view.live) - len(view.queue))
        counts["most waiting"] = max(counts["most waiting"], len(view.queue))
        self.auditor.tick(self.now_ns, 4 * self.plan.tick_s * S + 20 * 60 * S)
        if self.coming or self.auditor.books.sessions or self.quiet_until_ns is None or self.now_ns < self.quiet_until_ns:
            if not self.coming and self.quiet_until_ns is None:
                self.quiet_until_ns = self.now_ns + 2 * self.plan.hold_max_ns
            self.at(self.plan.tick_s, self.tick)

    quiet_until_ns: int | None = None

    def measure(self) -> dict[tuple[str, int], Measured]:
        """Of a tenth of the nodes: as busy as they are full, give or take."""
        books, draw = self.auditor.books, self.draw
        turn = self.now_ns // (self.plan.tick_s * S) % 10
        heard = {}
        for name in self.names[turn::10]:
            for gpu, size in books.nodes[name].devices.items():
                held = books.held.get((name, gpu), {})
                used = min(size, sum(holder.nbytes for holder in held.values())) * draw.randint(5, 10) // 10
                heard[name, gpu] = Measured(min(100, 30 * len(held)), draw.randint(0, 60) if held else 0, used)
        return heard

    # -- trouble ---------------------------------------------------------------------------------------------------------------------------

    def trouble(self) -> None:
        draw, books = self.draw, self.auditor.books
        node = draw.choice(self.names)
        kind = draw.choice(
            (self.lose, self.lose, self.move, self.drain, self.regroup, self.overcommit, self.reprioritise, self.cancel, self.direct)
        )
        kind(node, books)
        if self.coming:
            self.at(draw.expovariate(self.rate() / self.plan.calm), self.trouble)

    def lose(self, node: str, books: Any) -> None:
        if not books.nodes[node].here:
            return
        epoch, groups = books.nodes[node].epoch, tuple(books.nodes[node].declared)
        running = [session for session in books.sessions.values() if session.node == node and session.task]
        self.add(NodeLost(self.now_ns, node, epoch, "silent"))
        for session in running:
            if self.draw.random() < 0.6:
                self.at(self.draw.randint(5, 90), partial(self.resume, session))
        if self.draw.random() < 0.5:
            self.at(60, lambda: self.recover(node, epoch))
        else:
            self.at(120, lambda: self.join(node, epoch + 1, groups))

    def recover(self, node: str, epoch: int) -> None:
        self.add(NodeRecovered(self.now_ns, node, epoch))
        books = self.auditor.books
        for name in [name for name, session in books.sessions.items() if session.node == node and name in books.given_up]:
            self.at(self.draw.randint(1, 30), partial(self.end, name))

    def resume(self, session: SessionOpenedFact) -> None:
        """A client asks for another place, if its node is lost still."""
        books = self.auditor.books
        task = books.tasks[session.task]
        if task.cut and task.session == session.session and not books.nodes[session.node].here:
            self.add(TaskDisplaced(self.now_ns, session.task, session.node, lost=True))

    def end(self, session: str) -> None:
        """The node ends a session that it was asked to end, or its client leaves."""
        if session in self.auditor.books.sessions:
            node = self.auditor.books.sessions[session].node
            self.add(SessionClosedFact(self.now_ns, session, node, "displaced", 1, 1, 1, 1, ""))

    def move(self, node: str, books: Any) -> None:
        """An operator has a running task run elsewhere."""
        for name, session in list(books.sessions.items())[-5:]:
            if (
                session.task
                and name not in books.given_up
                and books.tasks[session.task].state == "started"
                and books.nodes[session.node].here
            ):
                to = self.draw.choice(("", "", node if node != session.node else ""))
                self.add(TaskDisplaced(self.now_ns, session.task, session.node, lost=False, to=to))
                self.at(self.draw.randint(1, 15), partial(self.end, name))
                return

    def drain(self, node: str, books: Any) -> None:
        self.add(ConfigChanged(self.now_ns, node, "drained", 1))
        self.at(300, lambda: self.add(ConfigChanged(self.now_ns, node, "drained", None)))

    def regroup(self, node: str, books: Any) -> None:
        members = self.draw.sample(self.names, k=max(1, len(self.names) // 25))
        self.add(GroupChanged(self.now_ns, self.draw.choice(GROUPS[1:]), "", tuple(members), self.draw.random() < 0.2))

    def overcommit(self, node: str, books: Any) -> None:
        self.add(ConfigChanged(self.now_ns, node, "overcommit_vram_percent", self.draw.choice((None, 0, 25, 50))))

    def reprioritise(self, node: str, books: Any) -> None:
        if books.waiting:
            self.add(TaskPriorityChanged(self.now_ns, self.draw.choice(sorted(books.waiting)), self.draw.randint(0, 4)))

    def cancel(self, node: str, books: Any) -> None:
        running = [books.sessions[name] for name in list(books.sessions)[-5:]]
        for session in running[:1]:
            if session.task and books.tasks[session.task].state == "started":
                self.add(TaskStateChanged(self.now_ns, session.task, "cancelled"))
                self.add(SessionClosedFact(self.now_ns, session.session, session.node, "cancelled", 1, 1, 1, 1, ""))

    def direct(self, node: str, books: Any) -> None:
        """A client that came without asking the controller."""
        if books.nodes[node].here:
            session = f"d{self._order}"
            self.add(
                SessionOpenedFact(self.now_ns, session, "acme", "", node, 0, self.draw.randint(0, 4), 2 * GIB, self.draw.random() < 0.8)
            )
            self.at(self.plan.task_s, lambda: self.close(session))


def hash_of(name: str) -> int:
    return blake3(name.encode()).digest()[0]


def run(plan: Plan, progress: Callable[[str], None] | None = None) -> Outcome:
    """``progress`` is called now and then with the state of the run. Raises AuditError."""
    world = World(plan)
    world.start()
    coming = 0
    with world.controller.timed():
        while world.due:
            world.now_ns, _, what = heapq.heappop(world.due)
            what()
            if progress is not None and world.coming != coming and world.coming % 5_000 == 0:
                coming, view = world.coming, world.controller.view
                progress(f"{plan.tasks - coming:,} tasks came, {len(view.queue):,} wait, {len(world.controller.decision_ns):,} decisions")
    world.auditor.end(world.now_ns)
    counts = world.auditor.counts
    for task in world.auditor.books.tasks.values():
        counts[task.state if task.gpus or task.state != "queued" else "waiting at the end"] += 1
    digest = digest_of([event for event in world.controller.log if isinstance(event, TaskPlaced | TaskRefused)])
    return Outcome(world.controller.log, world.controller.view, counts, digest, world.controller.decision_ns, world.controller.fold_ns)


def digest_of(decisions: list[Event]) -> str:
    hasher = blake3()
    for decision in decisions:
        hasher.update(encode_events([decision]))
    return hasher.hexdigest()


def replay(log: list[Event], every: int) -> ClusterView:
    """Fold the log into a new view, and make one of ``every`` decisions again. Raises ReplayMismatch."""
    view = ClusterView()
    number = 0
    for position, event in enumerate(log, start=1):
        if isinstance(event, TaskPlaced | TaskRefused):
            number += 1
            if number % every == 0:
                check_recorded(view, event)
        view.apply(position, event)
    return view
