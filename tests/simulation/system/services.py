"""The services as processes: node servers, controllers and billing. Their code is the product's; replaced is what reaches outside: disks,
connections, the executor, REST, and the parts of a node that are not judged here (journals for replay, budgets, keys).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from msgspec.structs import replace

from billing.tiers import TierBook
from bus_schemas.events import TaskSubmitted
from scheduler.dispatch import Dispatch, chain
from scheduler.dispatch.stimuli import DispatchConfig
from scheduler.placement import TaskView
from services.billing import projection as billing_projection
from services.billing.projection import BillingProjection
from services.controller import reconciler
from services.controller.actions.tasks import TaskActions
from services.controller.errors import RequestError
from services.controller.identity import Caller
from services.controller.log_projection import LogProjection
from services.controller.metrics import Gauges
from services.controller.placer import Placer
from services.controller.reconciler import Reconciler
from services.controller.store import LeaseLost, StoreConflict, StoreUnavailable
from services.controller.writer import Writer
from services.kit import follow
from services.kit.access.rules import local_identity
from services.kit.bus import Bus
from services.kit.errors import BusRefused, KitError, QuotaReached
from services.kit.seal import NAME_HEADER
from services.server import accounting, device, facts, node
from services.server.facts import FactLog, last_epoch
from services.server.settings import MemorySettings, Settings, Trust
from tests.simulation.system.device import VRAM_BYTES, ExecutorProcess
from tests.simulation.system.draw import Plan
from tests.simulation.system.kernel import MS, Machine, Process, S, World, world
from tests.simulation.system.wire import Broker, Consumers, Nats, Network

__all__ = ["Api", "Service", "Store", "billing_service", "controller_service", "node_service", "replaced"]

MIB: Final = 1 << 20


# -- the bus ---------------------------------------------------------------------------------------------------------------------------


class SimulatedBus(Bus):
    """The product's connection, with the API of JetStream spoken without JSON."""

    async def ensure_stream(self, config: dict[str, Any]) -> dict[str, Any]:
        name = config["name"]
        await self.consumers._ask(lambda broker: broker.ensure(name))  # type: ignore[attr-defined]  # Consumers of this simulation
        return {"config": config, "state": {"last_seq": 0}}

    async def js_api(self, verb: str, body: dict[str, Any] | None = None, timeout_s: float = 0.0) -> dict[str, Any]:
        """``STREAM.MSG.GET`` by subject; what else is asked has a method of its own."""
        stream, subject = verb.removeprefix("STREAM.MSG.GET."), (body or {})["last_by_subj"]
        at, name = await self.consumers._ask(lambda broker: broker.last_on(stream, subject))  # type: ignore[attr-defined]  # Consumers of this simulation
        if not at:
            raise BusRefused("no message found", 10037)
        return {"message": {"seq": at, "hdrs": base64.b64encode(f"NATS/1.0\r\n{NAME_HEADER}: {name}\r\n\r\n".encode())}}

    async def stored_at_ns(self, stream: str, position: int) -> int:
        return int(await self.consumers._ask(lambda broker: broker.stored_at_ns(stream, position)))  # type: ignore[attr-defined]  # as above


async def connect(process: Process, network: Network, broker: Broker) -> SimulatedBus:
    """As ``services.kit.bus.connect``. Raises KitError after 30 s."""
    nats = Nats(process, network, broker, f"_INBOX_{process.name}")
    deadline = process.loop.time() + 30.0
    while not nats.connect():
        if process.loop.time() > deadline:
            raise KitError("no bus")
        await asyncio.sleep(0.1)
    bus = SimulatedBus(nats)  # type: ignore[arg-type]  # stands for a Client
    bus.consumers = Consumers(nats)
    tasks: set[Any] = set()

    def reconnected() -> None:
        task = process.loop.create_task(bus._on_reconnected())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    nats.reconnected = reconnected
    await bus._start()
    return bus


# -- processes -------------------------------------------------------------------------------------------------------------------------


