"""Many seeds, two processes, and what they reached: ``python -m tests.simulation.node --seeds 10000``; results go to docs/simulation.md.

One seed alone: ``python -m tests.simulation.node --seed N``.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from tests.simulation.node.canaries import CANARIES, caught_by
from tests.simulation.node.run import Failure, simulate
from tests.support.sections import write_section

ROOT: Final = Path(__file__).resolve().parents[3]
_BLOCK: Final = 50
_SEED_S: Final = 60.0
"""A seed takes some hundredths of a second of CPU time: one that takes so much is in an endless loop."""


def _endless(number: int, frame: object) -> None:
    raise Failure("a decision does not end")


def _block(first: int, last: int) -> tuple[Counter[str], float, list[str]]:
    counts: Counter[str] = Counter()
    widest = 0.0
    failures: list[str] = []
    signal.signal(signal.SIGVTALRM, _endless)
    for seed in range(first, last):
        signal.setitimer(signal.ITIMER_VIRTUAL, _SEED_S)
        try:
            outcome = simulate(seed)
        except Failure as failure:
            failures.append(str(failure))
            continue
        counts.update(outcome.counts)
        counts["seeds"] += 1
        widest = max(widest, outcome.widest)
    return counts, widest, failures


def _report(counts: Counter[str], widest: float, caught: list[tuple[str, str, int]], seconds: float, commit: str) -> str:
    order = [
        "seeds",
        "stimuli",
        "slices",
        "preemptions",
        "snapshots",
        "waits for memory",
        "resends",
        "vanished",
        "priorities changed",
        "cancelled",
    ]
    rows = order + sorted(name for name in counts if name not in order)
    lines = [
        "Written by `make simulate` (`python -m tests.simulation.node --seeds N`). Both cores of a node, driven as the shells drive",
        "them, in virtual time; every decision is judged by models that share no code with the cores. A seed and a commit",
        f"reproduce a run. Commit {commit}, {seconds:.0f} s with two processes. Every invariant held in every seed.",
        "",
        "Held: strict priority and preemption, the fairness bound inside a level, work conservation, paces, aging and reserve, quota, the",
        "memory reserve, the rules of victims, contents of every buffer that was read, accounts of core time and bytes, an end for every",
        "batch, restored cores that decide as the ones before, and journals that replay digest for digest.",
        "",
        "| event | times |",
        "|---|---|",
        *(f"| {name} | {counts[name]:,} |" for name in rows),
        "",
        f"The pair of sessions that came closest to its fairness bound used {100 * widest:.0f} % of it.",
        "",
        "### Bugs it was given",
        "",
        "| bug | caught at seed |",
        "|---|---|",
        *(f"| {text} (`{name}`) | {seed} |" for name, text, seed in caught),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.node", description=__doc__)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=-1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--dry", action="store_true", help="print, and leave docs/simulation.md as it is")
    options = parser.parse_args()
    if options.seed >= 0:
        outcome = simulate(options.seed)
        print(dict(outcome.counts), [digest.hex()[:16] for digest in outcome.digests])
        return 0
    began = time.monotonic()
    counts: Counter[str] = Counter()
    widest = 0.0
    failures: list[str] = []
    starts = range(0, options.seeds, _BLOCK)
    with ProcessPoolExecutor(options.processes) as pool:
        for part, width, failed in pool.map(_block, starts, [min(at + _BLOCK, options.seeds) for at in starts]):
            counts.update(part)
            widest = max(widest, width)
            failures += failed
            for failure in failed:
                print(failure, flush=True)
    if failures:
        print(f"{len(failures)} of {options.seeds} seeds failed")
        return 1
    caught = [(canary.name, canary.bug, caught_by(canary)[0]) for canary in CANARIES]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    text = _report(counts, widest, caught, time.monotonic() - began, commit or "unknown")
    print(text)
    if not options.dry:
        write_section(ROOT / "docs" / "simulation.md", "node", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
