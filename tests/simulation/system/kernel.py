"""The operating system of the simulation: virtual time, machines with clocks and disks, processes that can be killed and stopped, event
loops of asyncio on one heap of events, and threads that run one at a time.

Everything that the product asks of a system it gets from here: ``installed`` replaces the functions of ``time``, ``secrets`` and ``uuid``
for as long as a seed runs. Nothing waits for real time, and the order of events depends on the seed alone.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import random
import secrets
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from heapq import heappop, heappush
from typing import Any, Final

__all__ = [
    "MS",
    "S",
    "Condition",
    "Event",
    "Fiber",
    "Killed",
    "Lock",
    "Loop",
    "Machine",
    "Process",
    "Threads",
    "World",
    "installed",
    "world",
]

US: Final = 1_000
MS: Final = 1_000_000
S: Final = 1_000_000_000
_sleep: Final = time.sleep
_EPOCH_NS: Final = 1_700_000_000 * S
"""Unix time at the start of every seed."""


class Killed(BaseException):
    """Unwinds a thread of a process that was killed."""


class Machine:
    """``boot_ns``: when it started. ``skew_ns``: its Unix time beside the true one. ``files``: by path, what is on its disk,
    which is ``full`` at times, or ``slow_ns`` slower."""

    def __init__(self, name: str, boot_ns: int, skew_ns: int = 0) -> None:
        self.name = name
        self.boot_ns = boot_ns
        self.skew_ns = skew_ns
        self.boots = 1
        self.full = False
        self.slow_ns = 0
        self.files: dict[str, Any] = {}
        self.processes: list[Process] = []


class Process:
    """One incarnation of a process. ``on_end``: called when it is dead, however it died."""

    def __init__(self, world: World, name: str, machine: Machine) -> None:
        self.world = world
        self.name = name
        self.machine = machine
        self.loop = Loop(self)
        self.dead = False
        self.paused = False
        self.backlog: list[tuple[Process, Callable[..., Any], tuple[Any, ...]]] = []
        self.fibers: list[Fiber] = []
        self.on_end: list[Callable[[], None]] = []
        machine.processes.append(self)
        world.processes.append(self)

    def kill(self) -> None:
        """SIGKILL, or the end of a process that exits."""
        if self.dead:
            return
        self.dead = True
        self.backlog.clear()
        self.machine.processes.remove(self)
        self.world.bury(self)
        for then in self.on_end:
            then()

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.paused = False
        waiting, self.backlog = self.backlog, []
        self.world.ready.extend(waiting)


class Handle:
    """What ``Loop.call_*`` returns."""

    __slots__ = ("args", "callback", "cancelled_", "when_")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], when_s: float) -> None:
        self.callback, self.args, self.when_, self.cancelled_ = callback, args, when_s, False

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_

    def when(self) -> float:
        return self.when_

    def run(self) -> None:
        if not self.cancelled_:
            self.callback(*self.args)


class Loop(asyncio.AbstractEventLoop):
    """The event loop of one process: its callbacks are events of the world."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def time(self) -> float:
        return (self._world.now_ns - self._process.machine.boot_ns) / S

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Handle(callback, args, 0.0)
        self._world.ready.append((self._process, handle.run, ()))
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        handle = Handle(callback, args, when)
        # one microsecond later: sums of floats are not exact, and a timer may not ring early
        self._world.at(self._process.machine.boot_ns + int(when * S) + US, self._process, handle.run)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self.time() + delay, callback, *args)

    def create_future(self) -> Any:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        return asyncio.Task(coro, loop=self, name=name)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """On another thread: the work is done a moment later, in one piece."""
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        delay_ns = self._process.machine.slow_ns + self._world.random.randrange(US, 20 * MS)
        self._world.after(delay_ns, self._process, work)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._process.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not self._process.dead and not self._world.over:
            self._world.problems.append((self._process.name, error))


class _Worker:
    """A real thread, used by one fiber after another."""

    def __init__(self) -> None:
        self.wake = _thread.allocate_lock()
        self.wake.acquire()
        self.work: Callable[[], None] = lambda: None
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        while True:
            self.wake.acquire()
            self.work()
            _main.release()


_main: Final = _thread.allocate_lock()
_main.acquire()
_workers: Final[list[_Worker]] = []


