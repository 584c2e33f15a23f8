"""What it takes to build a session again, and what images cost a training.

    python -m benchmarks.recovery [--publish | --moves]

*Continue*: from the kill of the executor to the first new answer, of a session with few batches. *Repeat*: with 2,000 batches, from the
opening of the new session to that answer, beside the time in which they ran first, of the same session. *Move*: the longest wait for the
answer of a batch while a session of 500 MB, every buffer of which changes again and again, is moved to a second node on this machine;
beside that, the longest in the seconds before. *Images*: seconds for a fixed number of steps on a session of 500 MB with the default
policy, beside none, in turns; and how long fetching them held the script. *Neighbour*: the waits for batches of a session of priority 0, of
another process, meanwhile. Publishes to docs/durability.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from tests.support.node import NO_IMAGES_S, Node, Program, Waiting, increment, until
from tests.support.plane import Controller
from tests.support.sections import write_section
from tests.support.stack import ROOT
from wooly.config import Config
from wooly.link import Flush
from wooly.session import Session, open_session

_ROUNDS: Final = 5
_REPEATS: Final = 15
_BATCHES: Final = 2_000
_BUFFERS: Final = 64
_BUFFER_BYTES: Final = 8_000_000
_BEFORE_S: Final = 3
_TURNS: Final = 2
_STEPS_S: Final = 180


def _ran(session: Session, program: Program, steps: int) -> float:
    began_s = time.monotonic()
    for _ in range(steps):
        session.submit(program.flush([1]))
    session.wait(session.submit(Flush(reads=[(1, 0, 8)])))
    return time.monotonic() - began_s


def _rebuilt(node: Node, batches: int) -> tuple[float, float, float]:
    """Seconds of the batches, from the kill to the next answer, and from the opening of the new session to that."""
    session, program = node.open(), increment(1024)
    session.wait(session.submit(Flush(allocs=[(1, 8 * 1024)])))
    _ran(session, program, 1)
    first_s = _ran(session, program, batches)
    home = session.info.session
    opened = Waiting(lambda: until(lambda: session.info.session != home and time.monotonic(), "another session"))
    node.kill_executor()
    began_s = time.monotonic()
    _ran(session, program, 1)
    ended_s = time.monotonic()
    session.close()
    return first_s, ended_s - began_s, ended_s - opened.ended()


def _longest_s(session: Session, program: Program, over: Callable[[], bool]) -> float:
    """The longest wait for a batch, until it is ``over``."""
    longest_s, step = 0.0, 0
    while not over():
        began_s = time.monotonic()
        session.wait(session.submit(program.flush([1 + step % _BUFFERS])))
        longest_s, step = max(longest_s, time.monotonic() - began_s), step + 1
    return longest_s


def _after(seconds: float) -> Callable[[], bool]:
    until_s = time.monotonic() + seconds
    return lambda: time.monotonic() > until_s


def _moved(node: Node, controller: Controller) -> tuple[float, float, float]:
    """The longest wait before the move and in it, and how long the move takes, in seconds."""
    session, program = node.open(controller_url=controller.url, required_vram_mb=1024), increment(_BUFFER_BYTES // 8)
    for handle in range(1, _BUFFERS + 1):
        session.wait(session.submit(Flush(allocs=[(handle, _BUFFER_BYTES)])))
    before_s = _longest_s(session, program, _after(_BEFORE_S))
    task, home = f"/api/v1/tasks/{session.info.task}", session.info.session
    until(lambda: controller.get(task)["state"] == "started", "the session is in the log")
    assert controller.ask("POST", f"{task}/move", {}).status == 200
    began_s = time.monotonic()
    moving_s = _longest_s(session, program, lambda: session.info.session != home)
    took_s = time.monotonic() - began_s
    moving_s = max(moving_s, _longest_s(session, program, _after(1)))
    session.close()
    until(lambda: controller.get(task)["state"] == "completed", "its end")
    return before_s, moving_s, took_s


def _steps_s(node: Node, steps: int, target_s: int) -> tuple[float, float]:
    """Seconds for ``steps`` waits on a session that holds 500 MB, and how many of them the script was held for images."""
    session, program = node.open(recovery_target_s=target_s), increment(_BUFFER_BYTES // 8)
    for handle in range(1, _BUFFERS + 1):
        session.wait(session.submit(Flush(allocs=[(handle, _BUFFER_BYTES)])))
    held_s, base = 0.0, session._log.base
    began_s = time.monotonic()
    for step in range(steps):
        session.wait(session.submit(program.flush([1 + step % _BUFFERS])))
        if session._log.base != base:
            base, held_s = session._log.base, held_s + session._image_cost_s
    taken_s = time.monotonic() - began_s
    assert (session._log.base > 0) == (target_s != NO_IMAGES_S)
    session.close()
    return taken_s, held_s


def _ask_on(config: Config, end: Connection) -> None:
    """Use priority 0 without a pause until a message comes; send the 99th percentile of the waits."""
    session, program, waits_s = open_session(config), increment(16), []
    session.wait(session.submit(Flush(allocs=[(1, 8 * 16)])))
    _ran(session, program, 1)
    end.send(None)
    while not end.poll():
        waits_s.append(_ran(session, program, 1))
    session.close()
    end.send(statistics.quantiles(waits_s, n=100)[-1])


def _neighbour_s(node: Node, steps: int, target_s: int) -> float:
    """The 99th percentile of the waits for a batch of priority 0, beside so many steps."""
    own, other = multiprocessing.get_context("spawn").Pipe()
    neighbour = multiprocessing.get_context("spawn").Process(target=_ask_on, args=(node.config(prio=0), other))
    neighbour.start()
    own.recv()
    _steps_s(node, steps // 2, target_s)
    own.send(None)
    p99_s: float = own.recv()
    neighbour.join()
    return p99_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--moves", action="store_true", help="only what moves take, each of them")
    options = parser.parse_args()
    settings = {"WOOLY_BACKEND": "host", "WOOLY_DEVICE_VRAM_MB": "4096"}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other, Node(Path(folder), **settings) as node:
        with Node(Path(other), beside=node, NODE_NAME="other", **settings):
            controller = Controller(node.nats.url, Path(other))
            controller.start()
            until(lambda: len(controller.get("/api/v1/nodes")["items"]) == 2, "two nodes")
            moves = [_moved(node, controller) for _ in range(_ROUNDS)]
            controller.stop()
        if options.moves:
            for before_s, moving_s, took_s in moves:
                print(f"{before_s:.2f} s before, {moving_s:.2f} s in the move, which took {took_s:.1f} s")
            return
        few, many = [_rebuilt(node, 10) for _ in range(_ROUNDS)], [_rebuilt(node, _BATCHES) for _ in range(_REPEATS)]
        until(lambda: node.info().devices, "an executor")
        steps = int(_STEPS_S * 2_000 / _steps_s(node, 2_000, NO_IMAGES_S)[0])  # the first of a node are slower
        waits = [(_neighbour_s(node, steps, NO_IMAGES_S), _neighbour_s(node, steps, 30))]
        turns = [(_steps_s(node, steps, NO_IMAGES_S), _steps_s(node, steps, 30)) for _ in range(_TURNS)]
    continued_s = statistics.median(continued_s for _, continued_s, _ in few)
    first_s, _, again_s = (statistics.median(column) for column in zip(*many, strict=True))
    repeating = statistics.median(again_s / first_s for first_s, _, again_s in many)
    before_s, moving_s, took_s = (statistics.median(column) for column in zip(*moves, strict=True))
    ratios = [images_s / none_s for (none_s, _), (images_s, _) in turns]
    held = [held_s / (images_s - held_s) for _, (images_s, held_s) in turns]
    alone_s, beside_s = (statistics.median(column) for column in zip(*waits, strict=True))
    print("continued", [f"{continued_s:.2f}" for _, continued_s, _ in few])
    print("ran first, repeated", [(f"{first_s:.2f}", f"{again_s:.2f}") for first_s, _, again_s in many])
    print(
        "images",
        [f"{ratio:.3f}" for ratio in ratios],
        "held",
        [f"{part:.4f}" for part in held],
        "P99",
        [(f"{a * 1e3:.2f}", f"{b * 1e3:.2f}") for a, b in waits],
    )
    text = (
        "| | |\n|---|---|\n"
        f"| from the kill of an executor to the next answer, median of {_ROUNDS} | {continued_s:.1f} s |\n"
        f"| {_BATCHES:,} batches: ran first in, repeated in, medians of {_REPEATS} | {first_s:.2f} s, {again_s:.2f} s |\n"
        f"| repeated beside ran first, median of {_REPEATS} ratios | {repeating:.2f} |\n"
        f"| longest wait for a batch while 500 MB are moved, in the seconds before | {moving_s:.2f} s, {before_s:.2f} s |\n"
        f"| from the order until the script continues on the other node | {took_s:.1f} s |\n"
        f"| {steps:,} steps on 500 MB with images, beside none | {statistics.median(ratios):.3f} times as long |\n"
        f"| the time in which images held that script, to the rest of its time | {statistics.median(held):.1%} |\n"
        f"| waits of a neighbour of priority 0 meanwhile, P99: images, none | {beside_s * 1e3:.2f} ms, {alone_s * 1e3:.2f} ms |\n"
    )
    print(text)
    if options.publish:
        write_section(ROOT / "docs" / "durability.md", "recovery", text)


if __name__ == "__main__":
    main()
