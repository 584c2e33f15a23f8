"""What operators have decided for this node: commands about a task's sessions (end them, change their priority), and the overcommit that
holds here: the node's own setting, else what the controller's configuration in the event log says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from bus_schemas import faults, subjects
from bus_schemas.batch import Fault
from bus_schemas.events import ConfigChanged, decode_events
from bus_schemas.limits import MALFORMED
from bus_schemas.session import EndTask, PrioritySet, SetPriority, TaskEnded
from scheduler.dispatch import PRIORITIES
from scheduler.placement.view import ENVIRONMENT, GLOBAL, OVERCOMMIT_GLOBAL, OVERCOMMIT_NODE
from scheduler.vram.overcommit import effective_percent
from services.kit.bus import Bus
from services.kit.follow import Follower
from services.kit.log import get_logger
from services.server.device import Device
from services.server.sessions import CANCELLED, DISPLACED, Session

_BY_CHARS_MAX = 100
"""A name goes into errors that people read."""


def cancelled(task: str, by: str) -> Fault:
    """The fault of the sessions of a cancelled task."""
    return Fault(faults.CANCELLED, f"task {task} was cancelled by {by[:_BY_CHARS_MAX]}" if by else f"task {task} was cancelled")


def displaced(task: str) -> Fault:
    """The fault of the sessions of a task that is to run elsewhere."""
    return Fault(faults.DISPLACED, f"task {task} is to run on another node; start the script again")


class Orders:
    """Both verbs answer at once; what came of an order are facts. The same order again changes nothing."""

    def __init__(self, node: str, epoch: int, devices: Sequence[Device]) -> None:
        self._node = node
        self._epoch = epoch
        self._devices = devices
        self._log = get_logger()

    async def end_task(self, subject: str, data: bytes) -> bytes:
        """``req.end_task``: EndTask in, TaskEnded out."""
        try:
            order = msgspec.msgpack.decode(data, type=EndTask)
        except MALFORMED as error:
            return msgspec.msgpack.encode(TaskEnded(self._node, self._epoch, "", fault=_bad("request", str(error))))
        if not order.task:
            return msgspec.msgpack.encode(TaskEnded(self._node, self._epoch, "", fault=_NO_TASK))
        ended = []
        for device, session in self._of(order.task):
            if not order.sessions or session.record.session in order.sessions:
                if order.displaced and order.asks:
                    device.ask_to_leave(session, displaced(order.task))
                elif order.displaced:
                    device.cancel(session, displaced(order.task), DISPLACED)
                else:
                    device.cancel(session, cancelled(order.task, order.by), CANCELLED)
                ended.append(session.record.session)
        if ended:
            self._log.info("task ended", task=order.task, by=order.by, displaced=order.displaced, asked=order.asks, sessions=ended)
        return msgspec.msgpack.encode(TaskEnded(self._node, self._epoch, order.task, tuple(ended)))

    async def set_priority(self, subject: str, data: bytes) -> bytes:
        """``req.set_priority``: SetPriority in, PrioritySet out."""
        try:
            order = msgspec.msgpack.decode(data, type=SetPriority)
        except MALFORMED as error:
            return msgspec.msgpack.encode(PrioritySet(self._node, self._epoch, "", fault=_bad("request", str(error))))
        fault = None
        if not order.task:
            fault = _NO_TASK
        elif not 0 <= order.priority < PRIORITIES:
            fault = _bad("priority", f"{order.priority} is not allowed: 0 (highest) to {PRIORITIES - 1}")
        if fault is not None:
            return msgspec.msgpack.encode(PrioritySet(self._node, self._epoch, order.task, order.priority, fault=fault))
        sessions = []
        for device, session in self._of(order.task):
            if session.record.terms.priority != order.priority:
                self._log.info("priority changed", **session.record.about, priority=order.priority)
                device.prioritise(session, order.priority)
            sessions.append(session.record.session)
        return msgspec.msgpack.encode(PrioritySet(self._node, self._epoch, order.task, order.priority, tuple(sessions)))

    def _of(self, task: str) -> Iterable[tuple[Device, Session]]:
        return [(device, session) for device in self._devices for session in device.sessions.values() if session.record.terms.task == task]


def _bad(field: str, reason: str) -> Fault:
    return Fault(faults.MALFORMED, f"{field}: {reason}", (f"value @ {field}: {reason}",))


_NO_TASK = _bad("task", "name one: sessions without a task are ended by closing them")


_CONFIG_ALL: Final = subjects.event_subject("config", "x").removesuffix("x") + ">"


class Overcommit:
    """``own`` None: the node says nothing itself."""

    def __init__(self, node: str, own: int | None) -> None:
        self._node = node
        self._own = own
        self._values: dict[tuple[str, str], int] = {}
        self._follower: Follower | None = None

    @property
    def percent(self) -> int:
        """What holds now: 0 to 1000."""
        if self._own is not None:
            return self._own
        values = self._values
        default = values.get((ENVIRONMENT, OVERCOMMIT_GLOBAL), 0)
        return effective_percent(values.get((self._node, OVERCOMMIT_NODE)), values.get((GLOBAL, OVERCOMMIT_GLOBAL)), default)

    async def start(self, bus: Bus) -> None:
        """Follow the configuration from the beginning of the log on, unless the node's own setting comes first anyway."""
        if self._own is None:
            self._follower = bus.follow(subjects.EVENTS_STREAM, 1, self._on_message, subject=_CONFIG_ALL)
            await self._follower.start()

    async def stop(self) -> None:
        if self._follower is not None:
            await self._follower.stop()

    def _on_message(self, position: int, subject: str, data: bytes) -> None:
        try:
            events = decode_events(data)
        except msgspec.DecodeError:  # of a newer version
            return
        for event in events:
            if isinstance(event, ConfigChanged):
                self._values.pop((event.scope, event.key), None)
                if isinstance(event.value, int):
                    self._values[event.scope, event.key] = event.value
