"""Runs: accepting scripts, handing them to runners, recording how they end, reading their logs.

The state of a run is the last message on its subject, and every change is a conditional append to it; so a run is taken once, however many
controllers hand it over.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

import blake3
import msgspec
from msgspec.structs import replace

from bus_schemas.events import ActionTaken, BudgetCrossed, Event, KeyIssued, KeyRevoked, Outcome, TaskStateChanged, TaskSubmitted
from bus_schemas.limits import MALFORMED
from bus_schemas.runs import (
    BEATS,
    ENDED,
    LOG_ALL,
    LOGS_STREAM,
    PENDING,
    REPORTS,
    RUNS_STREAM,
    STATES_ALL,
    SYNCS,
    TAKEN,
    RunnerSync,
    RunOrder,
    RunOrders,
    RunReport,
    RunScript,
    RunState,
    run_log,
    run_script,
    run_state,
)
from scheduler.placement import TaskView
from scheduler.placement.states import CANCELLED, COMPLETED, FAILED, LOST, REASON_TAKEN, STARTED, Phase, state_after
from services.controller.actions import TaskActions
from services.controller.errors import Invalid, TaskExists
from services.controller.identity import Caller
from services.controller.log_projection import LogProjection
from services.controller.run_book import BudgetCrossings, RunBook
from services.controller.webhook import Webhooks
from services.controller.writer import Writer
from services.kit.access import AccessView
from services.kit.access.access import Access
from services.kit.access.tokens import make_key
from services.kit.access.turns import aside
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable, Conflict, reached
from services.kit.follow import Follower
from services.kit.log import get_logger
from services.kit.streams import run_logs_stream_config, runs_stream_config
from wooly.shared.lru import LruDict

__all__ = ["LogPart", "Runs", "WAIT_S_MAX"]

WAIT_S_MAX: Final = 20
_QUEUE: Final = "wooly-controllers"
_PART_BYTES: Final = 128 << 10
_PART_MESSAGES: Final = 64
_FOLLOWERS_MAX: Final = 500
_TAIL_CHARS: Final = 16 << 10
_TAIL_LINES: Final = 60
_TAILS_MAX: Final = 256
_KEY_SPARE_S: Final = 900
"""A script's key outlives its limit by this much: it is revoked at the script's end."""
_FIRST_BEATS_S: Final = 7.0
"""A runner is heard this long after a controller starts at the latest: it may wait for an answer of the one before."""
_ACTOR: Final = "runner"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log."""

    text: str
    next: int  #: position to go on from
    ended: bool  #: there is no more


