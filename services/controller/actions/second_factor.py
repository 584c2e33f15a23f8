"""The second factor beside a user's password: enrolling, checking a code at a login, removing. No code is accepted twice, whichever replica
is asked, because its use is an event that is appended on the condition that no other about access came meanwhile.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

from msgspec.structs import replace

from bus_schemas.events import ActionTaken
from services.controller.actions.access import AccessLog, Change, UserActions
from services.controller.errors import Invalid, OutOfState
from services.controller.identity import Caller
from services.controller.writer import Writer
from services.kit.access import AccessView, Identity
from services.kit.access.access import Access
from services.kit.access.errors import CodeNeeded, Unauthenticated
from services.kit.access.totp import CODE_USE, RECOVERY_CODES, accepted, factor_of, recovery_code

_WRONG: Final = "user, password or code is not valid"
_ENROLLED: Final = "there is a second factor already; remove it with one of its codes, or have an administrator remove it"
_CHANGED: Final = "password or second factor have changed meanwhile"


class SecondFactor:
    """Its methods raise kit.errors.BusUnavailable; they return once the view shows what was done."""

    def __init__(self, log: AccessLog, writer: Writer, access: Access, users: UserActions) -> None:
        self._log = log
        self._writer = writer
        self._access = access
        self._users = users

    async def log_in(self, user: str, password: str, code: str, source: str) -> Identity:
        """The identity of ``user``. Raises Unauthenticated (CodeNeeded: only the code is missing), QuotaReached, Unsure."""
        return await self._access.checker.password(user, password, source, lambda who: self._use(who, code, source))

    async def _use(self, who: Identity, code: str, source: str) -> None:
        """Raises Unauthenticated."""

        def decide(view: AccessView) -> tuple[str, list[ActionTaken]] | None:
            user = view.users[who.name]
            if not user.stored.totp:
                return None
            if not code:
                raise CodeNeeded("enter the code that your authenticator app shows, or one of your recovery codes")
            now_ns = time.time_ns()
            # Of a factor that cannot be decrypted, ``totp`` is empty, and no code is right.
            noted = accepted(user.fact.totp, code, now_ns // 10**9, view.codes_used.get(who.name, frozenset()))
            if not noted:
                raise Unauthenticated(_WRONG)
            return who.name, [ActionTaken(now_ns, who.name, who.tenant, CODE_USE, noted, "", source)]

        if self._log.view.users[who.name].stored.totp:
            await self._log.caught_up()
        await self._writer.change_access(decide)

    async def enrol(self, by: Caller, password: str, secret: str, code: str) -> list[str]:
        """The caller's recovery codes, which cannot be recovered later. ``secret``: the app's, as ``SECRET_PATTERN`` wants it, which
        ``code`` proves. Raises Unauthenticated, Invalid, OutOfState, QuotaReached."""
        name = by.identity.name
        known = self._log.view.users.get(name)
        if known is None or not known.fact.password_hash:
            raise OutOfState("a second factor belongs to a password, and you have none")
        if known.stored.totp:
            raise OutOfState(_ENROLLED)
        await self._access.checker.password(name, password, by.source)
        noted = accepted(secret, code, time.time_ns() // 10**9, ())
        if not noted:
            raise Invalid("code", "this is not the code of this secret now: is the clock of your device right?")
        await self._log.note(by, ActionTaken(time.time_ns(), name, known.fact.tenant, CODE_USE, noted, "enrolling", by.source))
        codes = [recovery_code(secrets.token_bytes(10)) for _ in range(RECOVERY_CODES)]
        factor = factor_of(secret, codes)

        def decide(view: AccessView) -> Change:
            held = view.users[name]
            if held.stored.totp:
                raise OutOfState(_ENROLLED)
            if held.stamp != known.stamp:
                raise Unauthenticated(_CHANGED)
            return Change(replace(held.fact, at_ns=time.time_ns(), totp=factor), "totp.change", name, held.fact.tenant, "enrolled")

        await self._log.change(by, decide)
        return codes

    async def remove_own(self, by: Caller, password: str, code: str) -> None:
        """Remove the caller's. ``code``: the app's, or a recovery code. Raises Unauthenticated, OutOfState, QuotaReached."""
        name = by.identity.name
        known = self._log.view.users.get(name)
        if known is None or not known.stored.totp:
            raise OutOfState("you have no second factor")
        await self.log_in(name, password, code, by.source)

        def decide(view: AccessView) -> Change:
            held = view.users[name]
            if held.stamp != known.stamp:
                raise Unauthenticated(_CHANGED)
            return Change(replace(held.fact, at_ns=time.time_ns(), totp=""), "totp.change", name, held.fact.tenant, "removed")

        await self._log.change(by, decide)

    async def remove(self, by: Caller, user: str) -> None:
        """For those who may change the user; sessions of the user end. Raises Denied, NotThere, OutOfState."""

        def decide(view: AccessView) -> Change:
            held = self._users.changeable(by, user)
            if not held.stored.totp:
                raise OutOfState(f"user {user} has no second factor")
            return Change(replace(held.fact, at_ns=time.time_ns(), totp=""), "totp.change", user, held.fact.tenant, "removed")

        await self._log.change(by, decide)
