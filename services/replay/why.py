"""The documents about a task: how long its batches waited, for which sessions and under which rule, the programs that used its device time,
the waits, swaps and refusals of its memory, and its time on its devices in slots of equal length. Pure.

However many launches there were, the document has the same size: each slot has the time that went to each condition in it. Times are Unix
time in ns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bus_schemas.journal import PROGRAM_NAME_BYTES, ProgramUse
from scheduler.dispatch import DispatchState, explain
from scheduler.dispatch import decisions as why
from scheduler.dispatch.decisions import AWAITS_MEMORY
from scheduler.model.waits import OWN, RESENT, RUNS, BatchStory, Stretch
from scheduler.vram import AllocationRequested, Await, MemoryReady, Refuse, SwapFailed, SwapOut, SwappedIn, SwappedOut
from scheduler.vram.state import SessionMemory, VramState

__all__ = ["RULES", "Grid", "MemoryStory", "MemoryUse", "Named", "Programs", "rule_of", "story", "timeline"]


@dataclass(slots=True)
class _Wait:
    """A batch that waited for ``nbytes``. ``out``: for its sake others were swapped out, bytes by session."""

    session: str
    nbytes: int
    begin_ns: int
    end_ns: int = -1
    out: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryStory:
    """Fold of every record of the lane. ``moves``: swaps of the sessions' memory: (Unix ns, session, out or failed or in, bytes,
    beneficiary)."""

    sessions: Collection[str]
    waits: list[_Wait] = field(default_factory=list)
    moves: list[tuple[int, str, str, int, str]] = field(default_factory=list)
    refused: int = 0
    _waiting: dict[str, _Wait] = field(default_factory=dict)
    _for: dict[str, str] = field(default_factory=dict)

    def take(self, at_ns: int, stimulus: Any, decisions: Sequence[Any]) -> None:
        """One record, of Unix time ``at_ns``."""
        match stimulus:
            case SwappedOut(_, session, nbytes) | SwapFailed(_, session, nbytes) if session in self.sessions:
                what = "out" if isinstance(stimulus, SwappedOut) else "failed"
                self.moves.append((at_ns, session, what, nbytes, self._for.pop(session, "")))
            case SwappedIn(_, session, nbytes) if session in self.sessions:
                self.moves.append((at_ns, session, "in", nbytes, session))
        for decision in decisions:
            self._decided(at_ns, stimulus, decision)

    def _decided(self, at_ns: int, stimulus: Any, decision: Any) -> None:
        match decision:
            case Await(session) if session in self.sessions and session not in self._waiting:
                nbytes = stimulus.nbytes + stimulus.back_bytes + stimulus.copied_bytes if isinstance(stimulus, AllocationRequested) else 0
                self._waiting[session] = _Wait(session, nbytes, at_ns)
                self.waits.append(self._waiting[session])
            case MemoryReady(session) | Refuse(session) if session in self._waiting:
                self._waiting.pop(session).end_ns = at_ns
            case SwapOut(session, nbytes, for_session):
                if session in self.sessions:
                    self._for[session] = for_session
                if for_session in self._waiting:
                    out = self._waiting[for_session].out
                    out[session] = out.get(session, 0) + nbytes
        if isinstance(decision, Refuse) and decision.session in self.sessions:
            self.refused += 1

    def document(self) -> dict[str, Any]:
        """What is shown of it; Unix times."""
        return {
            "waits": [
                {"session": wait.session, "nbytes": wait.nbytes, "from_ns": wait.begin_ns, "to_ns": wait.end_ns, "swapped_out": wait.out}
                for wait in self.waits
            ],
            "moves": [
                {"at_ns": at_ns, "session": session, "what": what, "nbytes": nbytes, "for_session": for_session}
                for at_ns, session, what, nbytes, for_session in self.moves
            ],
            "refused": self.refused,
        }


RUN, QUEUE, PREEMPTED, MEMORY = "run_ns", "queue_ns", "preempted_ns", "memory_ns"
CONDITIONS: Final = (RUN, QUEUE, PREEMPTED, MEMORY)
"""What a slot's time went to: it ran; it waited before its first slice; it waited after a slice of it had been stopped; it waited for
memory. What is left of the slot, it had no batch on the device."""
_LANES_MAX: Final = 16
_KINDS: Final[Mapping[str, Callable[[SessionMemory], int]]] = {
    "resident_bytes": lambda held: held.held,
    "shared_bytes": lambda held: held.shared,
    "swapped_bytes": lambda held: held.swapped,
}


@dataclass(frozen=True, slots=True)
class Grid:
    """``slots`` of equal length from ``from_ns`` to ``to_ns``."""

    from_ns: int
    to_ns: int
    slots: int

    @property
    def slot_ns(self) -> int:
        return max(1, -(-(self.to_ns - self.from_ns) // self.slots))

    def slot(self, at_ns: int) -> int:
        """The slot of a time: -1 before the first one, ``slots`` after the last one."""
        return min(max(-1, (at_ns - self.from_ns) // self.slot_ns), self.slots)

    def spread(self, row: list[int], begin_ns: int, end_ns: int) -> None:
        """Add the time from ``begin_ns`` to ``end_ns`` to the slots of ``row`` that it covers."""
        at, end = max(begin_ns, self.from_ns), min(end_ns, self.from_ns + self.slot_ns * self.slots)
        while at < end:
            slot = (at - self.from_ns) // self.slot_ns
            until = min(end, self.from_ns + (slot + 1) * self.slot_ns)
            row[slot] += until - at
            at = until


@dataclass(slots=True)
class _Track:
    """The most memory that one session held in each slot (None: not known). ``held``: by kind, since ``slot``."""

    rows: dict[str, list[int | None]]
    held: tuple[int, ...] | None = None
    slot: int = -1

    def note(self, slot: int, held: tuple[int, ...] | None, slots: int) -> None:
        """From a time in ``slot`` on it holds ``held``; None: it is not on the device."""
        self.fill(slot, slots)
        if held is not None and 0 <= slot < slots:
            for row, value in zip(self.rows.values(), held, strict=True):
                row[slot] = max(row[slot] or 0, value)
        self.held, self.slot = held, slot

    def fill(self, until: int, slots: int) -> None:
        """Extend the state that it held up to slot ``until``."""
        if self.held is None:
            return
        for row, value in zip(self.rows.values(), self.held, strict=True):
            for slot in range(max(0, self.slot), min(until + 1, slots)):
                row[slot] = max(row[slot] or 0, value)


@dataclass(slots=True)
class MemoryUse:
    """Feed it the memory core's state after every record."""

    grid: Grid
    sessions: Collection[str]
    _tracks: dict[str, _Track] = field(default_factory=dict)

    def take(self, at_ns: int, state: VramState) -> None:
        for name in self.sessions:
            memory = state.sessions.get(name)
            held = None if memory is None else tuple(read(memory) for read in _KINDS.values())
            track = self._tracks.get(name)
            if track is None:
                if held is None:
                    continue
                track = self._tracks[name] = _Track({kind: [None] * self.grid.slots for kind in _KINDS})
            if held != track.held:
                track.note(self.grid.slot(at_ns), held, self.grid.slots)

    def rows(self, session: str) -> dict[str, list[int | None]]:
        """By kind, the most bytes in each slot."""
        track = self._tracks.get(session)
        if track is None:
            return {kind: [None] * self.grid.slots for kind in _KINDS}
        track.fill(self.grid.slots, self.grid.slots)
        return track.rows


