"""``make ecosystem``: the cases on the CPU and on the device of one embedded stack, and docs/ecosystem.md.

usage: python -m tests.ecosystem [--only PATTERN,PATTERN] [--publish] [--jobs N] [--timeout S] [--references DIR]

Ends with 1 when a case is wrong, hangs, is invalid, or differs from a pass without an explanation in tests/ecosystem/explained.toml.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from tests.ecosystem.case import CASES, Case, Outcome, read, run
from tests.ecosystem.table import document, totals
from tests.support.stack import ROOT, EmbeddedStack, plain_environment

_PAGE: Final = ROOT / "docs" / "ecosystem.md"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.ecosystem", description=__doc__)
    parser.add_argument("--only", default="", help="patterns of case ids, like a15,c*")
    parser.add_argument("--publish", action="store_true", help="write the lines of these cases to docs/ecosystem.md")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one run of a script")
    parser.add_argument("--references", type=Path, default=ROOT / "scratch" / "ecosystem", help="where results of the CPU are kept")
    return parser.parse_args()


def _wanted(only: str) -> list[Case]:
    patterns = [p.strip() for p in only.split(",") if p.strip()]
    cases = [read(path) for path in sorted(CASES.glob("*.py"))]
    return [case for case in cases if not patterns or any(fnmatch(case.name, p) for p in patterns)]


def _is_accepted(outcome: Outcome, explained: dict[str, dict[str, str]]) -> bool:
    """A pass, a fallback (counted by operation), a missing library; anything else must be what its explanation says it is."""
    if outcome.verdict in ("pass", "fallback", "not installed"):
        return True
    return explained.get(outcome.case.name, {}).get("verdict") == outcome.verdict


def main() -> int:
    arguments = _arguments()
    explained = tomllib.loads((Path(__file__).parent / "explained.toml").read_text())
    cases = _wanted(arguments.only)
    outcomes: list[Outcome] = []
    with EmbeddedStack() as stack, ThreadPoolExecutor(arguments.jobs) as pool:
        device = stack.client_environment(WOOLY_RECOVERY_MB="0")  # a lost session is seen
        runs = [pool.submit(run, c, device, plain_environment(), arguments.references, arguments.timeout) for c in cases]
        for done in as_completed(runs):
            outcome = done.result()
            outcomes.append(outcome)
            accepted = "" if _is_accepted(outcome, explained) else "  <- not explained"
            detail = outcome.note or ", ".join(sorted(outcome.fallbacks))
            if arguments.publish:
                _PAGE.write_text(document(outcomes, explained, _PAGE.read_text() if _PAGE.exists() else ""))
            print(f"{outcome.case.name:6} {outcome.verdict:13} {outcome.seconds:6.1f} s  {detail[:230]}{accepted}", flush=True)
    print(totals(outcomes))
    return 0 if all(_is_accepted(o, explained) for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
