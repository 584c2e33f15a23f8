"""The question: verb and bounds, from the command line, and the errors of answering it. Each message is one line that says what to do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

__all__ = ["NothingFound", "Question", "ReplayError", "parse"]


class ReplayError(Exception):
    """Base: the question cannot be answered."""


class NothingFound(ReplayError):
    """No journal, node or task of that name is on record."""


CHECK, WHY, WHATIF = "check", "why", "whatif"
SLOTS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Question:
    """What to replay, and the bounds of the answer."""

    #: check, why or whatif
    verb: str
    #: id or name; empty: every node
    node: str = ""
    #: Unix ns
    from_ns: int = 0
    #: Unix ns, exclusive; None: no bound
    to_ns: int | None = None
    #: journal files, instead of the bus
    files: tuple[Path, ...] = ()
    #: id, title, or the beginning of an id
    task: str = ""
    #: waits in the answer
    top: int = 10
    policy: str = ""
    quantum_ms: int | None = None
    #: sessions of the task, if known (names are then not read)
    sessions: tuple[str, ...] = ()
    #: columns of the timeline; 0: no timeline
    slots: int = 0
    #: after so long the answer is made of what was read until then; 0: no limit
    limit_s: float = 0
    #: the service whose credentials are used (``node`` is then an id); empty: those of a user
    service: str = ""
    #: only this device of the node
    gpu: int | None = None


def parse(arguments: Sequence[str]) -> Question:
    """Raises ReplayError for a time that is none; argparse's SystemExit for the rest."""
    parser = argparse.ArgumentParser(prog="python -P -m services.replay", description="Run the journal of nodes again.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in (CHECK, WHY, WHATIF):
        one = verbs.add_parser(verb)
        one.add_argument("--node", default="")
        one.add_argument("--from", dest="from_", default="")
        one.add_argument("--to", default="")
        one.add_argument("--file", action="append", type=Path, default=[])
        if verb == WHY:
            one.add_argument("task")
            one.add_argument("--top", type=int, default=10)
            one.add_argument("--session", action="append", default=[])
            one.add_argument("--slots", type=int, choices=range(SLOTS_MAX + 1), metavar="N", default=0)
            one.add_argument("--limit-s", type=float, default=0)
            one.add_argument("--service", default="")
            one.add_argument("--gpu", type=int)
        if verb == WHATIF:
            one.add_argument("--policy", required=True)
            one.add_argument("--quantum-ms", type=int)
    given = parser.parse_args(arguments)
    return Question(
        verb=given.verb,
        node=given.node,
        from_ns=_moment(given.from_) if given.from_ else 0,
        to_ns=_moment(given.to) if given.to else None,
        files=tuple(given.file),
        task=getattr(given, "task", ""),
        top=getattr(given, "top", 10),
        policy=getattr(given, "policy", ""),
        quantum_ms=getattr(given, "quantum_ms", None),
        sessions=tuple(getattr(given, "session", ())),
        slots=getattr(given, "slots", 0),
        limit_s=getattr(given, "limit_s", 0),
        service=getattr(given, "service", ""),
        gpu=getattr(given, "gpu", None),
    )


def _moment(text: str) -> int:
    """Unix time in ns of ISO 8601 (UTC unless it says otherwise) or of Unix seconds."""
    try:
        return int(Decimal(text) * 10**9)
    except (InvalidOperation, ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ReplayError(f"{text!r} is not a time: give ISO 8601, for example 2026-01-31T12:00:00Z, or Unix seconds") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = moment - datetime.fromtimestamp(0, UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
