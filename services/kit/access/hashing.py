"""Making and checking argon2id hashes, in two threads of their own, with a bound on how many may wait.

Passwords cost what OWASP asks for (19 MiB, two passes, about 50 ms of a slow core); secrets of keys are 256 random bits, which cannot be
guessed: for them 8 MiB and one pass, 8 ms. A flood of wrong secrets meets the bound (``TooMany``), not the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from services.kit.access.errors import TooMany

__all__ = ["Hasher", "NO_PASSWORD", "NO_SECRET"]

_THREADS: Final = 2
_WAITING_MAX: Final = 512
_PASSWORDS: Final = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
_SECRETS: Final = PasswordHasher(time_cost=1, memory_cost=8_192, parallelism=1)

NO_PASSWORD: Final = "$argon2id$v=19$m=19456,t=2,p=1$tTcL8U5aVtr7RuhAwBDb8A$Y6bdsglq104sBDxGdroZkVIakUFrdgR+xY9nlGifRVY"
NO_SECRET: Final = "$argon2id$v=19$m=8192,t=1,p=1$cLmzxpAI15kjP7aLCgBsPg$OG7dMFpFqKfv7pstFTVJ2SrnB+j2FlJqo2gezWQOPhs"
"""Hashes of unknown secrets, checked when there is no such user or key: the time of the answer then does not reveal that."""

T = TypeVar("T")


class Hasher:
    """Owned by one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="argon2")
        self._free = asyncio.Semaphore(_THREADS)
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a free thread. Raises TooMany when too many wait already."""
        if self._waiting >= _WAITING_MAX:
            raise TooMany("too many secrets are being checked; try again in a moment", 1)
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()

    async def hash_password(self, password: str) -> str:
        """Raises TooMany."""
        async with self.turn():
            return await self._in_thread(lambda: _PASSWORDS.hash(password))

    async def hash_secret(self, secret: str) -> str:
        """Raises TooMany."""
        async with self.turn():
            return await self._in_thread(lambda: _SECRETS.hash(secret))

    async def matches(self, phc: str, secret: str) -> bool:
        """Whether ``phc`` is a hash of ``secret``. Call it in a ``turn``."""
        return await self._in_thread(lambda: _verify(phc, secret))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _verify(phc: str, secret: str) -> bool:
    try:
        return _PASSWORDS.verify(phc, secret)
    except (VerificationError, InvalidHashError):
        return False
