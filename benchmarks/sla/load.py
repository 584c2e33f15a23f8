"""Plays recordings onto the bus: sessions, a closed loop, an open loop, and what each request took."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final

import msgspec
from blake3 import blake3

from benchmarks.sla.line import Line, Message
from benchmarks.sla.recording import Endless, Recording, Sent
from bus_schemas import subjects
from bus_schemas.batch import LIMITS, Done, Upload, decode_done
from bus_schemas.session import CloseSession, OpenSession, SessionClosed, SessionOpened
from wooly.transport.batches import BatchEncoder

__all__ = ["Player", "Tenant", "WINDOW_STEPS"]

WINDOW_STEPS: Final = 4
"""Steps that a training script is ahead of the device."""

_OPEN_S: Final = 15.0
_SILENT_S: Final = 60.0

_encode: Final = msgspec.msgpack.Encoder().encode
_opened: Final = msgspec.msgpack.Decoder(SessionOpened)
_closed: Final = msgspec.msgpack.Decoder(SessionClosed)


@dataclass(slots=True)
class _Step:
    """``batches``: (encoded message, what the script waited for, digest of the answer or empty). ``first_seq`` of them."""

    first_seq: int
    batches: list[tuple[bytes, bool, bytes]]


@dataclass(slots=True)
class Tenant:
    """One session that plays a recording. ``due``: arrival times (ns) of requests that have come and are not begun. ``latencies_ns``: of
    finished steps, from arrival. ``wrong``: answers that differ from the recorded ones. ``core_ns`` the node's account of it."""

    recording: Recording
    session: str
    script: Iterator[_Step]
    sent: int = 0
    done_seq: int = 0
    closed_loop: bool = False
    due: deque[int] = field(default_factory=deque)
    begun: deque[tuple[int, int]] = field(default_factory=deque)
    hold: tuple[_Step, int] | None = None
    latencies_ns: list[int] = field(default_factory=list)
    finished_ns: list[int] = field(default_factory=list)
    wrong: int = 0
    answers: dict[int, bytes] = field(default_factory=dict)
    core_ns: int = 0


