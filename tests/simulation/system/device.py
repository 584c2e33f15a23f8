"""The executor of a device, as a model that keeps its contract with the server (``services.server.protocol``) and with clients (the data
port), and whose device is a deterministic state machine: what a buffer holds is a hash of everything that was ever done to it. A batch that
is executed twice, not at all, or out of order changes every result after it.

``ExecutorProcess`` stands for the class of that name in the server; ``DataPort`` is the client's, with its retries, over simulated
connections.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from blake3 import blake3
from msgspec.structs import replace

from bus_schemas import faults
from bus_schemas.batch import Batch, Done, Fault, ReadResult, decode_batch, encode_done
from services.kit.errors import StartError
from services.server.protocol import (
    BEHIND,
    FAULTED,
    NEEDS,
    RAN,
    STOPPED,
    Attached,
    ChangePriority,
    CloseSpace,
    Command,
    Confirm,
    Execute,
    Executed,
    Forget,
    HeldSession,
    Linked,
    OpenSpace,
    Prepare,
    Prepared,
    Recall,
    Recalled,
    Report,
    Shutdown,
    SpaceClosed,
    SpaceOpened,
)
from tests.simulation.system.kernel import MS, Machine, Process, S, World, world
from tests.simulation.system.wire import Network
from wooly.transport import data_port

__all__ = ["BLOB_BYTES", "DONES_KEPT", "VRAM_BYTES", "DataPort", "Executor", "ExecutorProcess", "Node", "apply", "cost_ns"]

BLOB_BYTES: Final = 48
"""A read of more bytes is answered through the data port."""
DONES_KEPT: Final = 5
VRAM_BYTES: Final = 64 << 20
_GRAIN_NS: Final = MS


def cost_ns(batch: Batch) -> int:
    """Core time of a batch: its program's, which is a function of its scalars; other batches take the device no time."""
    return int(batch.scalars[0]) * MS if batch.scalars else 0  # type: ignore[arg-type]  # programs here begin with an integer


def apply(buffers: dict[int, bytes], batch: Batch, content: Callable[[bytes], bytes]) -> list[bytes]:
    """Execute ``batch`` on ``buffers``; the answers of its reads. ``content(digest)`` gives a chunk. A program is (cost, salt, destination,
    sources ...). Raises KeyError for a handle that there is not."""
    for handle, nbytes in batch.allocs:
        buffers[handle] = bytes(nbytes)
    for upload in batch.uploads:
        buffers[upload.handle] = upload.inline or b"".join(content(name) for name in upload.chunks)
    if batch.scalars:
        _, salt, to, *sources = (int(number) for number in batch.scalars)  # type: ignore[arg-type]  # of integers
        hasher = blake3(salt.to_bytes(8, "little"))
        for handle in (to, *sources):
            hasher.update(buffers[handle])
        buffers[to] = hasher.digest(len(buffers[to]))
    answers = [buffers[read.handle][read.offset : read.offset + read.nbytes] for read in batch.reads]
    for handle in batch.frees:
        del buffers[handle]
    return answers


