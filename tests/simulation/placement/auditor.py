"""Judges every decision by books of its own: is it allowed, is it in order, is every refusal named, does no task wait beyond the bound."""

from __future__ import annotations

from collections import Counter

from bus_schemas.events import Event, TaskPlaced, TaskRefused, TaskSubmitted
from scheduler.placement.reasons import NODE_WIDE, REASONS
from scheduler.placement.states import DEFAULTS
from tests.simulation.placement.books import MS, Books

__all__ = ["AuditError", "Auditor"]

_CLUSTER = {"no_nodes", "unknown_group", "group_empty"}
_NODE = {"node_lost", "node_drained", "not_in_group", "group_only", "no_device", "node_left"}


class AuditError(AssertionError):
    """What the placement core did and may not do."""


class Auditor:
    """``hold_max_ns``: no task holds memory for longer. ``every``: of how many decisions one is compared with a search over everything."""

    def __init__(self, hold_max_ns: int, every: int) -> None:
        self.books = Books()
        self.counts: Counter[str] = Counter()
        self._hold_max_ns = hold_max_ns
        self._every = every
        self._decisions = 0

    def apply(self, position: int, event: Event) -> None:
        if isinstance(event, TaskPlaced | TaskRefused):
            self._decisions += 1
            thorough = self._decisions % self._every == 0
            self._named(event, thorough)
            if isinstance(event, TaskPlaced):
                self._placed(event, thorough)
        self.books.apply(position, event)

    def _fail(self, event: TaskPlaced | TaskRefused, text: str) -> None:
        raise AuditError(f"decision {self._decisions} on {event.task} at {event.at_ns} ns: {text}: {event!r}")

    # -- one placement -----------------------------------------------------------------------------------------------------------------

    def _placed(self, event: TaskPlaced, thorough: bool) -> None:
        books = self.books
        if event.task not in books.waiting:
            self._fail(event, "placed, and it did not wait")
        wish = books.tasks[event.task].wish
        if len(set(event.gpus)) != wish.gpu_count:
            self._fail(event, f"{wish.gpu_count} devices were asked for")
        refused = books.serves(wish, event.node) or next((no for gpu in event.gpus if (no := books.fits(wish, event.node, gpu))), "")
        if refused:
            self._fail(event, refused)
        mine = books.rank(event.task, event.at_ns)
        for gpu in event.gpus:
            holder = books.kept.get((event.node, gpu), event.task)
            if holder != event.task and books.rank(holder, event.at_ns) < mine:
                self._fail(event, f"the device is kept for {holder}, which goes first")
        keys = [(-score, node, gpu) for node, gpu, score in event.scores]
        if keys != sorted(set(keys)) or event.candidates < len(keys):
            self._fail(event, "the candidates are not in a total order")
        if wish.gpu_count == 1 and event.scores[0][:2] != (event.node, event.gpus[0]):
            self._fail(event, "the best candidate was not chosen")
        self.counts["placed"] += 1
        if thorough:
            self._no_task_ahead_fits(event)

    def _no_task_ahead_fits(self, event: TaskPlaced) -> None:
        """Search everything for room for each kind of task that waits ahead of the one that was placed."""
        books = self.books
        mine = books.rank(event.task, event.at_ns)
        ahead = sorted(rank for name in books.waiting if (rank := books.rank(name, event.at_ns)) < mine)
        seen: set[tuple[object, ...]] = set()
        for rank in ahead:
            task = books.tasks[rank[-1]]
            wish = task.wish
            shape = (wish.vram_bytes, wish.gpu_count, wish.exclusive, wish.noswap, wish.groups, wish.tenant, task.leaving)
            if shape not in seen:
                seen.add(shape)
                self.counts["searches"] += 1
                place = self.room_for(rank[-1], event.at_ns)
                if place:
                    self._fail(event, f"{rank[-1]} goes first (rank {rank}) and fits on {place}")

    def room_for(self, name: str, at_ns: int) -> str:
        """A node where a waiting task fits, or nothing."""
        books, wish = self.books, self.books.tasks[name].wish
        mine = books.rank(name, at_ns)
        for node in books.nodes:
            if not books.serves(wish, node):
                free = [
                    gpu for gpu in books.nodes[node].devices if not books.fits(wish, node, gpu) and not self._kept(node, gpu, mine, at_ns)
                ]
                if len(free) >= wish.gpu_count:
                    return node
        return ""

    def _kept(self, node: str, gpu: int, mine: tuple[int, int, str], at_ns: int) -> bool:
        holder = self.books.kept.get((node, gpu), mine[-1])
        return holder != mine[-1] and self.books.rank(holder, at_ns) < mine

    # -- names -------------------------------------------------------------------------------------------------------------------------

    def _named(self, event: TaskPlaced | TaskRefused, thorough: bool) -> None:
        """Every reason is known, shown by an example with a sentence, and the counts account for every device there is."""
        counts = dict(event.refused)
        if not counts.keys() <= REASONS or {reason for _, _, reason, _ in event.refusals} != counts.keys():
            self._fail(event, "a reason without name or example")
        if not all(detail and (gpu == NODE_WIDE) == (reason in _NODE | _CLUSTER) for _, gpu, reason, detail in event.refusals):
            self._fail(event, "an example without a sentence")
        self.counts.update(counts.keys())
        if isinstance(event, TaskRefused) and event.reserved_gpus:
            self.counts["reservations"] += 1
        if not thorough or counts.keys() & _CLUSTER:
            return
        candidates = event.candidates if isinstance(event, TaskPlaced) else 0
        told = candidates + sum(count for reason, count in counts.items() if reason not in _NODE)
        there = sum(len(node.devices) for name, node in self.books.nodes.items() if not self.books.serves(self._wish(event), name))
        nodes = sum(1 for name in self.books.nodes if self.books.serves(self._wish(event), name))
        if told != there or sum(count for reason, count in counts.items() if reason in _NODE) != nodes:
            self._fail(event, f"{there} devices of nodes that serve it, {nodes} nodes that do not; the event counts {told}")

    def _wish(self, event: TaskPlaced | TaskRefused) -> TaskSubmitted:
        return self.books.tasks[event.task].wish

    # -- waiting -----------------------------------------------------------------------------------------------------------------------

    def tick(self, at_ns: int, slack_ns: int) -> None:
        """No task with reserved devices waits longer than earlier holders can hold them; and no more tasks have some than may."""
        books = self.books
        holders = set(books.kept.values())
        if len(holders) > books.setting("queue_reservations_max", DEFAULTS["queue_reservations_max"]):
            raise AuditError(f"{len(holders)} tasks have devices reserved")
        for name in holders:
            task = books.tasks[name]
            if at_ns - task.guarded_ns > self._hold_max_ns + slack_ns:
                waited_s = (at_ns - task.guarded_ns) // (1000 * MS)
                raise AuditError(f"{name} has had {task.reserved} reserved for {waited_s} s, longer than anything can have run there")
            self.counts["longest guarded s"] = max(self.counts["longest guarded s"], (at_ns - task.guarded_ns) // (1000 * MS))

    def end(self, at_ns: int) -> None:
        """Nothing comes any more and all has ended: who still waits must not fit anywhere, even so."""
        for name in self.books.waiting:
            place = self.room_for(name, at_ns)
            if place:
                raise AuditError(f"{name} still waits at the end, and fits on {place}")
