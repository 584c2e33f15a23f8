"""Clients: scripts that run on the product's ``Session`` and ``Opening``, as threads of simulated processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from blake3 import blake3

from bus_schemas.batch import Limits
from bus_schemas.events import Outcome, TaskSubmitted
from services.server import node
from tests.simulation.system.device import DataPort
from tests.simulation.system.draw import Plan, Script, Step
from tests.simulation.system.kernel import MS, Fiber, Machine, Process, Threads, World, world
from tests.simulation.system.services import MIB, Service
from tests.simulation.system.wire import Broker, BusThread, Nats, Network
from wooly import session
from wooly.errors import ApiError, NoServerError, WoolyError
from wooly.link import Flush, Ticket
from wooly.transport import data_port, moving, opening, patience, recovery, replay, session_state
from wooly.transport.replay import follow

__all__ = ["LIMITS", "Client", "content", "replaced"]

LIMITS: Final = Limits(inline_bytes_max=32, chunk_bytes=64, outstanding_batches_max=4)
"""Small, so that small scripts reach them."""


def content(step: Step) -> bytes:
    """What a script uploads."""
    return blake3(step.salt.to_bytes(8, "little")).digest(step.nbytes)


def flush_of(step: Step) -> Flush:
    match step.kind:
        case "upload":
            return Flush(uploads=[(step.to, memoryview(content(step)))])
        case "alloc":
            return Flush(allocs=[(step.to, step.nbytes)])
        case "run":
            return Flush(scalars=[step.cost_ms, step.salt, step.to, *step.sources])
        case "read":
            return Flush(reads=[(step.to, 0, step.nbytes)])
        case _:
            return Flush(frees=[step.to])


class Config:
    """What a client's configuration says, as far as it is asked. Two are never equal."""

    def __init__(self, client: Client, plan: Plan) -> None:
        script = client.script
        self.client = client
        self.nats_urls = ("simulated",)
        self.controller_url = "simulated"
        self.task_id = ""
        self.start_wait_s = 30.0
        self.tenant = script.tenant
        self.required_vram_mb = script.vram_mb
        self.prio = script.priority
        self.device_count = 1
        self.gpu_mode = "Shared"
        self.controller_node_group_ids: list[str] = []
        self.swap_from_vram = True
        self.queue = script.queue
        self.weight = 100
        self.sla_ms_p99 = 0
        self.pace_percent = 0
        self.origin = {"WOOLY_TENANT": "environment"}
        self.api_key = ""
        self.weights_dedup = False
        self.vram_wait_ms = 1000
        self.recovery_wait_s = plan.recovery_wait_s
        self.recovery_mb = 1
        self.recovery_target_s = script.target_s


class Client:
    """One script. ``verdict``: empty while it runs; else ``finished``, ``killed``, or the error that ended it."""

    def __init__(self, world: World, plan: Plan, script: Script, machine: Machine, network: Network, broker: Broker, api: Any) -> None:
        self.world, self.plan, self.script, self.machine = world, plan, script, machine
        self.network, self.broker, self.api = network, broker, api
        self.verdict = ""
        self.problem = ""
        self.answers: dict[int, bytes] = {}
        self.task = ""
        self.process: Process | None = None
        self.session: Any = None

    def start(self) -> None:
        self.process = Process(self.world, self.script.name, self.machine)
        self.process.on_end.append(self._ended)
        Fiber(self.process, self._run).start()

    def _ended(self) -> None:
        self.verdict = self.verdict or "killed"

    def _run(self) -> None:
        try:
            self._script()
            self.verdict = "finished"
        except WoolyError as error:
            self.verdict, self.problem = type(error).__name__, str(error)
        finally:
            process = self.process
            assert process is not None
            self.world.after(MS, None, process.kill)

    def _script(self) -> None:
        link = self.session = session.open_session(Config(self, self.plan), title=self.script.name)  # type: ignore[arg-type]  # has what is asked
        link._log._bytes_max = self.script.log_bytes
        try:
            tickets: list[tuple[int, Ticket]] = []
            for number, step in enumerate(self.script.steps):
                ticket = link.submit(flush_of(step))
                if step.kind == "read":
                    tickets.append((number, ticket))
                if step.waits:
                    self._take(link, tickets)
                if self.script.think_ns:
                    self.world.sleep(self.script.think_ns / 1e9)
            self._take(link, tickets)
            link.outcome = Outcome(exit_code=0)
        except WoolyError as error:
            link.outcome = Outcome(exit_code=1, error=type(error).__name__)
            raise
        finally:
            if self.process is not None and not self.process.dead:
                link.close()

    def _take(self, link: Any, tickets: list[tuple[int, Ticket]]) -> None:
        while tickets:
            number, ticket = tickets[0]
            (answer,) = link.wait(ticket)
            self.answers[number] = bytes(answer)
            tickets.pop(0)


