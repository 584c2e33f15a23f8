"""``python -m tests.programs``: random programs on the CPU and on the device (docs/fuzz-programs.md)."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.programs.campaign import Failure, publish, run
from tests.programs.worker import Target
from tests.support.node import Node


@contextlib.contextmanager
def _targets(options: argparse.Namespace) -> Iterator[list[Target]]:
    """One for each worker, with a node of its own: a node compiles one kernel at a time."""
    if not options.wire:
        yield [Target(options.backend, cut=options.cut, fusion=not options.no_fusion)] * options.workers
        return
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(options.workers)]
        nodes = [stack.enter_context(Node(folder, WOOLY_BACKEND=options.backend)) for folder in folders]
        yield [Target(options.backend, node.nats.url) for node in nodes]


def _print(failure: Failure) -> None:
    print(f"\n=== seed {failure.seed}: {failure.verdict.kind}\n{failure.script}", flush=True)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    arguments.add_argument("--programs", type=int, default=2000)
    arguments.add_argument("--seed", type=int, default=None, help="of the first program; default: from the clock")
    arguments.add_argument("--backend", default="host")
    arguments.add_argument("--in-process", dest="wire", action="store_false", help="without bus and node")
    arguments.add_argument("--cut", action="store_true", help="cut every run into slices and move its buffers (in process)")
    arguments.add_argument("--no-fusion", action="store_true", help="every operation a kernel of its own (in process)")
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--shrink", type=int, default=20, help="how many failures are shrunk")
    arguments.add_argument("--publish", action="store_true", help="add the figures to docs/fuzz-programs.md")
    options = arguments.parse_args()
    options.wire = options.wire and not (options.cut or options.no_fusion)
    first = options.seed if options.seed is not None else time.time_ns() % (1 << 40)
    print(f"seeds {first} to {first + options.programs - 1}", flush=True)
    with _targets(options) as targets:
        result = run(targets, range(first, first + options.programs), shrunk_max=options.shrink, report=_print)
    print(result.summary())
    if options.publish:
        publish(result, f"python -m tests.programs --programs {options.programs} --seed {first} --backend {options.backend}")
    if result.undecided:
        print("undecided:", *result.undecided[:50])
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