class Service:
    """A process that its supervisor starts again whenever it ends. ``held``: faults that keep it from being started."""

    def __init__(self, world: World, name: str, machine: Machine, main: Callable[[Service], Any], restart_ns: int) -> None:
        self.world, self.name, self.machine, self._main, self._restart_ns = world, name, machine, main, restart_ns
        self.process: Process | None = None
        self.stop: asyncio.Event | None = None
        self.held = 0
        self.starts = 0
        self.parts: dict[str, Any] = {}

    def start(self) -> None:
        if self.held or (self.process is not None and not self.process.dead) or self.world.over:
            return
        self.starts += 1
        self.parts = {}
        self.process = Process(self.world, self.name, self.machine)
        self.process.on_end.append(self._ended)
        self.world.ready.append((self.process, self._begin, ()))

    def _begin(self) -> None:
        assert self.process is not None
        self.stop = asyncio.Event()
        self.parts["main"] = self.process.loop.create_task(self._run(self.process))

    async def _run(self, process: Process) -> None:
        try:
            await self._main(self)
        except (KitError, OSError, StoreUnavailable) as error:
            self.world.counts[f"{self.name.partition('-')[0]} ended: {type(error).__name__}"] += 1
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not process.dead and not self.world.over:
                self.world.problems.append((self.name, error))
        self.world.after(MS, None, process.kill)

    def _ended(self) -> None:
        self.world.after(self._restart_ns, None, self.start)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    @property
    def alive(self) -> Process | None:
        return self.process if self.process is not None and not self.process.dead else None


# -- a node ----------------------------------------------------------------------------------------------------------------------------


class JournalFile:
    """``services.server.facts.JournalFile`` on the disk of the machine: appended (lost with the process), flushed (lost with the
    machine), synced."""

    def __init__(self, path: Path) -> None:
        process = world().current
        assert process is not None
        self._process = process
        self.path, self._key = path, str(path)
        disk = self._disk
        self.bodies = list(disk["synced"]) + list(disk["flushed"])
        disk["synced"], disk["flushed"] = list(self.bodies), []
        self._buffer: list[bytes] = []
        self.nbytes = 0

    @property
    def _disk(self) -> dict[str, list[bytes]]:
        files = self._process.machine.files
        disk: dict[str, list[bytes]] = files.setdefault(self._key, {"synced": [], "flushed": []})
        return disk

    def _check(self) -> None:
        if self._process.machine.full:
            raise OSError(28, "No space left on device")

    def append(self, body: bytes) -> None:
        self._check()
        self._buffer.append(body)
        self.nbytes += len(body)

    def flush(self) -> None:
        self._check()
        self._disk["flushed"] += self._buffer
        self._buffer = []

    def sync(self) -> None:
        self.flush()
        self._disk["synced"] += self._disk["flushed"]
        self._disk["flushed"] = []

    def rewrite(self, bodies: Any) -> None:
        self._check()
        self._disk["synced"], self._disk["flushed"] = list(bodies), []
        self._buffer = []
        self.nbytes = 0

    def close(self) -> None:
        self.flush()


