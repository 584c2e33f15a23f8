"""Authentication by key, or by name and password. Secrets that were right once are remembered (by blake3, never as they are), so that
argon2 runs once a key and process; whether the key is still good is asked of the log every time.
"""

from __future__ import annotations

import time
import unicodedata
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import blake3

from services.kit.access.errors import TooMany, Unauthenticated, Unsure
from services.kit.access.hashing import NO_PASSWORD, NO_SECRET, Hasher
from services.kit.access.keys import KeyText
from services.kit.access.limits import FailureLimits
from services.kit.access.rules import Identity
from services.kit.access.view import AccessView
from services.kit.log import get_logger

__all__ = ["PASSWORD_MAX", "Checker"]

PASSWORD_MAX: Final = 256
"""Characters of a password at most."""
_REMEMBERED: Final = 10_000
_FOR_EVER: Final = -1
_WRONG: Final = "the key is not valid"
_WRONG_PASSWORD: Final = "user or password is not valid"


class Checker:
    """``view`` gives the view of now; ``heard``: whether a revocation would arrive now (else all authentication fails)."""

    def __init__(self, view: Callable[[], AccessView], heard: Callable[[], bool], *, limits: FailureLimits | None = None) -> None:
        self.hasher = Hasher()
        self._view = view
        self._heard = heard
        self._limits = limits or FailureLimits()
        self._right: OrderedDict[bytes, int] = OrderedDict()
        self._wrong: OrderedDict[bytes, int] = OrderedDict()
        """Secrets that were wrong, with the view's position then: of an id that was unknown they may be right after it."""

    async def key(self, key: KeyText, source: str) -> Identity:
        """The identity of ``key``, from address ``source``. Raises Unauthenticated, TooMany, Unsure."""
        self.must_hear()
        digest = blake3.blake3(f"{key.id} {key.secret}".encode()).digest()
        if digest in self._right:
            self._right.move_to_end(digest)
        else:
            await self._check_key(key, digest, source)
        who = self._view().principal(key.id, time.time_ns())
        if who is None:
            raise Unauthenticated(_WRONG)
        return who

    async def password(self, user: str, password: str, source: str) -> Identity:
        """The identity of ``user`` with ``password``. Raises Unauthenticated, TooMany, Unsure."""
        self.must_hear()
        if len(password) > PASSWORD_MAX:
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
                raise Unauthenticated(_WRONG_PASSWORD)
            self._limits.good(user, source)
            return who

    async def hash_password(self, password: str) -> str:
        """The argon2id hash that ``password`` checks against. Raises TooMany."""
        return await self.hasher.hash_password(_one_spelling(password))

    def must_hear(self) -> None:
        """Raises Unsure."""
        if not self._heard():
            raise Unsure("the event log cannot be read, so revoked keys cannot be recognised; try again in a moment")

    async def _check_key(self, key: KeyText, digest: bytes, source: str) -> None:
        """Remember ``digest`` as right, or raise."""
        if self._wrong.get(digest) in (_FOR_EVER, self._view().position):
            raise Unauthenticated(_WRONG)
        async with self.hasher.turn():
            if digest in self._right:
                return  # a concurrent request with the same key has checked it
            self._take(key.id, source)
            view = self._view()
            known, position = view.keys.get(key.id), view.position
            if not await self.hasher.matches(known.fact.secret_hash if known is not None else NO_SECRET, key.secret):
                _remember(self._wrong, digest, position if known is None else _FOR_EVER)
                get_logger().warning("a key was wrong", key=key.id, source=source)
                raise Unauthenticated(_WRONG)
            self._limits.good(key.id, source)  # also of a revoked one: a caller that has the secret is not guessing
            _remember(self._right, digest, _FOR_EVER)

    def _take(self, name: str, source: str) -> None:
        wait_s = self._limits.take(name, source, time.monotonic_ns())
        if wait_s:
            raise TooMany(f"too many failed attempts; try again in {wait_s} s", wait_s)


def _one_spelling(password: str) -> str:
    """The same letters by whatever keyboard (RFC 8265: normalised to NFC)."""
    return unicodedata.normalize("NFC", password)


def _remember(where: OrderedDict[bytes, int], digest: bytes, position: int) -> None:
    where[digest] = position
    where.move_to_end(digest)
    if len(where) > _REMEMBERED:
        where.popitem(last=False)
