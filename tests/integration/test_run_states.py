"""The state of a run as a controller changes it: what two requests change at once is all kept, and a notification is sent once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from msgspec.structs import replace

from billing.tiers import TierBook
from bus_schemas.events import BudgetCrossed, TaskStateChanged, TaskSubmitted
from bus_schemas.runs import ENDED, PENDING, TAKEN, RunnerSync, RunReport, RunScript, RunState, run_report, run_state
from services.controller.actions.tasks import TaskActions
from services.controller.errors import Invalid, OutOfState, TaskExists
from services.controller.identity import Caller
from services.controller.log_projection import LogProjection
from services.controller.personal import PersonalKeys
from services.controller.placer import Placer
from services.controller.run_book import BudgetCrossings
from services.controller.runs import Runs
from services.controller.writer import Writer
from services.kit.access import AccessView
from services.kit.access.access import open_access
from services.kit.access.rules import local_identity
from services.kit.bus import Bus, connect
from services.kit.errors import BusUnavailable
from services.kit.nats_server import NatsServer


@asynccontextmanager
async def runs_on(url: str) -> AsyncIterator[tuple[Runs, Bus]]:
    bus = await connect(url, name="controller")
    await bus.ensure_streams()
    async with PersonalKeys(bus, None) as personal:
        projection = LogProjection(bus, personal)
        projection.also(BudgetCrossings)
        projection.also(TierBook)
        async with projection:
            access = await open_access(bus, {}, listens_on=[], view=lambda: projection.fold(AccessView), follows_log=lambda: True)
            writer = Writer(bus, projection, personal)
            async with Runs(bus, projection, writer, TaskActions(projection, writer, Placer(projection, writer)), access) as runs:
                yield runs, bus
    await bus.close()


class _Hook:
    """A receiver of notifications; ``got``: their bodies."""

    def __init__(self) -> None:
        self.got: list[dict[str, object]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        self.got.append(json.loads(await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()


async def _report(bus: Bus, report: RunReport) -> None:
    """As a runner does: again until a controller has noted it."""
    while True:
        try:
            await bus.request(run_report(report.runner), msgspec.msgpack.encode(report), 2.0)
        except BusUnavailable:
            continue
        return


async def _stored(runs: Runs, bus: Bus, state: RunState) -> None:
    """Append a state, and wait until the controller knows it."""
    position = await bus.publish_acked(run_state(state.task), msgspec.msgpack.encode(state))
    async with asyncio.timeout(30):
        while runs.book.states.get(state.task, (0, state))[0] < position:  # noqa: ASYNC110  # the follower has no event for it
            await asyncio.sleep(0.01)


_TAKEN = RunState(task="t", tenant="lab", name="a.py", state=TAKEN, submitted_ns=5, wall_s=60, runner="r", instance="one", taken_ns=6)
_LOW = BudgetCrossed(7, "lab", "warning", period_from_ns=0, used_micro=6, limit_micro=10, position=1, period="month")


def test_a_run_that_ends_while_its_budget_is_notified_is_notified_once_of_each(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WOOLY_WEBHOOK_PRIVATE", "1")

    async def body() -> None:
        hook = _Hook()
        server = await asyncio.start_server(hook.serve, "127.0.0.1", 0)
        async with runs_on(nats.url) as (runs, bus):
            discard = runs._discard

            async def budget_is_notified_first(task: str) -> None:
                while not runs.book.states[task][1].budget_position:
                    await runs.look_after()
                    await asyncio.sleep(0.01)
                await discard(task)

            monkeypatch.setattr(runs, "_discard", budget_is_notified_first)
            await _stored(runs, bus, replace(_TAKEN, webhook=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"))
            await bus.publish_events("budget", "lab", [_LOW])
            async with asyncio.timeout(60):
                await _report(bus, RunReport("r", "one", "t", True, 3))
                while not runs.book.states["t"][1].notified:
                    await runs.look_after()
                    await asyncio.sleep(0.01)
            for _ in range(20):
                await runs.look_after()
                await asyncio.sleep(0.01)
            state = runs.book.states["t"][1]
            assert (state.state, state.exit_code, state.notified, state.budget_position > 0) == (ENDED, 3, "delivered", True)
        assert [one["event"] for one in hook.got] == ["budget", "ended"]
        server.close()

    asyncio.run(body())


def test_a_report_that_loses_a_race_is_noted_when_it_comes_again(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another controller changes the state of the run while this one notes its end."""

    async def body() -> None:
        async with runs_on(nats.url) as (runs, bus):
            discard, appended = runs._discard, list[int]()

            async def another_is_first(task: str) -> None:
                await discard(task)
                if not appended:  # in one step: the follower reads nothing between this and the change
                    appended.append(await bus.publish_acked(run_state(task), msgspec.msgpack.encode(replace(_TAKEN, budget_position=9))))

            monkeypatch.setattr(runs, "_discard", another_is_first)
            await _stored(runs, bus, _TAKEN)
            async with asyncio.timeout(60):
                await _report(bus, RunReport("r", "one", "t", True, 3))
            state = runs.book.states["t"][1]
            assert (state.state, state.exit_code, state.budget_position) == (ENDED, 3, 9)

    asyncio.run(body())


