"""What the journals of its devices say of a task, as structs: its timeline, its waits, its programs. Times are Unix nanoseconds."""

from __future__ import annotations

import msgspec


class Lane(msgspec.Struct, frozen=True):
    """One session on one device. Every list has one entry a slot: the time that went to a condition, the batches that ended, and the most
    memory of a kind (None: not known)."""

    node: str
    node_name: str
    gpu: int
    session: str
    run_ns: list[int]
    queue_ns: list[int]
    preempted_ns: list[int]
    memory_ns: list[int]
    batches: list[int]
    resident_bytes: list[int | None]
    shared_bytes: list[int | None]
    swapped_bytes: list[int | None]


class Timeline(msgspec.Struct, frozen=True):
    """In slots of ``slot_ns`` from ``from_ns`` to ``to_ns``. ``complete`` False: the journal was too long to be read whole.
    ``lanes_total``: with those that ran less than the ones in ``lanes``."""

    task: str
    complete: bool
    from_ns: int
    to_ns: int
    slot_ns: int
    lanes: list[Lane]
    lanes_total: int


class Program(msgspec.Struct, frozen=True):
    """The time of one program. ``program``: the first bytes of its digest in hex; empty: memory, uploads and reads; None: not on record.
    ``origin``: the lines of the script that recorded it; empty: not known."""

    program: str | None
    operations: list[str]
    batches: int
    run_ns: int
    core_ns: int
    longest_ns: int
    origin: str = ""


class RuleSum(msgspec.Struct, frozen=True):
    """The waits under one rule. ``other_core_ns``: core time of what ran meanwhile."""

    rule: str
    meaning: str
    ns: int
    times: int
    other_core_ns: int


class SessionName(msgspec.Struct, frozen=True):
    """A session and its task. ``text``: both in words."""

    session: str
    task: str
    title: str
    tenant: str
    text: str


class OtherWork(SessionName, frozen=True, kw_only=True):
    """A session that ran while the task waited; of another tenant's: no name, priority -1. ``rules``: time waited by rule."""

    priority: int
    ns: int
    times: int
    core_ns: int
    rules: dict[str, int]


class Stretch(SessionName, frozen=True, kw_only=True):
    """A part of a wait, under one rule, in which the named session ran."""

    priority: int
    from_ns: int
    to_ns: int
    rule: str
    core_ns: int


class BatchWait(msgspec.Struct, frozen=True):
    """A batch that waited. ``finished_ns`` -1: it had not finished. ``stretches``: the longest of ``stretches_total``."""

    session: str
    seq: int
    arrived_ns: int
    finished_ns: int
    waited_ns: int
    slices: int
    preempted: int
    stretches: list[Stretch]
    stretches_total: int


class MemoryWait(msgspec.Struct, frozen=True):
    """A wait for memory. ``to_ns`` -1: it had not ended. ``swapped_out``: bytes by the session that made room."""

    session: str
    nbytes: int
    from_ns: int
    to_ns: int
    swapped_out: dict[str, int]


class MemoryMove(msgspec.Struct, frozen=True):
    """``what``: out, in or failed. ``for_session``: which session the room was for."""

    at_ns: int
    session: str
    what: str
    nbytes: int
    for_session: str


class MemoryStory(msgspec.Struct, frozen=True):
    """``refused``: batches for which there was no memory."""

    waits: list[MemoryWait]
    moves: list[MemoryMove]
    refused: int


class Waits(msgspec.Struct, frozen=True):
    """``latency_ns``: from arrival to end, over all finished batches; ``waited``: batches that waited a millisecond or longer;
    ``longest``: the longest waits."""

    asked: str
    complete: bool
    batches: int
    finished: int
    latency_ns: int
    waited_ns: int
    waited: int
    preempted: int
    by_rule: list[RuleSum]
    programs: list[Program]
    sessions: list[SessionName]
    by_other: list[OtherWork]
    longest: list[BatchWait]
    memory: MemoryStory
