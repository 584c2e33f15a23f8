"""The document about a task's batches: how long they waited, for which sessions and under which rule, and the programs that used its device
time. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bus_schemas.journal import PROGRAM_NAME_BYTES, ProgramUse
from scheduler.dispatch import DispatchState, explain
from scheduler.dispatch import decisions as why
from scheduler.model.waits import RESENT, RUNS, BatchStory, Stretch
from services.replay.memory import MemoryStory

__all__ = ["RULES", "Named", "Programs", "rule_of", "story"]

_NOTABLE_NS: Final = 1_000_000
"""A shorter wait is no story."""
_STRETCHES_MAX: Final = 50
_SHOWN_MAX: Final = 20
RULES: Final = {
    why.HIGHER_PRIORITY: "a task of a higher priority had work, and that goes first",
    why.FAIR_SHARE: "others of its priority had used less of the device for their weight",
    why.DEADLINE_ORDER: "a task of its priority with a latency target goes first",
    why.LOW_BUDGET: "beside a task of higher priority only so much low work may be in flight",
    why.IN_FLIGHT_FULL: "it was the next, and the device had its fill of launches",
    why.RESERVED_SHARE: "the lowest priority got the part of the device that is reserved for it",
    why.ARRIVAL_ORDER: "the policy is first come, first served, and others came before it",
    why.TURN_ORDER: "the policy is turns, and it was the turn of others",
    why.PACED: "it had used what its own pace gives it",
    why.AWAITS_MEMORY: "the memory it needs was not free",
    why.QUEUED: "it was in the queue of the device, behind a launch that had to end or stop first",
    why.STOPPING: "it had been stopped for a task of higher priority, and was coming to its end",
    why.PARKED: "an earlier batch of it had not come",
    RESENT: "the node lacked its program and had to ask for it again",
}
"""The rules under which a batch waits (scheduler.dispatch.decisions, scheduler.model.waits); each text completes "it waited because"."""


@dataclass(frozen=True, slots=True)
class Named:
    """A session with the names from the event log; without events: its id."""

    session: str
    task: str = ""
    title: str = ""
    tenant: str = ""
    node: str = ""

    @property
    def text(self) -> str:
        about = self.task or self.session
        return f"{about} ({self.title})" if self.title else about


@dataclass(slots=True)
class _Sum:
    ns: int = 0
    core_ns: int = 0
    times: int = 0
    rules: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, stretch: Stretch) -> None:
        self.ns += stretch.ns
        self.core_ns += stretch.other_core_ns
        self.times += 1
        self.rules[stretch.rule] += stretch.ns


def story(stories: Iterable[BatchStory], names: Mapping[str, Named], memory: MemoryStory, top: int) -> dict[str, Any]:
    """The document: totals, sums by rule and by the session that ran meanwhile, and the ``top`` longest waits with the longest of their
    stretches. Unix times, ns."""
    batches = list(stories)
    finished = [batch for batch in batches if batch.end_ns >= 0 and not batch.dropped]
    by_rule: defaultdict[str, _Sum] = defaultdict(_Sum)
    by_other: defaultdict[tuple[str, int], _Sum] = defaultdict(_Sum)
    for batch in batches:
        for stretch in batch.waits:
            by_rule[stretch.rule].add(stretch)
            by_other[(stretch.other, stretch.other_priority)].add(stretch)
    latency_ns = sum(batch.end_ns - batch.begin_ns for batch in finished)
    waited_ns = sum(batch.waited_ns for batch in batches)
    longest = sorted((b for b in batches if b.waited_ns >= _NOTABLE_NS), key=lambda b: (-b.waited_ns, b.session, b.seq))[:top]
    return {
        "batches": len(batches),
        "finished": len(finished),
        "latency_ns": latency_ns,
        "waited_ns": waited_ns,
        "waited": sum(1 for batch in batches if batch.waited_ns >= _NOTABLE_NS),
        "preempted": sum(batch.preempted for batch in batches),
        "by_rule": [
            {"rule": rule, "meaning": RULES.get(rule, rule), "ns": total.ns, "times": total.times, "other_core_ns": total.core_ns}
            for rule, total in _largest(by_rule)
        ],
        "by_other": [
            {**_other(key[0], key[1], names), "ns": total.ns, "times": total.times, "core_ns": total.core_ns, "rules": dict(total.rules)}
            for key, total in _largest(by_other)
        ],
        "longest": [_batch(batch, names) for batch in longest],
        "memory": memory.document(),
    }


def _largest(sums: Mapping[Any, _Sum]) -> list[tuple[Any, _Sum]]:
    return sorted(sums.items(), key=lambda item: (-item[1].ns, item[0]))


def _other(session: str, priority: int, names: Mapping[str, Named]) -> dict[str, Any]:
    named = names.get(session, Named(session))
    return {"session": session, "task": named.task, "tenant": named.tenant, "priority": priority, "text": named.text if session else ""}


def _batch(batch: BatchStory, names: Mapping[str, Named]) -> dict[str, Any]:
    waits = list(batch.waits)
    longest = sorted(waits, key=lambda stretch: -stretch.ns)[:_STRETCHES_MAX]
    stretches = [
        {
            "from_ns": stretch.begin_ns,
            "to_ns": stretch.end_ns,
            "rule": stretch.rule,
            **_other(stretch.other, stretch.other_priority, names),
            "core_ns": stretch.other_core_ns,
        }
        for stretch in sorted(longest, key=lambda stretch: stretch.begin_ns)
    ]
    return {
        "session": batch.session,
        "seq": batch.seq,
        "arrived_ns": batch.begin_ns,
        "finished_ns": batch.end_ns,
        "waited_ns": batch.waited_ns,
        "slices": batch.slices,
        "preempted": batch.preempted,
        "stretches": stretches,
        "stretches_total": len(waits),
    }


def rule_of(state: DispatchState, session: str) -> str:
    """Why the session's next batch is not launched now."""
    return explain(state, session).rule