class _DispatchLog:
    """The dispatch core without its record."""

    def __init__(self, folder: Any, gpu: int, epoch: int, lane: Any) -> None:
        self._core = Dispatch()
        self.on = self._core.on

    @property
    def state(self) -> Any:
        return self._core.state

    @property
    def next_wakeup_ns(self) -> int | None:
        return self._core.next_wakeup_ns()

    def chain_after(self, session: str, seq: int) -> bytes:
        batch, before = self._core.state.sessions[session].launched[seq]
        return chain(before, seq, batch.content)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Nothing:
    """Stands for a part of the node that is not simulated: it does nothing, at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.percent = 0

    def lane(self, *_: Any) -> Any:
        return self

    async def start(self, *_: Any) -> None:
        pass

    async def stop(self, *_: Any) -> None:
        pass

    async def close(self, *_: Any) -> bool:
        return True

    def tick(self) -> None:
        pass

    note = begin = add = seal = lambda self, *_: None


class _Journal(_Nothing):
    def start(self, *_: Any) -> None:  # type: ignore[override]  # of JournalStream it is no coroutine
        pass


def node_settings(name: str, plan: Plan) -> Settings:
    return Settings(
        nats_url="", node_name=name, node_id=name, node_address="", groups=(), backend="model", threads=1, vram_bytes=VRAM_BYTES, devices=1,
        data_dir=Path("/simulated") / name, cache_dir=Path("/simulated"), data_host="127.0.0.1", data_port=0, lease_ms=plan.lease_ms,
        orphan_s=plan.orphan_s, fuel=None, compile_ms=1, model_cache_bytes=0, trust=Trust(), memory=MemorySettings(overcommit_percent=0),
        dispatch=DispatchConfig(), stop_grace_s=plan.stop_grace_s, unlinked_lease_ms=plan.unlinked_lease_ms,
    )  # fmt: skip


def node_service(world: World, machine: Machine, network: Network, broker: Broker, plan: Plan, restart_ns: int) -> Service:
    settings = node_settings(machine.name, plan)

    async def main(service: Service) -> None:
        process = service.alive
        assert process is not None and service.stop is not None
        bus = await connect(process, network, broker)
        log = FactLog(settings.data_dir / "facts.journal", settings.node_id, await last_epoch(bus, settings.node_id))
        served = service.parts["node"] = node.Node(settings, bus, log)
        await served.start()
        world.counts["nodes started"] += 1
        stopping = [asyncio.ensure_future(service.stop.wait()), asyncio.ensure_future(log.failed.wait())]
        await asyncio.wait(stopping, return_when=asyncio.FIRST_COMPLETED)
        for one in stopping:
            one.cancel()
        await served.stop()
        await bus.close()

    return Service(world, f"server-{machine.name}", machine, main, restart_ns)


# -- controllers -----------------------------------------------------------------------------------------------------------------------


class Store:
    """The configuration store: keys under leases."""

    def __init__(self, world: World, broker: Broker) -> None:
        self.world, self.broker = world, broker
        self.keys: dict[str, _Lease] = {}

    def check(self) -> None:
        if not self.broker.up or self.broker.paused:
            raise StoreUnavailable("the bus is away")

    async def lease(self, ttl_s: int) -> _Lease:
        self.check()
        return _Lease(self, ttl_s)

    async def create(self, key: str, value: bytes, *, lease: _Lease) -> int:
        held = self.keys.get(key)
        if held is not None and held.good:
            raise StoreConflict(key)
        self.keys[key] = lease
        return 1


class _Lease:
    def __init__(self, store: Store, ttl_s: int) -> None:
        self._store, self.ttl_s = store, ttl_s
        self._until_ns = store.world.now_ns + ttl_s * S

    @property
    def good(self) -> bool:
        return self._store.world.now_ns < self._until_ns

    async def keepalive(self) -> None:
        self._store.check()
        if not self.good:
            raise LeaseLost("too late")
        self._until_ns = self._store.world.now_ns + self.ttl_s * S

    async def revoke(self) -> None:
        self._until_ns = 0


class _Runs:
    """No script is run by the platform here."""

    book = SimpleNamespace(awaited=lambda task, now_s, lease_s: False)

    async def look_after(self) -> None:
        pass


class Api:
    """What the routes of a controller do for clients and operators."""

    def __init__(self, projection: LogProjection, tasks: TaskActions) -> None:
        self._projection = projection
        self._tasks = tasks
        self._by = Caller(local_identity())

    async def ask(self, verb: str, *arguments: Any) -> tuple[int, Any]:
        """(status, answer or problem) of one request."""
        try:
            return 200, await getattr(self, f"_{verb}")(*arguments)
        except QuotaReached as error:
            return 429, str(error)
        except RequestError as error:
            return error.status, str(error)
        except KitError as error:  # the bus or the log is away
            return 503, str(error)

    async def _get(self, task: str) -> Any:
        await self._projection.caught_up()
        return self._answer(self._tasks.seen(self._by, task))

    async def _submit(self, task: TaskSubmitted) -> Any:
        await self._projection.caught_up()
        placed, _ = await self._tasks.submit(self._by, replace(task, at_ns=world().unix_ns()))
        return self._answer(placed)

    async def _resume(self, task: str) -> Any:
        return self._answer(await self._tasks.resume(self._by, task))

    async def _stay(self, task: str, reason: str) -> Any:
        return self._answer(await self._tasks.stay(self._by, task, reason))

    async def _cancel(self, task: str) -> Any:
        return self._answer(await self._tasks.cancel(self._by, task))

    async def _move(self, task: str, to: str) -> Any:
        return self._answer(await self._tasks.move(self._by, task, to))

    def _answer(self, task: TaskView) -> Any:
        wish, placed, decision, moving = task.submitted, task.placed, task.decision, task.moving
        sessions = self._projection.view.sessions
        move = SimpleNamespace(
            node=moving.node, gpus=list(moving.gpus), position=moving.position,
            urgent=placed is not None and self._projection.view.nodes[placed.node].leaving,
            sessions=sum(1 for name in task.sessions if sessions[name].fact.node == moving.node),
        ) if moving is not None else None  # fmt: skip
        return SimpleNamespace(
            id=wish.task, tenant=wish.tenant, title=wish.title, state=task.state, reason=task.reason, priority=task.priority,
            required_vram_mb=wish.vram_bytes // MIB, vram_grows=wish.vram_grows, gpu_mode="Shared", noswap=wish.noswap, weight=wish.weight,
            sla_ms_p99=wish.sla_ms_p99, pace_percent=wish.pace_percent, node=placed.node if placed is not None else None,
            gpus=list(placed.gpus) if placed is not None else [],
            placement=SimpleNamespace(position=decision.position) if decision is not None else None,
            move=move, stayed=task.stayed or None,
        )  # fmt: skip


class _PlainTexts:
    """In the place of ``PersonalKeys``: titles are not encrypted."""

    def __init__(self) -> None:
        self.on_change: Callable[[str], None] = lambda owner: None

    def opened(self, fact: Any) -> Any:
        return fact

    async def sealed(self, events: Sequence[Any]) -> list[Any]:
        return list(events)


def controller_service(
    world: World, name: str, machine: Machine, network: Network, broker: Broker, store: Store, plan: Plan, restart_ns: int
) -> Service:
    async def main(service: Service) -> None:
        process = service.alive
        assert process is not None and service.stop is not None
        bus = await connect(process, network, broker)
        await bus.ensure_streams()
        personal: Any = _PlainTexts()
        projection = service.parts["projection"] = LogProjection(bus, personal)
        projection.also(TierBook)
        gauges = Gauges(bus)
        await projection.__aenter__()
        await gauges.__aenter__()
        writer = Writer(bus, projection, personal)
        placer = Placer(projection, writer)
        tasks = TaskActions(projection, writer, placer)
        duties = Reconciler(
            bus=bus, store=store, projection=projection, gauges=gauges, writer=writer, placer=placer, runs=_Runs(),  # type: ignore[arg-type]  # stand-ins
            node_lease_ms=plan.node_lease_ms, start_lease_ms=plan.start_lease_ms,
        )  # fmt: skip
        service.parts["api"] = Api(projection, tasks)
        running = asyncio.ensure_future(duties.run())
        stopping = asyncio.ensure_future(service.stop.wait())
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    return Service(world, name, machine, main, restart_ns)


# -- billing -----------------------------------------------------------------------------------------------------------------------------


class _Snapshot:
    """A file for ``BillingProjection``."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.name, self.parent = machine, "billing", self

    def mkdir(self, **_: Any) -> None:
        pass

    def glob(self, pattern: str) -> tuple[()]:
        return ()

    def read_bytes(self) -> bytes:
        data = self.machine.files.get("billing")
        if data is None:
            raise FileNotFoundError
        return bytes(data)


