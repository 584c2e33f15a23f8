"""The executor's main thread: commands from the server in, reports out; one launch at a time.

The thread blocks on its socket between commands, so an idle node costs nothing and a command is taken up at once. A second thread
prepares programs, a third moves memory that is swapped; what has moved is taken up between commands. When the server goes away, what it
sent is still carried out, and the executor waits for it a while.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from bus_schemas import faults
from bus_schemas.batch import Batch, Done, Fault, encode_done
from bus_schemas.frames import Frames, frame
from jit.engine import Engine, Launch, Stop
from services.kit.log import get_logger
from services.server.executor.content import Content
from services.server.executor.data_port import DataPort
from services.server.executor.errors import Awaits, Needs, Unprepared
from services.server.executor.memory import DeviceMemory
from services.server.executor.preparing import NO_BODIES, Preparing
from services.server.executor.programs import Programs
from services.server.executor.quota_watch import QuotaWatch
from services.server.executor.runner import Outcome, Runner
from services.server.executor.staging import Staging
from services.server.executor.tenant import Tenant
from services.server.protocol import (
    AWAITS,
    BEHIND,
    FAULTED,
    NEEDS,
    PROTOCOL,
    RAN,
    STOPPED,
    Attach,
    Attached,
    ChangePriority,
    Charged,
    CloseSpace,
    Command,
    Confirm,
    Execute,
    Executed,
    Expect,
    Forget,
    HeldSession,
    JournalAnew,
    Journalled,
    Linked,
    MemoryFreed,
    OpenSpace,
    Prepare,
    Recall,
    Recalled,
    Report,
    Shutdown,
    SpaceClosed,
    SpaceOpened,
    UseCertificate,
    code_domain,
    decode_command,
)
from services.server.stop_page import StopPage, stop_page_path

_RECEIVE_BYTES: Final = 1 << 20
_RECALLED_BYTES_MAX: Final = 4 << 20
"""Of answers that are sent again at a time: a session may ask as often as it likes, and all sessions wait while they leave."""
_JOURNAL_NS: Final = 1_000_000_000
"""How long the memory core's journal is gathered before it is sent."""


@dataclass(frozen=True, slots=True)
class Commands:
    """What the server reaches the executor by. They are opened before the sandbox is entered, in which their folder is out of reach; the
    server removes their files. The socket refuses connections until the executor serves it."""

    listener: socket.socket
    page: StopPage
    page_path: Path

    @classmethod
    def open(cls, path: Path) -> Self:
        """Bind the socket at ``path``, with a new stop page beside it. Raises OSError."""
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        os.chmod(path, 0o600)
        page_path = stop_page_path(path)
        return cls(listener, StopPage.create(page_path), page_path)


