"""``python -m tests.programs``: random programs on the CPU and on the device (docs/fuzz-programs.md)."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.programs.campaign import Failure, publish, publish_verified, run
from tests.programs.worker import Target
from tests.support.node import Node


@contextlib.contextmanager
def _targets(options: argparse.Namespace) -> Iterator[list[Target]]:
    """One for each worker, with a node of its own: a node compiles one kernel at a time."""
    if options.verify:
        yield [Target(verify=True)] * options.workers
        return
    if not options.wire:
        yield [Target(options.backend, cut=options.cut, fusion=not options.no_fusion)] * options.workers
        return
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(options.workers)]
        nodes = [stack.enter_context(Node(folder, WOOLY_BACKEND=options.backend)) for folder in folders]
        yield [Target(options.backend, node.nats.url) for node in nodes]


def _print(failure: Failure) -> None:
    print(f"\n=== seed {failure.seed}: {failure.verdict.kind}\n{failure.script}", flush=True)


def main(given: Sequence[str] | None = None) -> int:
    """Run with these arguments, or with the process's own. Returns the exit status: 1 when a program failed."""
    arguments = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    arguments.add_argument("--programs", type=int, default=2000)
    arguments.add_argument("--seed", type=int, default=None, help="of the first program; default: from the clock")
    arguments.add_argument("--backend", default="host")
    arguments.add_argument("--in-process", dest="wire", action="store_false", help="without bus and node")
    arguments.add_argument("--cut", action="store_true", help="cut every run into slices and move its buffers (in process)")
    arguments.add_argument("--no-fusion", action="store_true", help="every operation a kernel of its own (in process)")
    arguments.add_argument(
        "--verify", action="store_true", help="execute nothing: check batches as a node does, until --programs distinct ones are accepted"
    )
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--shrink", type=int, default=20, help="how many failures are shrunk")
    arguments.add_argument("--publish", action="store_true", help="add the figures to docs/fuzz-programs.md")
    options = arguments.parse_args(given)
    options.wire = options.wire and not (options.cut or options.no_fusion)
    first = options.seed if options.seed is not None else time.time_ns() % (1 << 40)
    seeds = range(first, first + options.programs)
    print(f"seeds from {first}" if options.verify else f"seeds {first} to {seeds[-1]}", flush=True)
    distinct_min = options.programs if options.verify else 0
    with _targets(options) as targets:
        result = run(targets, seeds, distinct_min=distinct_min, shrunk_max=options.shrink, report=_print)
    print(result.summary())
    if result.tally is not None:
        print(*(f"refused by the client, {n} times: {text}\n" for text, n in sorted(result.tally.client_refusals.items())), sep="", end="")
    if options.publish:
        command = f"python -m tests.programs --programs {options.programs} --seed {first}"
        if options.verify:
            publish_verified(result, f"{command} --verify")
        else:
            publish(result, f"{command} --backend {options.backend}")
    if result.undecided:
        print("undecided:", *result.undecided[:50])
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
