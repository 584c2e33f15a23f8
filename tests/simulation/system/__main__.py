"""Many seeds, two processes: ``python -m tests.simulation.system --seeds 100000 [--publish]``; one seed alone: ``--seed N``."""

from __future__ import annotations

import argparse
import gc
import math
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from tests.simulation.system.canaries import CANARIES, caught_by
from tests.simulation.system.draw import FAULTS
from tests.simulation.system.run import Failure, simulate
from tests.support.sections import write_section

ROOT: Final = Path(__file__).resolve().parents[3]
_PAGE: Final = ROOT / "docs" / "simulation.md"
_BLOCK: Final = 50
_REPORT_EVERY: Final = 5_000


def _pinned() -> None:
    """A worker stays on one processor: its threads run one at a time, and hand over faster there."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[os.getpid() % len(allowed)]})


def _block(first: int, last: int, until_s: float) -> tuple[Counter[str], float, float, list[str]]:
    counts: Counter[str] = Counter()
    failures: list[str] = []
    virtual_s, began_s = 0.0, time.process_time()
    if time.time() > until_s:
        return counts, 0.0, 0.0, failures
    for seed in range(first, last):
        try:
            outcome = simulate(seed)
        except Failure as failure:
            failures.append(str(failure))
            continue
        counts.update(outcome.counts)
        counts["seeds"] += 1
        virtual_s += outcome.virtual_s
    gc.collect()
    return counts, virtual_s, time.process_time() - began_s, failures


def _report(counts: Counter[str], virtual_s: float, cpu_s: float, seconds: float, caught: list[tuple[str, str, int]]) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    seeds = counts["seeds"]
    hours, rate = virtual_s / 3600, seeds / cpu_s
    known = {"seeds", "events"}
    faults = [f"fault: {kind}" for kind in dict.fromkeys(FAULTS)]
    scripts = sorted(name for name in counts if name.startswith("scripts: "))
    rest = sorted(name for name in counts if name not in known and not name.startswith(("fault: ", "scripts: ")))
    return "\n".join(
        [
            f"Commit {commit}: {seeds:,} seeds, {counts['events']:,} events, {hours:,.0f} hours of virtual time,",
            f"in {seconds / 60:.0f} minutes with two processes ({rate:.0f} seeds a second of processor time). All held in every seed.",
            "",
            "| fault | times |",
            "|---|---|",
            *(f"| {name.removeprefix('fault: ')} | {counts[name]:,} |" for name in faults),
            "",
            "| event | times |",
            "|---|---|",
            *(f"| {name} | {counts[name]:,} |" for name in [*scripts, *rest]),
            "",
            "| bug planted in the product's decisions | found at seed |",
            "|---|---|",
            *(f"| {text} (`{name}`) | {seed} |" for name, text, seed in caught),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.system", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--seed", type=int, default=-1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=0, help="begin no further seeds after so long; 0: all are run")
    parser.add_argument("--publish", action="store_true", help="write the figures to docs/simulation.md")
    options = parser.parse_args()
    if options.seed >= 0:
        outcome = simulate(options.seed)
        print(dict(outcome.counts), f"{outcome.virtual_s:.3f} s", outcome.digest)
        return 0
    began_s = time.time()
    counts: Counter[str] = Counter()
    virtual_s = cpu_s = 0.0
    failures: list[str] = []
    last = options.first + options.seeds
    until_s = began_s + 60 * options.minutes if options.minutes else math.inf
    starts = range(options.first, last, _BLOCK)
    with ProcessPoolExecutor(options.processes, initializer=_pinned) as pool:
        ends = [min(at + _BLOCK, last) for at in starts]
        for part, virtual, cpu, failed in pool.map(_block, starts, ends, [until_s] * len(ends)):
            counts.update(part)
            virtual_s, cpu_s = virtual_s + virtual, cpu_s + cpu
            failures += failed
            for failure in failed:
                print(failure, flush=True)
            if (done := counts["seeds"] + len(failures)) % _REPORT_EVERY == 0:
                print(f"{done:,} seeds, {len(failures)} failed, {(time.time() - began_s) / 60:.1f} minutes", file=sys.stderr, flush=True)
    seconds = time.time() - began_s
    if failures:
        print(f"{len(failures)} seeds failed, {counts['seeds']} did not")
        return 1
    caught = [(canary.__name__, canary.__doc__ or "", caught_by(canary)[0]) for canary in CANARIES]
    text = _report(counts, virtual_s, cpu_s, seconds, caught)
    print(text)
    if options.publish:
        write_section(_PAGE, "system", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
