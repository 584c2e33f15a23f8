"""The cluster view: a projection of the event log. Pure.

1. ``ClusterView.apply(position, event)`` is the only way it changes; the same events give the same view.
2. It never refuses an event: a fact happened, also when it does not fit what was known (an unknown node's session, a repeat).
3. What was measured is in here only as far as the log says so (LoadObserved).
4. ``columns`` holds the same as numbers, for decisions; holders are changed through ``holdings`` alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from bus_schemas.events import (
    ConfigChanged,
    Event,
    GroupChanged,
    KeyIssued,
    KeyRevoked,
    LoadObserved,
    NodeLeaving,
    NodeLost,
    NodeRecovered,
    NodeRegistered,
    Outcome,
    SessionClosedFact,
    SessionOpenedFact,
    SessionPriorityChanged,
    TaskDisplaced,
    TaskPlaced,
    TaskPriorityChanged,
    TaskRefused,
    TaskStateChanged,
    TaskStayed,
    TaskSubmitted,
)
from bus_schemas.registration import bounded
from bus_schemas.texts import title_of
from scheduler.errors import IllegalTransition
from scheduler.placement import columns as col
from scheduler.placement.columns import Hold
from scheduler.placement.state import (
    PAST_SESSIONS_MAX,
    ClusterState,
    GroupView,
    Leaving,
    Measured,
    NodeView,
    Reservation,
    SessionView,
    TaskView,
    shape_of,
)
from scheduler.placement.states import (
    CANCELLED,
    COMPLETED,
    CUT_LOST,
    CUT_RESTARTED,
    DRAINED,
    ENVIRONMENT,
    FAILED,
    GLOBAL,
    LIVE,
    LOST,
    OVERCOMMIT_GLOBAL,
    OVERCOMMIT_NODE,
    QUEUED,
    REASON_DISPLACED,
    REASON_NEVER_STARTED,
    REASON_NO_FIT,
    REASON_NODE_LOST,
    REASON_QUEUE_TIMEOUT,
    REASON_RESTARTED,
    REASON_SESSION_REUSED,
    REASON_TAKEN,
    REPORTED,
    STARTED,
    STATES,
    STORY_MAX,
    TRANSITIONS,
    Phase,
    decisive,
    state_after,
)

__all__ = [
    "QUEUED", "STARTED", "COMPLETED", "FAILED", "CANCELLED", "LOST", "STATES", "LIVE", "GLOBAL", "ENVIRONMENT", "OVERCOMMIT_GLOBAL",
    "OVERCOMMIT_NODE", "DRAINED", "REASON_NODE_LOST", "CUT_LOST", "CUT_RESTARTED", "SessionView", "TaskView", "NodeView", "GroupView",
    "Reservation", "Measured", "ClusterView", "cut_off", "released",
]  # fmt: skip


_ENDED = (Phase.COMPLETED, Phase.FAILED, Phase.CANCELLED)


@dataclass(slots=True)
class ClusterView(ClusterState):
    """The state, and the one way it changes."""

    def apply(self, position: int, event: Event) -> None:
        """Take the next event; several may share one position. Kinds that say nothing about placement change only the position."""
        self.position = position
        match event:
            case LoadObserved():
                self._load_observed(event)
            case NodeRegistered():
                self._registered(event)
            case KeyIssued():
                if event.node:
                    self.node_keys.setdefault(event.node, {}).setdefault(event.key, event)
            case KeyRevoked():
                for keys in self.node_keys.values():
                    keys.pop(event.key, None)
            case NodeLost():
                self._lost(event)
            case NodeRecovered():
                self._recovered(event)
            case NodeLeaving():
                self._leaving(event)
            case SessionOpenedFact():
                self._session_opened(event)
            case SessionClosedFact():
                self._session_closed(event)
            case SessionPriorityChanged():
                self._session_priority(event)
            case TaskSubmitted():
                self._submitted(event)
            case TaskPlaced():
                self._placed(event)
            case TaskRefused():
                self._refused(event)
            case TaskStateChanged():
                task = self.tasks.get(event.task)
                if task is not None and not self._late(task, event.reason):
                    self._asked(task, event.state, event.reason, event.at_ns)
            case TaskDisplaced():
                self._displaced(event)
            case TaskStayed():
                task = self.tasks.get(event.task)
                if task is not None and task.moving is not None and task.placed is not None and task.placed.node == event.node:
                    self._stay(task, title_of(event.reason), event.at_ns)
            case TaskPriorityChanged():
                self._task_priority(event)
            case ConfigChanged():
                self._configured(event)
            case GroupChanged():
                self._grouped(event)
            case _:
                pass

    # nodes, groups, configuration, load

    def _registered(self, event: NodeRegistered) -> None:
        node = self.nodes.get(event.node)
        if node is not None and event.epoch < node.epoch:
            return  # stale epoch
        self.changes += 1
        divided = node is not None and node.registered.domains is not None
        event, refused = bounded(event, self.node_keys.get(event.node, {}).values())
        if node is None:
            node = self.nodes[event.node] = NodeView(event)
        elif event.epoch > node.epoch:
            for name in node.sessions:
                self.sessions[name].cut_off = CUT_RESTARTED
                self._recount_session(name)
        node.registered = event
        node.lost, node.refused, node.leaving = refused or None, bool(refused), False
        node.revision = self.position
        self.membership.declare(event.node, event.groups)
        if self.columns.set_devices(event.node, sorted((device.index, device.vram_bytes) for device in event.devices)):
            self._refill(event.node, node)
        self.columns.set_percent(event.node, self.overcommit_percent(event.node))
        self.columns.set_node(event.node, col.LOST, int(node.refused))
        self.columns.set_node(event.node, col.DRAINED, int(self.drained(event.node)))
        self.columns.set_node(event.node, col.GROUPS, len(self.groups_of(event.node)))
        if divided or event.domains is not None:
            self.columns.set_node(event.node, col.TRUST, col.trust_number(event.domains))
            found = (here.registered.domains for here in self.nodes.values())
            self.divisions = {col.trust_number(domains): domains for domains in found if domains is not None}
            self._serve(event.node)

    def _serve(self, name: str) -> None:
        """Note which trust domain each device of a node serves, where it serves one at a time."""
        node = self.nodes.get(name)
        if node is None:
            return
        self.columns.devices[col.DOMAIN, self.columns.span(name)] = 0
        tenants = {("task", task): self.tasks[task].submitted.tenant for task in node.tasks}
        tenants |= {("session", session): self.sessions[session].fact.tenant for session in node.sessions}
        for holder, tenant in tenants.items() if node.registered.domains is not None else ():
            for hold in self.holdings.held.get(holder, ()):
                row = self.columns.row(name, hold.gpu)
                if hold.node == name and row >= 0:
                    self.columns.serve(row, node.domain_number(tenant))

    def _refill(self, name: str, node: NodeView) -> None:
        """The node's rows are new: put in what its tasks and sessions hold there, and what was measured."""
        for task in node.tasks:
            self.holdings.refill("task", task, name)
        for session in node.sessions:
            self.holdings.refill("session", session, name)
        rows = self.columns.span(name)
        for row, gpu in enumerate(self.columns.devices[col.GPU, rows].tolist(), rows.start):
            seen = self.measured(name, gpu)
            self.columns.measure(row, seen.utilization_percent, seen.starvation_percent, seen.vram_used_bytes)

    def _lost(self, event: NodeLost) -> None:
        node = self.nodes.get(event.node)
        if node is None or event.epoch != node.epoch or node.lost is not None:
            return
        self.changes += 1
        node.lost = event.reason
        node.revision = self.position
        self.columns.set_node(event.node, col.LOST, 1)
        for name in node.sessions:
            session = self.sessions[name]
            session.cut_off = session.cut_off or CUT_LOST
            self._recount_session(name)
        for name in sorted(node.tasks):
            here = self.tasks[name]
            if here.moving is not None and here.moving.node == event.node:
                self._stay(here, f"node {node.registered.name} was lost", event.at_ns)
            else:
                self._displace(here, REASON_NODE_LOST, event.at_ns)
        for name in sorted({self.sessions[name].fact.task for name in node.sessions if not self.sessions[name].given_up}):
            task = self.tasks.get(name)
            if task is not None and task.phase is Phase.STARTED and all(self.sessions[session].cut_off for session in task.sessions):
                self._transition(task, Phase.FAILED, event.at_ns, REASON_NODE_LOST)  # it was placed elsewhere, and ran here

    def _recovered(self, event: NodeRecovered) -> None:
        node = self.nodes.get(event.node)
        if node is None or event.epoch != node.epoch or node.lost is None or node.refused:
            return
        self.changes += 1
        node.lost = None
        node.revision = self.position
        self.columns.set_node(event.node, col.LOST, 0)
        for name in sorted(node.sessions):
            session = self.sessions[name]
            if session.cut_off == CUT_LOST:
                session.cut_off = ""
                self._recount_session(name)
                task = self.tasks.get(session.fact.task)
                if task is not None and not session.given_up and (task.state == QUEUED or cut_off(task)):
                    self._found(task, event.node, event.at_ns)
                    self._transition(task, Phase.STARTED, event.at_ns)

    def _leaving(self, event: NodeLeaving) -> None:
        node = self.nodes.get(event.node)
        if node is None or event.epoch != node.epoch or node.leaving:
            return
        self.changes += 1
        node.leaving = True
        node.revision = self.position
        self.columns.set_node(event.node, col.DRAINED, 1)

    def _configured(self, event: ConfigChanged) -> None:
        self.changes += 1
        self.revisions[event.scope] = self.position
        if event.value is None:
            self.config.pop((event.scope, event.key), None)
        else:
            self.config[event.scope, event.key] = event.value
        for name in self.nodes if event.scope in (GLOBAL, ENVIRONMENT) else (event.scope,) if event.scope in self.nodes else ():
            self.columns.set_percent(name, self.overcommit_percent(name))
            self.columns.set_node(name, col.DRAINED, int(self.drained(name)))

    def _grouped(self, event: GroupChanged) -> None:
        self.changes += 1
        for name in self.membership.change(event, self.position):
            if name in self.nodes:
                self.columns.set_node(name, col.GROUPS, len(self.groups_of(name)))

    def _load_observed(self, event: LoadObserved) -> None:
        for node, gpu, utilization, starvation, used in event.devices:
            if used < self.measured(node, gpu).vram_used_bytes:
                self.holdings.free(node)  # room for a task that cannot be swapped out
            self.load[node, gpu] = Measured(utilization, starvation, used)
            row = self.columns.row(node, gpu)
            if row >= 0:
                self.columns.measure(row, utilization, starvation, used)

    # sessions

    def _session_opened(self, event: SessionOpenedFact) -> None:
        """Opened, or announced again by a node that restarted around it; or a name is used again after its session was cut off."""
        event = self._attributed(event)
        known = self.sessions.get(event.session)
        task = self.tasks.get(event.task)
        given_up = task is not None and (event.node in task.given_up or self._is_unwanted(task, event))
        if known is not None:
            if not known.cut_off or known.fact.node != event.node:
                return
            if known.fact.task == event.task:
                given_up |= known.given_up
                self._forget(event.session, known.fact)
            else:
                self._session_over(known, True, REASON_SESSION_REUSED, event.at_ns)
        node = self.nodes.get(event.node)
        lost = node is not None and node.lost is not None
        self.sessions[event.session] = SessionView(event, CUT_LOST if lost else "", event.priority, given_up)
        self._of_task.setdefault(event.task, set()).add(event.session)
        if node is not None:
            node.sessions.add(event.session)
        self._recount_session(event.session)
        if task is not None and given_up:
            self._follow_task(task, event.session)
        elif task is not None:
            if not task.sessions:
                task.outcome = None
            task.sessions.add(event.session)
            self._touch(task)
            if not lost and not released(task):
                self._found(task, event.node, event.at_ns)
                self._asked(task, STARTED, "", event.at_ns)
            self._follow_task(task, event.session)

    def _is_unwanted(self, task: TaskView, event: SessionOpenedFact) -> bool:
        """Whether a session was opened beside one that it was to replace, where its task does not go any more."""
        replaced = self.sessions.get(event.replaces) if event.replaces in task.sessions else None
        goes = task.moving.node if task.moving is not None else ""
        beside = replaced is not None and not replaced.cut_off and replaced.fact.node != event.node
        return beside and event.node != goes and task.placed is not None and task.placed.node != event.node

    def _found(self, task: TaskView, node: str, at_ns: int) -> None:
        """A task runs there. If it waited for a place again, for its node was lost, its client had found this one before."""
        if task.phase is Phase.WAITING:
            gpus = tuple(sorted({self.sessions[name].fact.gpu for name in task.sessions}))
            task.placed = TaskPlaced(at_ns, task.submitted.task, node, gpus, (), (), self.position)

    def _attributed(self, event: SessionOpenedFact) -> SessionOpenedFact:
        """The session with the task that it counts for: only one of its tenant that was placed on its node, because nodes write these
        events."""
        task = self.tasks.get(event.task)
        good = task is not None and event.node in task.hosts and event.tenant == task.submitted.tenant
        return msgspec.structs.replace(event, task=event.task if good else "", title=title_of(event.title))

    def _session_closed(self, event: SessionClosedFact) -> None:
        session = self.sessions.get(event.session)
        if session is not None and session.fact.node == event.node:
            outcome = event.outcome and msgspec.structs.replace(event.outcome, error=title_of(event.outcome.error))
            self._session_over(session, event.failed, title_of(event.reason), event.at_ns, outcome)

    def _session_over(self, session: SessionView, failed: bool, reason: str, at_ns: int, outcome: Outcome | None = None) -> None:
        """A session is no more, and with its last one a task that has started is over."""
        name, fact = session.fact.session, session.fact
        del self.sessions[name]
        self._forget(name, fact)
        self._hold("session", name, [])
        self.to_end.discard(name)
        self.to_reprioritise.discard(name)
        task = self.tasks.get(fact.task)
        if task is None:
            return
        task.past_sessions = [*task.past_sessions[1 - PAST_SESSIONS_MAX :], name]
        self._touch(task)
        if session.given_up:
            return
        task.sessions.discard(name)
        task.outcome = decisive(task.outcome, outcome)
        task.expected |= reason == REASON_DISPLACED and outcome is None
        if self._has_left(task):
            self._arrive(task, at_ns)
            return
        if task.sessions:
            return
        if not failed and session.cut_off == CUT_LOST and cut_off(task):
            self._transition(task, Phase.STARTED, at_ns)  # its node was only cut off, and it ran to its end there
        self._without_sessions(task, fact.node, failed, reason, at_ns)

    def _without_sessions(self, task: TaskView, node: str, failed: bool, reason: str, at_ns: int) -> None:
        """The last session of a task, on ``node``, is no more: it is over if it had started."""
        if task.phase is Phase.STARTED and task.submitted.reservation:
            self._keep(task, node, at_ns)
        elif task.phase is Phase.STARTED:
            state, why = state_after(task.outcome, failed, reason)
            self._transition(task, Phase(state), at_ns, why)

    def _arrive(self, task: TaskView, at_ns: int) -> None:
        """A task has nothing any more on the node that it leaves: it runs where sessions of it were opened before, or waits for a place."""
        moved = task.moving
        if moved is None or not any(self.sessions[name].fact.node == moved.node for name in task.sessions):
            self._wait_again(task, at_ns)
            return
        left = self.nodes.get(task.placed.node) if task.placed is not None else None
        if left is not None:
            left.tasks.discard(task.submitted.task)
        task.placed = task.decision = moved
        task.updated_ns = at_ns
        self._settle(task)

    def _stay(self, task: TaskView, reason: str, at_ns: int) -> None:
        """A task that was to run elsewhere stays where it is. If its sessions there have ended, it is over."""
        task.stayed, task.stayed_ns = reason, at_ns
        self._settle(task)
        if not task.sessions and task.placed is not None:
            self._without_sessions(task, task.placed.node, True, reason, at_ns)

    def _settle(self, task: TaskView) -> None:
        """A task that was to run elsewhere runs where it is placed: nothing is held for it anywhere else."""
        moving = task.moving
        if moving is not None and (task.placed is None or task.placed.node != moving.node):
            self.nodes[moving.node].tasks.discard(task.submitted.task)
            for name in [name for name in task.sessions if self.sessions[name].fact.node == moving.node]:
                self._give_up(task, name)
        task.moving, task.expected = None, False
        self._leave(task, None)
        self._recount_task(task)
        self._touch(task)
        for name in task.sessions:
            self._follow_task(task, name)

    def _keep(self, task: TaskView, node: str, at_ns: int) -> None:
        """The last session of a reservation has closed: it keeps its place, unless it is to leave it, or its node is lost."""
        if task.leaving is not None:
            self._wait_again(task, at_ns)
            return
        task.idle_from_ns = at_ns
        self._transition(task, Phase.PLACED, at_ns)
        known = self.nodes.get(node)
        if known is None or known.lost is not None:
            self._displace(task, REASON_NODE_LOST, at_ns)

    def _has_left(self, task: TaskView) -> bool:
        """Whether a task that runs has nothing any more on the node that it leaves, and a client that continues elsewhere. Not when its
        script has ended meanwhile; what child processes reported, or the silence of another client, does not decide."""
        if task.leaving is None or task.phase is not Phase.STARTED or not task.expected:
            return False
        if task.outcome is not None and not task.outcome.child and not task.outcome.lost:
            return False
        return not any(self.sessions[name].fact.node == task.leaving.node for name in task.sessions)

    def _forget(self, name: str, fact: SessionOpenedFact) -> None:
        """Take a session out of the indexes by node and task."""
        if fact.node in self.nodes:
            self.nodes[fact.node].sessions.discard(name)
        of_task = self._of_task.get(fact.task, set())
        of_task.discard(name)
        if not of_task:
            self._of_task.pop(fact.task, None)

    def _session_priority(self, event: SessionPriorityChanged) -> None:
        session = self.sessions.get(event.session)
        if session is None or session.fact.node != event.node:
            return
        session.priority = event.priority
        self._recount_session(event.session)
        task = self.tasks.get(session.fact.task)
        if task is not None:
            self._touch(task)
            self._follow_task(task, event.session)

    def _follow_task(self, task: TaskView, name: str) -> None:
        """Whether the node still needs a command about this session: end it, or change its priority."""
        session = self.sessions[name]
        leaving = task.leaving is not None and task.leaving.node == session.fact.node and task.phase is Phase.STARTED
        ends = task.state == CANCELLED or released(task) or session.given_up or leaving
        (self.to_end.add if ends else self.to_end.discard)(name)
        behind = task.live and task.priority_changed and session.priority != task.priority and not session.given_up
        (self.to_reprioritise.add if behind else self.to_reprioritise.discard)(name)

    # tasks

    def _submitted(self, event: TaskSubmitted) -> None:
        if event.task in self.tasks:
            return
        if event.title != title_of(event.title):
            event = msgspec.structs.replace(event, title=title_of(event.title))
        turn = self.next_turn(event.tenant, event.priority)
        task = self.tasks[event.task] = TaskView(event, self.position, turn, self.position, updated_ns=event.at_ns)
        task.priority, task.wait_from_ns = event.priority, event.at_ns
        task.shape = shape_of(event)
        self._count_live(task)
        self._wait(task)
        self._touch(task)

    def _placed(self, event: TaskPlaced) -> None:
        task = self.tasks.get(event.task)
        if task is None or not task.waiting:
            return
        task.placed = task.decision = event
        task.hosts |= {event.node}
        task.given_up -= {event.node}
        self.turn = max(self.turn, task.turn)
        self._transition(task, Phase.PLACED, event.at_ns)
        if task.submitted.gang:
            self.begun.update(member.submitted.task for member in self.gang_waiting(task.submitted))
        self._leave(task, None)
        task.expected = False
        node = self.nodes.get(event.node)
        if node is None or node.lost is not None:  # it was lost between the decision and its place in the log
            self._displace(task, REASON_NODE_LOST, event.at_ns)

    def _refused(self, event: TaskRefused) -> None:
        task = self.tasks.get(event.task)
        if task is None or not task.waiting:
            return
        task.decision = event
        self.untold.discard(event.task)
        self._touch(task)
        if not task.queues:
            self._transition(task, Phase.FAILED, event.at_ns, REASON_NO_FIT)
            return
        task.updated_ns = event.at_ns
        same = task.reserved is not None and (task.reserved.node, task.reserved.gpus) == (event.reserved_node, event.reserved_gpus)
        if not same:
            self._reserve(task, Reservation(event.reserved_node, event.reserved_gpus, event.at_ns) if event.reserved_gpus else None)

    def _task_priority(self, event: TaskPriorityChanged) -> None:
        task = self.tasks.get(event.task)
        if task is None or not task.live:
            return
        self.changes += 1
        task.priority = event.priority
        task.priority_changed = True
        task.updated_ns = event.at_ns
        self._touch(task)
        self._recount_task(task)
        for name in task.sessions:
            self._follow_task(task, name)

    def _displace(self, task: TaskView, reason: str, at_ns: int) -> None:
        """A live task loses its node: it waits again if it asked to and has not started, and fails otherwise."""
        if task.phase is Phase.PLACED and task.queues:
            self._wait_again(task, at_ns)
        else:
            self._transition(task, Phase.FAILED, at_ns, reason)

    def _wait_again(self, task: TaskView, at_ns: int) -> None:
        self._transition(task, Phase.WAITING, at_ns)
        task.placed = None
        task.wait_from_ns = at_ns

    def _displaced(self, event: TaskDisplaced) -> None:
        """A task that runs on a node, or failed because that was lost, is to run elsewhere."""
        task = self.tasks.get(event.task)
        if task is None or task.placed is None or task.placed.node != event.node:
            return
        if task.phase is not Phase.STARTED and not cut_off(task):
            return
        task.displaced = True
        if event.lost:
            task.given_up |= {event.node}
            self._leave(task, Leaving("", event.to) if event.to else None)
            for name in [name for name in task.sessions if self.sessions[name].fact.node == event.node]:
                self._give_up(task, name)
        else:
            if task.moving is not None:
                self._settle(task)
            task.stayed = ""
            self._leave(task, Leaving(event.node, event.to))
            target = self.nodes.get(event.to)
            if event.gpus and (target is None or target.lost is not None):  # it was lost between the decision and its place in the log
                self._stay(task, "the node to which it was to go was lost", event.at_ns)
            elif event.gpus and task.sessions and task.phase is Phase.STARTED:  # else its node was lost between the two
                task.moving = TaskPlaced(event.at_ns, event.task, event.to, event.gpus, (), (), self.position)
                task.hosts |= {event.to}
                task.given_up -= {event.to}
                self.nodes[event.to].tasks.add(event.task)
                self._recount_task(task)
            for name in task.sessions:
                self._follow_task(task, name)
        self._touch(task)
        if event.lost or not task.sessions:
            self._wait_again(task, event.at_ns)

    def _give_up(self, task: TaskView, name: str) -> None:
        """A session counts for its task no longer, and is to be ended."""
        task.sessions.discard(name)
        self.sessions[name].given_up = True
        self._follow_task(task, name)

    def _leave(self, task: TaskView, leaving: Leaving | None) -> None:
        task.leaving = leaving
        task.shape = shape_of(task.submitted, leaving)

    def _late(self, task: TaskView, reason: str) -> bool:
        """A controller changed the task for what was no longer so when the fact got its place in the log: by then it had room; or it waits
        anew, or something of it runs; or it had lost its place."""
        if reason == REASON_TAKEN:
            return task.phase is not Phase.PLACED
        if reason.startswith(REASON_QUEUE_TIMEOUT):
            return not task.waiting
        if reason in (REASON_NEVER_STARTED, REASON_RESTARTED):
            return task.waiting or any(not self.sessions[name].cut_off for name in task.sessions)
        return False

    def _asked(self, task: TaskView, state: str, reason: str, at_ns: int) -> None:
        """A fact asks for a state (of STATES): the task takes it if a legal step leads there."""
        to = REPORTED.get(state)
        if to in _ENDED and task.phase is Phase.FAILED and not cut_off(task):
            return  # only one that its node may bring back can end once more, for good
        if to is not None and (task.phase, to) in TRANSITIONS:
            self._transition(task, to, at_ns, "" if reason == REASON_TAKEN else reason)

    def _transition(self, task: TaskView, to: Phase, at_ns: int, reason: str = "") -> None:
        """A step of a task, and with it whether it waits, and whether it holds VRAM on its node. Raises IllegalTransition, with
        nothing changed by it, on a step that is not in TRANSITIONS."""
        name, before = task.submitted.task, task.phase
        if (before, to) not in TRANSITIONS:
            raise IllegalTransition(f"task {name}", before, to, task.story)
        task.story = (*task.story[1 - STORY_MAX :], (self.position, before, to))
        task.phase, task.reason, task.updated_ns = to, reason, at_ns
        if task.moving is not None and to is not Phase.STARTED:
            self.nodes[task.moving.node].tasks.discard(name)
            task.moving = None
        live, waiting = task.live, task.waiting
        if waiting:
            self._wait(task)
        elif name in self.queue:
            self._wait_no_longer(task)
        self._count_live(task)
        if task.reserved is not None:
            self._reserve(task, None)
        self._touch(task)
        node = self.nodes.get(task.placed.node) if task.placed is not None else None
        if node is not None:
            (node.tasks.add if live and not waiting else node.tasks.discard)(name)
        self._recount_task(task)
        for session in task.sessions:
            self._follow_task(task, session)

    def _count_live(self, task: TaskView) -> None:
        name, tenant = task.submitted.task, task.submitted.tenant
        if task.live != (name in self.live):
            (self.live.add if task.live else self.live.remove)(name)
            self.live_of[tenant] = self.live_of.get(tenant, 0) + (1 if task.live else -1)
            if task.submitted.gang:
                self.changes += 1  # what is reserved for the others is not, while the gang is not whole
                members = self.gangs.setdefault((tenant, task.submitted.gang), set())
                (members.add if task.live else members.discard)(name)
                if not members:
                    del self.gangs[tenant, task.submitted.gang]

    def _wait(self, task: TaskView) -> None:
        name, chain = task.submitted.task, (task.submitted.tenant, task.submitted.priority)
        if name not in self.queue:
            count, last = self.turns.get(chain, (0, 0))
            self.turns[chain] = (count + 1, max(last, task.turn))
        self.queue.add(name)
        self.untold.add(name)
        self.shapes.setdefault(task.shape, set()).add(name)

    def _wait_no_longer(self, task: TaskView) -> None:
        name, chain = task.submitted.task, (task.submitted.tenant, task.submitted.priority)
        count, last = self.turns.pop(chain)
        if count > 1:
            self.turns[chain] = (count - 1, last)
        self.queue.discard(name)
        self.untold.discard(name)
        self.begun.discard(name)
        alike = self.shapes.get(task.shape, set())
        alike.discard(name)
        if not alike:
            self.shapes.pop(task.shape, None)

    def _reserve(self, task: TaskView, reserved: Reservation | None) -> None:
        """From now on exactly this is kept for a task. What another one holds stays with it."""
        name = task.submitted.task
        if task.reserved is not None:
            self.changes += 1
            for gpu in task.reserved.gpus:
                if self.reservations.get((task.reserved.node, gpu)) == name:
                    del self.reservations[task.reserved.node, gpu]
        task.reserved = reserved
        for gpu in reserved.gpus if reserved is not None else ():
            self.reservations.setdefault((reserved.node, gpu), name)  # type: ignore[union-attr]  # the loop is empty when it is None

    def retitle(self, name: str, title: str) -> None:
        """Show another title of the task: the key that decrypts it came, or was destroyed."""
        task = self.tasks.get(name)
        if task is not None and task.submitted.title != title:
            task.submitted = msgspec.structs.replace(task.submitted, title=title)
            self._touch(task)

    def _touch(self, task: TaskView) -> None:
        """The event that is being applied changed this task."""
        task.revision = self.position
        self.recent.pop(task.submitted.task, None)
        self.recent[task.submitted.task] = self.position

    # holders of memory

    def _recount_task(self, task: TaskView) -> None:
        """Bring the sums up to what a task and its sessions hold now."""
        name, submitted, placed = task.submitted.task, task.submitted, task.placed
        holds = [
            Hold.of(place.node, gpu, submitted.vram_bytes, noswap=submitted.noswap, exclusive=submitted.exclusive, priority=task.priority)
            for place in (placed, task.moving)
            if place is not None and place.node in self.nodes and name in self.nodes[place.node].tasks
            for gpu in sorted(set(place.gpus))
        ]
        self._hold("task", name, holds)
        for session in self._of_task.get(name, ()):
            self._recount_session(session)

    def _recount_session(self, name: str) -> None:
        session = self.sessions[name]
        fact = session.fact
        holds: list[Hold] = []
        here = fact.node in self.nodes and name in self.nodes[fact.node].sessions and not session.cut_off
        if here and (session.given_up or not self._covered(fact)):
            holds = [Hold.of(fact.node, fact.gpu, fact.quota_bytes, noswap=not fact.swap, exclusive=False, priority=session.priority)]
        self._hold("session", name, holds)

    def _hold(self, kind: str, name: str, holds: list[Hold]) -> None:
        """From now on this holder holds exactly that. If it is on reserved devices, more is missing there, and perhaps less elsewhere."""
        before = self.holdings.held.get((kind, name), ())
        self.holdings.set(kind, name, holds)
        for node in {hold.node for hold in (*before, *holds)} if self.divisions else ():
            self._serve(node)
        if self.reservations and any((hold.node, hold.gpu) in self.reservations for hold in holds):
            self.changes += 1

    def _covered(self, fact: SessionOpenedFact) -> bool:
        """Whether the session's task holds memory on this device, so that the session need not."""
        task = self.tasks.get(fact.task)
        return task is not None and any(
            place is not None and place.node == fact.node and fact.gpu in place.gpus
            and place.node in self.nodes and fact.task in self.nodes[place.node].tasks
            for place in (task.placed, task.moving)
        )  # fmt: skip


def released(task: TaskView) -> bool:
    """Is it a reservation that is over? It starts no more, and sessions of it are ended."""
    return task.submitted.reservation and not task.live and not cut_off(task)


def cut_off(task: TaskView) -> bool:
    """Did it fail only because its node was held for lost?"""
    return task.phase is Phase.FAILED and task.reason == REASON_NODE_LOST