def test_a_report_that_overtakes_the_state_of_its_run_is_noted_when_it_comes_again(nats: NatsServer) -> None:
    """Another controller handed the run over, and this one does not know of that yet: it leaves the report unanswered."""

    async def body() -> None:
        async with runs_on(nats.url) as (runs, bus):
            await _stored(runs, bus, replace(_TAKEN, state=PENDING, runner="", instance="", taken_ns=0))
            report = RunReport("r", "one", "t", True, None, 0, "the runner could not start it")
            with pytest.raises(BusUnavailable):
                await bus.request(run_report("r"), msgspec.msgpack.encode(report), 1.0)
            await _stored(runs, bus, _TAKEN)
            async with asyncio.timeout(60):
                await _report(bus, report)
            assert (runs.book.states["t"][1].state, runs.book.states["t"][1].reason) == (ENDED, "the runner could not start it")

    asyncio.run(body())


_SCRIPT = RunScript("t", "lab", "print(1)", "a.py", (), {}, 60)
_WISH = TaskSubmitted(1, "t", "lab", 2, 1 << 20, queue=True)


def test_the_same_run_is_submitted_once(nats: NatsServer) -> None:
    """By two requests at once, and when no runner is there any more."""

    async def body() -> None:
        async with runs_on(nats.url) as (runs, _):
            caller = Caller(local_identity())
            runs.book.heard(RunnerSync("r", "one", 2), time.monotonic())
            both = await asyncio.gather(*(runs.submit(caller, _WISH, _SCRIPT, "", "") for _ in range(2)))
            assert sorted(new for _, new in both) == [False, True]
            runs.book.runners.clear()
            runs.book.listen(-60.0)
            task, new = await runs.submit(caller, _WISH, _SCRIPT, "", "")
            assert (task.submitted.task, new, runs.book.states["t"][1].state) == ("t", False, PENDING)
            with pytest.raises(TaskExists):
                await runs.submit(caller, _WISH, replace(_SCRIPT, script="print(2)"), "", "")
            with pytest.raises(Invalid):
                await runs.submit(caller, replace(_WISH, task="u"), replace(_SCRIPT, task="u"), "", "")

    asyncio.run(body())


def test_a_task_that_two_requests_submit_at_once_is_new_to_one_of_them(nats: NatsServer) -> None:
    async def body() -> None:
        async with runs_on(nats.url) as (runs, _):
            both = await asyncio.gather(*(runs._tasks.submit(Caller(local_identity()), _WISH) for _ in range(2)))
            assert sorted(new for _, new in both) == [False, True]

    asyncio.run(body())


def test_a_script_that_outlives_its_sessions_can_be_cancelled(nats: NatsServer) -> None:
    """Its task completed as the last session closed, and its runner still executes it."""

    async def body() -> None:
        async with runs_on(nats.url) as (runs, bus):
            caller, tasks = Caller(local_identity()), runs._tasks
            await tasks.submit(caller, _WISH)
            await bus.publish_events("task", "t", [TaskStateChanged(2, "t", "completed", "")])
            with pytest.raises(OutOfState, match="task t is over: completed"):
                await tasks.cancel(caller, "t")
            await _stored(runs, bus, _TAKEN)
            task = await tasks.cancel(caller, "t")
            assert (task.state, task.reason) == ("cancelled", "cancelled by local")
            runs.book.heard(sync := RunnerSync("r", "one", 2, ("t",)), 0.0)
            assert runs.book.to_stop(runs._projection.view, sync) == ("t",)
            async with asyncio.timeout(60):
                await _report(bus, RunReport("r", "one", "t", True, None, 15))
            assert (runs.book.states["t"][1].state, runs.book.states["t"][1].reason) == (ENDED, "cancelled by local")
            assert (await tasks.cancel(caller, "t")).state == "cancelled"

    asyncio.run(body())