class Player:
    """The generator: one thread, one connection, any number of tenants. Owned by its caller; nothing happens between calls."""

    def __init__(self, url: str, node: str) -> None:
        self._line = Line(url)
        self._node = node
        self._tenants: dict[str, Tenant] = {}

    def close(self) -> None:
        for tenant in list(self._tenants.values()):
            self.leave(tenant)
        self._line.close()

    def enter(self, recording: Recording, priority: int) -> Tenant:
        """Open a session and play its set-up. Raises RuntimeError with the node's refusal."""
        name = f"sla_{recording.kind}_{secrets.token_hex(4)}"
        request = OpenSession(name, "sla", "", priority, (0,), 0, title=recording.kind)
        opened = _opened.decode(self._line.request(subjects.node_request(self._node, "open"), _encode(request), _OPEN_S))
        if opened.fault is not None:
            raise RuntimeError(f"{opened.fault.name}: {opened.fault.message}")
        self._line.subscribe(subjects.session_done(name))
        encoder = BatchEncoder(name, opened.epoch, opened.limits.batch_bytes_max)
        setup = self._encode(encoder, recording, recording.setup, 1)
        tenant = self._tenants[name] = Tenant(recording, name, self._script(encoder, recording, 1 + len(recording.setup)))
        for at in range(len(setup.batches)):
            self._send(tenant, setup, at)
            self._until(partial(_heard, tenant, 1 + at))
        tenant.core_ns = 0
        return tenant

    def leave(self, tenant: Tenant) -> SessionClosed:
        """End the session once what it sent has run; the node's account of it."""
        self._until(lambda: tenant.done_seq >= tenant.sent)
        del self._tenants[tenant.session]
        request = CloseSession(tenant.session, "done", tenant.sent)
        return _closed.decode(self._line.request(subjects.node_request(self._node, "close"), _encode(request), _OPEN_S))

    def back_to_back(self, tenant: Tenant, requests: int) -> list[int]:
        """``requests`` one after the other; how long each took, in ns."""
        begin = len(tenant.latencies_ns)
        for _ in range(requests):
            tenant.due.append(time.monotonic_ns())
            done = len(tenant.latencies_ns) + 1
            self._until(partial(_answered, tenant, done))
        return tenant.latencies_ns[begin:]

    def idle_until(self, at_ns: int) -> None:
        """Serve the closed-loop clients until then."""
        while (left_ns := at_ns - time.monotonic_ns()) > 0:
            self._turn(left_ns)

    def play(self, tenant: Tenant, schedule_ns: list[int]) -> list[int]:
        """Requests at these times from now on, whatever the node does; the latencies in ns, from the time each was due."""
        begin = len(tenant.latencies_ns)
        origin_ns = time.monotonic_ns()
        coming = deque(origin_ns + at_ns for at_ns in schedule_ns)
        while len(tenant.latencies_ns) - begin < len(schedule_ns):
            now_ns = time.monotonic_ns()
            while coming and coming[0] <= now_ns:
                tenant.due.append(coming.popleft())
            self._turn(coming[0] - now_ns if coming else 10**9)
        return tenant.latencies_ns[begin:]

    # -- insides -------------------------------------------------------------------------------------------------------------------

    def _script(self, encoder: BatchEncoder, recording: Recording, seq: int) -> Iterator[_Step]:
        endless = Endless(recording)
        for number in count():
            flushes = endless.step(number)
            yield self._encode(encoder, recording, flushes, seq)
            seq += len(flushes)

    def _encode(self, encoder: BatchEncoder, recording: Recording, flushes: list[Sent], seq: int) -> _Step:
        batches = []
        for at, sent in enumerate(flushes):
            flush = recording.flush(sent)
            uploads = tuple(Upload(handle, len(data), data) for handle, data in sent.uploads)
            batches.append((encoder.encode(seq + at, flush, uploads), sent.waited, sent.answer))
        return _Step(seq, batches)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SILENT_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("the node does not answer")
            self._turn(10**8)

    def _turn(self, wait_ns: int) -> None:
        """Send what may be sent, then listen for up to ``wait_ns``."""
        for tenant in self._tenants.values():
            self._push(tenant)
        for message in self._line.receive(wait_ns / 1e9):
            self._hear(message)

    def _push(self, tenant: Tenant) -> None:
        """Begin every step that is due (open loop, as far as a client may be ahead), or fill the window (closed loop)."""
        if tenant.closed_loop:
            while len(tenant.begun) < WINDOW_STEPS:
                self._begin(tenant, time.monotonic_ns())
            return
        longest = max(len(step) for step in tenant.recording.steps)
        while tenant.due and tenant.hold is None and tenant.sent - tenant.done_seq + longest <= LIMITS.outstanding_batches_max:
            self._begin(tenant, tenant.due.popleft())

    def _begin(self, tenant: Tenant, due_ns: int) -> None:
        step = next(tenant.script)
        tenant.begun.append((step.first_seq + len(step.batches) - 1, due_ns))
        self._go_on(tenant, step, 0)

    def _go_on(self, tenant: Tenant, step: _Step, at: int) -> None:
        """Send the step's batches from ``at`` on, up to one whose answer the script looks at."""
        tenant.hold = None
        while at < len(step.batches):
            self._send(tenant, step, at)
            waits = step.batches[at][1]
            at += 1
            if waits and at < len(step.batches):
                tenant.hold = (step, at)
                return

    def _send(self, tenant: Tenant, step: _Step, at: int) -> None:
        data, waited, answer = step.batches[at]
        tenant.sent = step.first_seq + at
        if waited and answer:
            tenant.answers[tenant.sent] = answer
        self._line.publish(subjects.batch_subject(self._node, tenant.session), data)

    def _hear(self, message: Message) -> None:
        subject, payload, at_ns = message
        tenant = self._tenants.get(subject.rsplit(".", 2)[1])
        if tenant is None or not payload:
            return
        done = decode_done(payload)
        if done.fault is not None or done.needs:
            raise RuntimeError(f"{tenant.recording.kind}: batch {done.seq}: {done.fault or 'the node lacks bodies'}")
        tenant.done_seq = max(tenant.done_seq, done.seq)
        tenant.core_ns += done.core_ns
        _compare(tenant, done)
        if tenant.begun and done.seq >= tenant.begun[0][0]:
            _, due_ns = tenant.begun.popleft()
            tenant.latencies_ns.append(at_ns - due_ns)
            tenant.finished_ns.append(at_ns)
        if tenant.hold is not None and done.seq == tenant.hold[0].first_seq + tenant.hold[1] - 1:
            self._go_on(tenant, *tenant.hold)


def _compare(tenant: Tenant, done: Done) -> None:
    expected = tenant.answers.pop(done.seq, b"")
    if expected and expected != blake3(b"".join(read.inline for read in done.reads)).digest():
        tenant.wrong += 1


def _heard(tenant: Tenant, seq: int) -> bool:
    return tenant.done_seq >= seq


def _answered(tenant: Tenant, requests: int) -> bool:
    return len(tenant.latencies_ns) >= requests
