"""A correct executor in virtual time: one launch at a time in the order sent, slices, stops, memory requests before a batch begins, moves.

It carries out what the memory core decides and reports what it did; it decides nothing that a core should.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from scheduler import vram
from scheduler.vram import (
    AllocationRequested,
    Allow,
    Await,
    Expected,
    Holds,
    MemoryReady,
    Refuse,
    SwapFailed,
    SwapIn,
    SwapLost,
    SwapOut,
    SwappedIn,
    SwappedOut,
)
from tests.simulation.node.clock import Alarm, Clock
from tests.simulation.node.draw import US, Batch, Scenario
from tests.simulation.node.memory import AWAY, COMING, DEVICE, LEAVING, Buffer, Memory

__all__ = ["Command", "Executor", "Report", "Tenant"]

RAN: Final = "ran"
FAULTED: Final = "faulted"
STOPPED: Final = "stopped"
NEEDS: Final = "needs"
BEHIND: Final = "behind"
AWAITS: Final = "awaits"

_TAKE_UP_NS: Final = 15 * US


@dataclass(slots=True)
class Command:
    """``serial`` 0: close the session's space."""

    session: str
    seq: int
    serial: int
    priority: int = 0
    limit_ns: int = 0
    slice: int = 0


@dataclass(slots=True)
class Report:
    """What became of a command. ``refused``: the batch was refused for this reason, and had no effect."""

    command: Command
    status: str
    wall_ns: int = 0
    core_ns: int = 0
    refused: str = ""


@dataclass(slots=True)
class Drawn:
    """What a batch will do to its session's buffers, fixed when it is first looked at."""

    new: tuple[int, ...]
    used: list[int]
    freed: list[int]
    work_bytes: int


@dataclass(slots=True)
class Tenant:
    """``drawn``: of the batch ``seq_done + 1``. ``left_ns`` of it once it has begun (``under_way``). ``moving``: moves under way, so that
    those of a closed session are forgotten. ``lost``: its swapped memory came back wrong."""

    batches: list[Batch]
    seq_done: int = 0
    drawn: Drawn | None = None
    under_way: bool = False
    left_ns: int = 0
    lost: bool = False
    core_ns: int = 0
    ran: int = 0
    made: list[int] = field(default_factory=list)


