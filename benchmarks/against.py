"""This tree beside another revision of it: two stacks, two client processes a workload, rounds in turn; medians and their ratio.

``python -m benchmarks.against REVISION [workload ...] [--rounds N]``. The other revision runs in this interpreter's environment, from a
temporary folder. Exits with 1 when a workload's median ratio (this tree / the revision) is above the bar.
"""

from __future__ import annotations

import argparse
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.__main__ import Worker, worker
from benchmarks.ops import OPS
from benchmarks.workloads import WORKLOADS
from tests.support.stack import ROOT, EmbeddedStack

_BAR: Final = 1.03


def _check_out(revision: str, folder: Path) -> None:
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def _stack(exits: ExitStack, root: Path) -> EmbeddedStack:
    """A stack that runs the code below ``root``."""
    return exits.enter_context(EmbeddedStack(None, PYTHONPATH=str(root)))


def _worker(exits: ExitStack, name: str, stack: EmbeddedStack, root: Path) -> Worker:
    environment = stack.client_environment(OMP_NUM_THREADS="1", PYTHONPATH=str(root))
    return exits.enter_context(worker(name, "cuda", environment, root=root))


def _figure(result: dict[str, Any]) -> float:
    """Milliseconds of a step, or microseconds of an operation."""
    return float(result["ms"] if "ms" in result else result["us"])


def compare(name: str, here: tuple[EmbeddedStack, Path], there: tuple[EmbeddedStack, Path], rounds: int) -> list[tuple[float, float]]:
    """(revision, this tree) for every round; which of the two goes first alternates."""
    with ExitStack() as exits:
        ours, theirs = (_worker(exits, name, *side) for side in (here, there))
        ours.round(), theirs.round()
        pairs = []
        for number in range(rounds):
            if number % 2:
                new, old = _figure(ours.round()), _figure(theirs.round())
            else:
                old, new = _figure(theirs.round()), _figure(ours.round())
            pairs.append((old, new))
        return pairs


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.against", description=__doc__)
    parser.add_argument("revision")
    parser.add_argument("names", nargs="*", help=f"of {', '.join([*WORKLOADS, *OPS])}; none: all workloads")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    slower = []
    print("| workload | before | after | ratio | quartiles |\n|---|---|---|---|---|")
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        _check_out(options.revision, folder)
        here, there = (_stack(exits, ROOT), ROOT), (_stack(exits, folder), folder)
        for name in options.names or list(WORKLOADS):
            pairs = compare(name, here, there, options.rounds)
            ratios = [new / old for old, new in pairs]
            low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
            before, after = (statistics.median(side) for side in zip(*pairs, strict=True))
            print(f"| {name} | {before:.2f} | {after:.2f} | **{ratio:.3f}** | {low:.3f}-{high:.3f} |", flush=True)
            if ratio > _BAR:
                slower.append(name)
    if slower:
        print(f"slower than {_BAR}x: {', '.join(slower)}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
