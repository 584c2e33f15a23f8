"""Serialised writes of access facts, across all replicas, so that invariants over all of them (names are unique, at least one administrator
can log in) hold.

May live here: the loop decide, append, on conflict decide again. May not: what is decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

from bus_schemas.events import ActionTaken, Event
from services.controller.errors import OutOfState
from services.controller.identity import Caller
from services.controller.mirror import Mirror
from services.controller.writer import Writer
from services.kit.access import AccessView
from services.kit.access.access import Access
from services.kit.access.errors import Unauthenticated
from services.kit.errors import Conflict

__all__ = ["AccessLog", "Change"]


@dataclass(frozen=True, slots=True)
class Change:
    """``event`` about ``target`` of ``tenant``; ``action`` (of AUDITED) and ``detail`` are what the log says was done."""

    event: Event
    action: str
    target: str
    tenant: str
    detail: str


class AccessLog:
    def __init__(self, mirror: Mirror, writer: Writer, access: Access) -> None:
        self._mirror = mirror
        self._writer = writer
        self._access = access

    @property
    def view(self) -> AccessView:
        return self._mirror.fold(AccessView)

    async def caught_up(self) -> AccessView:
        await self._mirror.caught_up()
        return self.view

    async def change(self, by: Caller, decide: Callable[[AccessView], Change | None]) -> AccessView:
        """Append what ``decide`` makes of the view as it is (None: nothing is to be done), and again while others write at the same time;
        the view then. Raises what ``decide`` raises, OutOfState when no administrator would be left, Unauthenticated when the caller's
        identity was revoked meanwhile (a key that is being revoked makes no other in its last moment), BusUnavailable."""
        while True:
            view = await self.caught_up()
            if self._access.again(by.identity) != by.identity:
                raise Unauthenticated("your rights have changed meanwhile; try again")
            after = self._mirror.access_position
            change = decide(view)
            if change is None:
                return view
            _check_way_in(view, change.event)
            took = ActionTaken(time.time_ns(), by.identity.name, change.tenant, change.action, change.target, change.detail, by.source)
            try:
                await self._writer.append_access(change.target, [change.event, took], after)
            except Conflict:
                continue
            return self.view

    async def note(self, by: Caller, done: ActionTaken) -> None:
        """Append an audit record of an action that changes no rights."""
        await self._writer.append_always("access", by.identity.name, [done])


def _check_way_in(view: AccessView, event: Event) -> None:
    """Raises OutOfState when ``event`` would leave no identity that can make users and keys."""
    now_ns = time.time_ns()
    if not view.ways_in(now_ns):
        return
    preview = copy(view)
    preview.tenants, preview.users, preview.keys = dict(view.tenants), dict(view.users), dict(view.keys)
    preview.apply(view.position, event)
    if not preview.ways_in(now_ns):
        raise OutOfState("this is the last way in for an admin of the cluster: make another one first (a user with a password, or a key)")
