"""Turns of requests: of one party (a tenant, an identity of the whole cluster, or the address of a caller without identity) few are worked
on at a time, the others wait in the order they came.

A service answers on one event loop. Without turns a caller with hundreds of connections would have as many requests there between any two
of another caller, whose answer then waits for all of them. A request has its turn until its answer begins; a handler that waits for
something else gives it up meanwhile (``aside``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Final
from weakref import WeakValueDictionary

AT_ONCE_MAX: Final = 8
"""Requests of one party that are worked on at a time: more than one, because each waits for the log or for billing now and then."""


class Turn:
    """Of one request."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free = free
        self._held = False

    async def take(self) -> None:
        """Wait for it."""
        await self._free.acquire()
        self._held = True

    def give(self) -> None:
        """Let the next request of the party go on. Idempotent."""
        if self._held:
            self._held = False
            self._free.release()


class Turns:
    """Of one event loop."""

    def __init__(self) -> None:
        self._parties: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def of(self, party: str) -> AsyncIterator[Turn]:
        """A turn of ``party``, until the end of the block or its ``give``."""
        free = self._parties.get(party)
        if free is None:
            free = self._parties[party] = asyncio.Semaphore(AT_ONCE_MAX)
        turn = Turn(free)
        await turn.take()
        before = _turn.set(turn)
        try:
            yield turn
        finally:
            _turn.reset(before)
            turn.give()


_turn: Final[ContextVar[Turn | None]] = ContextVar("turn", default=None)


@contextlib.asynccontextmanager
async def aside() -> AsyncIterator[None]:
    """Inside, the request that is being answered has no turn: for waits that are longer than work."""
    turn = _turn.get()
    if turn is None:
        yield
        return
    turn.give()
    yield
    await turn.take()
