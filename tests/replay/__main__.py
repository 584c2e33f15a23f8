"""``python -m tests.replay [--runs N] [--first SEED] [--report PATH]``: runs of real nodes, recorded and replayed; 1 when one differs."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.replay.life import Lived, live
from tests.replay.mixes import Mix, mix
from tests.support.sections import write_section
from tests.support.stack import ROOT

_SHOWN: Final = ("Launch", "Preempt", "Allow", "Await", "SwapOut", "SwapIn")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--report", type=Path, default=None, help="'default': the record in docs/replay.md")
    given = parser.parse_args()
    lives = []
    for seed in range(given.first, given.first + given.runs):
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            lives.append((mix(seed), live(mix(seed), Path(folder))))
        print(_line(*lives[-1]), f"({time.monotonic() - start:.0f} s)", flush=True)
        for one in lives[-1][1].segments:
            if one["difference"] or one["gap"]:
                print(f"  {one['lane']} segment {one['segment']}: {one['difference'][:1000] or one['gap']}", flush=True)
    equal = sum(lived.document["equal"] for _, lived in lives)
    print(f"{equal} of {len(lives)} runs equal")
    if given.report is not None:
        _write(ROOT / "docs" / "replay.md" if str(given.report) == "default" else given.report, lives)
    return 0 if equal == len(lives) else 1


def _line(mixed: Mix, lived: Lived) -> str:
    segments = lived.segments
    records, decisions = sum(one["records"] for one in segments), sum(one["decisions"] for one in segments)
    counts = " | ".join(str(lived.counts[name]) for name in _SHOWN)
    verdict = "equal" if lived.document["equal"] else "DIFFERS"
    verdict += ", with gaps" if any(one["gap"] for one in segments) else ""
    return f"| {mixed.seed} | {mixed.text} | {len(segments)} | {records} | {decisions} | {counts} | {verdict} |"


def _write(path: Path, lives: list[tuple[Mix, Lived]]) -> None:
    """Put the record between its marks."""
    head = f"| run | what | segments | records | decisions | {' | '.join(_SHOWN)} | digests |"
    total = Counter({name: sum(lived.counts[name] for _, lived in lives) for name in _SHOWN})
    decisions = sum(one["decisions"] for _, lived in lives for one in lived.segments)
    equal = sum(lived.document["equal"] for _, lived in lives)
    kinds = ", ".join(f"{total[name]} {name}" for name in _SHOWN)
    summary = f"{equal} of {len(lives)} runs equal, digest for digest: {decisions} decisions, among them {kinds}."
    lines = ["", summary, "", head, "|" + "---|" * (6 + len(_SHOWN)), *(_line(*pair) for pair in lives), "", ""]
    write_section(path, "runs", "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
