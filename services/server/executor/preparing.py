"""The second thread of the executor: it verifies and compiles what batches will run, in turns of tenants.

Compiling a program may take minutes, so it is done in pieces: after each, what is most urgent is chosen anew. Every tenant has a budget of
time (scheduler.turns): one that used it up is served while no other wants anything.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Final

import msgspec

from bus_schemas.batch import Batch
from bus_schemas.quotas import QUOTAS
from jit.compiling.process import pausing_after
from jit.errors import Unfinished
from scheduler.turns import Taken, Turns, TurnsConfig
from services.server.executor.errors import Needs
from services.server.executor.programs import Programs
from services.server.executor.tenant import Brought
from services.server.protocol import Compiled, MemoryFreed, Prepared, Report

_UNLIMITED: Final = 1 << 62
"""What waits is bounded by the batches that sessions may have outstanding."""
_BUDGET: Final = TurnsConfig(QUOTAS["compile_ns"].rate(), lane_items_max=_UNLIMITED, waiting_bytes_max=_UNLIMITED, late=True)
"""Costs are nanoseconds of the preparing thread."""
_PIECE_NS: Final = 2 * 10**9
_READY_NS: Final = 10**6
"""What takes less was ready, but for a look at it, and is not charged."""
_GUESSES_MAX: Final = 64
NO_BODIES: Final[dict[str, Any]] = {"program_body": b"", "dims_body": b"", "dims_delta": None, "kernels": ()}


@dataclass(slots=True)
class _Wanted:
    """A batch to prepare. ``launch``: it was to be launched and was not ready."""

    brought: Brought
    launch: bool
    #: Grows with every piece, so that the last one comes even where nothing of a piece is kept.
    piece_ns: int = _PIECE_NS


class Preparing:
    """``report`` sends what became of a batch to the server. Any thread may call; ``run`` is the thread itself."""

    def __init__(self, programs: Programs, report: Callable[[Report], None]) -> None:
        self._programs = programs
        self._report = report
        self._turns: Turns[_Wanted] = Turns(_BUDGET)
        self._guesses: deque[tuple[str, Batch, str]] = deque(maxlen=_GUESSES_MAX)
        self._changed = threading.Condition()

    def want(self, brought: Brought, priority: int, *, launch: bool = False) -> None:
        """Prepare this batch; ``launch``: as in ``_Wanted``."""
        with self._changed:
            self._turns.add(brought.tenant, brought.session, _Wanted(brought, launch), 0, monotonic_ns(), priority)
            self._changed.notify()

    def guess(self, tenant: str, batch: Batch, whose: str) -> None:
        """Prepare what will likely follow, once there is nothing else to do; ``whose``: in which code domain."""
        with self._changed:
            self._guesses.append((tenant, batch, whose))
            self._changed.notify()

    def drop(self, tenant: str, session: str) -> None:
        """The session has ended."""
        with self._changed:
            self._turns.drop(tenant, session)

    def run(self) -> None:
        while True:
            self.step()

    def step(self) -> None:
        """Wait for something to prepare, and prepare it or a piece of it."""
        with self._changed:
            while (taken := self._turns.take(monotonic_ns())) is None and not self._guesses:
                self._changed.wait()
            guess = self._guesses.popleft() if taken is None else None
        if taken is not None:
            self._serve(taken)
        elif guess is not None:
            tenant, batch, whose = guess
            start_ns = monotonic_ns()
            with contextlib.suppress(Exception), pausing_after(_PIECE_NS):
                self._programs.ready(batch, whose)
            with self._changed:
                self._turns.charge(tenant, monotonic_ns() - start_ns, start_ns)

    def _serve(self, taken: Taken[_Wanted]) -> None:
        wanted, start_ns = taken.item, monotonic_ns()
        brought = wanted.brought
        ready = False
        try:
            if not brought.dropped:
                with pausing_after(wanted.piece_ns):
                    ready = self.prepare(brought)
        except Unfinished:
            wanted.piece_ns *= 2
            with self._changed:
                self._turns.put_back(taken, monotonic_ns() - start_ns, start_ns)
            self._worked(brought.session, monotonic_ns() - start_ns)
            return
        with self._changed:
            self._turns.done(taken, monotonic_ns() - start_ns, start_ns)
        self._worked(brought.session, monotonic_ns() - start_ns)
        self._report(MemoryFreed(brought.session) if wanted.launch else Prepared(brought.session, brought.seq, ready))

    def _worked(self, session: str, compile_ns: int) -> None:
        if compile_ns >= _READY_NS:
            self._report(Compiled(session, compile_ns))

    def prepare(self, brought: Brought) -> bool:
        """Verify and compile: is it ready now? What goes wrong is kept for the batch's place in the order. Raises Unfinished."""
        try:
            batch = brought.batch()
            if batch.program:
                self._programs.ready(batch, brought.whose)
        except Unfinished:
            raise
        except Needs:  # the bodies that it has are known now; others may come before its place in the order
            brought.known = msgspec.structs.replace(brought.batch(), **NO_BODIES)
            return False
        except Exception as problem:  # of any kind: the launching thread reports it, with its trace
            brought.problem = problem
            return False
        return True