class Fiber:
    """A thread of a simulated process. It runs until it waits; then others do."""

    def __init__(self, process: Process, target: Callable[..., Any], args: tuple[Any, ...] = ()) -> None:
        self.process = process
        self.world = process.world
        self.killed = False
        self.over = False
        self.turn = 0
        self.woken = False
        self._target, self._args = target, args
        self._worker: _Worker | None = None
        process.fibers.append(self)

    def start(self) -> None:
        self.world.ready.append((self.process, self._begin, ()))

    def _begin(self) -> None:
        if self.killed:
            return
        self._worker = _workers.pop() if _workers else _Worker()
        self._worker.work = self._work
        self._switch()

    def _work(self) -> None:
        try:
            self._target(*self._args)
        except Killed:
            pass
        except BaseException as error:  # reported where the world runs
            self.world.crash = self.world.crash or error
        self.over = True

    def _switch(self) -> None:
        """(of the world) Let it run until it waits or ends."""
        world = self.world
        before = world.fiber, world.current
        world.fiber, world.current = self, self.process
        worker = self._worker
        assert worker is not None
        worker.wake.release()
        _main.acquire()
        world.fiber, world.current = before
        if self.over:
            self.process.fibers.remove(self)
            _workers.append(worker)
            self._worker = None
        if world.crash is not None:
            crash, world.crash = world.crash, None
            raise crash

    def block(self, timeout_s: float | None) -> bool:
        """(of the fiber) Wait until ``wake``, or for so long; was it woken?"""
        self.turn += 1
        turn, self.woken = self.turn, False
        if self.killed:
            raise Killed
        if timeout_s is not None:
            self.world.after(max(0, int(timeout_s * S)), self.process, self._timed_out, turn)
        worker = self._worker
        assert worker is not None
        _main.release()
        worker.wake.acquire()
        if self.killed:
            raise Killed
        return self.woken

    def _timed_out(self, turn: int) -> None:
        if turn == self.turn and not self.over:
            self.turn += 1
            self._switch()

    def wake(self) -> None:
        """Let it continue soon."""
        self.world.ready.append((self.process, self._woken, (self.turn,)))

    def _woken(self, turn: int) -> None:
        if turn == self.turn and not self.over:
            self.turn += 1
            self.woken = True
            self._switch()

    def unwind(self) -> None:
        """(of the world) Its process is dead."""
        self.killed = True
        if self._worker is None:
            self.process.fibers.remove(self)
            return
        while not self.over:
            self._switch()