class _Page:
    """The stop page."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.words: dict[int, int] = {}

    def stop(self, priority: int, serial: int) -> None:
        self.words[priority] = max(serial, self.words.get(priority, 0))
        executor = self._executor
        executor.world.after(_GRAIN_NS, executor.process, executor.hurried)

    def close(self) -> None:
        pass


class _Tenant:
    """A session in the executor."""

    def __init__(self, record: bytes, tenant: str, priority: int) -> None:
        self.record, self.tenant, self.priority = record, tenant, priority
        self.seq_done = 0
        self.chain = b""
        self.faulted = False
        self.buffers: dict[int, bytes] = {}
        self.brought: dict[int, bytes] = {}
        self.dones: OrderedDict[int, bytes] = OrderedDict()
        self.chunks: dict[bytes, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.run_ns = 0

    @property
    def resident_bytes(self) -> int:
        return sum(len(data) for data in self.buffers.values())


class Executor:
    """One process. Commands are carried out in order, one launch at a time; a launch takes its core time."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.world: World = node.world
        self.process = Process(node.world, f"executor-{node.name}", node.machine)
        self.pid = node.world.processes.index(self.process) + 1000
        self.page = _Page(self)
        self.server: ExecutorProcess | None = None
        self.connecting: list[ExecutorProcess] = []
        """Servers that are not answered yet."""
        self.tenants: dict[str, _Tenant] = {}
        self.results: deque[Executed] = deque()
        self._index = 0
        self._commands: deque[Command | ExecutorProcess] = deque()
        self._running: tuple[Execute, Batch, int] | None = None
        self._alone_ns = self.world.now_ns
        self.process.on_end.append(self._ended)
        self._orphan(0)

    # -- the server ------------------------------------------------------------------------------------------------------------------

    def attach(self, server: ExecutorProcess) -> None:
        """A server connects; it is answered when what an earlier one sent is carried out."""
        self._commands.append(server)
        self._work()

    def _attach(self, server: ExecutorProcess) -> None:
        self.connecting.remove(server)
        if server.process.dead:
            return
        self.server = server
        self._alone_ns = -1
        self.page.words.clear()
        for tenant in self.tenants.values():
            tenant.brought.clear()
        held = tuple(
            HeldSession(name, one.record, one.seq_done, one.chain, one.resident_bytes, one.faulted) for name, one in self.tenants.items()
        )
        self._report(
            Attached(
                protocol=0, pid=self.pid, name="simulated", backend="model", cores=1, vram_bytes=VRAM_BYTES, data_port=(self.node.name,),
                held=held, results=tuple(self.results), stop_page=self.node.name,
            )
        )  # fmt: skip

    def left(self, server: ExecutorProcess) -> None:
        if self.server is server:
            self.server = None
            self._alone_ns = self.world.now_ns
            self.world.after(int(self.node.orphan_s * S), self.process, self._orphan, self._alone_ns)

    def _orphan(self, since_ns: int) -> None:
        if any(not server.process.dead for server in self.connecting):
            return
        if since_ns and self.server is None and self._alone_ns == since_ns:
            self.world.counts["executors that ended alone"] += 1
            self.process.kill()

    def _ended(self) -> None:
        servers, self.server = [*([self.server] if self.server is not None else []), *self.connecting], None
        for server in servers:
            self.world.after(MS, server.process, server.lost, self)
        self.node.broken(self)

    def take(self, command: Command) -> None:
        self._commands.append(command)
        self._work()

    def _report(self, report: Report) -> None:
        if self.server is not None:
            self.world.after(200_000, self.server.process, self.server.received, self, report)

    # -- commands ----------------------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._commands and self._running is None:
            self._carry_out(self._commands.popleft())

    def _carry_out(self, command: Command | ExecutorProcess) -> None:
        match command:
            case ExecutorProcess():
                self._attach(command)
            case OpenSpace():
                if command.session not in self.tenants:
                    self.tenants[command.session] = _Tenant(command.record, command.terms.tenant, command.terms.priority)
                    self.node.tokens[command.session] = command.token
                    self.node.tasks[command.session] = command.terms.task
                self._report(SpaceOpened(command.session))
            case CloseSpace(session):
                self.tenants.pop(session, None)
                self.node.end_links(session)
                self._report(SpaceClosed(session, self._now_ns()))
            case Prepare(session, seq, data):
                if session in self.tenants:
                    self.tenants[session].brought[seq] = data
                    self._report(Prepared(session, seq, True))
            case Forget(session, seq):
                if session in self.tenants:
                    self.tenants[session].brought.pop(seq, None)
            case ChangePriority(session, priority, record):
                if session in self.tenants:
                    self.tenants[session].record, self.tenants[session].priority = record, priority
            case Recall(session, after_seq):
                known = self.tenants.get(session)
                dones = () if known is None else tuple(done for seq, done in known.dones.items() if seq > after_seq)
                self._report(Recalled(session, dones))
            case Confirm(index):
                while self.results and self.results[0].index <= index:
                    self.results.popleft()
            case Execute():
                self._execute(command)
            case Shutdown():
                self.process.kill()
            case _:
                pass

    def _now_ns(self) -> int:
        return self.world.now_ns - self.node.machine.boot_ns

    def _execute(self, command: Execute) -> None:
        begin_ns = self._now_ns()
        tenant = self.tenants.get(command.session)
        if tenant is not None and command.batch:
            tenant.brought[command.seq] = command.batch
        if tenant is None or tenant.faulted or command.seq != tenant.seq_done + 1:
            self._finish(command, tenant, BEHIND, begin_ns, begin_ns)
            return
        if 0 < command.serial <= self.page.words.get(command.priority, 0):
            self._finish(command, tenant, STOPPED, begin_ns, begin_ns)
            return
        batch = decode_batch(tenant.brought[command.seq])
        missing = tuple(name for upload in batch.uploads for name in upload.chunks if name not in tenant.chunks)
        if missing:
            tenant.brought.pop(command.seq)
            done = encode_done(Done(command.session, command.seq, needs=missing))
            self._finish(command, tenant, NEEDS, begin_ns, begin_ns, done)
            return
        left_ns = cost_ns(batch) - tenant.run_ns
        if not left_ns:
            self._over(command, batch, tenant, begin_ns, begin_ns)
            return
        self._running = (command, batch, begin_ns)
        slice_ns = min(left_ns, command.limit_ns or left_ns)
        self.world.after(slice_ns, self.process, self._slice_ends, command)

    def hurried(self) -> None:
        """A stop was asked for a moment ago."""
        if self._running is not None:
            command = self._running[0]
            if 0 < command.serial <= self.page.words.get(command.priority, 0):
                self._slice_ends(command)

    def _slice_ends(self, command: Execute) -> None:
        if self._running is None or self._running[0] is not command:
            return
        _, batch, start_ns = self._running
        self._running = None
        tenant = self.tenants.get(command.session)
        if tenant is not None:
            used_ns = min(self._now_ns() - start_ns, cost_ns(batch) - tenant.run_ns)
            tenant.run_ns += used_ns
            if tenant.run_ns >= cost_ns(batch):
                self._over(command, batch, tenant, start_ns, start_ns + used_ns)
            else:
                self.world.counts["slices stopped"] += 1
                self._finish(command, tenant, STOPPED, start_ns, start_ns + used_ns)
        self._work()

    def _over(self, command: Execute, batch: Batch, tenant: _Tenant, start_ns: int, end_ns: int) -> None:
        tenant.brought.pop(command.seq, None)
        tenant.run_ns = 0
        done = Done(command.session, command.seq, core_ns=cost_ns(batch), launch_digest=command.chain)
        status = RAN
        try:
            answers = apply(tenant.buffers, batch, tenant.chunks.__getitem__)
        except KeyError as error:
            status = FAULTED
            done = replace(done, fault=Fault(faults.NODE_FAULT, f"there is no {error}"))
        else:
            self.node.executed(command.session, batch)
            reads = []
            for read, data in zip(batch.reads, answers, strict=True):
                if len(data) > BLOB_BYTES:
                    blob = f"{command.seq}.{read.ticket}"
                    tenant.blobs[blob] = data
                    reads.append(ReadResult(read.ticket, len(data), blob=blob))
                else:
                    reads.append(ReadResult(read.ticket, len(data), data))
            done = replace(done, reads=tuple(reads))
        tenant.faulted |= status == FAULTED
        tenant.seq_done, tenant.chain = command.seq, command.chain
        tenant.dones[command.seq] = encode_done(done)
        while len(tenant.dones) > DONES_KEPT:
            tenant.dones.popitem(last=False)
        self._finish(command, tenant, status, start_ns, end_ns, tenant.dones[command.seq], batch)

    def _finish(
        self,
        command: Execute,
        tenant: _Tenant | None,
        status: int,
        start_ns: int,
        end_ns: int,
        done: bytes = b"",
        batch: Batch | None = None,
    ) -> None:
        self._index += 1
        launched = batch is not None and bool(batch.scalars)
        executed = Executed(
            index=self._index, session=command.session, seq=command.seq, status=status, begin_ns=start_ns, start_ns=start_ns, end_ns=end_ns,
            finish_ns=end_ns, core_ns=end_ns - start_ns, instructions=1 if launched else 0, launches=int(launched),
            resident_bytes=tenant.resident_bytes if tenant is not None else 0, done=done, repeats=command.repeats,
        )  # fmt: skip
        self.results.append(executed)
        self._report(executed)


