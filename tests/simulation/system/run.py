"""One seed, from its drawing to its verdict."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from tests.simulation.system import client as clients
from tests.simulation.system import services
from tests.simulation.system.client import Client, make_api
from tests.simulation.system.device import DataPort, ExecutorProcess, Node
from tests.simulation.system.draw import Fault, Plan, draw
from tests.simulation.system.kernel import MS, Fiber, Machine, Process, S, World, installed
from tests.simulation.system.oracles import Oracle, Violation
from tests.simulation.system.services import Service, Store, billing_service, controller_service, node_service
from tests.simulation.system.wire import Broker, Network

__all__ = ["Failure", "Outcome", "System", "simulate"]

EVENTS_MAX: Final = 400_000
HEAL_NS: Final = 240 * S
"""So long after the last fault every script is over, and everything that it had is given back."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The services write no log."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


class Failure(AssertionError):
    """A seed in which something did not hold."""


@dataclass
class Outcome:
    seed: int
    counts: Counter[str]
    digest: str
    virtual_s: float


class System:
    """Everything of one seed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = world = World(plan.seed)
        self.network = Network(world)
        skews = itertools.cycle(plan.skews_ns)
        self.machines = {name: Machine(name, -10 * S, 0 if name in ("c0", "c1") else next(skews)) for name in self._names()}
        self.broker = Broker(world, self.machines["bus"], plan.loss)
        self.bus_held = 0
        self.store = Store(world, self.broker)
        self.nodes = {
            name: Node(world, name, self.machines[name], self.network, plan.orphan_s) for name in (f"n{at}" for at in range(plan.nodes))
        }
        DataPort.nodes = ExecutorProcess.nodes = self.nodes
        r = world.random
        self.servers = [
            node_service(world, self.machines[name], self.network, self.broker, plan, r.randrange(200 * MS, 2 * S)) for name in self.nodes
        ]
        self.controllers = [
            controller_service(world, name, self.machines[name], self.network, self.broker, self.store, plan, r.randrange(200 * MS, 2 * S))
            for name in (f"c{at}" for at in range(plan.controllers))
        ]
        self.billing = billing_service(world, self.machines["billing"], self.network, self.broker, 500 * MS)
        self.api = make_api(world, self.network, self.controllers)
        self.clients = [
            Client(world, plan, script, self.machines[script.name], self.network, self.broker, self.api) for script in plan.scripts
        ]
        self.oracle = Oracle(self)
        self.unhealed = 0
        self.settled = False

    def _names(self) -> list[str]:
        plan = self.plan
        names = ["bus", "billing", *(f"n{at}" for at in range(plan.nodes)), *(f"c{at}" for at in range(plan.controllers))]
        return [*names, *(script.name for script in plan.scripts)]

    def start(self) -> None:
        world = self.world
        for service in (*self.servers, *self.controllers, self.billing):
            world.after(world.random.randrange(50 * MS), None, service.start)
        for one in self.clients:
            world.after(one.script.begins_ns, None, one.start)
        for fault in self.plan.faults:
            self.unhealed += 1
            world.at(fault.at_ns, None, self.begin, fault)
        world.after(S, None, self.look)

    def look(self) -> None:
        """Twice a second: is everything over, and given back?"""
        self.settled = not self.unhealed and all(one.verdict for one in self.clients) and not self.oracle.unsettled()
        self.world.after(500 * MS, None, self.look)

    # -- faults ------------------------------------------------------------------------------------------------------------------------

    def begin(self, fault: Fault) -> None:
        world = self.world
        node = list(self.nodes.values())[fault.which % len(self.nodes)]
        server = self.servers[fault.which % len(self.nodes)]
        controller = self.controllers[fault.which % len(self.controllers)]
        one = self.clients[fault.which % len(self.clients)]
        names = list(self.machines)
        world.counts[f"fault: {fault.kind}"] += 1
        match fault.kind.split():
            case ["kill", "client"]:
                if one.process is not None and not one.process.dead:
                    one.process.kill()
                self.heal()
            case ["stop", "client"]:
                self._stop(one.process, fault)
            case ["kill", "executor"]:
                executor = node.alive()
                if executor is not None:
                    executor.process.kill()
                self.heal()
            case ["stop", "executor"]:
                executor = node.alive()
                self._stop(executor.process if executor is not None else None, fault)
            case ["kill", ("server" | "controller" | "billing") as what]:
                self._hold({"server": server, "controller": controller, "billing": self.billing}[what], fault)
            case ["stop", ("server" | "controller" | "billing") as what]:
                self._stop({"server": server, "controller": controller, "billing": self.billing}[what].alive, fault)
            case ["end", "server"]:
                if server.alive is not None and server.stop is not None:
                    world.ready.append((server.alive, server.stop.set, ()))
                self.heal()
            case ["fail", "node"]:
                self._fail(server, fault)
            case [("kill" | "fail") as how, "bus"]:
                self.bus_held += 1
                self.broker.kill(power=how == "fail")
                world.after(fault.for_ns, None, self._bus_again)
            case ["stop", "bus"]:
                if not self.broker.up or self.broker.paused:
                    self.heal()
                else:
                    self.broker.pause()
                    world.after(min(fault.for_ns, 6 * S), None, self._bus_goes_on)
            case ["cut"]:
                self._cut(names[fault.which % len(names)], names[fault.other % len(names)], fault)
            case ["cut", "bus"]:
                self._cut("bus", names[1 + fault.which % (len(names) - 1)], fault)
            case ["set", "clock"]:
                kept = [name for name in names if name not in ("c0", "c1")]  # controllers compare their times
                self.machines[kept[fault.which % len(kept)]].skew_ns += fault.amount * S
                self.heal()
            case ["fill", what]:
                self._fill(self.machines["bus"] if what == "bus" else node.machine, fault)
            case ["slow", "node"]:
                node.machine.slow_ns = S // 2
                world.after(fault.for_ns, None, self._fast, node.machine)
            case ["move"]:
                operator = Process(world, "operator", self.machines["bus"])
                Fiber(operator, self._move, (one, fault)).start()
                self.heal()
            case _:
                raise AssertionError(fault.kind)

    def heal(self) -> None:
        self.unhealed -= 1

    def _stop(self, process: Process | None, fault: Fault) -> None:
        if process is None or process.dead or process.paused:
            self.heal()
            return
        process.pause()
        self.world.after(fault.for_ns, None, self._go_on, process)

    def _go_on(self, process: Process) -> None:
        process.go_on()
        self.heal()

    def _hold(self, service: Service, fault: Fault) -> None:
        service.held += 1
        service.kill()
        self.world.after(fault.for_ns, None, self._release, service)

    def _release(self, service: Service) -> None:
        service.held -= 1
        service.start()
        self.heal()

    def _fail(self, server: Service, fault: Fault) -> None:
        """The machine of a node fails, and starts again."""
        machine = server.machine
        server.held += 1
        for process in list(machine.processes):
            process.kill()
        for file in machine.files.values():
            file["flushed"] = []
        machine.boots += 1
        machine.boot_ns = self.world.now_ns
        self.world.after(fault.for_ns, None, self._release, server)

    def _bus_again(self) -> None:
        self.bus_held -= 1
        if not self.bus_held:
            self.broker.start()
        self.heal()

    def _bus_goes_on(self) -> None:
        if self.broker.paused:
            self.broker.go_on()
        self.heal()

    def _cut(self, one: str, other: str, fault: Fault) -> None:
        if one == other:
            self.heal()
            return
        self.network.cut(one, other)
        self.world.after(fault.for_ns, None, self._joined, one, other)

    def _joined(self, one: str, other: str) -> None:
        self.network.heal(one, other)
        self.heal()

    def _fill(self, machine: Machine, fault: Fault) -> None:
        machine.full = True
        self.world.after(fault.for_ns, None, self._empty, machine)

    def _fast(self, machine: Machine) -> None:
        machine.slow_ns = 0
        self.heal()

    def _empty(self, machine: Machine) -> None:
        machine.full = False
        self.heal()

    def _move(self, one: Client, fault: Fault) -> None:
        if one.task:
            to = list(self.nodes)[fault.other % len(self.nodes)] if fault.amount > 0 else ""
            status, _ = self.api(self.machines["bus"], 8.0, "move", one.task, to)
            self.world.counts[f"moves: {status}"] += 1


def simulate(seed: int, plan: Plan | None = None, prepare: Callable[[System], None] = lambda system: None) -> Outcome:
    """One judged run, of this ``plan`` if there is one. ``prepare``: called before it starts. Raises Failure that names the seed and the
    time."""
    plan = plan or draw(seed)
    system = System(plan)
    world = system.world
    collects = gc.isenabled()
    gc.disable()  # a coroutine that was abandoned must end at the end, not at a moment that depends on memory
    try:
        with _quiet(), installed(world), services.replaced(), clients.replaced(system.clients):
            try:
                system.start()
                prepare(system)
                over = world.run(plan.ends_ns + HEAL_NS, lambda: system.settled, EVENTS_MAX)
                system.oracle.judge(over)
            except Exception as error:
                where = "" if isinstance(error, Violation) else "\n" + traceback.format_exc()
                raise Failure(f"seed {seed}, at {world.now_ns / S:.3f} s: {type(error).__name__}: {error}{where}") from error
    finally:
        if collects:
            gc.enable()
    counts = world.counts
    counts["events"] += world.events
    for one in system.clients:
        counts[f"scripts: {one.verdict}"] += 1
    return Outcome(seed, counts, system.oracle.digest(), world.now_ns / S)
