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
from typing import Final

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


def _tests_of(area: Area) -> list[Path]:
    found: list[Path] = []
    for path in area.tests:
        found += sorted((ROOT / path).rglob("test_*.py")) if (ROOT / path).is_dir() else [ROOT / path]
    return found


def _reach(area: Area, files: list[str], sources: str) -> Reach:
    """What each file of tests reaches; kept until that file or what is mutated changes."""
    kept = {path: CACHE / f"{sources}-{_digest([path])}.reach" for path in _tests_of(area)}
    missing = [path for path, found in kept.items() if not found.exists()]
    if missing:
        made = reach_of(ROOT, files, [str(path.relative_to(ROOT)) for path in missing])
        for path in missing:
            kept[path].write_bytes(pickle.dumps(made.of(str(path.relative_to(ROOT)))))
    return Reach.joined([pickle.loads(found.read_bytes()) for found in kept.values()])


def _score(area: Area, count: int, seed: str, *, again: bool) -> Score:
    """Judge the mutants of an area. Killed ones stay so until their file changes; survivors are judged again when a test changes."""
    files = area.files(ROOT)
    sources = _digest([ROOT / path for path in files])
    tests = f"{_digest(_tests_of(area))} {area.budget_s}"
    name = area.name.replace("/", "-").replace(" ", "-")
    drawn = CACHE / f"{name}-{sources}-{seed}-{count}.mutants"
    if not drawn.exists():
        CACHE.mkdir(exist_ok=True)
        drawn.write_bytes(pickle.dumps(sample(ROOT, files, count, seed, emitted=area.emitted)))
    mutants: list[Mutant] = pickle.loads(drawn.read_bytes())
    reach = _reach(area, files, sources)
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

    run_mutants(ROOT, todo, reach, report, area.budget_s)
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
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # read when libraries are imported
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
