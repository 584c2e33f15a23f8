"""Operators' commands about a task's sessions on this node: end them, change their priority."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bus_schemas import faults
from bus_schemas.batch import Fault
from bus_schemas.session import EndTask, PrioritySet, SetPriority, TaskEnded
from scheduler.dispatch import PRIORITIES
from services.kit.log import get_logger
from services.server.device import Device
from services.server.sessions import Session

__all__ = ["Orders", "cancelled"]

_BY_CHARS_MAX = 100
"""A name goes into errors that people read."""


def cancelled(task: str, by: str) -> Fault:
    """The fault of the sessions of a cancelled task."""
    return Fault(faults.CANCELLED, f"task {task} was cancelled by {by[:_BY_CHARS_MAX]}" if by else f"task {task} was cancelled")


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
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return msgspec.msgpack.encode(TaskEnded(self._node, self._epoch, "", fault=_bad("request", str(error))))
        if not order.task:
            return msgspec.msgpack.encode(TaskEnded(self._node, self._epoch, "", fault=_NO_TASK))
        ended = []
        for device, session in self._of(order.task):
            device.cancel(session, cancelled(order.task, order.by))
            ended.append(session.record.session)
        if ended:
            self._log.info("task ended", task=order.task, by=order.by, sessions=ended)
        return msgspec.msgpack.encode(TaskEnded(self._node, self._epoch, order.task, tuple(ended)))

    async def set_priority(self, subject: str, data: bytes) -> bytes:
        """``req.set_priority``: SetPriority in, PrioritySet out."""
        try:
            order = msgspec.msgpack.decode(data, type=SetPriority)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
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