class Executor:
    """``report(Report)`` and ``memory_freed(session)`` reach the server. ``ask_vram``: the memory core, with its journal and auditor."""

    def __init__(
        self,
        clock: Clock,
        scenario: Scenario,
        ask_vram: Callable[[vram.Stimulus], list[vram.Decision]],
        wakeup_ns: Callable[[], int | None],
        report: Callable[[Report], None],
        memory_freed: Callable[[str], None],
    ) -> None:
        self.clock = clock
        self.memory = Memory(scenario.physical_bytes)
        self.tenants: dict[str, Tenant] = {}
        self.queue: deque[Command] = deque()
        self.running: Command | None = None
        self.stop_words = [0] * 8
        self.began: Callable[[Command], None] = lambda command: None
        self.swaps: dict[str, int] = {"out": 0, "in": 0, "failed": 0, "lost": 0}
        self._scenario = scenario
        self._random = random.Random(scenario.seed ^ 0x5EED)
        self._ask_vram = ask_vram
        self._report = report
        self._memory_freed = memory_freed
        self._slice = 0
        self._begun_ns = 0
        self._ends_ns = 0
        self._handling = False
        self._alarm = Alarm(self.clock, wakeup_ns, lambda: self.vram(vram.Tick(self.clock.now_ns)))

    # -- from the server -----------------------------------------------------------------------------------------------------------

    def open(self, session: str, batches: list[Batch], opened: vram.SessionOpened) -> None:
        self.tenants[session] = Tenant(batches)
        self.memory.open(session)
        self.vram(opened)

    def command(self, command: Command) -> None:
        self.queue.append(command)
        self._turn()

    def stop(self, priority: int, serial: int) -> None:
        """The stop page: launches of this priority up to ``serial`` stop as soon as they can."""
        self.stop_words[priority] = max(self.stop_words[priority], serial)
        running = self.running
        if running is not None and running.priority == priority and running.serial <= serial:
            grain_ns = self._batch(running).grain_ns
            self._end_at(min(self._ends_ns, self.clock.now_ns + grain_ns))

    def expect(self, session: str) -> None:
        tenant = self.tenants.get(session)
        if tenant is None or tenant.lost:
            return
        away = self.memory.bytes_where(session, AWAY)
        if away:
            self.vram(Expected(self.clock.now_ns, session, away))

    def prioritise(self, session: str, priority: int) -> None:
        if session in self.tenants:
            self.vram(vram.PriorityChanged(self.clock.now_ns, session, priority))

    # -- launching -----------------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Take up the next command, a little later."""
        if self.running is None and not self._handling and self.queue:
            self._handling = True
            self.clock.after(_TAKE_UP_NS, self._take_up)

    def _take_up(self) -> None:
        self._handling = False
        command = self.queue.popleft()
        tenant = self.tenants.get(command.session)
        if not command.serial:
            self._close(command.session)
        elif tenant is None or command.seq != tenant.seq_done + 1:
            self._answer(command, BEHIND)
        elif command.serial <= self.stop_words[command.priority]:
            self._answer(command, STOPPED)
        elif tenant.lost:
            tenant.seq_done = command.seq
            self._answer(command, FAULTED)
        elif tenant.under_way or self._prepare(command, tenant):
            self._go(command, tenant)
        self._turn()

    def _prepare(self, command: Command, tenant: Tenant) -> bool:
        """Everything a batch needs, before it begins; False when it does not begin now, which has been reported."""
        if "resend" in self._scenario.troubles and tenant.drawn is None and self._random.random() < 0.04:
            self._answer(command, NEEDS)
            return False
        session, now_ns = command.session, self.clock.now_ns
        drawn = tenant.drawn = tenant.drawn or self._draw(session, tenant)
        buffers = self.memory.buffers[session]
        back = sum(buffers[h].nbytes for h in drawn.used if buffers[h].where == AWAY)
        pinned = sum(buffers[h].nbytes for h in drawn.used if buffers[h].where == DEVICE)
        decisions = self.vram(AllocationRequested(now_ns, session, sum(drawn.new) + drawn.work_bytes, back, pinned))
        answer = next(d for d in decisions if isinstance(d, Allow | Await | Refuse) and d.session == session)
        if isinstance(answer, Await):
            self._answer(command, AWAITS)
            return False
        if isinstance(answer, Refuse):
            tenant.seq_done, tenant.drawn = command.seq, None
            self._answer(command, RAN, refused=answer.verdict.reason)
            return False
        tenant.under_way, tenant.left_ns = True, self._batch(command).wall_ns
        tenant.made = [self.memory.alloc(session, nbytes, now_ns) for nbytes in drawn.new]
        self.memory.begin_work(session, drawn.work_bytes)
        return True

    def _draw(self, session: str, tenant: Tenant) -> Drawn:
        batch = tenant.batches[(tenant.seq_done) % len(tenant.batches)]
        handles = list(self.memory.buffers[session])
        used = self._random.sample(handles, min(batch.touch, len(handles)))
        freed = self._random.sample(handles, min(batch.frees, len(handles)))
        return Drawn(batch.new_bytes, used, freed, batch.work_bytes)

    def _go(self, command: Command, tenant: Tenant) -> None:
        self.running = command
        self.began(command)
        batch = self._batch(command)
        self._begun_ns = self.clock.now_ns
        length_ns = tenant.left_ns
        if command.limit_ns:
            length_ns = min(length_ns, command.limit_ns + self._random.randrange(batch.grain_ns))
        self._end_at(self._begun_ns + max(1, length_ns))

    def _end_at(self, at_ns: int) -> None:
        self._slice += 1
        self._ends_ns = at_ns
        self.clock.at(at_ns, self._ended, self._slice)

    def _ended(self, number: int) -> None:
        """The slice under way is over (unless it was stopped earlier)."""
        command = self.running
        if number != self._slice or command is None:
            return
        self.running = None
        tenant = self.tenants[command.session]
        batch = self._batch(command)
        wall_ns = self.clock.now_ns - self._begun_ns
        core_ns = wall_ns * min(batch.cores, self._scenario.cores)
        tenant.left_ns -= wall_ns
        tenant.core_ns += core_ns
        if tenant.left_ns > 0:
            self._answer(command, STOPPED, wall_ns, core_ns)
        else:
            fault = "fault" in self._scenario.troubles and self._random.random() < 0.02
            self._finish(command, tenant)
            self._answer(command, FAULTED if fault else RAN, wall_ns, core_ns)
        self._turn()

    def _finish(self, command: Command, tenant: Tenant) -> None:
        """The batch is over: what it read is right, what it wrote is written, what it gave up is free."""
        session, drawn, now_ns = command.session, tenant.drawn, self.clock.now_ns
        assert drawn is not None, "it began"
        for handle in (*drawn.used, *tenant.made):
            self.memory.use(session, handle, now_ns)
        for handle in drawn.freed:
            self.memory.free(session, handle)
        self.memory.end_work(session)
        tenant.under_way, tenant.drawn, tenant.seq_done = False, None, command.seq
        tenant.ran += 1
        self.vram(Holds(now_ns, session, self.memory.bytes_where(session, DEVICE), self.memory.bytes_where(session, AWAY)))

    def _answer(self, command: Command, status: str, wall_ns: int = 0, core_ns: int = 0, refused: str = "") -> None:
        self._report(Report(command, status, wall_ns, core_ns, refused))

    def _batch(self, command: Command) -> Batch:
        batches = self.tenants[command.session].batches
        return batches[(command.seq - 1) % len(batches)]

    def _close(self, session: str) -> None:
        if self.tenants.pop(session, None) is not None:
            self.memory.close(session)
            self.vram(vram.SessionClosed(self.clock.now_ns, session))

    # -- memory --------------------------------------------------------------------------------------------------------------------

    def vram(self, stimulus: vram.Stimulus) -> list[vram.Decision]:
        """Tell the memory core, and carry out what it decides."""
        decisions = self._ask_vram(stimulus)
        for decision in decisions:
            if isinstance(decision, SwapOut):
                self._swap_out(decision)
            elif isinstance(decision, SwapIn):
                self._swap_in(decision)
            elif isinstance(decision, MemoryReady):
                self._memory_freed(decision.session)
        self._alarm.set()
        return decisions

    def _swap_out(self, decision: SwapOut) -> None:
        """The buffers it has not used for longest, but none that its own waiting batch names when it gives up some for itself."""
        tenant, session = self.tenants[decision.session], decision.session
        pinned = set(tenant.drawn.used) if tenant.drawn is not None and decision.for_session == session else set()
        cold = sorted((b for b in self.memory.buffers[session].values() if b.where == DEVICE), key=lambda b: (b.used_ns, b.handle))
        chosen: list[Buffer] = []
        for buffer in cold:
            if sum(b.nbytes for b in chosen) < decision.nbytes and buffer.handle not in pinned:
                chosen.append(buffer)
                self.memory.leave(buffer)
        self.clock.after(self._move_ns(chosen), self._moved_out, session, tenant, chosen)

    def _moved_out(self, session: str, tenant: Tenant, chosen: list[Buffer]) -> None:
        if self.tenants.get(session) is not tenant:
            return  # it was closed meanwhile
        full = "disk_full" in self._scenario.troubles and self._random.random() < 0.3
        moved = 0
        for buffer in chosen[: len(chosen) // 2 if full else None]:
            self.memory.left(session, buffer)
            moved += buffer.nbytes
        for buffer in chosen:
            if buffer.where == LEAVING:
                self.memory.stay(buffer)
        self.swaps["failed" if full else "out"] += 1
        self.vram(SwapFailed(self.clock.now_ns, session, moved) if full else SwappedOut(self.clock.now_ns, session, moved))

    def _swap_in(self, decision: SwapIn) -> None:
        """What the waiting batch names, else what was used last."""
        tenant, session = self.tenants[decision.session], decision.session
        named = set(tenant.drawn.used) if tenant.drawn is not None else set()
        away = [b for b in self.memory.buffers[session].values() if b.where == AWAY]
        away.sort(key=lambda b: (b.handle not in named, -b.used_ns, b.handle))
        chosen: list[Buffer] = []
        for buffer in away:
            if sum(b.nbytes for b in chosen) + buffer.nbytes <= decision.nbytes:
                chosen.append(buffer)
                self.memory.come(buffer)
        self.clock.after(self._move_ns(chosen), self._moved_in, session, tenant, chosen)

    def _moved_in(self, session: str, tenant: Tenant, chosen: list[Buffer]) -> None:
        if self.tenants.get(session) is not tenant:
            return
        if "corrupt" in self._scenario.troubles and chosen and self._random.random() < 0.1:
            tenant.lost = True
            self.swaps["lost"] += 1
            for buffer in chosen:  # what came is dropped: never wrong data
                self.memory.left(session, buffer)
            self.vram(SwapLost(self.clock.now_ns, session))
            return
        for buffer in chosen:
            if buffer.where == COMING:
                self.memory.came(session, buffer)
        self.swaps["in"] += 1
        self.vram(SwappedIn(self.clock.now_ns, session, sum(b.nbytes for b in chosen)))

    def _move_ns(self, buffers: list[Buffer]) -> int:
        return 50 * US + sum(b.nbytes for b in buffers) * US // self._scenario.bytes_us
