"""``python -m tests.controllers [--rounds N] [--seed S] [--tasks N]``: exits with 1 at the first round in which something does
not hold, and says what and under which seed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.controllers.match import play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=500)
    asked = parser.parse_args()
    for seed in range(asked.seed, asked.seed + asked.rounds):
        started_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            outcome = play(seed, Path(folder), tasks=asked.tasks)
        found = outcome.findings
        print(
            f"seed {seed}: {asked.tasks} tasks, killed after {outcome.killed_after} answers; placed {outcome.placed_before_room} at first, "
            f"{len(found.placed)} in the end, refused {len(found.refused)}, waiting {len(found.waiting)}; fullest device "
            f"{found.peak_percent} %; {time.monotonic() - started_s:.1f} s",
            flush=True,
        )
        if found.faults or found.waiting:
            print("\n".join(found.faults[:20] or [f"still waiting: {sorted(found.waiting)[:5]}"]))
            return 1
    print(f"{asked.rounds} rounds: every task placed exactly once, no device oversold, nothing lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