class Runs:
    """``async with Runs(...)``: answers runners from then on."""

    def __init__(self, bus: Bus, projection: LogProjection, writer: Writer, tasks: TaskActions, access: Access) -> None:
        self._bus = bus
        self._projection = projection
        self._writer = writer
        self._tasks = tasks
        self._access = access
        self._webhooks = Webhooks.from_environment()
        self._one = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._beat = asyncio.Event()  # set and replaced at each beat of a runner
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._follower: Follower | None = None
        self._tails: LruDict[str, str] = LruDict(_TAILS_MAX)
        self.book = RunBook(time.monotonic())
        tasks.is_executed = self.book.is_taken
        self.on_log: Callable[[str], None] = lambda task: None
        """Called with a task when its script has written something."""

    async def __aenter__(self) -> Self:
        try:
            await self._bus.ensure_stream(runs_stream_config())
            await self._bus.ensure_stream(run_logs_stream_config())
        except BusRefused as refused:  # the bus has no room for them: the controller starts without runs
            get_logger().warning("there are no streams for runs, so no scripts are taken", problem=str(refused))
            return self
        self._follower = self._bus.follow(RUNS_STREAM, 1, self._on_state, subject=STATES_ALL)
        await self._follower.start()
        await self._follower.current.wait()
        self._bus.on_reconnect(self._listen)
        await self._bus.subscribe(LOG_ALL, self._on_log)
        await self._bus.subscribe(BEATS, self._on_beat)
        await self._bus.serve(SYNCS, self._synced, principal=lambda _: _ACTOR, queue=_QUEUE)
        await self._bus.serve(REPORTS, self._reported, principal=lambda _: _ACTOR, queue=_QUEUE)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._follower is not None:
            self._bus.off_reconnect(self._listen)
            await self._follower.stop()
        await self._webhooks.close()

    def _listen(self) -> None:
        self.book.listen(time.monotonic())

    # -- submitting --------------------------------------------------------------------------------------------------------------------

    async def submit(self, by: Caller, task: TaskSubmitted, script: RunScript, wanted: str, webhook: str) -> tuple[TaskView, bool]:
        """Submit the task and store its script; the task then, and whether it is new. Raises what ``TaskActions.submit`` raises, Invalid,
        QuotaReached."""
        by.require("task.submit", task.tenant)
        data = msgspec.msgpack.encode(script)
        digest, known = blake3.blake3(data).hexdigest(16), self.book.get(task.task)
        if known is not None:
            if known.digest != digest:
                raise _taken(task.task)
            return await self._tasks.submit(by, task)
        reason = self._webhooks.refusal(webhook) if webhook else ""
        if reason:
            raise Invalid("webhook", reason)
        if not await self._takers(task.tenant, wanted):
            who = f"no runner called {wanted} takes" if wanted else "no runner takes"
            raise Invalid("runner", f"{who} scripts of tenant {task.tenant} at present; an operator starts one with `wooly runner`")
        if self._access.on and task.tenant not in self._projection.fold(AccessView).tenants:
            raise Invalid("tenant", f"there is no tenant {task.tenant}; a script runs with a key of its tenant, so name one that exists")
        refusal = reached("runs", self.book.pending()[task.tenant], f"tenant {task.tenant}")
        if refusal is not None:
            raise refusal
        self._tasks.check(by, task)
        await self._store(task.task, data)
        placed, new = await self._tasks.submit(by, task)
        if not placed.live:
            await self._discard(task.task)
            return placed, new
        user = by.identity.name if by.identity.name in self._projection.fold(AccessView).users else ""
        state = RunState(
            task=task.task,
            tenant=task.tenant,
            name=script.name,
            state=PENDING,
            submitted_ns=time.time_ns(),
            wall_s=script.wall_s,
            wanted=wanted,
            user=user,
            webhook=webhook,
            digest=digest,
        )
        with contextlib.suppress(Conflict):  # the same request came twice
            await self._put(state, 0)
        return placed, new

    async def _takers(self, tenant: str, wanted: str) -> list[str]:
        """Runners that would take a script. A controller that has just started first waits for a runner to be heard that would."""
        while True:
            beat, now_s = self._beat, time.monotonic()
            found, wait_s = self.book.takers(tenant, wanted, now_s), self.book.since_s + _FIRST_BEATS_S - now_s
            if found or wait_s <= 0:
                return found
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(beat.wait(), wait_s)

    async def _store(self, task: str, data: bytes) -> None:
        """Store a script before its task, so that a request that was cut off can be repeated. Raises TaskExists when the id is taken by
        another script, or by a task without any."""
        subject = run_script(task)
        stored = await self._bus.message(RUNS_STREAM, last_by_subj=subject)
        if stored is not None and (stored[1] == data or (not stored[1] and task in self._projection.view.tasks)):
            return  # an empty one: the task was refused, and is again
        if stored is not None or task in self._projection.view.tasks:
            raise _taken(task)
        try:
            await self._bus.publish_acked(subject, data, expect_last_on_subject=0)
        except Conflict:  # another request stored one meanwhile, which may be the same
            await self._store(task, data)

    async def _discard(self, task: str) -> None:
        """Remove the script of a run that is over: an empty message takes its place."""
        await self._bus.publish_acked(run_script(task), b"")

    async def _script(self, task: str) -> RunScript | None:
        found = await self._bus.message(RUNS_STREAM, last_by_subj=run_script(task))
        return msgspec.msgpack.decode(found[1], type=RunScript) if found is not None and found[1] else None

    # -- reading -----------------------------------------------------------------------------------------------------------------------

    async def log(self, task: str, after: int, wait_s: float) -> LogPart:
        """What follows the position ``after`` of a task's log (0: from its beginning); where there is nothing yet, waits for up to
        ``wait_s``."""
        woken = asyncio.Event()
        if sum(len(events) for events in self._waiting.values()) >= _FOLLOWERS_MAX:
            wait_s = min(wait_s, 1.0)
        self._waiting[task].add(woken)
        until_s = time.monotonic() + wait_s
        try:
            while True:
                woken.clear()
                state = self.book.get(task)
                over = state is None or state.state == ENDED
                part = await self._part(task, after)
                if part.text or over or time.monotonic() >= until_s:
                    return replace_ended(part, over)
                async with aside():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(until_s - time.monotonic()):
                            await woken.wait()
        finally:
            self._waiting[task].discard(woken)
            if not self._waiting[task]:
                del self._waiting[task]

    async def tail(self, task: str) -> tuple[str, ...]:
        """The last lines of a task's log; where this controller has not received them, those of its last message. Raises BusUnavailable,
        BusRefused."""
        if self.book.get(task) is None:
            return ()
        text = self._tails.get(task)
        if text is None:
            found = await self._bus.message(LOGS_STREAM, last_by_subj=run_log(task))
            received = self._tails.get(task)  # while the message was read: is newer than the message, or is the message
            text = self._tails[task] = received or (found[1].decode(errors="replace") if found is not None else "")
        return tuple(text.splitlines()[-_TAIL_LINES:])

    async def _part(self, task: str, after: int) -> LogPart:
        parts: list[bytes] = []
        for _ in range(_PART_MESSAGES):
            found = await self._bus.message(LOGS_STREAM, seq=after + 1, next_by_subj=run_log(task))
            if found is None:
                return LogPart(_text(parts), after, True)
            after = found[0]
            parts.append(found[1])
            if sum(map(len, parts)) >= _PART_BYTES:
                break
        return LogPart(_text(parts), after, False)

    # -- runners -----------------------------------------------------------------------------------------------------------------------

    def _on_state(self, position: int, subject: str, data: bytes) -> None:
        try:
            state = msgspec.msgpack.decode(data, type=RunState)
        except MALFORMED as error:
            get_logger().error("the state of a run cannot be read", subject=subject, problem=str(error))
            return
        self.book.note(position, state)
        self._wake(state.task)

    async def _on_log(self, subject: str, data: bytes) -> None:
        task = subject.rsplit(".", 1)[1]
        self._tails[task] = (self._tails.get(task, "") + data[-_TAIL_CHARS:].decode(errors="replace"))[-_TAIL_CHARS:]
        self._wake(task)
        self.on_log(task)

    def _wake(self, task: str) -> None:
        for event in self._waiting.get(task, ()):
            event.set()

    async def _on_beat(self, subject: str, data: bytes) -> None:
        sync = _decoded(data, RunnerSync)
        if sync is not None:
            self.book.heard(sync, time.monotonic())
            self._beat.set()
            self._beat = asyncio.Event()

    async def _synced(self, subject: str, data: bytes) -> bytes | None:
        """No answer while the log is not followed: the runner asks again."""
        sync = _decoded(data, RunnerSync)
        if sync is None or not self._projection.connected or self._projection.failure is not None:
            return None
        self.book.heard(sync, time.monotonic())
        view = self._projection.view
        orders = RunOrders(self.book.to_stop(view, sync))
        if sync.free:
            try:
                async with self._one:
                    orders = replace(orders, start=await self._hand_over(sync))
            except (BusUnavailable, BusRefused) as error:
                get_logger().warning("a run could not be handed over", runner=sync.runner, problem=str(error))
        return msgspec.msgpack.encode(orders)

    async def _hand_over(self, sync: RunnerSync) -> RunOrder | None:
        again = self.book.handed_over(sync)
        if again is not None:
            return await self._order(again, sync)
        for state in self.book.to_take(self._projection.view, sync):
            try:
                order = await self._order(state, sync)
            except Conflict:
                continue
            if order is not None:
                return order
        return None

    async def _order(self, known: RunState, sync: RunnerSync) -> RunOrder | None:
        """Take the run for the runner and make the order; None when its script is not stored any more. Raises Conflict when another
        controller was first, BusUnavailable, BusRefused."""
        script = await self._script(known.task)
        if script is None:
            await self._over(known, "its script is not stored any more")
            return None
        text = make_key() if self._access.on else None
        taken_ns = known.taken_ns or time.time_ns()
        key = text.id if text is not None else ""
        await self._change(known, state=TAKEN, runner=sync.runner, instance=sync.instance, taken_ns=taken_ns, key=key)
        if text is not None:
            phc = await self._access.checker.hasher.hash_secret(text.secret)
            expires_ns = time.time_ns() + (script.wall_s + _KEY_SPARE_S) * 10**9
            title = f"run {known.task}"
            issued = KeyIssued(
                at_ns=time.time_ns(),
                key=text.id,
                tenant=known.tenant,
                user=known.user,
                role="member",
                secret_hash=phc,
                scopes=("submit",),
                expires_ns=expires_ns,
                title=title,
            )
            await self._note_access(lambda _: issued, text.id, known.tenant, f"issued: member (submit) for {title}")
            await self._revoke(known)  # the key of an order that was lost
        await self._change_task(known.task, lambda task: [(STARTED, REASON_TAKEN)] if task.phase is Phase.PLACED else [])
        return RunOrder(script, text.text if text is not None else "")

    async def _reported(self, subject: str, data: bytes) -> bytes | None:
        report = _decoded(data, RunReport)
        if report is None or not self._projection.connected or self._projection.failure is not None:
            return None
        try:
            await self._note_report(report)
        except (BusUnavailable, BusRefused) as error:
            get_logger().warning("a report of a runner could not be noted", task=report.task, problem=str(error))
            return None
        return b""

    async def _note_report(self, report: RunReport) -> None:
        state = self.book.get(report.task)
        if state is not None and state.state == PENDING:
            raise Conflict("another controller handed the run over, which is not known here yet")
        if state is None or state.state != TAKEN or state.instance != report.instance:
            return
        await self._projection.caught_up()  # the report of the script's own client has more detail
        if report.reason:
            await self._change_task(report.task, lambda task: _end(task, FAILED, report.reason))
        if not report.ended:
            return
        task = self._projection.view.tasks.get(report.task)
        reason = report.reason or (task.reason if task is not None and task.state == CANCELLED else "")
        outcome = Outcome(report.exit_code or 0, "", report.signal)
        await self._change_task(report.task, lambda task: _end(task, *state_after(outcome, False, "")))
        await self._finish(state, exit_code=report.exit_code, signal=report.signal, reason=reason)

    # -- work of the leader --------------------------------------------------------------------------------------------

    async def look_after(self) -> None:
        """End the runs that no runner will report about; notify of ended ones and of budgets that run low.
        Raises BusUnavailable, BusRefused."""
        now_ns = time.time_ns()
        for state, reason in list(self.book.over(self._projection.view, time.monotonic(), now_ns)):
            with contextlib.suppress(Conflict):
                await self._over(state, reason)
        due = set[str]()
        for state in self.book.to_notify():
            due.add(state.task)
            outcome = self._webhooks.step(state.task, state.tenant, state.webhook, partial(self._notice, state))
            if outcome:
                with contextlib.suppress(Conflict):
                    await self._change(state, notified=outcome)
        for state, position, crossed in self.book.to_warn(self._projection.fold(BudgetCrossings)):
            name = f"{state.task} {position}"
            due.add(name)
            if self._webhooks.step(name, state.tenant, state.webhook, partial(self._budget_notice, state, crossed)):
                with contextlib.suppress(Conflict):
                    await self._change(state, budget_position=position)
        self._webhooks.forget_except(due)
        for state in self.book.to_renew(now_ns):
            with contextlib.suppress(Conflict):
                await self._renew(state)
        self.book.forget(now_ns)

    async def _over(self, state: RunState, reason: str) -> None:
        if state.state == TAKEN:
            await self._change_task(state.task, lambda task: [(LOST, reason)] if task.state == STARTED else _end(task, FAILED, reason))
        else:
            await self._change_task(state.task, lambda task: _end(task, FAILED, reason))
        await self._finish(state, reason=reason)

    def _notice(self, state: RunState) -> dict[str, object]:
        """The body of the notification of its end."""
        task = self._projection.view.tasks.get(state.task)
        seconds = (state.ended_ns - state.taken_ns) / 1e9 if state.taken_ns else 0.0
        return {
            "event": "ended",
            "task": state.task,
            "title": self._title(state),
            "state": task.state if task is not None else "",
            "reason": state.reason or (task.reason if task is not None else ""),
            "exit_code": state.exit_code,
            "signal": state.signal,
            "seconds": round(seconds, 3),
        }

    def _budget_notice(self, state: RunState, crossed: BudgetCrossed) -> dict[str, object]:
        """The body of the notification that a budget of its tenant runs low (``warning``) or is used up (``stopped``)."""
        return {
            "event": "budget",
            "task": state.task,
            "title": self._title(state),
            "tenant": crossed.tenant,
            "threshold": crossed.threshold,
            "period": crossed.period,
            "used_micro": crossed.used_micro,
            "limit_micro": crossed.limit_micro,
        }

    def _title(self, state: RunState) -> str:
        task = self._projection.view.tasks.get(state.task)
        return task.submitted.title if task is not None else state.name

    async def _renew(self, state: RunState) -> None:
        """Write a run and its script again, as they are."""
        found = await self._bus.message(RUNS_STREAM, last_by_subj=run_script(state.task))
        if found is not None:
            await self._bus.publish_acked(run_script(state.task), found[1], expect_last_on_subject=found[0])
        await self._change(state)
        self.book.renewed[state.task] = time.time_ns()

    # -- writing -----------------------------------------------------------------------------------------------------------------------

    async def _finish(self, known: RunState, **outcome: object) -> None:
        """End the run. Raises Conflict when it changed meanwhile: it may not have ended yet."""
        await self._revoke(known)
        await self._discard(known.task)
        await self._change(known, state=ENDED, ended_ns=time.time_ns(), **outcome)

    async def _change(self, known: RunState, **changes: object) -> None:
        """Append the last known state of a run with ``changes``. Raises Conflict when the run was taken, was handed over again or has ended
        since it was ``known``, or when another controller appended a state that is not known here yet."""
        async with self._changing:
            position, last = self.book.states[known.task]
            if (last.state, last.instance, last.key) != (known.state, known.instance, known.key):
                raise Conflict(f"the run of task {known.task} has changed")
            await self._put(replace(last, **changes), position)

    async def _put(self, state: RunState, after: int) -> None:
        """Append the state of a run if ``after`` is the position of its last one. Raises Conflict."""
        position = await self._bus.publish_acked(run_state(state.task), msgspec.msgpack.encode(state), expect_last_on_subject=after)
        self.book.note(position, state)
        self._wake(state.task)

    async def _change_task(self, name: str, changes: Callable[[TaskView], list[tuple[str, str]]]) -> None:
        """Append the (state, reason) that ``changes`` makes of the task as it is."""

        def decide() -> list[Event]:
            task = self._projection.view.tasks.get(name)
            wanted = changes(task) if task is not None else []
            return [TaskStateChanged(time.time_ns(), name, state, reason) for state, reason in wanted]

        await self._writer.change("task", name, decide)

    async def _revoke(self, state: RunState) -> None:
        key = state.key
        if key:

            def revoked(view: AccessView) -> Event | None:
                known = view.keys.get(key)
                return KeyRevoked(time.time_ns(), key) if known is not None and not known.revoked_ns else None

            await self._note_access(revoked, key, state.tenant, "revoked")

    async def _note_access(self, decide: Callable[[AccessView], Event | None], key: str, tenant: str, detail: str) -> None:
        def events(view: AccessView) -> tuple[str, list[Event]] | None:
            event = decide(view)
            took = ActionTaken(time.time_ns(), _ACTOR, tenant, "key.write", key, detail)
            return None if event is None else (key, [event, took])

        await self._writer.change_access(events)


def _end(task: TaskView, state: str, reason: str) -> list[tuple[str, str]]:
    """The changes that end a task like that. One that completed, as its last session closed, while its script went on and failed, starts
    again for it."""
    if task.live:
        return [(state, reason)]
    return [(STARTED, ""), (state, reason)] if task.state == COMPLETED and state == FAILED else []


def _taken(task: str) -> TaskExists:
    return TaskExists(f"the id {task} is taken by another script or task; leave it out to get a new one")


def _text(parts: list[bytes]) -> str:
    return b"".join(parts).decode(errors="replace")


def replace_ended(part: LogPart, over: bool) -> LogPart:
    """``ended`` only where the run is over as well."""
    return LogPart(part.text, part.next, part.ended and over)


def _decoded(data: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except MALFORMED:
        get_logger().warning("a request of a runner cannot be read; is it of another version?")
        return None
