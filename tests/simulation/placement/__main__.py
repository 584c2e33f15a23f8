"""The large cluster: ``python -m tests.simulation.placement`` (1,000 nodes of 8 devices, 100,000 tasks; ten minutes of one core).

Everything is audited, then the whole log is folded again and every decision made again. Figures go to docs/placement.md with ``--publish``.
Times are CPU time of one decision, its event included: a machine that others use slows the clock on the wall, not that.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bus_schemas.events import TaskPlaced, TaskRefused
from tests.simulation.placement.canaries import CANARIES, caught_by
from tests.simulation.placement.world import Outcome, Plan, digest_of, replay, run
from tests.support.sections import write_section

ROOT: Final = Path(__file__).resolve().parents[3]
_PAGE: Final = ROOT / "docs" / "placement.md"


def _at(times_ns: list[int], share: float) -> str:
    ordered = sorted(times_ns)
    return f"{ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6:.2f}"


def _table(plan: Plan, outcome: Outcome, caught: dict[str, str], minutes: float) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False).stdout.strip()
    counts, times = outcome.counts, outcome.decision_ns
    decided = sum(1 for event in outcome.log if isinstance(event, TaskPlaced | TaskRefused))
    rows = [
        ("nodes x devices, tasks, seed", f"{plan.nodes:,} x {plan.gpus}, {plan.tasks:,}, {plan.seed}"),
        ("events in the log, decisions in it", f"{len(outcome.log):,}, {decided:,}"),
        ("most live tasks, most waiting", f"{counts['most live']:,}, {counts['most waiting']:,}"),
        ("placed, completed, failed, cancelled", ", ".join(f"{counts[k]:,}" for k in ("placed", "completed", "failed", "cancelled"))),
        ("reservations given or moved", f"{counts['reservations']:,}"),
        ("longest wait with devices reserved, bound", f"{counts['longest guarded s']:,} s, {plan.hold_max_ns // 10**9:,} s"),
        ("searches for a task ahead that fits", f"{counts['searches']:,}, none found"),
        ("decisions made, P50 / P99 / P99.9 CPU time", f"{len(times):,}, {_at(times, 0.5)} / {_at(times, 0.99)} / {_at(times, 0.999)} ms"),
        ("folding one event, P50 / P99", f"{_at(outcome.fold_ns, 0.5)} / {_at(outcome.fold_ns, 0.99)} ms"),
        ("digest of all decisions, and when made again from the log", f"`{outcome.digest[:16]}`, equal"),
        ("planted bugs, caught", f"{len(caught)}, {sum(1 for by in caught.values() if by)}"),
        ("CPU time, commit", f"{minutes:.1f} min, `{commit}`"),
    ]  # fmt: skip
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.placement", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fill", type=float, default=0.95, help="what is asked for against what there is; waves go 0.3 beyond")
    parser.add_argument("--every", type=int, default=2_000, help="one of so many placements is compared with a search over everything")
    parser.add_argument("--publish", action="store_true", help="write the figures to docs/placement.md")
    asked = parser.parse_args()
    plan = Plan(asked.seed, asked.nodes, asked.gpus, asked.tasks, fill=asked.fill, every=asked.every, calm=50)
    start_s = time.process_time()
    outcome = run(plan, lambda text: print(text, file=sys.stderr, flush=True))
    print(f"audited: {len(outcome.log):,} events in {time.process_time() - start_s:.0f} s of CPU time", flush=True)
    view = replay(outcome.log, 1)
    if view != outcome.view or digest_of([e for e in outcome.log if isinstance(e, TaskPlaced | TaskRefused)]) != outcome.digest:
        print("the log gives another view")
        return 1
    caught = {bug.__name__: caught_by(bug) for bug in CANARIES}
    table = _table(plan, outcome, caught, (time.process_time() - start_s) / 60)
    print(table)
    if asked.publish:
        write_section(_PAGE, "figures", table)
    return 0 if all(caught.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