class Node:
    """What the machine of a node has beside its server: an executor, a data port, the rules for both."""

    def __init__(self, world: World, name: str, machine: Machine, network: Network, orphan_s: float) -> None:
        self.world, self.name, self.machine, self.network, self.orphan_s = world, name, machine, network, orphan_s
        self.executor: Executor | None = None
        self.tokens: dict[str, str] = {}
        self.tasks: dict[str, str] = {}
        """By session."""
        self.links: list[_Link] = []
        self.on_executed: Callable[[str, str, Batch], None] = lambda node, session, batch: None
        self.on_unreported: Callable[[Node, Iterable[Executed]], None] = lambda node, reports: None
        network.on_change.append(self._network_changed)

    def executed(self, session: str, batch: Batch) -> None:
        self.on_executed(self.name, session, batch)

    def alive(self) -> Executor | None:
        return self.executor if self.executor is not None and not self.executor.process.dead else None

    def broken(self, executor: Executor) -> None:
        """It died: its connections of the data port end."""
        self.on_unreported(self, executor.results)
        for link in list(self.links):
            if link.executor is executor:
                link.breaks()

    def end_links(self, session: str) -> None:
        for link in [link for link in self.links if link.session == session]:
            link.breaks()

    def _network_changed(self) -> None:
        for link in list(self.links):
            if not self.network.open(self.machine, link.process.machine):
                self.world.after(3 * S, None, link.doubted)