def _write_atomically(file: _Snapshot, data: bytes, *, durable: bool) -> None:
    if file.machine.full:
        raise OSError(28, "No space left on device")
    file.machine.files["billing"] = data


async def _in_this_process(work: Callable[[], bool]) -> bool:
    return work()


def billing_service(world: World, machine: Machine, network: Network, broker: Broker, restart_ns: int) -> Service:
    async def main(service: Service) -> None:
        process = service.alive
        assert process is not None and service.stop is not None
        bus = await connect(process, network, broker)
        await bus.ensure_streams()
        async with BillingProjection(bus, _Snapshot(machine)) as projection:  # type: ignore[arg-type]  # stands for a Path
            service.parts["billing"] = projection
            await service.stop.wait()

    return Service(world, "billing", machine, main, restart_ns)


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """The product's services with what reaches outside replaced."""
    with contextlib.ExitStack() as stack:
        for owner, name, new in (
            (facts, "JournalFile", JournalFile),
            (node, "JournalStream", _Journal),
            (node, "ProgramLane", _Nothing),
            (node, "AllowanceLink", _Nothing),
            (node, "DispatchLog", _DispatchLog),
            (node, "_private", lambda folder: folder),
            (device, "ExecutorProcess", ExecutorProcess),
            (device, "StopPage", SimpleNamespace(open=lambda path: _page(path.name))),
            (accounting, "boot_id", _boot_id),
            (follow, "HEARTBEAT_S", 4.0),
            (follow, "_SILENCE_S", 10.0),
            (follow, "_PASSED_MIN", 8),
            (reconciler, "_TICK_S", 0.5),
            (billing_projection, "write_atomically", _write_atomically),
            (billing_projection, "in_a_copy", _in_this_process),
        ):
            stack.enter_context(patch.object(owner, name, new))
        yield


def _page(name: str) -> Any:
    found = ExecutorProcess.nodes[name].alive()
    if found is None:
        raise OSError("the executor has ended")
    return found.page


def _boot_id() -> str:
    process = world().current
    assert process is not None
    return f"{process.machine.name} {process.machine.boots}"