class World:
    """The heap of events. ``current``: the process that runs. ``problems``: exceptions that no code of the product took."""

    def __init__(self, seed: int) -> None:
        self.now_ns = 0
        self.random = random.Random(seed)
        self.ready: deque[tuple[Process | None, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._heap: list[tuple[int, int, Process | None, Callable[..., Any], tuple[Any, ...]]] = []
        self._made = 0
        self.current: Process | None = None
        self.fiber: Fiber | None = None
        self.crash: BaseException | None = None
        self.counts: Counter[str] = Counter()
        self.problems: list[tuple[str, BaseException]] = []
        self.over = False
        self.events = 0
        self.processes: list[Process] = []

    def at(self, at_ns: int, process: Process | None, what: Callable[..., Any], *args: Any) -> None:
        self._made += 1
        heappush(self._heap, (at_ns, self._made, process, what, args))

    def after(self, delay_ns: int, process: Process | None, what: Callable[..., Any], *args: Any) -> None:
        self.at(self.now_ns + delay_ns, process, what, *args)

    def run(self, until_ns: int, over: Callable[[], bool], events_max: int) -> bool:
        """Let everything happen until ``over()`` holds or it is ``until_ns``; did it hold? Raises what the product raised."""
        ready, heap = self.ready, self._heap
        set_loop = asyncio._set_running_loop
        running = None
        try:
            while True:
                while ready:
                    process, what, args = ready.popleft()
                    if process is not running:
                        set_loop(process.loop if process is not None else None)
                        self.current = running = process
                    if process is not None:
                        if process.dead:
                            continue
                        if process.paused:
                            process.backlog.append((process, what, args))
                            continue
                        self.events += 1
                    what(*args)
                if over():
                    return True
                if not heap or heap[0][0] > until_ns or self.events > events_max:
                    return False
                now_ns = heap[0][0]
                if now_ns > self.now_ns:
                    self.now_ns = now_ns
                while heap and heap[0][0] <= now_ns:
                    _, _, process, what, args = heappop(heap)
                    ready.append((process, what, args))
        finally:
            set_loop(None)
            self.current = None

    def bury(self, process: Process) -> None:
        """Nothing of a dead process runs any more. What it was in the middle of is kept until the seed is over."""
        for fiber in list(process.fibers):
            fiber.unwind()

    def close(self) -> None:
        """The seed is over: end every thread and coroutine."""
        self.over = True
        for process in self.processes:
            process.dead = True
            for fiber in list(process.fibers):
                fiber.unwind()
        for task in [task for task in asyncio.tasks._all_tasks if isinstance(task.get_loop(), Loop)]:  # type: ignore[attr-defined]  # of a WeakSet
            if task.get_loop()._world is self:  # type: ignore[attr-defined]  # a Loop
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is abandoned on purpose
                coro: Any = task.get_coro()
                for _ in range(8):  # it may await something in each of its blocks as it is closed
                    with contextlib.suppress(RuntimeError):
                        coro.close()
                        break

    # -- clocks --------------------------------------------------------------------------------------------------------------------

    def monotonic_ns(self) -> int:
        return self.now_ns - (self.current.machine.boot_ns if self.current is not None else 0)

    def unix_ns(self) -> int:
        return _EPOCH_NS + self.now_ns + (self.current.machine.skew_ns if self.current is not None else 0)

    def sleep(self, seconds: float) -> None:
        if self.fiber is None:
            _sleep(seconds)  # a thread of the test runner
        else:
            self.fiber.block(seconds)


_worlds: Final[list[World]] = []


def world() -> World:
    """The world of the seed that runs."""
    return _worlds[-1]


@contextlib.contextmanager
def installed(here: World) -> Iterator[World]:
    """Clocks and random numbers of the product come from ``here``."""
    draw = here.random
    replaced = (
        (time, "monotonic", lambda: here.monotonic_ns() / S),
        (time, "monotonic_ns", here.monotonic_ns),
        (time, "time", lambda: here.unix_ns() / S),
        (time, "time_ns", here.unix_ns),
        (time, "sleep", here.sleep),
        (secrets, "token_hex", lambda n=32: f"{draw.getrandbits(8 * n):0{2 * n}x}"),
        (secrets, "choice", draw.choice),
        (uuid, "uuid4", lambda: uuid.UUID(int=draw.getrandbits(128), version=4)),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, new in replaced:
        setattr(owner, name, new)
    _worlds.append(here)
    try:
        yield here
    finally:
        try:
            here.close()
        finally:
            _worlds.pop()
            for owner, name, old in before:
                setattr(owner, name, old)


# -- what stands for the module threading ----------------------------------------------------------------------------------------------


class Lock:
    """A lock between the threads of a process."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[Fiber] = deque()

    def __enter__(self) -> bool:
        while self._held:
            fiber = world().fiber
            assert fiber is not None, "the bus's thread waits for a lock that another thread holds while it waits"
            self._waiting.append(fiber)
            fiber.block(None)
        self._held = True
        return True

    def __exit__(self, *_: object) -> None:
        self._held = False
        if self._waiting:
            self._waiting.popleft().wake()


class Condition:
    """Threads change only where they wait, so the lock of a condition is always free."""

    def __init__(self) -> None:
        self._waiting: list[Fiber] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        fiber = world().fiber
        assert fiber is not None, "the bus's thread may not wait"
        self._waiting.append(fiber)
        try:
            return fiber.block(timeout)
        finally:
            if fiber in self._waiting:
                self._waiting.remove(fiber)

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            fiber.wake()


class Event:
    """A flag that threads wait for."""

    def __init__(self) -> None:
        self._set = False
        self._changed = Condition()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._changed.wait(timeout)
        return self._set


class _Thread:
    def __init__(self, *, target: Callable[..., Any], args: tuple[Any, ...] = (), name: str = "", daemon: bool = False) -> None:
        process = world().current
        assert process is not None
        self._fiber = Fiber(process, target, args)

    def start(self) -> None:
        self._fiber.start()


class Threads:
    """Stands for the module ``threading``."""

    Lock = Lock
    Condition = Condition
    Event = Event
    Thread = _Thread


def call(coro: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
    """(of a fiber) Run ``coro`` on the loop of its process, and wait for it. Raises TimeoutError."""
    here = world()
    fiber = here.fiber
    assert fiber is not None, "only threads call"
    task = fiber.process.loop.create_task(coro)
    done: list[bool] = []

    def over(_: Any) -> None:
        if not done:
            fiber.wake()

    task.add_done_callback(over)
    if not task.done():
        fiber.block(timeout_s)
    done.append(True)
    if not task.done():
        task.cancel()
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return task.result()
