"""Run the SLA matrix: ``python -m benchmarks.sla [--seconds S] [--recordings FOLDER]``; results go to docs/sla.md."""

from __future__ import annotations

import argparse
import pickle
import tempfile
from pathlib import Path

from benchmarks.sla import real, report
from tests.support.stack import ROOT


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.sla", description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="of inference in each cell")
    parser.add_argument("--recordings", type=Path, help="a folder that keeps recordings from run to run")
    parser.add_argument("--keep", type=Path, help="a file for the raw results")
    parser.add_argument("--policies", default=",".join(real.POLICIES))
    parser.add_argument("--dry", action="store_true", help="print, and leave docs/sla.md as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        folder = options.recordings or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        real.record_all(folder)
        matrix = real.play_matrix(folder, real.Plan(options.seconds), tuple(options.policies.split(",")))
    if options.keep:
        options.keep.write_bytes(pickle.dumps(matrix))
    text = report.write(matrix)
    print(text)
    if not options.dry:
        (ROOT / "docs" / "sla.md").write_text(text)


if __name__ == "__main__":
    main()
