"""What it takes to build a session again, and what images cost a training.

    python -m benchmarks.recovery [--publish]

*Continue*: from the kill of the executor to the first new answer, of a session with few batches. *Repeat*: the same with 2,000 batches,
less the time to continue, beside the time in which they ran first. *Images*: seconds for a fixed number of steps on a session of 500 MB
with the default policy, beside none, in turns. Publishes to docs/durability.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.support.node import NO_IMAGES_S, Node, Program, increment, until
from tests.support.sections import write_section
from tests.support.stack import ROOT
from wooly.link import Flush
from wooly.session import Session

_ROUNDS: Final = 5
_BATCHES: Final = 2_000
_BUFFERS: Final = 64
_BUFFER_BYTES: Final = 8_000_000
_TURNS: Final = 2
_STEPS_S: Final = 75


def _ran(session: Session, program: Program, steps: int) -> float:
    began_s = time.monotonic()
    for _ in range(steps):
        session.submit(program.flush([1]))
    session.wait(session.submit(Flush(reads=[(1, 0, 8)])))
    return time.monotonic() - began_s


def _rebuilt(node: Node, batches: int) -> tuple[float, float]:
    """Seconds of the batches, and from the kill to the next answer."""
    session, program = node.open(), increment(1024)
    session.wait(session.submit(Flush(allocs=[(1, 8 * 1024)])))
    _ran(session, program, 1)
    first_s = _ran(session, program, batches)
    node.kill_executor()
    began_s = time.monotonic()
    _ran(session, program, 1)
    again_s = time.monotonic() - began_s
    session.close()
    return first_s, again_s


def _steps_s(node: Node, steps: int, target_s: int) -> float:
    """Seconds for ``steps`` waits on a session that holds 500 MB."""
    session, program = node.open(recovery_target_s=target_s), increment(_BUFFER_BYTES // 8)
    for handle in range(1, _BUFFERS + 1):
        session.wait(session.submit(Flush(allocs=[(handle, _BUFFER_BYTES)])))
    began_s = time.monotonic()
    for step in range(steps):
        session.wait(session.submit(program.flush([1 + step % _BUFFERS])))
    taken_s = time.monotonic() - began_s
    assert (session._log.base > 0) == (target_s != NO_IMAGES_S)
    session.close()
    return taken_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--publish", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Node(Path(folder), WOOLY_BACKEND="host", WOOLY_DEVICE_VRAM_MB="4096") as node:
        few, many = [_rebuilt(node, 10) for _ in range(_ROUNDS)], [_rebuilt(node, _BATCHES) for _ in range(_ROUNDS)]
        until(lambda: node.info().devices, "an executor")
        steps = int(_STEPS_S * 200 / _steps_s(node, 200, NO_IMAGES_S))
        turns = [(_steps_s(node, steps, NO_IMAGES_S), _steps_s(node, steps, 30)) for _ in range(_TURNS)]
    continued_s = statistics.median(again_s for _, again_s in few)
    first_s, again_s = (statistics.median(column) for column in zip(*many, strict=True))
    ratio = statistics.median(images_s / none_s for none_s, images_s in turns)
    text = (
        "| | |\n|---|---|\n"
        f"| from the kill of an executor to the next answer, median of {_ROUNDS} | {continued_s:.1f} s |\n"
        f"| {_BATCHES:,} batches: ran first in, repeated in | {first_s:.2f} s, {max(0.0, again_s - continued_s):.2f} s |\n"
        f"| {steps:,} steps on 500 MB with images, beside none | {ratio:.3f} times as long |\n"
    )
    print(text)
    if options.publish:
        write_section(ROOT / "docs" / "durability.md", "recovery", text)


if __name__ == "__main__":
    main()
