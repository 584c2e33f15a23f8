"""Run the SLA matrix: ``python -m benchmarks.sla [--seconds S] [--recordings FOLDER]``; results go to docs/sla.md."""

from __future__ import annotations

import argparse
import pickle
import tempfile
from pathlib import Path

from benchmarks.sla import real, report, virtual
from scheduler.dispatch import ConfigChanged
from tests.support.stack import ROOT


def _virtual(matrix: real.Matrix) -> tuple[list[virtual.VirtualCell], list[virtual.Prediction]]:
    """The configuration is the one that the node gave its dispatcher."""
    configs = [record.stimulus.config for record in matrix.journals["strict"] if isinstance(record.stimulus, ConfigChanged)]
    others = [policy for policy in matrix.journals if policy != "strict"]
    return virtual.virtual_matrix(matrix, list(matrix.journals), configs[-1]), virtual.predict(matrix, others, configs[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.sla", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of inference in each cell")
    parser.add_argument("--requests", type=int, default=150, help="at least so many in each cell")
    parser.add_argument("--rounds", type=int, default=3, help="of the strict policy")
    parser.add_argument("--recordings", type=Path, help="a folder that keeps recordings from run to run")
    parser.add_argument("--keep", type=Path, help="a file for the raw results")
    parser.add_argument("--kept", type=Path, help="results of an earlier run: only report them")
    parser.add_argument("--policies", default=",".join(real.POLICIES))
    parser.add_argument("--dry", action="store_true", help="print, and leave docs/sla.md as it is")
    options = parser.parse_args()
    if options.kept:
        _publish(pickle.loads(options.kept.read_bytes()), options.dry)
        return
    with tempfile.TemporaryDirectory() as own:
        folder = options.recordings or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        real.record_all(folder)
        matrix = real.play_matrix(folder, real.Plan(options.seconds, options.requests, options.rounds), tuple(options.policies.split(",")))
    if options.keep:
        options.keep.write_bytes(pickle.dumps(matrix))
    _publish(matrix, options.dry)


def _publish(matrix: real.Matrix, dry: bool) -> None:
    text = report.write(matrix, *_virtual(matrix), real.time_decisions(matrix, "strict"))
    print(text)
    if not dry:
        (ROOT / "docs" / "sla.md").write_text(text)


if __name__ == "__main__":
    main()