class _Link:
    """A connection of a client to the data port."""

    def __init__(self, node: Node, executor: Executor, process: Process, session: str) -> None:
        self.node, self.executor, self.process, self.session = node, executor, process, session
        self.open = True
        self.on_end: list[Callable[[], None]] = []
        node.links.append(self)
        process.on_end.append(self.breaks)
        self._tell(True)

    def _tell(self, linked: bool) -> None:
        executor = self.executor
        if not executor.process.dead:
            self.node.world.after(MS, executor.process, executor._report, Linked(self.session, linked))

    def doubted(self) -> None:
        """Nothing passes for a while."""
        if self.open and not self.node.network.open(self.node.machine, self.process.machine):
            self.breaks()

    def breaks(self) -> None:
        if self.open:
            self.open = False
            self.node.links.remove(self)
            if self.breaks in self.process.on_end:
                self.process.on_end.remove(self.breaks)
            if not any(other.session == self.session for other in self.node.links):
                self._tell(False)
            for then in self.on_end:
                then()

    def close(self) -> None:
        self.breaks()

    def ask(self, work: Callable[[_Tenant], Any]) -> Any:
        """(of a thread) One exchange with the executor. Raises OSError."""
        here = world()
        fiber = here.fiber
        assert fiber is not None
        answer: list[Any] = []

        def arrived() -> None:
            """(of the executor)"""
            if not self.open or self.executor.process.dead or not self.node.network.open(self.node.machine, self.process.machine):
                return
            tenant = self.executor.tenants.get(self.session)
            result = work(tenant) if tenant is not None else OSError("no such session")
            here.after(here.random.randrange(50_000, 2 * MS), self.process, back, result)

        def back(result: Any) -> None:
            if self.open and not answer:
                answer.append(result)
                fiber.wake()

        def ended() -> None:
            if not answer and not fiber.killed:
                answer.append(ConnectionError("the connection ended"))
                fiber.wake()

        if not self.open:
            raise ConnectionError("the connection has ended")
        self.on_end.append(ended)
        here.after(here.random.randrange(50_000, 2 * MS), self.executor.process, arrived)
        try:
            fiber.block(8.0)
        finally:
            self.on_end.remove(ended)
        if not answer:
            answer.append(TimeoutError("timed out"))
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]


