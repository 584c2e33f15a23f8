"""Run the SLA matrix: ``python -m benchmarks.sla [--seconds S] [--recordings FOLDER]``; results go to docs/sla.md.

``--what-if``: all policies as often, at a load that each can serve; only predictions are reported, to docs/what-if.md."""

from __future__ import annotations

import argparse
import dataclasses
import pickle
import tempfile
from pathlib import Path

from benchmarks.sla import real, report, virtual
from scheduler.dispatch import ConfigChanged, DispatchConfig
from tests.support.stack import ROOT

_WHAT_IF_LOAD_PERCENT = 25


def _config(matrix: real.Matrix) -> DispatchConfig:
    """The one that the node gave its dispatcher."""
    return [record.stimulus.config for record in matrix.journals["strict"] if isinstance(record.stimulus, ConfigChanged)][-1]


def _predictions(matrix: real.Matrix) -> list[virtual.Prediction]:
    return virtual.predict(matrix, [policy for policy in matrix.journals if policy != "strict"], _config(matrix))


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.sla", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of inference in each cell")
    parser.add_argument("--requests", type=int, default=150, help="at least so many in each cell")
    parser.add_argument("--rounds", type=int, default=3, help="of the strict policy")
    parser.add_argument("--recordings", type=Path, help="a folder that keeps recordings from run to run")
    parser.add_argument("--keep", type=Path, help="a file for the raw results")
    parser.add_argument("--kept", type=Path, nargs="+", help="results of earlier runs: only report them, all rounds together")
    parser.add_argument("--policies", default=",".join(real.POLICIES))
    parser.add_argument("--what-if", action="store_true", help="how well other policies are predicted, and nothing else")
    parser.add_argument("--dry", action="store_true", help="print, and leave docs/sla.md as it is")
    options = parser.parse_args()
    if options.kept:
        matrices = [pickle.loads(path.read_bytes()) for path in options.kept]
        for more in matrices[1:]:
            matrices[0].add(more)
        _publish(matrices[0], options)
        return
    with tempfile.TemporaryDirectory() as own:
        folder = options.recordings or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        real.record_all(folder)
        plan = real.Plan(options.seconds, options.requests, options.rounds)
        if options.what_if:
            plan = dataclasses.replace(plan, beside_only=True, load_percent=_WHAT_IF_LOAD_PERCENT)
        matrix = real.play_matrix(folder, plan, tuple(options.policies.split(",")))
    if options.keep:
        options.keep.write_bytes(pickle.dumps(matrix))
    _publish(matrix, options)


def _publish(matrix: real.Matrix, options: argparse.Namespace) -> None:
    if options.what_if:
        name, text = "what-if.md", report.write_what_if(matrix, _predictions(matrix), _WHAT_IF_LOAD_PERCENT)
    else:
        cells = virtual.virtual_matrix(matrix, list(matrix.journals), _config(matrix))
        name, text = "sla.md", report.write(matrix, cells, _predictions(matrix), real.time_decisions(matrix, "strict"))
    print(text)
    if not options.dry:
        (ROOT / "docs" / name).write_text(text)


if __name__ == "__main__":
    main()