class Executor:
    """One device. ``serve`` runs until the server says Shutdown, or stays away for ``orphan_s``."""

    def __init__(
        self,
        *,
        engine: Engine,
        commands: Commands,
        data_port: DataPort,
        staging: Staging,
        content: Content,
        memory: DeviceMemory,
        quotas: QuotaWatch,
        orphan_s: float,
    ) -> None:
        self._engine = engine
        self._commands = commands
        self._data_port = data_port
        self._staging = staging
        self._orphan_s = orphan_s
        self._programs = Programs(engine)
        self._memory = memory
        self._runner = Runner(self._programs, staging, content, memory)
        self._journal_due_ns = 0
        self._tenants: dict[str, Tenant] = {}
        self._page = commands.page
        self._results: deque[Executed] = deque()
        self._index = 0
        self._begin_ns = 0
        self._server: socket.socket | None = None
        self._send_lock = threading.Lock()
        self._preparing = Preparing(self._programs, self._report)
        data_port.on_linked = lambda session, linked: self._report(Linked(session, linked))
        self._quotas = quotas
        quotas.on_change = lambda: data_port.later(lambda: self._report(quotas.take()))
        self._over = False
        self._log = get_logger()

    def serve(self) -> None:
        with self._commands.listener as listener:
            listener.listen(1)
            listener.settimeout(self._orphan_s)
            threading.Thread(target=self._preparing.run, name="prepare", daemon=True).start()
            while not self._over:
                try:
                    server, _ = listener.accept()
                except TimeoutError:
                    self._log.warning("no server for a while, ending", orphan_s=self._orphan_s)
                    break
                with server:
                    self._serve_one(server)

    def _serve_one(self, server: socket.socket) -> None:
        """Carry out commands until the connection ends."""
        server.settimeout(None)
        frames = Frames()
        with self._send_lock:
            self._server = server
        events = select.poll()
        events.register(server, select.POLLIN)
        events.register(self._memory.fileno(), select.POLLIN)
        while not self._over:
            ready = {fd for fd, _ in events.poll(self._wait_ms())}
            if server.fileno() in ready:
                try:
                    data = server.recv(_RECEIVE_BYTES)
                except OSError:
                    data = b""
                if not data:
                    break
                self._begin_ns = time.monotonic_ns()
                for body in frames.feed(data):
                    self._carry_out(decode_command(body))
            self._memory_news(self._memory.fileno() in ready)
        with self._send_lock:
            self._server = None

    def _wait_ms(self) -> int | None:
        """How long nothing is due but commands; None: for ever."""
        due = [at for at in (self._memory.next_wakeup_ns, self._journal_due_ns or None) if at is not None]
        return max(0, (min(due) - time.monotonic_ns() + 999_999) // 1_000_000) if due else None

    def _memory_news(self, moved: bool) -> None:
        """Between commands: handle finished moves, sessions that may continue, and records of the memory core."""
        for session in self._memory.poll(moved):
            self._report(MemoryFreed(session))
        charged = self._runner.take_changed("") if moved else ()  # what commands changed is in their own reports
        if charged:
            self._report(Charged(time.monotonic_ns(), charged, self._memory_of(charged)))
        now_ns = time.monotonic_ns()
        if not self._journal_due_ns and self._memory.journal.waiting:
            self._journal_due_ns = now_ns + _JOURNAL_NS
        if self._journal_due_ns and now_ns >= self._journal_due_ns:
            self._journal_due_ns = 0
            self._send_journal()

    def _send_journal(self) -> None:
        taken = self._memory.journal.take()
        if taken is not None:
            self._report(Journalled(*taken))

    def _report(self, report: Report) -> None:
        """Send to the server, if there is one; what must not be lost is kept in ``_results`` until confirmed."""
        with self._send_lock:
            if self._server is not None:
                try:
                    self._server.sendall(frame(report))
                except OSError:
                    self._server = None

    # -- commands ------------------------------------------------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        match command:
            case Execute():
                self._execute(command)
            case Prepare(session, seq, batch):
                if session in self._tenants:
                    tenant = self._tenants[session]
                    self._preparing.want(tenant.bring(seq, batch), tenant.priority)
            case Forget(session, seq):
                if session in self._tenants:
                    self._tenants[session].forget(seq)
            case OpenSpace():
                self._open(command)
            case CloseSpace(session):
                self._close(session)
            case Expect(session):
                self._memory.expect(session)
            case ChangePriority(session, priority, record):
                if session in self._tenants:
                    self._tenants[session].record = record
                    self._memory.prioritise(self._tenants[session], priority)
            case UseCertificate(pem):
                self._data_port.use_certificate(pem)
            case JournalAnew():
                self._memory.journal.anew()
            case Recall(session, after_seq):
                asked = self._tenants.get(session)
                self._report(Recalled(session, asked.recall(after_seq, _RECALLED_BYTES_MAX) if asked is not None else ()))
            case Confirm(index):
                while self._results and self._results[0].index <= index:
                    self._results.popleft()
            case Attach(protocol):
                self._attach(protocol)
            case Shutdown():
                self._send_journal()
                self._over = True

    def _attach(self, protocol: int) -> None:
        info = self._engine.info
        if protocol == PROTOCOL:
            self._memory.journal.anew()  # the server that comes has none of it
        for tenant in self._tenants.values():
            tenant.forget_all()  # this server sends again what has not begun
        held = tuple(self._held(tenant) for tenant in self._tenants.values()) if protocol == PROTOCOL else ()
        results = tuple(self._results) if protocol == PROTOCOL else ()
        addresses = self._data_port.addresses
        self._page.clear()  # what an earlier server sent is carried out by now, this one counts anew
        self._report(
            Attached(
                protocol=PROTOCOL,
                pid=os.getpid(),
                name=info.name,
                backend=info.backend,
                cores=info.cores,
                vram_bytes=info.vram_bytes,
                data_port=addresses,
                held=held,
                results=results,
                stop_page=str(self._commands.page_path),
            )
        )
        if protocol == PROTOCOL:
            self._report(self._quotas.take())

    def _held(self, tenant: Tenant) -> HeldSession:
        return msgspec.structs.replace(tenant.held(self._runner.charged_bytes(tenant)), memory=self._runner.memory_of(tenant))

    def _open(self, command: OpenSpace) -> None:
        if command.session not in self._tenants:
            space = self._engine.open_space()
            tenant = self._tenants[command.session] = Tenant(
                command.session, space, command.record, code_domain(command.domain, command.terms.tenant)
            )
            terms = command.terms
            tenant.about = {"session": command.session, "task": terms.task, "tenant": terms.tenant}
            self._memory.open(tenant, terms.vram_bytes, terms.priority, terms.swap, command.wait_ms, command.domain)
            memory_bytes = terms.vram_bytes or self._engine.info.vram_bytes
            self._staging.open(command.session, command.token, memory_bytes, memory_bytes, terms.tenant)
        self._report(SpaceOpened(command.session))

    def _close(self, session: str) -> None:
        tenant = self._tenants.pop(session, None)
        if tenant is not None:
            tenant.forget_all()
            self._preparing.drop(tenant.about["tenant"], session)
            self._runner.drop(tenant)
            self._staging.close(session)
            self._data_port.end(session)
            self._memory.close(tenant)
        self._report(SpaceClosed(session, time.monotonic_ns(), self._runner.take_changed(session)))

    def _execute(self, command: Execute) -> None:
        begin_ns = self._begin_ns or time.monotonic_ns()
        self._begin_ns = 0  # a further command of the same read begins when it is taken up
        tenant = self._tenants.get(command.session)
        if tenant is not None and command.batch:
            tenant.bring(command.seq, command.batch)
        if tenant is None or tenant.faulted or command.seq != tenant.seq_done + 1:
            self._finish(command, tenant, BEHIND, begin_ns, None, b"")
            return
        if 0 < command.serial <= self._page.word(command.priority):
            self._finish(command, tenant, STOPPED, begin_ns, None, b"")
            return
        try:
            batch, outcome = self._run(tenant, command)
        except Needs as needs:
            tenant.brought.pop(command.seq, None)  # the session sends it again
            done = encode_done(Done(command.session, command.seq, needs=needs.digests))
            self._finish(command, tenant, NEEDS, begin_ns, None, done)
            return
        except Awaits:
            self._finish(command, tenant, AWAITS, begin_ns, None, b"")
            return
        except Unprepared:
            self._finish(command, tenant, AWAITS, begin_ns, None, b"")  # before it can be ready: the server hears in this order
            self._preparing.want(tenant.brought[command.seq], command.priority, launch=True)
            return
        tenant.brought.pop(command.seq, None)
        if not outcome.over:
            self._finish(command, tenant, STOPPED, begin_ns, outcome.launch, b"")
            return
        tenant.faulted |= outcome.faulted
        for blob in tenant.finish(command.seq, command.chain, outcome.done, outcome.blobs):
            self._staging.drop_blob(command.session, blob)
        self._finish(command, tenant, FAULTED if outcome.faulted else RAN, begin_ns, outcome.launch, outcome.done)
        if outcome.launch is not None and batch is not None:
            guess = self._programs.next(batch, tenant.whose)
            if guess is not None:
                self._preparing.guess(tenant.about["tenant"], guess, tenant.whose)

    def _run(self, tenant: Tenant, command: Execute) -> tuple[Batch | None, Outcome]:
        """Begin the batch, or go on with it where it stopped. Raises Needs and Awaits."""
        stop = Stop(self._page.address(command.priority), command.serial) if command.serial else None
        batch = None
        brought, under_way = tenant.brought.get(command.seq), tenant.under_way
        try:
            if brought is not None:
                batch = brought.batch()
            if under_way is not None:
                if batch is not None and not _same(batch, under_way.received):
                    raise ValueError("it came again with other content")
                batch, begin = under_way.batch, None
            else:
                begin = batch
            return batch, self._runner.run(tenant, begin, command.chain, command.limit_ns, stop, command.refused)
        except (Needs, Awaits, Unprepared):
            raise
        except Exception as error:  # a failure of ours in one batch must not take the other sessions down
            self._log.error("batch failed", **tenant.about, seq=command.seq, trace=traceback.format_exc())
            self._runner.drop(tenant)
            return batch, _node_fault(command, error)

    def _finish(self, command: Execute, tenant: Tenant | None, status: int, begin_ns: int, launch: Launch | None, done: bytes) -> None:
        """Account for the command and report it."""
        self._index += 1
        finish_ns = time.monotonic_ns()
        start_ns, end_ns = (launch.start_ns, launch.end_ns) if launch is not None else (finish_ns, finish_ns)
        over = status in (RAN, FAULTED)
        others = self._runner.take_changed(command.session)
        executed = Executed(
            index=self._index,
            session=command.session,
            seq=command.seq,
            status=status,
            begin_ns=begin_ns,
            start_ns=start_ns,
            end_ns=end_ns,
            finish_ns=finish_ns,
            core_ns=launch.core_ns if launch is not None else 0,
            instructions=launch.instructions if launch is not None and over else 0,
            launches=int(launch is not None and over),
            resident_bytes=self._runner.charged_bytes(tenant) if tenant is not None else 0,
            done=done,
            others=others,
            memory=self._runner.memory_of(tenant) if tenant is not None else (0, 0, 0),
            others_memory=self._memory_of(others),
            repeats=command.repeats,
        )
        self._results.append(executed)
        self._report(executed)

    def _memory_of(self, others: tuple[tuple[str, int], ...]) -> tuple[tuple[int, int, int], ...]:
        return tuple(self._runner.memory_of(self._tenants[name]) if name in self._tenants else (0, 0, 0) for name, _ in others)


def _same(again: Batch, batch: Batch) -> bool:
    """Is it the batch that is under way? Bodies come or not, as the sender thinks they are known here."""
    blank = NO_BODIES | {"trace": "", "origin": ""}
    return msgspec.structs.replace(again, **blank) == msgspec.structs.replace(batch, **blank)


def _node_fault(command: Execute, error: Exception) -> Outcome:
    text = f"the node failed while executing batch {command.seq} ({type(error).__name__}: {error}); report it with the node's log"
    done = Done(command.session, command.seq, fault=Fault(faults.NODE_FAULT, text), launch_digest=command.chain)
    return Outcome(None, encode_done(done), (), True)
