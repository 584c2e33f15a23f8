"""Brings nodes to where the log says: sessions of cancelled tasks end, sessions of tasks with another priority get it.

Level-triggered: as long as the view shows a session that is behind, its node is asked, again and again, ever more rarely; the node answers
with facts, and those end it. Its state is not essential: the next leader asks again.

May live here: asking nodes. May not: facts, decisions.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from bus_schemas.session import EndTask, SetPriority
from bus_schemas.subjects import node_request
from scheduler.placement import ClusterView, sessions_to_end, sessions_to_reprioritise
from scheduler.placement.orders import cancelled_by
from services.kit.bus import Bus
from services.kit.errors import BusUnavailable
from services.kit.log import get_logger

__all__ = ["Reconciler", "Wish", "wishes"]

_AT_ONCE: Final = 32
_ANSWER_S: Final = 2.0
_AGAIN_S: Final = 0.5
_AGAIN_MAX_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a node is asked for: that a task ends there (``priority`` None), as ``by`` wished, or has this priority."""

    node: str
    task: str
    priority: int | None = None
    by: str = ""


def wishes(view: ClusterView) -> list[Wish]:
    """What is behind now, on nodes that are there, in one order."""
    ending = [session.fact for session in sessions_to_end(view)]
    found = {Wish(fact.node, fact.task, by=cancelled_by(view, fact.task)) for fact in ending}
    found |= {Wish(session.fact.node, session.fact.task, priority) for session, priority in sessions_to_reprioritise(view)}
    return sorted(found, key=lambda wish: (wish.node, wish.task, wish.priority is not None))


class Reconciler:
    """``step`` asks for what is due and does not wait for answers; ``close`` ends what is under way."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._due: dict[Wish, tuple[float, float]] = {}
        """(when to ask again, after which pause) of what was asked for and is not so yet."""
        self._asking: dict[Wish, asyncio.Task[None]] = {}

    def step(self, view: ClusterView) -> None:
        now_s = time.monotonic()
        wanted = wishes(view)
        for gone in self._due.keys() - set(wanted):
            del self._due[gone]
        for wish in wanted:
            if len(self._asking) >= _AT_ONCE:
                return
            due_s, pause_s = self._due.get(wish, (now_s, _AGAIN_S))
            if wish in self._asking or due_s > now_s:
                continue
            self._due[wish] = (now_s + pause_s, min(2 * pause_s, _AGAIN_MAX_S))
            task = self._asking[wish] = asyncio.create_task(self._ask(wish), name=f"ask {wish.node}")
            task.add_done_callback(lambda _, wish=wish: self._asking.pop(wish, None))  # type: ignore[misc]  # bound now

    async def close(self) -> None:
        for task in list(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _ask(self, wish: Wish) -> None:
        if wish.priority is None:
            verb, question = "end_task", msgspec.msgpack.encode(EndTask(wish.task, wish.by))
        else:
            verb, question = "set_priority", msgspec.msgpack.encode(SetPriority(wish.task, wish.priority))
        try:
            await self._bus.request(node_request(wish.node, verb), question, _ANSWER_S)
        except BusUnavailable as error:
            get_logger().warning("a node does not answer", node=wish.node, task=wish.task, verb=verb, problem=str(error))
