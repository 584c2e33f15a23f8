"""``python -m tests.mutation``: scores of all areas or some, and docs/mutation.md."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any, Final

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

from tests.mutation.areas import AREAS, Area
from tests.mutation.mutants import Mutant, sample
from tests.mutation.report import Score, equivalents, publish
from tests.mutation.runner import Outcome, Reach, reach_of, run_mutants
from tests.support.stack import ROOT

SEED: Final = "1"
COUNT: Final = 120
CACHE: Final = ROOT / ".mutation"


def _digest(paths: list[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(str(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def _cached(path: Path, make: Any) -> Any:
    if path.exists():
        return pickle.loads(path.read_bytes())
    made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(made))
    return made


def _tests_of(area: Area) -> list[Path]:
    found: list[Path] = []
    for path in area.tests:
        found += (ROOT / path).rglob("*.py") if (ROOT / path).is_dir() else [ROOT / path]
    return found


def _score(area: Area, count: int, seed: str, *, again: bool) -> Score:
    """Judge the mutants of an area. Killed ones stay so until their file changes; survivors are judged again when a test changes."""
    files = area.files(ROOT)
    sources = _digest([ROOT / path for path in files])
    tests = _digest([*_tests_of(area), *(ROOT / "tests/support").glob("*.py")])
    name = area.name.replace("/", "-").replace(" ", "-")
    mutants: list[Mutant] = _cached(
        CACHE / f"{name}-{sources}-{seed}-{count}.mutants", lambda: sample(ROOT, files, count, seed, emitted=area.emitted)
    )
    existing = [path for path in area.tests if (ROOT / path).exists()]
    reach: Reach = _cached(CACHE / f"{name}-{sources}-{tests}.reach", lambda: reach_of(ROOT, files, existing))
    if reach.failing:
        print(f"{area.name}: fail without a fault and judge nothing: {', '.join(reach.failing)}", flush=True)
    kept = CACHE / f"{name}-{sources}.results"
    known: dict[str, tuple[str, Outcome]] = {} if again or not kept.exists() else pickle.loads(kept.read_bytes())
    excused = equivalents()
    todo = [
        mutant
        for mutant in mutants
        if mutant.name not in excused and not (mutant.name in known and (known[mutant.name][1].killed or known[mutant.name][0] == tests))
    ]

    def report(mutant: Mutant, outcome: Outcome) -> None:
        known[mutant.name] = tests, outcome
        kept.write_bytes(pickle.dumps(known))
        if not outcome.killed:
            print(f"  {outcome.verdict}: {mutant.name} {mutant.path}:{mutant.line} {mutant.before!r} -> {mutant.after!r}", flush=True)

    run_mutants(ROOT, todo, reach, report)
    return Score(area, {mutant: known[mutant.name][1] for mutant in mutants if mutant.name not in excused}, len(mutants))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("areas", nargs="*", help=f"areas to judge; default: all ({', '.join(AREAS)})")
    parser.add_argument("--count", type=int, default=COUNT, help="mutants drawn in each area")
    parser.add_argument("--seed", default=SEED, help="of the draw")
    parser.add_argument("--again", action="store_true", help="forget results of earlier runs")
    parser.add_argument("--publish", action="store_true", help="write docs/mutation.md")
    chosen = parser.parse_args()
    unknown = set(chosen.areas) - AREAS.keys()
    if unknown:
        parser.error(f"no area {', '.join(sorted(unknown))}")
    scores = []
    for name in chosen.areas or AREAS:
        began_s = time.monotonic()
        score = _score(AREAS[name], AREAS[name].count or chosen.count, chosen.seed, again=chosen.again)
        scores.append(score)
        print(f"{name}: {score.text} in {time.monotonic() - began_s:.0f} s", flush=True)
    if chosen.publish:
        publish(scores, chosen.seed)
    (CACHE / "last.json").write_text(json.dumps({score.area.name: score.text for score in scores}))
    return int(any(score.percent < score.area.bar for score in scores))


if __name__ == "__main__":
    sys.exit(main())
