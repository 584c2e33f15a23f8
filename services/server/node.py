"""The node on the bus: discovery, sessions' requests, the batch stream, telemetry. Asyncio; one instance a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from bus_schemas import faults, subjects
from bus_schemas.access import AboutStream
from bus_schemas.batch import LIMITS, Done, Fault, encode_done
from bus_schemas.dataport import MODELS_VERB, ModelCacheOpened, OpenModelCache
from bus_schemas.events import DeviceFact, NodeLeaving, NodeLost, NodeRegistered
from bus_schemas.journal import DISPATCH, PROGRAMS, VRAM
from bus_schemas.journal import QUOTAS as QUOTA_LANE
from bus_schemas.limits import MALFORMED, QUOTA_USES_MAX, REQUEST_BYTES_MAX, SEQ_MAX
from bus_schemas.quotas import QUOTAS
from bus_schemas.session import CloseSession, NodeInfo, NodeStats, OpenSession, Ping, Pong, SessionClosed, SessionOpened, SessionStats
from bus_schemas.telemetry import QuotaUse
from scheduler.buckets import Buckets
from scheduler.dispatch import decisions as why
from scheduler.quotas import answer, asked_of
from services.kit.at_rest import read_key_wrap
from services.kit.bus import Bus
from services.kit.errors import StartError
from services.kit.follow import Follower
from services.kit.log import get_logger
from services.kit.streams import batch_stream_config
from services.kit.trace import Tracing
from services.server import metrics
from services.server.accounting import Accounting, Counters
from services.server.admission import REFUSALS, OpenQuotas, OpenRefused, check_quota, check_request, quota_fault, sound_outcome
from services.server.allowance import Allowances
from services.server.allowance_link import AllowanceLink
from services.server.device import Device
from services.server.dispatch_log import DispatchLog
from services.server.facts import FactLog
from services.server.inflow import Arrived, Inflow, Message, inflow_budget
from services.server.journal_stream import JournalStream, ProgramLane, QuotaLane
from services.server.metrics import Standing
from services.server.model_cache_door import answer_open
from services.server.orders import Orders, Overcommit
from services.server.principals import Principals
from services.server.sessions import DISPLACED, Session, SessionRecord, gives_way, is_unanswered, repeats_again, repeats_of
from services.server.settings import Settings
from wooly.shared.trace import parse_traceparent

__all__ = ["Node", "VERSION"]

VERSION: Final = "0.1.0"

_TICK_S: Final = 1.0
_SETTLE_S: Final = 5.0
_BOOK_S: Final = 1.0
"""Its client waits for 1.5 s."""
_LEAVE_S: Final = 0.2
_REWIND: Final = 1024
"""Batches read again after the bus was away: more than it can have had in memory only. Those executed are dropped."""
_encode: Final = msgspec.msgpack.Encoder().encode

T = TypeVar("T")
Handler = Callable[[str, bytes], Awaitable[bytes | None]]


class Node:
    """Made once the bus is there; ``start`` makes it serve, ``stop`` ends it cleanly."""

    def __init__(self, settings: Settings, bus: Bus, facts: FactLog) -> None:
        self._settings = settings
        self._bus = bus
        self._facts = facts
        self._node = settings.node_id
        self._counters = Counters()
        self._stream_made = ""
        self._follower: Follower | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._out: set[asyncio.Task[Any]] = set()
        self._log = get_logger()
        self._tracing = Tracing("wooly-server")
        self._journal = JournalStream(self._node, facts.epoch)
        self._refusals = QuotaLane(self._journal.lane(0, QUOTA_LANE))
        self._overcommit = Overcommit(self._node, settings.memory.overcommit_percent)
        self._allowances = Allowances(time.time_ns, time.monotonic_ns)
        run_dir = _private(settings.run_dir())
        self._devices = [self._device(gpu, run_dir) for gpu in range(settings.devices)]
        self._cache = settings.executor(0, run_dir)
        """Has the settings of what tenants may store and stage, which all devices share."""
        self._key_wrap = read_key_wrap(settings.at_rest_key_file)
        self._money = AllowanceLink(self._node, facts.epoch, self._allowances, [device.gate for device in self._devices])
        self._principals = Principals(bus, self._node, self._devices, on=settings.authentication)
        self._orders = Orders(self._node, facts.epoch, self._devices)
        self._inflow = Inflow(self._heard, self._on_read, inflow_budget(settings.tenant_messages_a_second))
        self._opens = OpenQuotas(settings.tenant_sessions_max, keys=settings.authentication)
        self._requests: Buckets[str] = Buckets(QUOTAS["requests"].rate())
        self._gauges = [metrics.Gauge() for _ in self._devices]

    def _device(self, gpu: int, run_dir: Path) -> Device:
        settings, facts = self._settings, self._facts
        folder, lane = settings.data_dir / "dispatch", self._journal.lane(gpu, DISPATCH)
        return Device(
            gpu=gpu,
            settings=partial(settings.executor, gpu, run_dir),
            accounting=Accounting(self._node, gpu, facts, self._position, self._allowances),
            config=settings.dispatch,
            log_factory=lambda: DispatchLog(folder, gpu, facts.epoch, lane),
            memory_lane=self._journal.lane(gpu, VRAM),
            programs=ProgramLane(self._journal.lane(gpu, PROGRAMS)),
            counters=self._counters,
            send_done=self._send_done,
            tracing=self._tracing,
        )

    async def start(self) -> None:
        """Devices first, then the fact that the node is there, then its subjects. Raises StartError."""
        await self._principals.start()
        await self._bus.ensure_streams(self._node)
        for device in self._devices:
            await device.start()
            device.domain = next((self._domain(record.terms.tenant) for record in device.records), "")
        self._facts.record("node", self._node, [self._registered()])
        for device in self._devices:
            device.announce()
        self._facts.start(self._bus)
        self._journal.start(self._bus)
        await self._overcommit.start(self._bus)
        await self._money.start(self._bus)
        await self._follow_batches()
        await self._bus.serve(subjects.DISCOVER_ALL, self._of_client(self._discovered), principal=subjects.requester)
        for verb, handler in (
            *((verb, self._of_client(handler)) for verb, handler in (
                ("open", self._open), ("close", self._close), ("ping", self._ping), ("stats", self._stats), (MODELS_VERB, self._models),
            )),
            ("end_task", self._orders.end_task), ("set_priority", self._orders.set_priority),
        ):  # fmt: skip
            await self._bus.serve(subjects.node_requests(self._node, verb), handler, principal=subjects.requester)
        await self._bus.nc.flush()  # a client that discovers the node must find it
        self._ticker = asyncio.create_task(self._tick_forever(), name="tick")

    async def stop(self) -> None:
        """Have tasks continue elsewhere, take no more batches, end sessions or leave them to the next server, publish what is to be
        published."""
        await self._leave()
        if self._ticker is not None:
            self._ticker.cancel()
        if self._follower is not None:
            await self._follower.stop()
        await self._inflow.stop()
        await self._overcommit.stop()
        await self._principals.stop()
        await self._money.stop()
        kept = sum(len(device.sessions) + len(device.lost) for device in self._devices) if self._settings.keep_sessions else 0
        if kept or self._facts.failed.is_set():  # what the journal lacks is known to the executors only
            self._log.info("sessions are left to the next server", sessions=kept, within_s=self._settings.orphan_s)
            for device in self._devices:
                device.leave()
        else:
            await self._end_sessions()
        if not await self._facts.settled(_SETTLE_S if self._bus.connected else 0.0) and not self._facts.failed.is_set():
            self._log.warning("the bus did not take all facts; the next start publishes them")
        self._safely(self._record_refusals)
        if not await self._journal.close(_SETTLE_S if self._bus.connected else 0.0):
            self._log.warning("the bus did not take all of the journal")
        await self._facts.close()
        self._tracing.close()

    async def _leave(self) -> None:
        """Wait until no session of a task is left, for the time of grace at most."""
        grace_s = self._settings.stop_grace_s
        if not grace_s or not self._bus.connected or self._facts.failed.is_set() or not self._of_tasks():
            return
        now_ns = time.time_ns()
        self._log.info("tasks are to continue elsewhere", sessions=self._of_tasks(), within_s=grace_s)
        self._facts.record("node", self._node, [NodeLeaving(now_ns, self._node, self._facts.epoch, now_ns + int(grace_s * 1e9))])
        for _ in range(round(grace_s / _LEAVE_S)):
            if not self._of_tasks():
                break
            await asyncio.sleep(_LEAVE_S)

    def _of_tasks(self) -> int:
        return sum(1 for device in self._devices for record in device.records if record.terms.task)

    async def _end_sessions(self) -> None:
        fault = Fault(faults.NODE_LOST, f"node {self._settings.node_name} is being stopped; start the script again")
        for device in self._devices:
            for session in device.sessions:
                self._send_done(session, encode_done(Done(session, 0, fault=fault)))
            await device.stop()
        self._facts.record("node", self._node, [NodeLost(time.time_ns(), self._node, self._facts.epoch, "stopped")])

    # -- batches -------------------------------------------------------------------------------------------------------------------

    async def _follow_batches(self) -> None:
        """Read on where the books ended; a stream made anew is read from its start."""
        stream = subjects.batch_stream(self._node)
        self._stream_made = (await self._bus.consumers.about(AboutStream(stream))).made
        known = [p.position for p in self._facts.progress.values() if p.stream == self._stream_made]
        made_anew = None if self._bus.keyed else batch_stream_config(self._node)
        self._follower = self._bus.follow(stream, min(known, default=0) + 1, self._on_batch, rewind=_REWIND, made_anew=made_anew)
        await self._follower.start()

    def _on_batch(self, position: int, subject: str, data: bytes) -> None:
        self._counters.received += 1
        refused = self._inflow.put(Message(position, *subjects.batch_parts(subject), data))
        if refused is not None:
            self._counters.dropped += 1
            self._counters.quota_refused(refused)

    def _heard(self, principal: str, name: str) -> str:
        """The tenant on whose budget a message is read; one that names no session of its principal is read on the principal's own."""
        found = self._find(name, principal)
        if found is None:
            return f"principal {principal}"
        found[1].silent_ns = 0
        return found[1].record.terms.tenant

    def _on_read(self, message: Message, arrived: Arrived) -> None:
        principal, name, batch = message.principal, message.session, arrived.batch
        self._counters.refused += arrived.refused is not None
        if batch is None:
            self._send_to(principal, name, encode_done(Done(name, 0, fault=arrived.refused)))
            return
        found = self._find(name, principal)
        if found is None:
            self._counters.refused += 1
            self._send_to(principal, name, encode_done(Done(name, batch.seq, fault=REFUSALS[why.SESSION_UNKNOWN])))
            return
        device, session = found
        device.batch(session, batch, arrived.body, message.position, arrived.refused)

    def _position(self) -> tuple[str, int]:
        """The batch stream, and the position up to which every batch is over."""
        if self._follower is None:
            return self._stream_made, 0
        positions = (self._inflow.oldest_position(), *(device.oldest_position() for device in self._devices))
        oldest = [position for position in positions if position is not None]
        return self._stream_made, min(oldest) - 1 if oldest else self._follower.position

    def _send_done(self, session: str, done: bytes) -> None:
        found = self._find(session)
        if found is not None:
            self._send_to(found[1].record.principal, session, done)

    def _send_to(self, principal: str, session: str, done: bytes) -> None:
        with contextlib.suppress(ValueError):  # the names may be untrusted input
            self._spawn(self._bus.publish(subjects.session_done(session, principal, self._node), done))

    # -- requests ------------------------------------------------------------------------------------------------------------------

    def _of_client(self, handler: Handler) -> Handler:
        """``handler`` for what clients may send: within the quota of their key, and one that is too long as one that cannot be read."""

        async def admit(subject: str, data: bytes) -> bytes | None:
            asked = asked_of("requests", self._requests, subjects.requester(subject), time.monotonic_ns())
            if self._principals.on:
                if answer(asked) is not None:
                    self._counters.quota_refused(asked)
                    return None
                self._requests.take(asked.who, asked.at_ns)
            return await handler(subject, data if len(data) <= REQUEST_BYTES_MAX else b"")

        return admit

    async def _discovered(self, subject: str, data: bytes) -> bytes:
        return _encode(self._info())

    async def _open(self, subject: str, data: bytes) -> bytes:
        try:
            request = msgspec.msgpack.decode(data, type=OpenSession)
        except MALFORMED as error:
            text = f"the request breaks a limit, or client and node are of different versions: {error}"
            return _encode(SessionOpened("", self._facts.epoch, None, fault=Fault(faults.MALFORMED, text)))
        principal = subjects.requester(subject)
        tenant = await self._principals.tenant_of(principal, request.tenant, request.task)
        if isinstance(tenant, Fault):
            return _encode(SessionOpened(request.session, self._facts.epoch, None, fault=tenant))
        request = msgspec.structs.replace(request, tenant=tenant)
        gpu = request.gpus[0] if request.gpus else 0
        if 0 <= gpu < len(self._devices):
            await self._devices[gpu].wait_for_executor()
        if any(request.replaces in device.lost for device in self._devices) and not await self._facts.durable():
            return self._unwritten(request.session)  # what may be repeated without a charge was charged, also if the server dies now
        fault = self._refuse_open(request, principal)
        if fault is not None:
            return _encode(SessionOpened(request.session, self._facts.epoch, None, fault=fault))
        known = self._find(request.session)
        if known is not None:  # the answer to an earlier try was lost
            return await self._answer_open(known[1].record)
        device = self._devices[gpu]
        replaced = device.claim_lost(request, principal)
        unanswered = device.lost.pop(request.session, None)  # the session continues under the same name, in log and books
        record = SessionRecord(
            session=request.session,
            terms=request.terms,
            gpu=gpu,
            token=secrets.token_hex(16),
            epoch=self._facts.epoch,
            opened_at_ns=time.time_ns(),
            domain=self._settings.trust.domain(request.tenant) if request.dedup else "",
            vram_wait_ms=request.vram_wait_ms,
            principal=principal,
            traceparent=request.traceparent if parse_traceparent(request.traceparent) is not None else "",
            replaces=request.replaces,
            origin=request.origin,
            image=request.image,
            **(repeats_of(replaced, request) if unanswered is None else repeats_again(unanswered)),
        )
        self._opens.opened(request.tenant, principal, time.monotonic_ns())
        try:
            await device.open(record)
        except (StartError, OpenRefused) as error:
            for back in (replaced, unanswered):
                if back is not None:
                    device.put_back(back)
            fault = error.fault if isinstance(error, OpenRefused) else Fault(faults.NODE_FAULT, str(error), fatal=False)
            return _encode(SessionOpened(request.session, self._facts.epoch, None, fault=fault))
        if replaced is not None:
            device.end_lost(replaced)
        self._log.info("session opened", **record.about, gpu=gpu, priority=record.terms.priority)
        return await self._answer_open(record)

    async def _answer_open(self, record: SessionRecord) -> bytes:
        """The answer for an open session, once the journal has it: else the next server would not know a session that its client does."""
        if not await self._facts.durable():
            return self._unwritten(record.session)
        opened = self._find(record.session)
        return _encode(self._opened(opened[1].record if opened is not None else record))

    def _domain(self, tenant: str) -> str:
        """Whose process a device needs for a session of the tenant; empty: any."""
        return self._settings.trust.domain(tenant) if self._settings.executor_per_domain else ""

    def _sessions_of(self) -> Counter[str]:
        """Open sessions by tenant."""
        return Counter(record.terms.tenant for device in self._devices for record in device.records)

    def _quota_fault(self, tenant: str, principal: str) -> Fault | None:
        """The quota that refuses one more session, counted for the metrics; or None."""
        refused = self._opens.refuse(tenant, principal, self._sessions_of()[tenant], time.monotonic_ns())
        if refused is None:
            return None
        self._counters.quota_refused(refused)
        return quota_fault(refused)

    def _record_refusals(self) -> None:
        """The refusals since the last call, and the delays of now, to the journal."""
        now_ns = time.monotonic_ns()
        for tenant in self._inflow.tenants():
            delayed = self._inflow.delayed(tenant, now_ns)
            if delayed is not None:
                self._counters.refusals.note(delayed)
        self._refusals.add(self._counters.refusals.take())

    def _quota_uses(self) -> tuple[QuotaUse, ...]:
        """What the tenants with the most sessions have used."""
        now_ns = time.monotonic_ns()
        uses = [
            msgspec.structs.replace(use, tenant=tenant)
            for device in self._devices
            for use in device.quota_uses
            for tenant in self._settings.trust.tenants(use.tenant)
        ][: QUOTA_USES_MAX // 2]
        for tenant, sessions in self._sessions_of().most_common(QUOTA_USES_MAX // 8):
            opens = self._opens.tenants
            uses += [
                QuotaUse(tenant, "sessions", sessions, self._opens.sessions_max),
                QuotaUse(tenant, "opens", opens.used(tenant, now_ns), opens.rate.burst),
                *(QuotaUse(tenant, quota, used, limit) for quota, (used, limit) in self._inflow.quotas(now_ns, [tenant]).items()),
            ]
        return tuple(uses)

    def _quotas(self) -> dict[str, tuple[int, int]]:
        """By quota: the most that a tenant (or key) has used of it, and the limit."""
        now_ns = time.monotonic_ns()
        uses = [use for device in self._devices for use in device.quota_uses]
        limits = {"staged_bytes": self._cache.staged_bytes, "stored_bytes": self._cache.tenant_model_cache_bytes}
        return {
            **{quota: (max((use.used for use in uses if use.quota == quota), default=0), limit) for quota, limit in limits.items()},
            "sessions": (max(self._sessions_of().values(), default=0), self._opens.sessions_max),
            "opens": (self._opens.tenants.most_used(now_ns), self._opens.tenants.rate.burst),
            "requests": (self._requests.most_used(now_ns), self._requests.rate.burst),
            "key_opens": (self._opens.principals.most_used(now_ns), self._opens.principals.rate.burst),
            **self._inflow.quotas(now_ns, self._inflow.tenants()),
        }

    def _refuse_open(self, request: OpenSession, principal: str) -> Fault | None:
        """Why this session may not be opened, or None."""
        fault = check_request(request)
        if fault is not None:
            return fault
        if self._principals.on and not request.session.startswith(subjects.session_name(principal, "")):
            return Fault(faults.MALFORMED, f"session: its name must begin with {subjects.session_name(principal, '')}, whose it is")
        if len(request.gpus) > 1:
            return Fault(faults.NO_SUCH_DEVICE, "a session uses one device; open one session a device")
        gpu = request.gpus[0] if request.gpus else 0
        if not 0 <= gpu < len(self._devices):
            return Fault(faults.NO_SUCH_DEVICE, f"node {self._settings.node_name} has devices 0 to {len(self._devices) - 1}, not {gpu}")
        for record in (record for device in self._devices for record in device.records if record.session == request.session):
            known = self._find(request.session, principal)
            same = (record.gpu, record.terms.tenant, record.principal) == (gpu, request.tenant, principal)
            same = same and (known is None or known[1].closing is None)
            return None if same else Fault(faults.SESSION_TAKEN, f"session {request.session} exists already")
        lost = self._devices[gpu].lost.get(request.session)
        if lost is not None and not is_unanswered(lost, request, principal):
            return Fault(faults.SESSION_TAKEN, f"session {request.session} exists already, and its memory is lost")
        if any(request.session in device.ended for device in self._devices):  # its client had no answer, or that one came too late
            return Fault(faults.SESSION_UNKNOWN, f"session {request.session} has ended; open another one", fatal=False)
        fault = self._allowances.right_fault(request.terms) or self._quota_fault(request.tenant, principal)
        if fault is not None:
            return fault
        device, domain = self._devices[gpu], self._domain(request.tenant)
        device.turns.ask(domain, time.monotonic_ns())
        if device.attached is None:
            return Fault(faults.NODE_FAULT, f"device {gpu} is being restarted; try again", fatal=False)
        fault = check_quota(request, gpu, device.attached.vram_bytes, self._overcommit.percent)
        if fault is not None:
            return fault
        held = [*device.records, *(lost.record for lost in device.lost.values())]  # a lost one is about to be opened again
        others = [record for record in held if record.session != request.session and not gives_way(record, request, principal)]
        if any(self._domain(other.terms.tenant) != domain for other in others) or (not others and device.turns.next != domain):
            text = f"device {gpu} serves another trust domain until its sessions are over; wait, or use another device"
            return Fault(faults.DEVICE_TAKEN, text, fatal=False)
        if device.domain != domain:
            device.change_domain(domain)
            return Fault(faults.NODE_FAULT, f"device {gpu} starts a process for this trust domain; try again", fatal=False)
        device.turns.taken(domain)
        if any(other.terms.exclusive for other in others) or (request.exclusive and others):
            return Fault(faults.DEVICE_TAKEN, f"device {gpu} is held by another task, and one of the two wants it exclusively")
        return None

    def _unwritten(self, session: str) -> bytes:
        text = "the node's journal cannot be written; it is being restarted; try again"
        return _encode(SessionOpened(session, self._facts.epoch, None, fault=Fault(faults.NODE_FAULT, text, fatal=False)))

    async def _close(self, subject: str, data: bytes) -> bytes | None:
        request = _decode(data, CloseSession)
        if request is None:
            return _encode(SessionClosed(""))
        for device in self._devices:
            lost = device.lost.get(request.session)
            if lost is not None and lost.record.principal == subjects.requester(subject):
                lost.outcome = lost.outcome or sound_outcome(request.outcome)
                lost.reason = DISPLACED if request.reason == DISPLACED else lost.reason  # its client continues on another node
                device.end_lost(lost, request)
        found = self._find(request.session, subjects.requester(subject))
        if found is None:  # over already, as after a cancel: what it used all the same
            ended = [device.ended[request.session] for device in self._devices if request.session in device.ended]
            mine = [totals for principal, totals in ended if principal == subjects.requester(subject)]
            return _encode(mine[0] if mine else SessionClosed(request.session))
        device, session = found
        session.outcome = session.outcome or sound_outcome(request.outcome)
        totals = await device.close(session, request.last_seq, request.reason)
        await self._facts.settled(_SETTLE_S)
        return None if self._facts.failed.is_set() else _encode(totals)  # to the next server it is not over

    async def _ping(self, subject: str, data: bytes) -> bytes | None:
        ping = _decode(data, Ping)
        if ping is None:
            return None
        found = self._find(ping.session, subjects.requester(subject)) if ping.session else None
        if found is None:
            return _encode(Pong(self._node, self._facts.epoch, False))
        device, session = found
        session.silent_ns = 0
        image = ping.image if 0 < ping.image < SEQ_MAX and await self._book(device, session, ping.image) else 0
        if 0 <= ping.seq_seen < session.seq_done:
            device.recall(session, ping.seq_seen)
        delayed = self._inflow.delayed(session.record.terms.tenant, time.monotonic_ns())
        info = device.info()
        free_bytes = info.vram_free_bytes if info is not None else -1
        return _encode(
            Pong(
                node=self._node,
                epoch=self._facts.epoch,
                session_known=True,
                seq_done=session.seq_done,
                seq_next=session.seq_next,
                vram_free_bytes=free_bytes,
                excess=None if delayed is None else answer(delayed),
                image=image,
            )
        )

    async def _book(self, device: Device, session: Session, image: int) -> bool:
        """Bring into the log what the session used so far, and the image that its client has of it; False: not in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BOOK_S):
                return await device.book(session, image) and await self._facts.settled(_BOOK_S)
        return False

    async def _stats(self, subject: str, data: bytes) -> bytes:
        sessions = []
        for device in self._devices:
            for session in device.sessions.values():
                account = device.account(session.record.session)
                totals, state = device.totals(session.record.session)
                record, terms = session.record, session.record.terms
                sessions.append(
                    SessionStats(
                        session=record.session,
                        tenant=terms.tenant,
                        task=terms.task,
                        gpu=record.gpu,
                        priority=terms.priority,
                        seq_done=session.seq_done,
                        core_ns=account.core_ns,
                        instructions=account.instructions,
                        launches=account.launches,
                        resident_bytes=session.resident_bytes,
                        launch_digest=session.chain.hex(),
                        weight=terms.weight,
                        state=state,
                        slices=totals.slices,
                        swapped_bytes=session.swapped_bytes,
                        shared_bytes=session.memory[2],
                    )
                )
        c = self._counters
        return _encode(
            NodeStats(
                node=self._node,
                epoch=self._facts.epoch,
                sessions=tuple(sessions),
                batches_received=c.received,
                batches_executed=c.executed,
                batches_dropped=c.dropped,
                batches_refused=c.refused,
                executor_restarts=c.restarts,
            )
        )

    async def _models(self, subject: str, data: bytes) -> bytes | None:
        request = _decode(data, OpenModelCache)
        if request is None:
            return None
        tenant = await self._principals.tenant_of(subjects.requester(subject), request.tenant)
        if isinstance(tenant, Fault):
            return _encode(ModelCacheOpened(fault=tenant))
        request = msgspec.structs.replace(request, tenant=tenant)
        ports = [device.attached.data_port if device.attached is not None else None for device in self._devices]
        folder = self._cache.model_cache_dir
        return _encode(answer_open(request, folder, self._settings.trust, ports, int(time.time()), self._key_wrap))

    # -- once a second -------------------------------------------------------------------------------------------------------------

    async def _tick_forever(self) -> None:
        loop, settings = asyncio.get_running_loop(), self._settings
        due = loop.time()
        ticked_ns = time.monotonic_ns()
        while True:
            due = max(due + _TICK_S, loop.time())
            await asyncio.sleep(due - loop.time())
            now_ns = time.monotonic_ns()
            listening = self._bus.connected and self._follower is not None and self._follower.hearing
            heard_ns, ticked_ns = now_ns - ticked_ns if listening else 0, now_ns
            self._safely(self._record_refusals)
            self._safely(self._journal.tick)
            for device, gauge in zip(self._devices, self._gauges, strict=True):
                self._safely(device.renew_certificate)
                self._safely(partial(device.tick, settings.lease_ms * 10**6, settings.unlinked_lease_ms * 10**6, heard_ns))
                quotas = (self._safely(self._quota_uses) or ()) if device.gpu == 0 else ()
                message = self._safely(partial(gauge.read, device, self._node, self._facts.epoch, quotas))
                if message is None and device.attached is not None:
                    message = metrics.heartbeat(device, self._node, self._facts.epoch)
                if message is not None:
                    with contextlib.suppress(Exception):  # telemetry is never worth an error; a closed connection shows elsewhere
                        await self._bus.publish(subjects.telemetry_subject(self._node, device.gpu), message)

    def _safely(self, work: Callable[[], T]) -> T | None:
        """``work()``, or None: a node whose tick failed would say nothing, and be held for lost."""
        try:
            return work()
        except Exception:
            self._log.exception("a part of the tick failed")
            return None

    def standing(self) -> Standing:
        """How the node stands, for those who watch it."""
        failed = self._facts.failed.is_set() or self._ticker is None or self._ticker.done()
        away = [str(device.gpu) for device in self._devices if device.attached is None]
        problem = "the journal cannot be written, or the node is being stopped" if failed else ""
        if not problem and not self._bus.connected:
            problem = "the bus is away"
        elif not problem and away:
            problem = f"the executor of device {', '.join(away)} is being restarted"
        facts, connected = self._facts, self._bus.connected
        return Standing(
            node=self._node,
            epoch=facts.epoch,
            devices=self._devices,
            counters=self._counters,
            facts_waiting=facts.waiting,
            connected=connected,
            quotas=self._quotas(),
            problem=problem,
            failed=failed,
        )

    # -- helpers -------------------------------------------------------------------------------------------------------------------

    def _find(self, session: str, principal: str | None = None) -> tuple[Device, Session] | None:
        """The open session of this name, with ``principal`` only if it is theirs."""
        for device in self._devices:
            found = device.sessions.get(session)
            if found is not None and principal in (None, found.record.principal):
                return device, found
        return None

    def _info(self) -> NodeInfo:
        infos = tuple(info for device in self._devices if (info := device.info()) is not None)
        ports = next((device.attached.data_port for device in self._devices if device.attached is not None), ())
        s = self._settings
        return NodeInfo(
            node=self._node,
            name=s.node_name,
            address=s.node_address,
            epoch=self._facts.epoch,
            devices=infos,
            data_port=ports,
            groups=s.groups,
            version=VERSION,
            model_cache=self._cache.model_cache_state,
        )

    def _opened(self, record: SessionRecord) -> SessionOpened:
        device = self._devices[record.gpu]
        ports = device.attached.data_port if device.attached is not None else ()
        info = msgspec.structs.replace(self._info(), data_port=ports)
        return SessionOpened(
            session=record.session,
            epoch=record.epoch,
            node=info,
            token=record.token,
            quota_bytes=record.terms.vram_bytes,
            limits=LIMITS,
            lease_ms=self._settings.lease_ms,
            gpus=(record.gpu,),
            tenant=record.terms.tenant,
        )

    def _registered(self) -> NodeRegistered:
        info = self._info()
        devices = tuple(DeviceFact(d.index, d.name, d.backend, d.cores, d.vram_bytes) for d in info.devices)
        return NodeRegistered(
            at_ns=time.time_ns(),
            node=self._node,
            name=info.name,
            address=info.address,
            epoch=self._facts.epoch,
            devices=devices,
            groups=info.groups,
            version=info.version,
            domains=self._settings.trust.domains if self._settings.executor_per_domain else None,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in the background; it is held until it ends."""
        task = asyncio.create_task(work)
        self._out.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[Any]) -> None:
        """A Done that the connection could not take is asked for again by its session; the log should know all the same."""
        self._out.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.warning("a message did not leave", problem=str(task.exception()))


def _private(folder: Path) -> Path:
    """``folder``, made or found to be ours alone: a process that can reach its sockets can run batches. Raises StartError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise StartError(f"{folder} is not a private folder of this user: remove it, or set XDG_RUNTIME_DIR")
    return folder


def _decode(data: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except MALFORMED:
        return None
