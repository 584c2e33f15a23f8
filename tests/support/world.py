"""Principals of every kind around a secure stack: keys of two tenants, a watcher, two nodes, and the services' own connection."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from bus_schemas import subjects
from bus_schemas.events import Event, decode_events
from services.kit.bus import Bus, connect
from services.kit.credentials import Credentials
from services.kit.errors import BusRefused
from tests.support.bus_matrix import Names
from tests.support.secure import Line, SecureStack

__all__ = ["DEADLINE_S", "END", "World", "last_facts", "refused", "settled"]

DEADLINE_S: Final = 30.0
END: Final = "the.end.of.it.all"
"""A subject that no identity may use."""
T = TypeVar("T")


class World:
    """The stack, two tenants, and keys of every kind."""

    def __init__(self, stack: SecureStack) -> None:
        self.stack = stack
        for tenant in ("acme", "best"):
            stack.tenant(tenant)
        self.a = stack.key(role="member", tenant="acme")
        self.b = stack.key(role="member", tenant="best")
        self.viewer = stack.key(role="viewer", tenant="acme")
        self.watcher = stack.key(role="viewer", tenant="")
        self.node1 = stack.ring.node_key("local")
        self.node2 = stack.key(role="node", tenant="", node="n2")
        self.n1 = str(stack.addresses["node"])

    @property
    def names(self) -> Names:
        a, b, watcher, node1, node2 = (key.split("_")[1] for key in (self.a, self.b, self.watcher, self.node1, self.node2))
        return Names(a, b, watcher, node1, node2, self.n1, "n2")

    def way_in(self, name: str) -> dict[str, Any]:
        keys = {"A": self.a, "B": self.b, "watcher": self.watcher, "node 1": self.node1, "node 2": self.node2}
        if name in keys:
            return {"key": keys[name]}
        return {"seed": (self.stack.ring.folder / name / "nats.nk").read_text(), "inbox": subjects.inbox_prefix(name)}

    def log(self, work: Callable[[Bus], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` with the controller's own connection."""

        async def body() -> T:
            url = self.stack.addresses["nats"]
            bus = await connect(
                url, name="controller", credentials=Credentials.from_environment(self.stack.ring.environment("controller"), url)
            )
            try:
                return await work(bus)
            finally:
                await bus.close()

        return asyncio.run(body())

    def facts(self, session: str) -> list[Event]:
        """The last message of its node about a session."""
        return self.log(lambda bus: last_facts(bus, subjects.session_facts(session))) or []


async def settled(bus: Line, verb: str) -> None:
    """Until the bus has refused the last subject, which no identity may use: all earlier refusals have arrived by then."""
    async with asyncio.timeout(DEADLINE_S):
        while not refused(bus.refused, verb, END):
            await bus.client.flush()


def refused(said: list[str], verb: str, subject: str) -> bool:
    return any(f'for {verb} to "{subject}"'.lower() in text.lower() for text in said)


async def last_facts(bus: Bus, subject: str) -> list[Event] | None:
    """The last message stored on ``subject``."""
    try:
        answer = await bus.js_api(f"STREAM.MSG.GET.{subjects.EVENTS_STREAM}", {"last_by_subj": subject})
    except BusRefused:
        return None
    return decode_events(base64.b64decode(answer["message"].get("data", "")))