@dataclass(slots=True)
class _Use:
    batches: int = 0
    run_ns: int = 0
    core_ns: int = 0
    longest_ns: int = 0
    origin: str = ""


@dataclass(slots=True)
class Programs:
    """Feed it every use of the lane. ``of``: content to program; ``operations``: of a program; both by the first bytes of their digests.
    ``origins``: the lines that recorded a program in one of ``sessions``; those of other sessions are left out."""

    sessions: Collection[str]
    of: dict[bytes, bytes] = field(default_factory=dict)
    operations: dict[bytes, tuple[str, ...]] = field(default_factory=dict)
    origins: dict[tuple[str, bytes], str] = field(default_factory=dict)

    def take(self, use: ProgramUse) -> None:
        self.of[use.content] = use.program
        if use.operations:
            self.operations[use.program] = use.operations
        if use.origin and use.session in self.sessions:
            self.origins[use.session, use.program] = use.origin

    def document(self, stories: Iterable[BatchStory]) -> list[dict[str, Any]]:
        """A line a program, those that ran longest first, at most ``_SHOWN_MAX``. ``program`` empty: batches without one (memory, uploads
        and reads); None: it is not on record. ``origin``: the lines of the script that recorded it, in the first session of which they are
        known; empty: of none."""
        sums: dict[bytes | None, _Use] = {}
        for story in stories:
            runs = [stretch.ns for stretch in story.stretches if stretch.rule == RUNS]
            program = self.of.get(story.content[:PROGRAM_NAME_BYTES])
            total = sums.setdefault(program, _Use())
            total.origin = total.origin or self.origins.get((story.session, program or b""), "")
            total.batches += 1
            total.run_ns += sum(runs)
            total.core_ns += story.core_ns
            total.longest_ns = max(total.longest_ns, sum(runs))
        ordered = sorted(sums.items(), key=lambda item: (-item[1].run_ns, item[0] or b""))
        return [
            {
                "program": None if program is None else program.hex(),
                "operations": [] if program is None else list(self.operations.get(program, ())),
                "origin": total.origin,
                "batches": total.batches,
                "run_ns": total.run_ns,
                "core_ns": total.core_ns,
                "longest_ns": total.longest_ns,
            }
            for program, total in ordered[:_SHOWN_MAX]
        ]
