"""What must hold, judged from outside: the answers that scripts got, the messages of the log, what is left when everything has healed. None
of it is computed by the product's code, but for reading messages and for billing's own comparison of its view with the log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from billing.projection import BillingView, verify
from bus_schemas.batch import Batch
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
    UsageRecorded,
    decode_events,
)
from bus_schemas.subjects import EVENTS_STREAM
from services.server.protocol import Executed
from tests.simulation.system.client import Client, content
from tests.simulation.system.device import Node
from tests.simulation.system.draw import Script
from tests.simulation.system.kernel import MS, S

if TYPE_CHECKING:
    from tests.simulation.system.run import System

__all__ = ["Oracle", "Violation", "expected"]

_CORE_MICRO: Final = 1_000_000_000
"""Of a core-second in the base tariff of the default tier."""
_PATIENT: Final = {"NodeLostError", "SessionLostError", "PlacementError", "NoServerError", "TaskCancelledError", "QuotaReachedError"}
"""How a script may end that had no place, or whose node was away for too long."""


_PARTING: Final = {"stop client", "cut", "cut bus", "fail bus", "kill bus", "stop bus"}
"""Faults that, when they last, make a node take a client for lost."""


class Violation(AssertionError):
    """Something did not hold."""


def expected(script: Script) -> dict[int, bytes]:
    """The answer of each read of an undisturbed run."""
    buffers: dict[int, bytes] = {}
    answers: dict[int, bytes] = {}
    for number, step in enumerate(script.steps):
        match step.kind:
            case "upload":
                buffers[step.to] = content(step)
            case "alloc":
                buffers[step.to] = bytes(step.nbytes)
            case "run":
                text = b"".join(buffers[handle] for handle in (step.to, *step.sources))
                buffers[step.to] = blake3(step.salt.to_bytes(8, "little") + text).digest(len(buffers[step.to]))
            case "read":
                answers[number] = buffers[step.to]
            case _:
                del buffers[step.to]
    return answers


class Oracle:
    """Of one seed."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.effects: Counter[tuple[str, str, int]] = Counter()
        self.unreported: Counter[tuple[str, str]] = Counter()
        """Core time by task and session of reports that died with their executor before a server had them in its journal."""
        for node in system.nodes.values():
            node.on_executed = self._executed
            node.on_unreported = self._unreported

    def _executed(self, node: str, session: str, batch: Batch) -> None:
        self.effects[node, session, batch.seq] += 1

    def _unreported(self, node: Node, reports: Iterable[Executed]) -> None:
        for report in reports:
            self.unreported[node.tasks[report.session], report.session] += report.core_ns

    # -- liveness ------------------------------------------------------------------------------------------------------------------------

    def unsettled(self) -> str:
        """What is not given back yet, or empty."""
        system = self.system
        for name, node in system.nodes.items():
            executor = node.alive()
            if executor is not None and executor.tenants:
                return f"the executor of {name} holds {sorted(executor.tenants)}"
        for server in system.servers:
            served = server.parts.get("node")
            if server.alive is None or served is None or served._ticker is None:
                return f"{server.name} is not there"
            for device in served._devices:
                if device.sessions or device.lost or device._opening:
                    return f"{server.name} has sessions {sorted([*device.sessions, *device.lost, *device._opening])}"
                if device.attached is None:
                    return f"{server.name} has no executor"
            if served._facts.waiting:
                return f"{server.name} has {served._facts.waiting} messages with facts that the log does not have"
        stream = system.broker.streams[EVENTS_STREAM]
        for controller in system.controllers:
            projection = controller.parts.get("projection")
            if controller.alive is None or projection is None or "api" not in controller.parts:
                return f"{controller.name} is not there"
            if projection.position < stream.last:
                return f"{controller.name} has read {projection.position} of {stream.last}"
            live = [name for name, task in projection.view.tasks.items() if task.live]
            if live:
                return f"tasks {live} are not over"
            if any(node.tasks or node.sessions for node in projection.view.nodes.values()):
                return "the view holds memory of a task or session"
        billing = system.billing.parts.get("billing")
        if system.billing.alive is None or billing is None:
            return "billing is not there"
        if billing.view.position < stream.last:
            return f"billing has read {billing.view.position} of {stream.last}"
        return ""

    # -- the verdict -----------------------------------------------------------------------------------------------------------------------

    def judge(self, over: bool) -> None:
        """Raises Violation."""
        system = self.system
        for name, problem in system.world.problems:
            raise Violation(f"{name} failed: {type(problem).__name__}: {problem}") from problem
        for one in system.clients:
            _expect(bool(one.verdict), f"{one.script.name} does not end")
            self._answers(one)
            self._survives(one)
        if not over:
            _expect(False, f"something is not given back: {self.unsettled() or 'a fault is not healed'}")
        log = self.log()
        self._once()
        self._accounts(log)
        self._places(log)
        self._sessions(log)
        self._bill(log)

    def log(self) -> list[tuple[int, Event]]:
        messages = self.system.broker.streams[EVENTS_STREAM].messages
        return [(at, event) for at, (message, _) in enumerate(messages, 1) for event in decode_events(message.data)]

    def digest(self) -> str:
        """Of everything that was recorded."""
        hasher = blake3()
        for message, _ in self.system.broker.streams[EVENTS_STREAM].messages:
            hasher.update(message.subject.encode() + message.data)
        return hasher.hexdigest()

    def _answers(self, one: Client) -> None:
        wanted = expected(one.script)
        for number, answer in one.answers.items():
            _expect(
                answer == wanted[number], f"{one.script.name}: step {number} gave {answer.hex()}, an undisturbed run {wanted[number].hex()}"
            )
        if one.verdict == "finished":
            _expect(one.answers.keys() == wanted.keys(), f"{one.script.name} finished without all its answers")
        elif one.verdict != "killed":
            _expect(one.verdict in _PATIENT, f"{one.script.name} ended: {one.verdict}: {one.problem}")

    def _survives(self, one: Client) -> None:
        """A script that may be built again, and waits for its place, ends well when little happens."""
        plan, script = self.system.plan, one.script
        if script.log_bytes < 1 << 20 or not script.queue or len(plan.faults) > 2 or one.verdict == "killed":
            return
        if any((fault.for_ns > 5 * S and fault.kind in _PARTING) or fault.kind == "set clock" for fault in plan.faults):
            return
        if one.verdict == "PlacementError" and "no room came" in one.problem:
            return
        _expect(one.verdict == "finished", f"{script.name} ended: {one.verdict}: {one.problem}")

    def _once(self) -> None:
        """A batch takes effect once in its session."""
        for (node, session, seq), times in self.effects.items():
            _expect(times == 1, f"{node} executed batch {seq} of {session} {times} times")

    def _accounts(self, log: list[tuple[int, Event]]) -> None:
        """Of every interval of a device: charged + scheduler + idle = wall x cores, and the usage named is what was charged; no gap and
        no repeat of serials."""
        used: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        last: dict[tuple[str, int], int] = {}
        for at, event in log:
            if isinstance(event, UsageRecorded):
                known = used[event.node, event.epoch]
                _expect(event.serial not in known, f"position {at}: usage {event.serial} of {event.node}/{event.epoch} is there twice")
                known[event.serial] = event.core_ns
            elif isinstance(event, DeviceAccounted):
                key = (event.node, event.epoch)
                _expect(event.serial == last.get(key, 0) + 1, f"position {at}: accounts {event.serial} follow {last.get(key, 0)}")
                last[key] = event.serial
                named = sum(used[key][serial] for serial in range(event.serial_first, event.serial_last + 1))
                _expect(named == event.charged_core_ns, f"position {at}: usage of {named} core-ns, charged {event.charged_core_ns}")
                total = event.charged_core_ns + event.scheduler_core_ns + event.idle_core_ns
                _expect(total == event.wall_ns * event.cores, f"position {at}: the account of {event.node} does not close")

    def _places(self, log: list[tuple[int, Event]]) -> None:
        """A task that has a place gets another one only after it has lost the first."""
        placed: dict[str, str] = {}
        away: set[str] = set()
        for at, event in log:
            match event:
                case TaskPlaced() if event.node not in away:
                    _expect(event.task not in placed, f"position {at}: {event.task} is placed on {placed.get(event.task)} already")
                    placed[event.task] = event.node
                case TaskDisplaced() | TaskStateChanged():
                    placed.pop(event.task, None)
                case NodeLost():
                    away.add(event.node)
                    placed = {task: node for task, node in placed.items() if node != event.node}
                case NodeRegistered() | NodeRecovered():
                    away.discard(event.node)
                case _:
                    pass

    def _sessions(self, log: list[tuple[int, Event]]) -> None:
        """Every session that opened is closed, once. A name is used again only if a client repeats the request that opened it, and the node
        has ended it and started anew meanwhile."""
        open_: dict[str, str] = {}
        closed: dict[str, str] = {}
        for at, event in log:
            if isinstance(event, NodeRegistered):
                closed = {name: node for name, node in closed.items() if node != event.node}
            elif isinstance(event, SessionOpenedFact):
                _expect(event.session not in closed, f"position {at}: session {event.session} opens after it was closed")
                open_[event.session] = event.node
            elif isinstance(event, SessionClosedFact):
                _expect(event.session not in closed, f"position {at}: session {event.session} is closed twice")
                closed[event.session] = event.node
                open_.pop(event.session, None)
        _expect(not open_, f"sessions {sorted(open_)} were never closed")

    def _bill(self, log: list[tuple[int, Event]]) -> None:
        """Billing's view is what the log gives, without a finding; a script is charged for what an undisturbed run uses, once."""
        view: BillingView = self.system.billing.parts["billing"].view
        again = BillingView()
        for at, (message, stored_ns) in enumerate(self.system.broker.streams[EVENTS_STREAM].messages, 1):
            again.apply(at, decode_events(message.data), stored_ns)
        found = verify(view, again)
        _expect(not found.first_difference, f"the bill is not what the log gives: {found.first_difference}")
        _expect(not found.findings, f"the bill has findings: {found.findings}")
        _expect(not sum(view.ledger.balances.values()), "the ledger does not sum to zero")
        unused = {event.session for _, event in log if isinstance(event, SessionClosedFact) and event.reason == "unused"}
        replaced = {event.replaces for _, event in log if isinstance(event, SessionOpenedFact) and event.session not in unused}
        ended = {event.session for _, event in log if isinstance(event, SessionClosedFact) and event.reason == "lease"} & replaced
        late: Counter[str] = Counter()
        again: Counter[str] = Counter()
        launched_again: Counter[str] = Counter()
        displaced: set[tuple[str, str]] = set()
        placed: dict[str, tuple[str, int]] = {}
        losses: Counter[str] = Counter()
        for _, event in log:
            match event:
                case NodeLost():
                    losses[event.node] += 1
                case TaskPlaced():
                    before, lost = placed.get(event.task, ("", 0))
                    placed[event.task] = event.node, losses[event.node]
                    if before != event.node and losses[before] > lost:  # although it may be back
                        displaced.add((event.task, before))
                case TaskDisplaced(lost=True):
                    displaced.add((event.task, event.node))
                case UsageRecorded():
                    if (event.task, event.node) in displaced:
                        late[event.task] += event.core_ns  # of a node that was lost: it counts no longer, even if an image has its work
                    if event.session in ended:  # its client was away for too long: what it repeats is charged again
                        again[event.task] += event.core_ns
                        launched_again[event.task] += event.launches
                case _:
                    pass
        for one in self.system.clients:
            rows = [row for (_, _, task, _, _), row in view.rows.items() if task == one.task and task]
            runs = [step for step in one.script.steps if step.kind == "run"]
            core_ns, launches = sum(row.core_ns for row in rows), sum(row.launches for row in rows)
            wanted_ns, facts = sum(step.cost_ms for step in runs) * MS, sum(row.facts for row in rows)
            name = one.script.name
            _expect(core_ns <= wanted_ns + again[one.task], f"{name} is charged {core_ns} core-ns, an undisturbed run {wanted_ns}")
            _expect(
                launches <= len(runs) + launched_again[one.task], f"{name} is charged {launches} launches, an undisturbed run {len(runs)}"
            )
            ended_ns = sum(ns for (task, name), ns in self.unreported.items() if task == one.task and name not in replaced)
            unreported_ns = late[one.task] + ended_ns  # what was repeated, or is in an image, is charged
            if one.verdict == "finished":
                least_ns = wanted_ns - unreported_ns
                _expect(core_ns >= least_ns, f"{name} is charged {core_ns} core-ns only, at least {least_ns} were reported")
                _expect(launches >= len(runs) or unreported_ns > 0, f"{name} is charged {launches} launches only of {len(runs)}")
            micro = sum(row.core_micro for row in rows)
            _expect(0 <= core_ns * _CORE_MICRO // 10**9 - micro <= facts, f"{name} pays {micro} for {core_ns} core-ns")


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise Violation(text)
