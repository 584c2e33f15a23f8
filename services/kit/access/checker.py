"""Authentication by key, or by name and password, with rate limits, above all of failed logins: token buckets by address and by name.

Secrets that matched once are cached (as blake3 digests), so that argon2 runs once a key and process; whether the key is still valid is
looked up in the log every time.

argon2id hashes are made and checked in two threads of their own, with a bound on how many may wait: a flood of wrong secrets meets the
bound (``QuotaReached``), not the event loop. Passwords cost what OWASP asks for (19 MiB, two passes, about 50 ms of a slow core); secrets
of keys are 256 random bits, which cannot be guessed: for them 8 MiB and one pass, 8 ms.

A try takes a token before its secret is looked at, so that a thousand at once cannot all pass; a good one gives it back. A name that is
under attack stays open for addresses from which it logged in before, so an attacker cannot lock users out of their usual addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import blake3
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from bus_schemas.quotas import QUOTAS, Excess, Rate
from scheduler.buckets import Buckets
from scheduler.quotas import excess_of
from services.kit.access.errors import CodeNeeded, Unauthenticated, Unsure
from services.kit.access.refusals import FAILED, Refusal, Refusals
from services.kit.access.rules import Identity
from services.kit.access.tokens import KeyText
from services.kit.access.view import AccessView
from services.kit.addresses import address_group
from services.kit.errors import QuotaReached, reached
from services.kit.log import get_logger
from wooly.shared.lru import LruDict

_KEPT: Final = 20_000


class FailureLimits:
    """``take`` before a try, ``good`` after one that succeeded."""

    def __init__(self, address: Rate | None = None, name: Rate | None = None) -> None:
        """None: the rate of the table."""
        self._addresses: Buckets[str] = Buckets(address or QUOTAS["address_failed_logins"].rate())
        self._names: Buckets[str] = Buckets(name or QUOTAS["failed_logins"].rate())
        self._known: LruDict[tuple[str, str], None] = LruDict(_KEPT)

    def take(self, name: str, address: str, now_ns: int) -> Excess | None:
        """Take a token for a try at ``name`` from ``address``; when there is none nothing is taken, and the quota is returned."""
        group = address_group(address)
        who = self._who(name, group)
        quotas = (("address_failed_logins", self._addresses, group), ("failed_logins", self._names, who))
        excesses = [excess for quota, buckets, key in quotas if (excess := excess_of(quota, buckets, key, now_ns)) is not None]
        if excesses:
            return max(excesses, key=lambda excess: excess.retry_after_ms)
        self._addresses.take(group, now_ns)
        self._names.take(who, now_ns)
        return None

    def good(self, name: str, address: str) -> None:
        """The attempt succeeded: return its tokens, and remember the pair."""
        self.give_back(name, address)
        self._known[name, address_group(address)] = None

    def give_back(self, name: str, address: str) -> None:
        """The attempt tells nothing yet: return its tokens."""
        group = address_group(address)
        self._addresses.give_back(group)
        self._names.give_back(self._who(name, group))

    def _who(self, name: str, group: str) -> str:
        """The group first: it has no blank, and callers choose names."""
        return f"{group if (name, group) in self._known else ''} {name}"


PASSWORD_MAX: Final = 256
"""Characters of a password at most."""
_CACHED_MAX: Final = 10_000
_FOR_EVER: Final = -1
_WRONG: Final = "the key is not valid"
_WRONG_PASSWORD: Final = "user or password is not valid"

_THREADS: Final = 2
_PASSWORDS: Final = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
_SECRETS: Final = PasswordHasher(time_cost=1, memory_cost=8_192, parallelism=1)

NO_PASSWORD: Final = "$argon2id$v=19$m=19456,t=2,p=1$tTcL8U5aVtr7RuhAwBDb8A$Y6bdsglq104sBDxGdroZkVIakUFrdgR+xY9nlGifRVY"
NO_SECRET: Final = "$argon2id$v=19$m=8192,t=1,p=1$cLmzxpAI15kjP7aLCgBsPg$OG7dMFpFqKfv7pstFTVJ2SrnB+j2FlJqo2gezWQOPhs"
"""Hashes of unknown secrets, checked when there is no such user or key: the time of the answer then does not reveal that."""

T = TypeVar("T")


class Checker:
    """``view`` gives the current view; ``follows_log``: whether a revocation would arrive now (else all authentication fails);
    ``reconnected()`` waits for the bus, for a moment at most."""

    def __init__(
        self,
        view: Callable[[], AccessView],
        follows_log: Callable[[], bool],
        reconnected: Callable[[], Awaitable[None]],
        *,
        limits: FailureLimits | None = None,
    ) -> None:
        self.hasher = Hasher()
        self.refusals = Refusals()
        self._view = view
        self._follows_log = follows_log
        self._reconnected = reconnected
        self._limits = limits or FailureLimits()
        #: digests of secrets that matched
        self._right: LruDict[bytes, None] = LruDict(_CACHED_MAX)
        #: digests of wrong secrets, with the view's position then: those of an id that was unknown may match after it
        self._wrong: LruDict[bytes, int] = LruDict(_CACHED_MAX)

    async def key(self, key: KeyText, source: str) -> Identity:
        """The identity of ``key``, from address ``source``. Raises Unauthenticated, QuotaReached, Unsure."""
        self.require_log()
        digest = blake3.blake3(f"{key.id} {key.secret}".encode()).digest()
        if digest in self._right:
            self._right.move_to_end(digest)
        else:
            await self._check_key(key, digest, source)
        who = self._view().principal(key.id, time.time_ns())
        if who is None:
            self._failed(key.id, source, f"the key is not valid ({self._view().why_not(key.id, time.time_ns())})")
            raise Unauthenticated(_WRONG)
        return who

    async def password(
        self, user: str, password: str, source: str, second: Callable[[Identity], Awaitable[None]] | None = None
    ) -> Identity:
        """The identity of ``user`` with ``password``. ``second``: checks the second factor, and raises Unauthenticated; that counts as a
        failed login. Raises Unauthenticated, QuotaReached, Unsure, and what ``second`` raises."""
        self.require_log()
        if len(password) > PASSWORD_MAX:
            self._failed(user, source, "wrong password")
            raise Unauthenticated(_WRONG_PASSWORD)
        async with self.hasher.turn():
            self._take(user, source)
            known = self._view().users.get(user)
            phc = known.fact.password_hash if known is not None else ""
            right = await self.hasher.matches(phc or NO_PASSWORD, _one_spelling(password)) and bool(phc)
            now = self._view().users.get(user)
            who = self._view().person(user)
            if not right or who is None or now is None or now.fact.password_hash != phc:
                get_logger().warning("a login failed", user=user[:64], source=source)
                self._failed(user, source, "wrong password")
                raise Unauthenticated(_WRONG_PASSWORD)
        if second is not None:
            try:
                await second(who)
            except CodeNeeded:
                self._limits.give_back(user, source)
                raise
            except Unauthenticated:
                self._failed(user, source, "wrong code")
                raise
        self._limits.good(user, source)
        return who

    @contextlib.contextmanager
    def attempt(self, kind: str, source: str) -> Iterator[None]:
        """A login from address ``source`` whose proof another party checks inside the block; what the block raises counts as a failure.
        Raises QuotaReached, Unsure."""
        self.require_log()
        name = f" {kind} {address_group(source)}"  # of no user: it is not known before; names that callers give do not begin with a blank
        self._take(name, source)
        try:
            yield
        except Unauthenticated:
            self._failed("", source, f"refused {kind} login")
            raise
        self._limits.good(name, source)

    async def hash_password(self, password: str) -> str:
        """The argon2id hash that ``password`` checks against. Raises QuotaReached."""
        return await self.hasher.hash_password(_one_spelling(password))

    async def log_followed(self) -> None:
        """Wait a moment for a bus that is away, so that its restart delays requests and refuses none."""
        if not self._follows_log():
            await self._reconnected()

    def require_log(self) -> None:
        """Raises Unsure."""
        if not self._follows_log():
            raise Unsure("the event log cannot be read, so revoked keys cannot be recognised; try again in a moment")

    async def _check_key(self, key: KeyText, digest: bytes, source: str) -> None:
        """Remember ``digest`` as right, or raise."""
        if self._wrong.get(digest) in (_FOR_EVER, self._view().position):
            self._failed(key.id, source, "wrong key")
            raise Unauthenticated(_WRONG)
        async with self.hasher.turn():
            if digest in self._right:
                return  # a concurrent request with the same key has checked it
            self._take(key.id, source)
            view = self._view()
            known, position = view.keys.get(key.id), view.position
            if not await self.hasher.matches(known.fact.secret_hash if known is not None else NO_SECRET, key.secret):
                self._wrong[digest] = position if known is None else _FOR_EVER
                get_logger().warning("a key was wrong", key=key.id, source=source)
                self._failed(key.id, source, "wrong key")
                raise Unauthenticated(_WRONG)
            self._limits.good(key.id, source)  # also of a revoked one: a caller that has the secret is not guessing
            self._right[digest] = None

    def _take(self, name: str, source: str) -> None:
        excess = self._limits.take(name, source, time.monotonic_ns())
        if excess is not None:
            self._failed(name, source, "too many attempts")
            raise QuotaReached(excess, "this address" if excess.quota == "address_failed_logins" else "this name")

    def _failed(self, name: str, source: str, reason: str) -> None:
        """Count a failure of the user or key ``name``. Other names are not kept: people type passwords there."""
        view = self._view()
        user, key = view.users.get(name), view.keys.get(name)
        tenant = user.fact.tenant if user is not None else key.fact.tenant if key is not None else ""
        actor = name if user is not None or key is not None else ""
        self.refusals.add(Refusal(FAILED, "", reason, actor, tenant, address_group(source)))


def _one_spelling(password: str) -> str:
    """The same letters by whatever keyboard (RFC 8265: normalised to NFC)."""
    return unicodedata.normalize("NFC", password)


class Hasher:
    """Owned by one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="argon2")
        self._free = asyncio.Semaphore(_THREADS)
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a free thread. Raises QuotaReached when too many wait already."""
        refusal = reached("secret_checks", self._waiting, "this service")
        if refusal is not None:
            raise refusal
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
        """Raises QuotaReached."""
        async with self.turn():
            return await self._in_thread(lambda: _PASSWORDS.hash(password))

    async def hash_secret(self, secret: str) -> str:
        """Raises QuotaReached."""
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