def timeline(grid: Grid, stories: Iterable[tuple[str, int, BatchStory]], memory: MemoryUse) -> dict[str, Any]:
    """The document: a lane for each session on each device, (node, GPU index, batch) by (node, GPU index, batch); of many lanes those that
    ran longest. A lane's rows have one entry a slot."""
    lanes: dict[tuple[str, int, str], dict[str, list[int]]] = {}
    for node, gpu, story in stories:
        lane = lanes.setdefault((node, gpu, story.session), {name: [0] * grid.slots for name in (*CONDITIONS, "batches")})
        ran = False
        for stretch in story.stretches:
            if stretch.rule == RUNS:
                ran = True
            if stretch.rule != OWN:
                grid.spread(lane[_condition(stretch.rule, ran)], stretch.begin_ns, stretch.end_ns)
        slot = grid.slot(story.end_ns)
        if story.end_ns >= 0 and not story.dropped and 0 <= slot < grid.slots:
            lane["batches"][slot] += 1
    kept = sorted(lanes, key=lambda key: (-sum(lanes[key][RUN]), key))[:_LANES_MAX]
    return {
        "from_ns": grid.from_ns,
        "to_ns": grid.from_ns + grid.slot_ns * grid.slots,
        "slot_ns": grid.slot_ns,
        "lanes": [
            {"node": node, "gpu": gpu, "session": session, **lanes[node, gpu, session], **memory.rows(session)}
            for node, gpu, session in sorted(kept)
        ],
        "lanes_total": len(lanes),
    }


def _condition(rule: str, ran: bool) -> str:
    if rule == RUNS:
        return RUN
    if rule == AWAITS_MEMORY:
        return MEMORY
    return PREEMPTED if ran else QUEUE


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
