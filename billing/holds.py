"""What tasks hold and do not use: from the placement of a task with a ``hold_percent`` until a session of it opens on the device, and of a
reservation between its sessions. A part of the projection. Pure, integers only.

The node's accounts give the time. Of each interval of a device, the part in which it was held is charged at that percentage of the price:
of an exclusive task the device's core time, as far as it was idle; of another one the memory that it was promised. A start within START_NS
is free. If no session opens in that time, all is charged from the placement on; if the node is lost, what was not charged by then is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from bus_schemas.events import (
    DeviceAccounted,
    Event,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    TaskDisplaced,
    TaskPlaced,
    TaskStateChanged,
    TaskStayed,
    TaskSubmitted,
)

START_NS: Final = 10 * 10**9
"""A start takes a moment: the script imports what it needs."""
QUEUE_TIMEOUT: Final = "no room came within the task's queue timeout"
"""How the reason begins for which a controller ends a task that waits."""
NEVER_STARTED: Final = "no session opened in time"
"""Why a controller ends a task that was placed."""
HELD: Final = "(held, not started)"
"""The model in rows of the bill."""
_MS: Final = 10**6
_ENDED_MAX: Final = 64
"""Holds of one device that ended and that its accounts have not reached: a node that is silent gives none."""


class _Terms(msgspec.Struct, array_like=True):
    """Of a task that pays for what it holds."""

    tenant: str
    percent: int
    reservation: bool
    #: promised on each device; of an exclusive task 0
    nbytes: int
    node: str = ""
    gpus: tuple[int, ...] = ()
    #: Open sessions by name, each with its device.
    sessions: dict[str, int] = {}
    #: Where it goes, while it runs on ``node``, and its sessions there.
    to: str = ""
    to_gpus: tuple[int, ...] = ()
    to_sessions: dict[str, int] = {}
    #: It is to leave its node, and keeps nothing there once its sessions have closed.
    leaves: bool = False

    def stay(self) -> None:
        """It goes nowhere."""
        self.to, self.to_gpus, self.to_sessions, self.leaves = "", (), {}, False


class Hold(msgspec.Struct, array_like=True):
    """A device is held from ``from_ns`` to ``to_ns`` (Unix time; 0: still)."""

    task: str
    tenant: str
    percent: int
    #: 0: it is the whole device
    nbytes: int
    from_ns: int
    to_ns: int = 0
    #: it ended because a session opened
    started: bool = False
    #: the accounts are counted up to here
    counted_ns: int = 0
    #: core time and memory that are counted and not charged
    due_core_ns: int = 0
    due_byte_ms: int = 0


class Holds(msgspec.Struct, array_like=True):
    """``tasks``: those that pay for what they hold; ``devices``: their holds by node and device; ``hosts``: the task of each session, by
    node."""

    tasks: dict[str, _Terms] = {}
    devices: dict[str, dict[int, list[Hold]]] = {}
    hosts: dict[str, dict[str, str]] = {}
    #: Nodes that are lost: what is placed there holds nothing.
    away: dict[str, None] = {}

    def apply(self, event: Event, stored_ns: int) -> None:
        """Fold in an event that a service wrote, or a node about a session that counts, stored by the broker at ``stored_ns`` (0: not
        known)."""
        match event:
            case TaskSubmitted() if event.hold_percent:
                nbytes = 0 if event.exclusive else event.vram_bytes
                self.tasks.setdefault(event.task, _Terms(event.tenant, event.hold_percent, event.reservation, nbytes))
            case TaskPlaced() if event.task in self.tasks:
                terms = self.tasks[event.task]
                self._end(event.task, event.at_ns)
                terms.node, terms.gpus, terms.sessions = event.node, event.gpus, {}
                terms.stay()
                for gpu in event.gpus if event.node not in self.away else ():
                    self._begin(event.task, gpu, event.at_ns)
            case SessionOpenedFact() if event.task in self.tasks:
                terms = self.tasks[event.task]
                if (terms.node, terms.tenant) == (event.node, event.tenant):
                    terms.sessions[event.session] = event.gpu
                    self.hosts.setdefault(event.node, {})[event.session] = event.task
                    self._end(event.task, min(event.at_ns, stored_ns or event.at_ns), event.gpu)
                elif (terms.to, terms.tenant) == (event.node, event.tenant):
                    terms.to_sessions[event.session] = event.gpu
                    self.hosts.setdefault(event.node, {})[event.session] = event.task
            case SessionClosedFact():
                self._closed(event)
            case TaskDisplaced():
                self._end(event.task, event.at_ns)
                if event.task in self.tasks:
                    terms = self.tasks[event.task]
                    terms.to, terms.to_gpus, terms.to_sessions = event.to if event.gpus else "", event.gpus, {}
                    terms.leaves = True
                    self._arrive_nowhere(terms)
            case TaskStayed() if event.task in self.tasks:
                self.tasks[event.task].stay()
            case TaskStateChanged() if event.state not in ("queued", "started") and not self._late(event):
                self._end(event.task, event.at_ns)
                self.tasks.pop(event.task, None)
            case NodeLost():
                self.devices.pop(event.node, None)
                self.away[event.node] = None
                for terms in self.tasks.values():
                    self._arrive_nowhere(terms)
            case NodeRecovered() | NodeRegistered():
                self.away.pop(event.node, None)
            case _:
                pass

    def account(self, fact: DeviceAccounted, cores: int, stored_ns: int) -> Iterator[tuple[Hold, int, int]]:
        """Count an interval whose accounts add up, which ended no later than it was stored (0: not known), whatever the node's clock says;
        every hold with what is charged for it now, in core-ns and byte-ms."""
        holds = self.devices.get(fact.node, {}).get(fact.gpu, [])
        end_ns = fact.from_ns + fact.wall_ns
        end_ns = min(end_ns, stored_ns or end_ns)
        begin_ns, idle_core_ns = end_ns - fact.wall_ns, fact.idle_core_ns
        for hold in list(holds):
            from_ns, to_ns = max(hold.from_ns, hold.counted_ns, begin_ns), min(hold.to_ns or end_ns, end_ns)
            if to_ns > from_ns:
                core_ns = 0 if hold.nbytes else min((to_ns - from_ns) * min(cores, fact.cores), idle_core_ns)
                idle_core_ns -= core_ns
                hold.due_core_ns += core_ns
                hold.due_byte_ms += hold.nbytes * (to_ns - from_ns) // _MS
                hold.counted_ns = to_ns
            if hold.to_ns and hold.to_ns <= end_ns:
                holds.remove(hold)
            late = (hold.to_ns or end_ns) - hold.from_ns > START_NS
            if (hold.due_core_ns or hold.due_byte_ms) and (late or (hold.to_ns and not hold.started)):
                yield hold, hold.due_core_ns, hold.due_byte_ms
                hold.due_core_ns = hold.due_byte_ms = 0

    def _closed(self, event: SessionClosedFact) -> None:
        task = self.hosts.get(event.node, {}).pop(event.session, "")
        terms = self.tasks.get(task)
        gpu = terms.sessions.pop(event.session, None) if terms is not None and terms.node == event.node else None
        if terms is not None and terms.to == event.node:
            terms.to_sessions.pop(event.session, None)
        if terms is None or gpu is None:
            return
        if terms.to and terms.to_sessions and not terms.sessions:  # it has moved
            terms.node, terms.gpus, terms.sessions = terms.to, terms.to_gpus, terms.to_sessions
            terms.stay()
            return
        if terms.leaves or event.node in self.away:
            return
        if terms.reservation and gpu in terms.gpus and gpu not in terms.sessions.values():
            self._begin(task, gpu, event.at_ns)
        elif not terms.reservation and not terms.sessions:
            self._end(task, event.at_ns)

    def _arrive_nowhere(self, terms: _Terms) -> None:
        """A task stays when the node is lost to which it goes."""
        if terms.to in self.away:
            terms.stay()

    def _late(self, event: TaskStateChanged) -> bool:
        """A controller ended the task for what was no longer so when the fact got its place in the log: placement does not follow it."""
        terms = self.tasks.get(event.task)
        if terms is None:
            return False
        holds = self.devices.get(terms.node, {}).values()
        held = any(hold.task == event.task and not hold.to_ns for device in holds for hold in device)
        if event.reason.startswith(QUEUE_TIMEOUT):
            return held or bool(terms.sessions)
        return event.reason == NEVER_STARTED and (bool(terms.sessions) or not held)

    def _begin(self, task: str, gpu: int, at_ns: int) -> None:
        terms = self.tasks[task]
        holds = self.devices.setdefault(terms.node, {}).setdefault(gpu, [])
        holds.append(Hold(task, terms.tenant, terms.percent, terms.nbytes, at_ns))
        del holds[:-_ENDED_MAX]

    def _end(self, task: str, at_ns: int, gpu: int | None = None) -> None:
        """The task holds nothing more; ``gpu``: that device, because a session opened there."""
        terms = self.tasks.get(task)
        for device in () if terms is None else terms.gpus if gpu is None else (gpu,):
            for hold in self.devices.get(terms.node, {}).get(device, []) if terms is not None else ():
                if hold.task == task and not hold.to_ns:
                    hold.to_ns, hold.started = max(at_ns, hold.from_ns + 1), gpu is not None
