"""The thread that moves bytes between the device and the store of swapped memory, so that the launching thread never does, and the lock
that both take: a space's views are valid only while no other space takes memory, for blocks move then.

The launching thread goes first: the moving one waits as long as that one is inside or wants to be, and stays inside for a piece at a time.

Jobs are cut into steps of a chunk; the job of the highest priority goes on first. What a job did is handed back when it is over, through
``take``; ``fileno`` is readable then.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from services.kit.log import get_logger


class _Launching(AbstractContextManager[None]):
    """Made once for every gate: the launching thread comes by with every batch."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        gate = self._gate
        with gate._changed:
            gate._launching = True
            while gate._moving:
                gate._changed.wait()

    def __exit__(self, *exception: object) -> None:
        gate = self._gate
        with gate._changed:
            gate._launching = False
            gate._changed.notify_all()


class Gate:
    """``launching`` and ``moving`` exclude each other."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._launching = False
        self._moving = False
        self._by_launching = _Launching(self)

    def launching(self) -> AbstractContextManager[None]:
        """Not to be nested."""
        return self._by_launching

    @contextmanager
    def moving(self) -> Iterator[None]:
        """For no longer than a piece takes."""
        with self._changed:
            while self._launching:
                self._changed.wait()
            self._moving = True
        try:
            yield
        finally:
            with self._changed:
                self._moving = False
                self._changed.notify_all()


@dataclass(slots=True, eq=False)
class Job:
    """``steps`` does the work and notes what becomes of it, but for a failure that it does not know: ``failure`` then says which.
    ``priority`` may change meanwhile; ``number``: its place among those of one. ``stopped``: it shall not take another step."""

    session: str
    priority: int
    steps: Generator[object]
    number: int = 0
    stopped: bool = False
    failure: str = ""
    over: threading.Event = field(default_factory=threading.Event)


class Mover:
    """A thread that sleeps while there is no job and nothing to tidy; a job or ``stir`` wakes it. ``tidy()`` is called when there is no
    job, does a piece of the work and says whether there is more."""

    def __init__(self, tidy: Callable[[], bool] = lambda: False) -> None:
        self._tidy = tidy
        self._untidy = False
        self._jobs: list[Job] = []
        self._added = 0
        self._changed = threading.Condition()
        self._ended: deque[Job] = deque()
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="swap", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when a job has ended that ``take`` has not given yet."""
        return self._read_end

    def add(self, job: Job) -> None:
        with self._changed:
            self._added += 1
            job.number = self._added
            self._jobs.append(job)
            self._changed.notify()

    def stir(self) -> None:
        """There is something to tidy."""
        with self._changed:
            self._untidy = True
            self._changed.notify()

    def take(self) -> list[Job]:
        """The jobs that ended since the last call, in that order; those that were stopped are not among them."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_end, 4096):
                pass
        ended = []
        while self._ended:
            job = self._ended.popleft()
            if not job.stopped:
                ended.append(job)
        return ended

    def stop(self, job: Job) -> None:
        """Wait until ``job`` takes no further step, that of one chunk at most; what it had begun to keep is given back."""
        with self._changed:
            job.stopped = True
            self._changed.notify()
        job.over.wait()
        job.steps.close()
        self.stir()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        os.close(self._read_end)
        os.close(self._write_end)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._put_down()
                while not (self._jobs or self._untidy or self._closed):
                    self._changed.wait()
                    self._put_down()
                if self._closed:
                    for left in self._jobs:
                        left.over.set()
                    return
                job = min(self._jobs, key=lambda job: (job.priority, job.number), default=None)
                self._untidy &= job is not None
            if job is None:
                self._tidy_on()
                continue
            try:
                next(job.steps)
                continue
            except StopIteration:
                pass
            except Exception as error:  # ours; it must not end the thread, for others wait for it
                job.failure = f"{type(error).__name__}: {error}"
                get_logger().error("moving memory failed", session=job.session, trace=traceback.format_exc())
            self._finish(job)

    def _tidy_on(self) -> None:
        try:
            if self._tidy():
                self.stir()
        except Exception:  # a defect must not end the thread that moves all memory; the next job tidies the rest
            get_logger().error("tidying swapped memory failed", trace=traceback.format_exc())

    def _put_down(self) -> None:
        """Jobs that were stopped are over, wherever they stand. With the lock held, between two steps."""
        for job in [job for job in self._jobs if job.stopped]:
            self._jobs.remove(job)
            self._untidy = True
            job.over.set()

    def _finish(self, job: Job) -> None:
        with self._changed:
            self._jobs.remove(job)
            self._untidy = True
        self._ended.append(job)
        job.over.set()
        with contextlib.suppress(BlockingIOError):
            os.write(self._write_end, b"\0")
