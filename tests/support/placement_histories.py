"""Random histories of a small cluster for property tests of placement: facts of every kind, and a controller that decides in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec
from hypothesis import strategies as st

from bus_schemas.events import (
    ConfigChanged,
    DeviceFact,
    Event,
    GroupChanged,
    LoadObserved,
    NodeLeaving,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    SessionPriorityChanged,
    TaskDisplaced,
    TaskPlaced,
    TaskPriorityChanged,
    TaskStateChanged,
    TaskSubmitted,
)
from scheduler.placement import ClusterView, Decision, QueueMemory, expired_waiting, queue_decisions
from scheduler.placement.states import STATES, Phase

MS = 1_000_000
NODES = ("a", "b", "c")
GROUPS = ("red", "blue")
TASKS = tuple(f"t{number}" for number in range(12))
SESSIONS = "uvwxyz"
MIB = 1 << 20

names = st.sampled_from(NODES)
tenants = st.sampled_from(["acme", "acme", "beta", "zeta"])
groups = st.lists(st.sampled_from(GROUPS), max_size=2, unique=True).map(tuple)
mib = st.integers(0, 16).map(lambda number: number * MIB)
devices = st.lists(mib, max_size=3).map(lambda sizes: tuple(DeviceFact(i, "d", "host", 8, size) for i, size in enumerate(sizes)))
domains = st.sampled_from([None, None, (), (("acme", "beta"),)])
percents = st.sampled_from([None, 0, 10, 100, 1000])
now = st.just(1)
submissions = st.builds(
    TaskSubmitted, now, st.sampled_from(TASKS), tenants, st.integers(0, 4), st.integers(1, 12).map(lambda number: number * MIB),
    st.sampled_from([1, 1, 1, 2, 3]), st.sampled_from([False, False, False, True]), st.one_of(st.just(()), st.just(()), groups),
    st.booleans(),
    st.just(""), st.sampled_from([True, True, True, False]),
    queue_timeout_ms=st.sampled_from([0, 0, 5, 20]),
)  # fmt: skip
readings = st.tuples(names, st.integers(0, 3), st.integers(0, 110), st.integers(0, 100), mib)
facts = st.one_of(
    st.builds(NodeRegistered, now, names, names, st.just(""), st.integers(1, 3), devices, groups, domains=domains),
    st.builds(NodeLost, now, names, st.integers(1, 3), st.sampled_from(["silent", "stopped"])),
    st.builds(NodeRecovered, now, names, st.integers(1, 3)),
    st.builds(NodeLeaving, now, names, st.integers(1, 3), now),
    st.builds(
        SessionOpenedFact, now, st.sampled_from(SESSIONS), tenants, st.sampled_from(("", *TASKS)), names, st.integers(0, 2),
        st.integers(0, 4), mib, st.booleans(),
    ),
    st.builds(
        SessionClosedFact, now, st.sampled_from(SESSIONS), names, st.sampled_from(["done", "displaced"]), *[st.just(0)] * 4, st.just(""),
        st.booleans(),
    ),
    st.builds(SessionPriorityChanged, now, st.sampled_from(SESSIONS), names, st.integers(0, 4)),
    st.builds(TaskPriorityChanged, now, st.sampled_from(TASKS), st.integers(0, 4)),
    st.builds(TaskDisplaced, now, st.sampled_from(TASKS), st.sampled_from(("", *NODES)), st.booleans(), st.sampled_from(("", *NODES))),
    st.builds(TaskStateChanged, now, st.sampled_from(TASKS), st.sampled_from(STATES)),
    st.builds(GroupChanged, now, st.sampled_from(GROUPS), st.just(""), st.lists(names, max_size=3, unique=True).map(tuple), st.booleans()),
    st.builds(LoadObserved, now, st.lists(readings, max_size=4).map(tuple)),
    st.builds(ConfigChanged, now, st.just("global"), st.just("default_vram_overcommit_percent"), percents),
    st.builds(ConfigChanged, now, names, st.just("overcommit_vram_percent"), percents),
    st.builds(ConfigChanged, now, names, st.just("drained"), st.sampled_from([None, 1])),
    st.builds(ConfigChanged, now, st.just("global"), st.just("queue_age_ms"), st.sampled_from([None, 0, 1, 4])),
    st.builds(ConfigChanged, now, st.just("global"), st.just("queue_protect_ms"), st.sampled_from([None, 0, 1, 5])),
    st.builds(ConfigChanged, now, st.just("global"), st.just("queue_reservations_max"), st.sampled_from([None, 0, 1, 2])),
    st.builds(ConfigChanged, now, st.just("global"), st.just("pack"), st.sampled_from([None, 0, 1])),
)  # fmt: skip
roomy = st.lists(st.integers(4, 16).map(lambda number: number * MIB), min_size=1, max_size=3).map(
    lambda sizes: tuple(DeviceFact(i, "d", "host", 8, size) for i, size in enumerate(sizes))
)
starts = st.lists(st.builds(NodeRegistered, now, names, names, st.just(""), st.just(1), roomy, st.just(()), domains=domains), max_size=3)
protecting = st.lists(st.builds(ConfigChanged, now, st.just("global"), st.just("queue_protect_ms"), st.sampled_from([1, 3])), max_size=1)
sizes = st.sampled_from([1, 3, 6, 12, 24, 36])
_short = st.tuples(
    starts, protecting, sizes.flatmap(lambda size: st.lists(st.one_of(facts, submissions, submissions), min_size=size, max_size=size))
).map(lambda parts: [*parts[0], *parts[1], *parts[2]])


def busy(seed: int) -> list[Event]:
    """A crowded cluster: more is asked for than there is, tasks end, everything else happens now and then."""
    draw = Random(seed)
    out: list[Event] = []
    for name in NODES[: draw.randint(1, 3)]:
        own = tuple(DeviceFact(index, "d", "host", 8, draw.randint(4, 16) * MIB) for index in range(draw.randint(1, 3)))
        out.append(NodeRegistered(1, name, name, "", 1, own, draw.choice([(), (), (), ("red",)]), domains=_domains(draw)))
    out.append(ConfigChanged(1, "global", "queue_protect_ms", draw.choice([1, 2, 5])))
    out.append(ConfigChanged(1, "global", "queue_age_ms", draw.choice([0, 2, 8])))
    for number in range(draw.randint(10, 45)):
        kind = draw.random()
        if kind < 0.45:
            out.append(_wish(draw, f"t{number}"))
        elif kind < 0.8:
            out.append(TaskStateChanged(1, f"t{draw.randrange(number + 1)}", draw.choice(["completed", "started", "cancelled"])))
        else:
            out.append(_now_and_then(draw, number))
    return out


def _domains(draw: Random) -> tuple[tuple[str, ...], ...] | None:
    return draw.choice([None, None, (), (("acme", "beta"),)])


def _tenant(draw: Random) -> str:
    return draw.choice(["acme", "acme", "beta", "zeta"])


def _wish(draw: Random, name: str) -> TaskSubmitted:
    return TaskSubmitted(
        1, name, _tenant(draw), draw.randint(0, 4), draw.randint(1, 14) * MIB, draw.choice([1, 1, 1, 2]), draw.random() < 0.15,
        draw.choice([(), (), (), ("red",), ("blue",)]), draw.random() < 0.3, "", draw.random() < 0.9,
        queue_timeout_ms=draw.choice([0, 0, 0, 25]),
    )  # fmt: skip


def _now_and_then(draw: Random, number: int) -> Event:
    node, task, session = draw.choice(NODES), f"t{draw.randrange(number + 1)}", draw.choice(SESSIONS)
    size = draw.randint(0, 12) * MIB
    rare: list[Event] = [
        NodeLost(1, node, 1, "silent"),
        NodeRecovered(1, node, 1),
        NodeLeaving(1, node, draw.randint(1, 2), 5),
        NodeRegistered(
            1,
            node,
            node,
            "",
            draw.randint(1, 2),
            (DeviceFact(0, "d", "host", 8, size),) if size else (),
            draw.choice([(), ("blue",)]),
            domains=_domains(draw),
        ),
        SessionOpenedFact(1, session, _tenant(draw), task, node, draw.randint(0, 2), draw.randint(0, 4), size, draw.random() < 0.7),
        SessionOpenedFact(1, session, _tenant(draw), "", node, draw.randint(0, 2), draw.randint(0, 4), size, draw.random() < 0.7),
        SessionClosedFact(1, session, node, "done", 0, 0, 0, 0, "", draw.random() < 0.3),
        SessionPriorityChanged(1, session, node, draw.randint(0, 4)),
        TaskPriorityChanged(1, task, draw.randint(0, 4)),
        TaskDisplaced(1, task, draw.choice(["", "", node]), draw.random() < 0.5, draw.choice(["", "", *NODES])),
        GroupChanged(1, draw.choice(GROUPS), "", tuple(sorted(set(draw.choices(NODES, k=draw.randint(0, 2))))), draw.random() < 0.3),
        LoadObserved(1, ((node, draw.randint(0, 2), draw.randint(0, 100), draw.randint(0, 100), size),)),
        ConfigChanged(1, node, "overcommit_vram_percent", draw.choice([None, 0, 50, 200])),
        ConfigChanged(1, node, "drained", draw.choice([None, None, 1])),
        ConfigChanged(1, "global", "queue_reservations_max", draw.choice([None, 1, 2])),
        ConfigChanged(1, "global", "pack", draw.choice([None, 0, 1])),
    ]
    return draw.choice(rare)


histories = st.one_of(_short, st.integers(0, 1 << 32).map(busy), st.integers(0, 1 << 32).map(busy))


def dated(event: Event, at_ns: int) -> Event:
    return msgspec.structs.replace(event, at_ns=at_ns) if hasattr(event, "at_ns") else event


def _of_running(view: ClusterView, event: TaskDisplaced) -> TaskDisplaced:
    for name in sorted(view.live):
        placed = view.tasks[name].placed
        if view.tasks[name].phase is Phase.STARTED and placed is not None:
            return msgspec.structs.replace(event, task=name, node=placed.node)
    return event


def live(
    history: Sequence[Event],
    seen: Callable[[ClusterView, Decision], None] | None = None,
    memory: QueueMemory | None = None,
    honest: bool = False,
) -> tuple[ClusterView, list[Event]]:
    """A controller's run, a millisecond a fact: after each it goes through the queue, and what it decides joins the log. ``seen`` is
    shown each decision on the view that it was made on. ``memory``: kept from one pass to the next. ``honest``: without sessions of tasks
    on nodes where they were never placed. What is displaced from node "" is a task that runs, from where it is. The view,
    and the log."""
    view, log = ClusterView(), list[Event]()

    def add(event: Event) -> None:
        log.append(event)
        view.apply(len(log), event)

    hosts: dict[str, set[str]] = {"": set(NODES)}
    for tick, event in enumerate(history, start=1):
        at_ns = tick * MS
        if honest and isinstance(event, SessionOpenedFact) and event.node not in hosts.get(event.task, ()):
            continue
        if isinstance(event, TaskDisplaced) and not event.node:
            event = _of_running(view, event)
        add(dated(event, at_ns))
        for expired in expired_waiting(view, at_ns):
            add(expired)
        for decision in queue_decisions(view, at_ns, memory):
            if seen is not None:
                seen(view, decision)
            decided = decision.event()
            add(decided)
            if isinstance(decided, TaskPlaced):
                hosts.setdefault(decided.task, set()).add(decided.node)
    return view, log