class _ApiClient:
    """``wooly.api.Client`` over simulated connections to a controller."""

    def __init__(self, config: Config, timeout_s: float = 8.0) -> None:
        self._client, self._timeout_s = config.client, timeout_s

    def task(self, task: str) -> Any:
        return self._ask("get", task)

    def submit(self, required_vram_mb: int, **wish: Any) -> Any:
        self._client.task = wish["id"]
        return self._ask("submit", TaskSubmitted(
            at_ns=0, task=wish["id"], tenant=wish["tenant"], priority=wish["priority"], vram_bytes=required_vram_mb * MIB,
            gpu_count=1, exclusive=False, groups=(), noswap=wish["noswap"], title=wish["title"], queue=wish["queue"], weight=wish["weight"],
            queue_timeout_ms=30_000,
        ))  # fmt: skip

    def stay(self, task: str, reason: str) -> Any:
        return self._ask("stay", task, reason)

    def place_again(self, task: str) -> Any:
        return self._ask("resume", task)

    def cancel(self, task: str) -> Any:
        return self._ask("cancel", task)

    def waiting(self, task: str) -> None:
        return None

    def _ask(self, verb: str, *arguments: Any) -> Any:
        status, answer = self._client.api(self._client.machine, self._timeout_s, verb, *arguments)
        if status == 0:
            raise NoServerError(answer)
        if status == 409 and verb == "submit":
            raise ApiError(answer, status=409, kind="no-placement", detail=answer)
        if status != 200:
            raise ApiError(answer, status=status, detail=answer)
        return answer


def make_api(world: World, network: Network, controllers: list[Service]) -> Any:
    """A function for threads: ask a controller, (status, answer); status 0: none answered."""

    def ask(machine: Machine, timeout_s: float, verb: str, *arguments: Any) -> tuple[int, Any]:
        fiber = world.fiber
        assert fiber is not None
        service = world.random.choice(controllers)
        fiber.block(0.002)
        process = service.alive
        if process is None or "api" not in service.parts:
            return 0, "connection refused"
        if not network.open(machine, service.machine):
            fiber.block(timeout_s)
            return 0, "timed out"
        answer: list[tuple[int, Any]] = []

        def ended(task: Any) -> None:
            if not task.cancelled():
                world.after(MS, fiber.process, back, task.result())

        def arrived() -> None:
            task = process.loop.create_task(service.parts["api"].ask(verb, *arguments))
            service.parts.setdefault("requests", []).append(task)
            task.add_done_callback(ended)

        def back(result: tuple[int, Any]) -> None:
            if network.open(machine, service.machine) and not answer:
                answer.append(result)
                fiber.wake()

        def died() -> None:
            if not answer and not fiber.killed and not fiber.over:
                answer.append((0, "the connection was closed"))
                fiber.wake()

        process.on_end.append(died)
        world.after(MS, process, arrived)
        fiber.block(timeout_s)
        return answer[0] if answer else (0, "timed out")

    return ask


class _Progress:
    """Lines for people."""

    @staticmethod
    def say(line: str) -> None:
        if "repeating" in line:
            world().counts["sessions built again"] += 1
        elif "continuing on" in line:
            world().counts["sessions continued"] += 1

    delayed = opened = staticmethod(lambda *_: None)

    @staticmethod
    def slow(*_: Any) -> Any:
        return contextlib.nullcontext()

    class WaitingLine:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        show = left = lambda self, *_, **__: None


def _answer() -> session_state.Answer:
    """With an event and a lock of this simulation."""
    return session_state.Answer(event=Threads.Event(), fetching=Threads.Lock())  # type: ignore[arg-type]  # they do what those do


class _Bus(BusThread):
    def start(self, wait_s: float = 0.0) -> None:
        until = self.loop.time() + wait_s
        fiber = world().fiber
        assert fiber is not None
        while not self._nats.connect():
            if self.loop.time() > until:
                raise NoServerError("no bus")
            fiber.block(0.5)


def _follow(held: dict[int, int], flush: Flush, made: Any, known: dict[int, Any] | None = None) -> None:
    """A program of these scripts is in its scalars: its third is the buffer that it writes (``device.apply``)."""
    follow(held, flush, made, known)
    if known and flush.scalars:
        known.pop(int(flush.scalars[2]), None)  # type: ignore[arg-type]  # of integers


@contextlib.contextmanager
def replaced(clients: list[Client]) -> Iterator[None]:
    """The product's client with what reaches outside replaced."""

    quiet = SimpleNamespace(watch=lambda: None, on_kill=lambda report: lambda: None)
    credentials = SimpleNamespace(principal="local", tls=None, secret="")

    def bus_thread(urls: Any, name: str, given: Any) -> Any:
        process = world().current
        client = next(client for client in clients if client.process is process)
        assert process is not None
        return _Bus(Nats(process, client.network, client.broker, "_INBOX_local"), given)

    with contextlib.ExitStack() as stack:
        for owner, name, new in (
            (session, "threading", Threads),
            (session, "Answer", _answer),
            (session, "BusThread", bus_thread),
            (session, "progress", _Progress),
            (session, "bus_credentials", lambda config: credentials),
            (session, "atexit", SimpleNamespace(register=lambda work: None, unregister=lambda work: None)),
            (session_state, "threading", Threads),
            (session_state, "DataPort", DataPort),
            (session_state, "progress", _Progress),
            (moving, "progress", _Progress),
            (recovery, "threading", Threads),
            (recovery, "progress", _Progress),
            (opening, "threading", Threads),
            (opening, "_client", _ApiClient),
            (opening, "_lock", contextlib.nullcontext()),
            (opening, "_places", {}),
            (opening, "outcome", quiet),
            (opening, "progress", _Progress),
            (patience, "progress", _Progress),
            (data_port, "threading", Threads),
            (replay, "follow", _follow),
            (node, "LIMITS", LIMITS),
        ):
            stack.enter_context(patch.object(owner, name, new))
        yield
