"""Processes that run programs, each with a session of its own: forked from one that has torch loaded and the device switched on.

A process ends with the session: what a program does to it costs the next program nothing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import torch

from services.kit.process import die_with_parent
from tests.programs.execute import Verdict, check, rerun
from tests.programs.script import Line, Program, generate

if TYPE_CHECKING:
    from tests.programs.verified import Tally

__all__ = ["Target", "Outcome", "Workers", "switch_on"]

HANGS_S: Final = 600.0
"""Without any answer for so long a process is taken to hang, on a busy machine too."""
_CONTEXT: Final = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Target:
    """Where programs run. ``nats_url``: of a bus with a node; without, ``backend`` runs inside of the process.

    ``cut``: every run is cut into slices and its buffers are moved in between. ``fusion`` False: every operation is a kernel of its own.
    ``verify``: nothing runs, every batch is checked as a node does.
    """

    backend: str = "host"
    nats_url: str = ""
    cut: bool = False
    fusion: bool = True
    verify: bool = False

    def connect(self) -> Any:
        """A session, or an engine behind a link in this process."""
        if self.nats_url:
            from wooly.config import Config
            from wooly.session import open_session

            return open_session(Config(nats_urls=(self.nats_url,), recovery_mb=0))  # a session that is lost is seen
        if self.verify:
            from tests.programs.verified import VerifyingLink

            return VerifyingLink()
        from jit.backends import create_engine
        from jit.plan.planner import PlanOptions
        from tests.support.cutting import CutEngine
        from tests.support.loopback import LoopbackLink

        cache = os.environ.get("WOOLY_PROGRAMS_CACHE")
        engine: Any = create_engine(self.backend, cache_dir=Path(cache) if cache else None, threads=1, vram_bytes=1 << 30)
        if not self.fusion:
            engine.options = PlanOptions(fusion=False)
        return LoopbackLink(CutEngine(engine) if self.cut else engine)


@dataclass
class Outcome:
    """One program's verdict, with the program when it matters, and with the count of what was verified."""

    seed: int
    verdict: Verdict
    program: Program | None = None
    tally: Tally | None = None


_target = Target()


def switch_on() -> None:
    """Make the device appear in this process and in those forked from it; the session opens at first use."""
    from wooly.activation import activate
    from wooly.config import Config
    from wooly.device import install

    torch.set_num_threads(1)
    if not install.installed():
        activate(Config(local_gpu=True), lambda index: _target.connect())


class _Worker:
    """A process with a session."""

    def __init__(self, target: Target) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(target, theirs, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        with contextlib.suppress(OSError):  # it has ended with its session
            self.pipe.send(None)  # processes that were forked later hold the pipe open
        self.pipe.close()
        self.process.join(10)
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.join()


def _serve(target: Target, pipe: Any, parent_pid: int) -> None:
    """Answer requests, seeds or programs, until None comes or the pipe closes, the session is over or the parent ends."""
    global _target
    die_with_parent(parent_pid, signal.SIGKILL)
    _target = target
    from wooly.device.recorder import RECORDER

    while True:
        try:
            asked = pipe.recv()
        except EOFError:
            break
        if asked is None:
            break
        outcome = _answer(asked)
        pipe.send(outcome)
        if outcome.verdict.ends:
            os._exit(0)
    try:
        RECORDER.close()
    finally:
        os._exit(0)


def _answer(asked: int | Program) -> Outcome:
    if _target.verify:
        return _verified(asked)
    if isinstance(asked, Program):
        return Outcome(asked.seed, rerun(asked), asked)
    script = generate(asked)
    verdict = check(script)
    return Outcome(asked, verdict, script.program if verdict.kind else None)


def _verified(asked: int | Program) -> Outcome:
    from tests.programs.verified import repeat, write_and_verify

    if isinstance(asked, Program):
        return Outcome(asked.seed, repeat(asked), asked)
    program, verdict, tally = write_and_verify(asked)
    return Outcome(asked, verdict, program if verdict.kind else None, tally)


class Workers:
    """A process on each target; a ``with`` block ends them."""

    def __init__(self, targets: Sequence[Target]) -> None:
        switch_on()
        self._targets = list(targets)
        self._workers = [_Worker(target) for target in targets]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._workers:
            worker.end()

    def run(self, seeds: Iterable[int], *, ahead: int = 8) -> Iterator[Outcome]:
        """The outcomes of the programs of ``seeds``, in the order in which they come."""
        left = iter(seeds)
        waiting: list[list[int]] = [[] for _ in self._workers]
        for i in range(len(self._workers)):
            self._feed(i, waiting[i], left, ahead)
        while any(waiting):
            ready = multiprocessing.connection.wait([self._workers[i].pipe for i, w in enumerate(waiting) if w], HANGS_S)
            for i, queue in enumerate(waiting):
                if queue and (not ready or self._workers[i].pipe in ready):
                    yield self._take(i, queue, left, ahead, hangs=not ready)

    def _feed(self, i: int, queue: list[int], left: Iterator[int], ahead: int) -> None:
        while len(queue) < ahead and (seed := next(left, None)) is not None:
            queue.append(seed)
            with contextlib.suppress(BrokenPipeError):  # it has ended with its session: its answer says so
                self._workers[i].pipe.send(seed)

    def _take(self, i: int, queue: list[int], left: Iterator[int], ahead: int, *, hangs: bool) -> Outcome:
        outcome = self._lost(queue[0], "no answer") if hangs else self._received(i, queue[0])
        queue.pop(0)
        if outcome.verdict.ends:
            self._renew(i, hangs=hangs)
            for seed in queue:
                self._workers[i].pipe.send(seed)
        self._feed(i, queue, left, ahead)
        return outcome

    def _received(self, i: int, seed: int) -> Outcome:
        try:
            outcome: Outcome = self._workers[i].pipe.recv()
        except (EOFError, ConnectionError):
            return self._lost(seed, "the process ended")
        return outcome

    @staticmethod
    def _lost(seed: int, why: str) -> Outcome:
        return Outcome(seed, Verdict("lost", why), generate(seed).program)

    def _renew(self, i: int, *, hangs: bool = False) -> None:
        worker = self._workers[i]
        if hangs and worker.process.pid is not None:
            os.kill(worker.process.pid, signal.SIGKILL)
        worker.end()
        self._workers[i] = _Worker(self._targets[i])

    def judge(self, lines: list[str], program: Program) -> Verdict:
        """Run other lines of a program, with what is known about its names."""
        tried = Program(program.seed, [Line(text) for text in lines], program.rounded)
        pipe = self._workers[0].pipe
        pipe.send(tried)
        if not pipe.poll(HANGS_S):
            self._renew(0, hangs=True)
            return Verdict("lost", "no answer")
        outcome = self._received(0, program.seed)
        if outcome.verdict.ends:
            self._renew(0)
        return outcome.verdict