class DataPort(data_port.DataPort):
    """The client's data port: its retries and its refusals are the product's, its connection is simulated. ``nodes``: by address."""

    nodes: dict[str, Node]

    def _connect(self) -> Any:
        if not self._addresses:
            raise ConnectionError("the node announced no data port")
        node = self.nodes[self._addresses[0]]
        process = world().current
        assert process is not None
        fiber = world().fiber
        assert fiber is not None
        fiber.block(world().random.randrange(100_000, 3 * MS) / S)
        executor = node.alive()
        if executor is None or executor.process.paused or not node.network.open(node.machine, process.machine):
            fiber.block(1.0)
            raise ConnectionError("cannot be reached")
        if self._hello.session not in executor.tenants or node.tokens.get(self._hello.session) != self._hello.token:
            raise PermissionError("there is no such session")
        return _Link(node, executor, process, self._hello.session)

    def _put(self, connection: Any, named: list[tuple[bytes, memoryview]]) -> None:
        def store(tenant: _Tenant) -> None:
            tenant.chunks.update((name, bytes(chunk)) for name, chunk in named)

        connection.ask(store)
        self.sent_bytes += sum(chunk.nbytes for _, chunk in named)

    def _get(self, connection: Any, blob: str, nbytes: int) -> bytearray:
        data = connection.ask(lambda tenant: tenant.blobs.get(blob, b""))
        if len(data) != nbytes:
            raise data_port.NodeLostError("the node has lost an answer")
        return bytearray(data)


class ExecutorProcess:
    """Stands for ``services.server.executor_process.ExecutorProcess``. ``nodes``: by the machine of the server."""

    nodes: dict[str, Node]
    exceeded_memory = False

    def __init__(self, settings: Any, on_report: Callable[[Report], None], on_lost: Callable[[], None]) -> None:
        process = world().current
        assert process is not None
        self.process = process
        self._node = self.nodes[process.machine.name]
        self._on_report, self._on_lost = on_report, on_lost
        self._executor: Executor | None = None
        self._attached: asyncio.Future[Attached] | None = None
        self._is_attached = False

    async def start(self) -> Attached:
        if self._node.alive() is None:
            await asyncio.sleep(0.3)
            if self._node.alive() is None:
                self._node.executor = Executor(self._node)
        executor = self._executor = self._node.alive()
        assert executor is not None
        self._is_attached = False
        self._attached = self.process.loop.create_future()
        executor.connecting.append(self)
        self.process.world.after(MS, executor.process, executor.attach, self)
        self.process.on_end.append(lambda: executor.process.dead or executor.left(self))
        try:
            async with asyncio.timeout(60.0):
                return await self._attached
        except TimeoutError:
            raise StartError("the executor does not answer") from None

    def received(self, executor: Executor, report: Report) -> None:
        if executor is not self._executor:
            return
        if isinstance(report, Attached):
            if self._attached is not None and not self._attached.done():
                self._is_attached = True
                self._attached.set_result(report)
            return
        self._on_report(report)

    def lost(self, executor: Executor) -> None:
        if executor is not self._executor:
            return
        self._executor = None
        if self._attached is not None and not self._attached.done():
            self._attached.set_exception(StartError("the executor closed the connection"))
        elif self._is_attached:
            self._is_attached = False
            self._on_lost()

    def send(self, command: Command) -> None:
        executor = self._executor
        if executor is not None and not executor.process.dead:
            self.process.world.after(100_000, executor.process, executor.take, command)

    def renew_certificate(self) -> None:
        pass

    async def stop(self) -> None:
        self._on_lost = lambda: None
        self.send(Shutdown())
        await asyncio.sleep(0.1)

    def leave(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None and not executor.process.dead:
            executor.left(self)

    def kill(self) -> None:
        executor = self._node.alive()
        if executor is not None and executor is self._executor:
            executor.process.kill()
