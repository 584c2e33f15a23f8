"""The story of a task's waits, as a document: how long its batches waited, for whom and under which rule. Pure.

May live here: sums and sentences. May not: what a wait is (scheduler.model.waits).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from scheduler.model.waits import BatchStory, Stretch
from services.replay.memory import MemoryStory
from services.replay.rules import RULES

__all__ = ["Named", "story"]

_NOTABLE_NS: Final = 1_000_000
"""A shorter wait is no story."""
_STRETCHES_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Named:
    """What facts say about a session. Without facts: its id."""

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
