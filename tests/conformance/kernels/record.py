"""Renders the record of a run over the corpus as a page of docs."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.golden.cuda.case import Case

__all__ = ["Entry", "page"]


@dataclass
class Entry:
    """What was found out about a case. ``certificate``: why its grid may not be cut; empty when it may. ``devices``: faults by device.

    ``between``: where devices disagree. ``pieces``: what cutting the grid changed. ``source``, ``emitted``: why NVIDIA's compiler refuses
    them, by target.
    """

    case: Case
    instructions: int = 0
    certificate: str = ""
    devices: dict[str, list[str]] = field(default_factory=dict)
    between: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    source: dict[str, str] = field(default_factory=dict)
    emitted: dict[str, str] = field(default_factory=dict)

    @property
    def faults(self) -> list[str]:
        compiled = [f"{where}: {text}" for where, text in [*self.source.items(), *self.emitted.items()] if text]
        return [*(f for faults in self.devices.values() for f in faults), *self.between, *self.pieces, *compiled]


_HEAD = """# Kernel corpus

{cases} cases from {sources} CUDA C++ sources of our own in `tests/golden/cuda`, in {categories} categories. Each goes from source through
NVRTC to PTX, is imported, verified, and run on every kernel device that could be had ({devices}). Made by `make kernels` on {machine}.

- *instructions*: thread-instructions of the launch, counted by every device; equal on all unless marked `~` (threads compete, and how often
  they try again is not determined).
- *slices*: whether the verifier certifies that the grid may run in pieces; certified grids were run whole and in three partitions, with
  equal bits and counts.
- a device's column: the result equals the answer that NumPy gives (bit by bit, or within the tolerance named).
- *same bits*: all devices left the same bytes (any NaN is any NaN; where the order of threads shows, what does not depend on it).
- *source*, *emitted*: NVRTC compiles the source, and the CUDA form of what we imported, for {targets}. No GPU was at hand: they were
  compiled and not run
  (docs/cuda-roundtrip.md executes the emitted form without one).

{summary}

"""


def page(entries: Sequence[Entry], devices: Sequence[str], targets: Sequence[str]) -> str:
    """Markdown."""
    sources, categories = {e.case.source for e in entries}, {e.case.category for e in entries}
    wrong = [e for e in entries if e.faults]
    certified = sum(e.certificate == "" for e in entries)
    summary = f"Of {len(entries)} cases {len(entries) - len(wrong)} are right everywhere; {certified} grids are certified for slices."
    head = _HEAD.format(
        cases=len(entries), sources=len(sources), categories=len(categories), devices=", ".join(devices), machine=platform.machine(),
        targets=", ".join(targets), summary=summary,
    )  # fmt: skip
    columns = ["kernel", "blocks", "threads", "instructions", "slices", "answer", *devices, "same bits", "source", "emitted"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * 2 + "|---:" * 2 + "|---" * (len(columns) - 4) + "|"]
    lines += ["| " + " | ".join(_cells(e, devices)) + " |" for e in entries]
    faults = [f"- {e.case.name}: {fault}" for e in wrong for fault in e.faults]
    return head + "\n".join(lines) + "\n" + ("\n## Wrong\n\n" + "\n".join(faults) + "\n" if faults else "")


def _cells(entry: Entry, devices: Sequence[str]) -> list[str]:
    case = entry.case
    answer = "exact" if not (case.rtol or case.atol) else f"± {case.rtol:g} relative" + (f", {case.atol:g}" if case.atol else "")
    count = ("~" if case.racy else "") + f"{entry.instructions:,}"
    ran = [("ok" if not entry.devices[d] else "**wrong**") if d in entry.devices else "" for d in devices]
    compiled = ["" if not found else "**no**" if any(found.values()) else "ok" for found in (entry.source, entry.emitted)]
    same = "**no**" if entry.between or entry.pieces else "yes"
    slices = "yes" if not entry.certificate else "no"
    return [case.name, _times(case.grid), _times(case.block), count, slices, answer, *ran, same, *compiled]


def _times(sizes: tuple[int, int, int]) -> str:
    x, y, z = sizes
    return f"{x}" if y == z == 1 else f"{x} × {y}" if z == 1 else f"{x} × {y} × {z}"
