"""A device as its memory core's stimuli describe it: sessions with buffers, batches that name them, moves that take time and fail."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from scheduler.vram import (
    AllocationRequested,
    Allow,
    Await,
    Decision,
    DeviceConfigured,
    Expected,
    Holds,
    MemoryReady,
    Refuse,
    SessionClosed,
    SessionOpened,
    Stimulus,
    SwapFailed,
    SwapIn,
    SwapLost,
    SwapOut,
    SwappedIn,
    SwappedOut,
    Tick,
    Vram,
    coldest,
    hottest,
)

__all__ = ["AWAY", "COMING", "DEVICE", "LEAVING", "Batch", "Buffer", "Tenant", "World"]

DEVICE, LEAVING, AWAY, COMING = "device", "leaving", "away", "coming"
EVENTS_MAX = 4_000


@dataclass
class Buffer:
    nbytes: int
    used_ns: int
    where: str = DEVICE


@dataclass
class Batch:
    """``made``: sizes of new buffers; ``named``: buffers it needs; ``freed``: of those, which go afterwards."""

    made: list[int]
    named: list[int]
    freed: list[int]


@dataclass
class Tenant:
    """``batch``: asked for and not over; ``runs``: it was allowed. ``left``: batches still to come."""

    opened: SessionOpened
    left: int
    buffers: dict[int, Buffer] = field(default_factory=dict)
    batch: Batch | None = None
    runs: bool = False
    waits: bool = False
    made: int = 0

    def bytes_where(self, *where: str) -> int:
        return sum(b.nbytes for b in self.buffers.values() if b.where in where)


class World:
    """``audit(stimulus, decisions, world)`` sees every step before it is carried out."""

    def __init__(self, seed: int, vram: Vram, audit: Callable[[Stimulus, list[Decision], World], None]) -> None:
        self.random = random.Random(seed)
        self.vram = vram
        self.audit = audit
        self.now_ns = 0
        self.tenants: dict[str, Tenant] = {}
        self.counts: dict[str, int] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        r = self.random
        self.physical = r.choice((100, 200, 400))
        self.config = DeviceConfigured(0, self.physical, r.choice((0, 10, 40)), r.choice((0, 100, 2000, 2000)), r.choice((0, 20, 200)), 30)
        self.fail = r.choice((0.0, 0.0, 0.2, 0.6))
        self.tell(self.config)
        for number in range(r.randint(2, 6)):
            self._later(r.randint(0, 300), partial(self._open, f"t{number}"))

    def run(self) -> None:
        """Until nothing is left to happen."""
        for _ in range(EVENTS_MAX):
            wakeup_ns = self.vram.next_wakeup_ns
            if wakeup_ns is not None and (not self._events or wakeup_ns <= self._events[0][0]):
                self.now_ns = max(self.now_ns, wakeup_ns)
                self.tell(Tick(self.now_ns))
            elif self._events:
                self.now_ns, _, event = heapq.heappop(self._events)
                event()
            else:
                return
        raise AssertionError("it does not end")

    def tell(self, stimulus: Stimulus) -> None:
        decisions = self.vram.on(stimulus)
        self.audit(stimulus, decisions, self)
        for decision in decisions:
            kind = type(decision).__name__
            self.counts[kind] = self.counts.get(kind, 0) + 1
            match decision:
                case SwapOut(name, nbytes, whose):
                    self._out(name, nbytes, whose)
                case SwapIn(name, nbytes):
                    self._in(name, nbytes)
                case MemoryReady(name):
                    self._later(self.random.randint(0, 5), partial(self._ask, name))
                case Allow(name):
                    self._begin(name)
                case Await(name):
                    self.tenants[name].waits = True
                case Refuse(name):
                    self._next(name)

    # -- what sessions do ------------------------------------------------------------------------------------------------------------

    def _later(self, delay_ns: int, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now_ns + delay_ns, self._number, event))

    def _open(self, name: str) -> None:
        r = self.random
        opened = SessionOpened(
            self.now_ns, name, r.choice((0, 0, self.physical // 2, 3 * self.physical)), 0, r.choice((0, 1, 3, 3, 4)), r.random() < 0.85,
            r.choice((0, 100, 1000, 10_000)),
        )  # fmt: skip
        self.tenants[name] = Tenant(opened, r.randint(1, 25))
        self.tell(opened)
        self._next(name)

    def _next(self, name: str) -> None:
        """The batch is over, one way or another; the next one comes after a while, or the end."""
        tenant = self.tenants[name]
        tenant.batch, tenant.runs, tenant.waits = None, False, False
        tenant.left -= 1
        if tenant.left < 0 or self.random.random() < 0.02:
            self._later(self.random.randint(0, 100), lambda: self._close(name))
            return
        self._later(self.random.choice((1, 5, 30, 300)), lambda: self._arrive(name))

    def _arrive(self, name: str) -> None:
        if name not in self.tenants:
            return
        tenant, r = self.tenants[name], self.random
        named = [key for key in tenant.buffers if r.random() < 0.4]
        made = [r.randint(1, self.physical // 3) for _ in range(r.randint(0, 2))]
        tenant.batch = Batch(made, named, [key for key in named if r.random() < 0.25])
        if r.random() < 0.5 and not self.vram.state.sessions[name].moving:
            self.tell(Expected(self.now_ns, name, tenant.bytes_where(AWAY)))
        self._ask(name)

    def _ask(self, name: str) -> None:
        tenant = self.tenants.get(name)
        if tenant is None or tenant.batch is None or tenant.runs:
            return
        named = [tenant.buffers[key] for key in tenant.batch.named]
        back = sum(b.nbytes for b in named if b.where in (AWAY, COMING))
        pinned = sum(b.nbytes for b in named if b.where in (DEVICE, LEAVING))
        self.tell(AllocationRequested(self.now_ns, name, sum(tenant.batch.made), back, pinned))

    def _begin(self, name: str) -> None:
        tenant = self.tenants[name]
        assert tenant.batch is not None
        tenant.runs, tenant.waits = True, False
        for nbytes in tenant.batch.made:
            tenant.made += 1
            tenant.buffers[tenant.made] = Buffer(nbytes, self.now_ns)
        for key in tenant.batch.named:
            tenant.buffers[key].used_ns = self.now_ns
        self._later(self.random.choice((1, 10, 60)), lambda: self._over(name))

    def _over(self, name: str) -> None:
        tenant = self.tenants[name]
        assert tenant.batch is not None
        for key in tenant.batch.freed:
            del tenant.buffers[key]
        tenant.runs = False
        self.tell(Holds(self.now_ns, name, tenant.bytes_where(DEVICE), tenant.bytes_where(AWAY)))
        self._next(name)

    def _close(self, name: str) -> None:
        del self.tenants[name]
        self.tell(SessionClosed(self.now_ns, name))

    # -- moves -----------------------------------------------------------------------------------------------------------------------

    def _out(self, name: str, nbytes: int, whose: str) -> None:
        tenant = self.tenants[name]
        stay = set(tenant.batch.named) if whose == name and tenant.batch is not None else set()
        here = ((key, b.nbytes, b.used_ns) for key, b in tenant.buffers.items() if b.where == DEVICE and key not in stay)
        chosen = [tenant.buffers[key] for key in coldest(here, nbytes)]
        fails = self.random.random() < self.fail
        moves = chosen[: self.random.randint(0, len(chosen) - 1)] if fails and chosen else chosen
        for buffer in chosen:
            buffer.where = LEAVING

        def left() -> None:
            if self.tenants.get(name) is not tenant:
                return
            for buffer in chosen:
                buffer.where = DEVICE
            for buffer in moves:
                buffer.where = AWAY
            moved = sum(b.nbytes for b in moves)
            self.tell(SwapFailed(self.now_ns, name, moved) if fails else SwappedOut(self.now_ns, name, moved))

        self._later(self.random.randint(1, 40), left)

    def _in(self, name: str, nbytes: int) -> None:
        tenant = self.tenants[name]
        away = {key: b for key, b in tenant.buffers.items() if b.where == AWAY}
        named = [key for key in (tenant.batch.named if tenant.batch is not None and tenant.waits else ()) if key in away]
        chosen = [away[key] for key in named or hottest(((key, b.nbytes, b.used_ns) for key, b in away.items()), nbytes)]
        for buffer in chosen:
            buffer.where = COMING

        def came() -> None:
            if self.tenants.get(name) is not tenant:
                return
            if self.random.random() < self.fail / 20:
                for buffer in chosen:
                    buffer.where = AWAY
                self.tell(SwapLost(self.now_ns, name))
                self._close(name)
                return
            for buffer in chosen:
                buffer.where = DEVICE
            self.tell(SwappedIn(self.now_ns, name, sum(b.nbytes for b in chosen)))

        self._later(self.random.randint(1, 40), came)
