"""Where a task's device time went, by program. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from bus_schemas.journal import PROGRAM_NAME_BYTES, ProgramUse
from scheduler.model.waits import RUNS, BatchStory

__all__ = ["Programs"]

_SHOWN_MAX: Final = 20


@dataclass(slots=True)
class _Sum:
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
        sums: dict[bytes | None, _Sum] = {}
        for story in stories:
            runs = [stretch.ns for stretch in story.stretches if stretch.rule == RUNS]
            program = self.of.get(story.content[:PROGRAM_NAME_BYTES])
            total = sums.setdefault(program, _Sum())
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
