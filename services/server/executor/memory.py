"""A device's memory: asks the memory core for what batches need and carries out what it decides.

Everything here but the steps of moves is done by the launching thread. A session of which something moves is not touched by it meanwhile
(its batches wait), so every space is used by one thread at a time; code that takes memory or holds a view of it goes through ``gate``.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bus_schemas import faults
from bus_schemas.batch import Batch, Fault
from jit.engine import Engine, Space
from jit.errors import OutOfMemory
from scheduler.dispatch import PRIORITIES
from scheduler.vram import (
    AllocationRequested,
    Await,
    Decision,
    DeviceConfigured,
    Expected,
    Freed,
    Holds,
    MemoryReady,
    PriorityChanged,
    Refuse,
    SessionClosed,
    SessionOpened,
    Stimulus,
    SwapFailed,
    SwapIn,
    SwapLost,
    SwapOut,
    SwappedIn,
    SwappedOut,
    Tick,
    Vram,
    coldest,
    hottest,
)
from scheduler.vram.victims import may_displace
from services.kit.log import get_logger
from services.server.executor.content import Content
from services.server.executor.errors import Awaits, Needs, Refused, SwapAway, SwapCorrupt, SwapFull
from services.server.executor.programs import Plan
from services.server.executor.swap_mover import Gate, Job, Mover
from services.server.executor.swap_store import DiskTier, Kept, SwapStore
from services.server.executor.tenant import Tenant
from services.server.executor.vram_journal import VramJournal
from services.server.settings import MemorySettings

__all__ = ["DeviceMemory", "reserve_bytes"]

_RESERVE_BYTES = 2 << 30
_SMALL_DEVICE_BYTES = 16 << 30
_PIECE_BYTES = 1 << 20
"""Copied at a time: the longest that the launching thread is kept from taking memory."""

Bytes = npt.NDArray[np.uint8]


def reserve_bytes(settings: MemorySettings, vram_bytes: int) -> int:
    """What shall stay free of a device: as set, else 2 GiB, or an eighth of a device of less than 16 GiB."""
    if settings.reserve_bytes is not None:
        return settings.reserve_bytes
    return _RESERVE_BYTES if vram_bytes >= _SMALL_DEVICE_BYTES else vram_bytes // 8


@dataclass(slots=True)
class _Move:
    """One SwapOut or SwapIn and how far it came. Written by the moving thread until its job is over, then read by the launching one.

    ``done``: buffers that have moved, with what they are kept as. ``problem``: why it did not go on. ``lost``: what came back is not what
    went."""

    tenant: Tenant
    out: bool
    job: Job | None = None
    dropped_bytes: int = 0
    moved_bytes: int = 0
    done: dict[int, Kept] = field(default_factory=dict)
    problem: str = ""
    lost: str = ""


class DeviceMemory:
    """All sessions' memory on one device. ``journal``: the core's stimuli and decisions."""

    def __init__(self, engine: Engine, content: Content, settings: MemorySettings) -> None:
        self._engine = engine
        self._content = content
        self._vram = Vram()
        self.journal = VramJournal(self._vram.state)
        disk = DiskTier(Path(settings.swap_dir), settings.swap_disk_bytes) if settings.swap_dir and settings.swap_disk_bytes else None
        self._store = SwapStore(settings.swap_host_bytes, disk)
        self._mover = Mover(self._store.tidy)
        self.gate = Gate()
        self._tenants: dict[str, Tenant] = {}
        self._moves: dict[str, _Move] = {}
        self._ready: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        vram_bytes = engine.info.vram_bytes
        swap_bytes = settings.swap_host_bytes + (settings.swap_disk_bytes if disk is not None else 0)
        idle_ns = settings.swap_idle_ms * 1_000_000
        self._on(DeviceConfigured(time.monotonic_ns(), vram_bytes, reserve_bytes(settings, vram_bytes), swap_bytes, idle_ns))

    def shut(self) -> None:
        """Stop moving. Nothing is asked of this after it."""
        self._mover.close()

    # -- sessions ------------------------------------------------------------------------------------------------------------------

    def open(self, tenant: Tenant, quota_bytes: int, priority: int = 0, swap: bool = True, wait_ms: int = 0, domain: str = "") -> None:
        """A session with an empty space. ``wait_ms``: how long a batch of it may wait for what others hold."""
        tenant.priority = priority
        self._tenants[tenant.session] = tenant
        self._content.open(tenant.session, domain, tenant.space)
        self._on(
            SessionOpened(
                at_ns=time.monotonic_ns(),
                session=tenant.session,
                quota_bytes=quota_bytes,
                use_bytes=0,
                priority=priority,
                swap=swap,
                wait_ns=wait_ms * 1_000_000,
            )
        )

    def prioritise(self, tenant: Tenant, priority: int) -> None:
        """Another priority from now on; moves under way go on as they began."""
        tenant.priority = priority
        self._on(PriorityChanged(time.monotonic_ns(), tenant.session, priority))

    def close(self, tenant: Tenant) -> None:
        """Everything of the session goes: its space, what was swapped, what was moving."""
        move = self._moves.pop(tenant.session, None)
        if move is not None and move.job is not None:
            self._mover.stop(move.job)
            if move.out:
                tenant.kept.update(move.done)
        self._drop(tenant, tuple(tenant.kept))
        self._content.close(tenant.session)
        tenant.space.close()
        self._tenants.pop(tenant.session, None)
        self._ready.pop(tenant.session, None)
        self._on(SessionClosed(time.monotonic_ns(), tenant.session, self._content.block_bytes))

    # -- batches -------------------------------------------------------------------------------------------------------------------

    def ask(self, tenant: Tenant, plan: Plan, batch: Batch) -> None:
        """Reserve all that a batch needs, temporaries included; until ``over`` nothing of the session moves.

        Raises Awaits when it cannot be had yet; Needs when chunks went to make room; Refused, not fatal, when the quota or the device is
        full, fatal when memory was lost.
        """
        if tenant.lost:
            raise Refused(Fault(faults.SWAP_CORRUPT, tenant.lost))
        if tenant.problem:
            problem, tenant.problem = tenant.problem, ""
            self._holds(tenant)
            raise Refused(Fault(faults.QUOTA_EXCEEDED, problem, fatal=False))
        space = tenant.space
        named = _named(tenant, plan, batch)
        tenant.wanted = tuple(handle for handle in named if handle in tenant.kept) if tenant.kept else ()
        tenant.pinned = named
        back_bytes = sum(tenant.sizes[handle] for handle in tenant.wanted)
        attached_bytes, copied_bytes = self._sharing(tenant, plan, batch)
        wanted_bytes = plan.wanted_bytes
        made_bytes = wanted_bytes - attached_bytes
        short_bytes = made_bytes + copied_bytes + back_bytes + plan.workspace_bytes - self._vram.state.free_bytes
        if short_bytes > 0 and self._own_lone(tenant.session, short_bytes):
            missing = self._content.missing(tenant.session, batch.uploads)
            if missing:
                raise Needs(missing)
            attached_bytes, copied_bytes = self._sharing(tenant, plan, batch)
            made_bytes = wanted_bytes - attached_bytes
        free_bytes = self._vram.state.free_bytes
        pinned_bytes = 0
        if tenant.session not in self._moves and made_bytes + copied_bytes + back_bytes + plan.workspace_bytes > free_bytes:
            self._trim(tenant, plan.workspace_bytes)
            shared = self._content.shared_handles(tenant.session)
            pinned_bytes = sum(tenant.sizes[h] for h in named if h not in tenant.kept and h not in shared) + space.workspace_bytes
        refusal = ""
        for _ in range(2):
            growth = max(0, plan.workspace_bytes - space.workspace_bytes)
            asked = AllocationRequested(
                at_ns=time.monotonic_ns(),
                session=tenant.session,
                nbytes=made_bytes + growth,
                back_bytes=back_bytes,
                pinned_bytes=pinned_bytes,
                attached_bytes=attached_bytes,
                copied_bytes=copied_bytes,
            )
            refusal = ""
            for decision in self._on(asked):
                if isinstance(decision, Await):
                    raise Awaits
                if isinstance(decision, Refuse):
                    refusal = decision.verdict.text
            if not refusal:
                self._used(tenant, plan, named)
                return
            if tenant.session in self._moves or not self._trim(
                tenant, plan.workspace_bytes
            ):  # what an earlier program worked in counts against the quota
                break
        raise Refused(Fault(faults.QUOTA_EXCEEDED, refusal, fatal=False))

    def _sharing(self, tenant: Tenant, plan: Plan, batch: Batch) -> tuple[int, int]:
        """Bytes of what the batch makes that will be on existing shared blocks, and bytes that its copies of shared blocks take."""
        if not self._content.sharing(tenant.session):
            return 0, 0
        attached = self._content.attached(tenant.session, batch.uploads, plan.written.union(batch.frees))
        return sum(plan.made[handle] for handle in attached), self._content.copies(tenant.session, plan.written)

    def _own_lone(self, session: str, short_bytes: int) -> bool:
        """When the unshared memory of others would not be enough for ``session``: shared blocks of a single session become its own memory,
        which can be swapped. Later uploads of the same content are not deduplicated."""
        states = self._vram.state.sessions
        others = [state for state in states.values() if may_displace(states[session], state)]
        if short_bytes <= sum(state.held for state in others if state.session != session):
            return False
        found = False
        for state in (*others, states[session]):
            tenant = self._tenants[state.session]
            if state.under_way or state.moving or not state.swap:
                continue
            stay = frozenset(tenant.pinned if state.session == session else ())
            lone = [handle for handle in self._content.lone_handles(state.session) if handle not in stay]
            if lone:
                with self.gate.launching():
                    self._content.release(state.session, lone)
                self._holds(tenant, over=False)
                found = True
        return found

    def over(self, tenant: Tenant) -> None:
        """The batch that ``ask`` let in is over, however it ended."""
        session = self._vram.state.sessions.get(tenant.session)
        if session is not None and session.under_way:
            self._holds(tenant)

    def free(self, tenant: Tenant, handle: int) -> int:
        """Forget a buffer, wherever it is; its size."""
        self._content.freed(tenant.session, handle)
        tenant.space.free(handle)
        tenant.used_ns.pop(handle, None)
        if tenant.kept:
            self._drop(tenant, (handle,))
        return tenant.sizes.pop(handle, 0)

    def let_go(self, tenant: Tenant, handles: tuple[int, ...]) -> tuple[int, ...]:
        """Free what a batch that was refused would have freed; what cannot go now, because the session is moving, is returned."""
        if tenant.session in self._moves:
            return handles
        known = [handle for handle in dict.fromkeys(handles) if handle in tenant.sizes]  # not checked so far
        for handle in known:
            self.free(tenant, handle)
        if known:
            self._holds(tenant)
        return ()

    def expect(self, session: str) -> None:
        """A batch of the session will come soon: bring back what fits without evicting another session."""
        tenant = self._tenants.get(session)
        if tenant is not None and tenant.kept and session not in self._moves and self._vram.state.sessions[session].waiter is None:
            tenant.wanted = ()
            swapped_bytes = sum(tenant.sizes[handle] for handle in tenant.kept)
            self._on(Expected(time.monotonic_ns(), session, swapped_bytes))

    # -- what happens by itself ------------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when a move has ended; then ``poll``."""
        return self._mover.fileno()

    @property
    def next_wakeup_ns(self) -> int | None:
        """When ``poll`` is due although nothing happens."""
        return self._vram.next_wakeup_ns

    def poll(self, moved: bool = True) -> tuple[str, ...]:
        """Take up what has moved (not ``moved``: nothing, ``fileno`` is not readable) and how late it is; the sessions whose waiting batch
        is to be executed again."""
        for job in self._mover.take() if moved else ():
            self._moved(self._moves.pop(job.session))
        wakeup_ns = self._vram.next_wakeup_ns
        if wakeup_ns is not None and wakeup_ns <= time.monotonic_ns():
            self._on(Tick(time.monotonic_ns()))
        ready = tuple(self._ready)
        self._ready.clear()
        return ready

    # -- accounts ------------------------------------------------------------------------------------------------------------------

    def swapped_bytes(self, tenant: Tenant) -> int:
        return sum(tenant.sizes[handle] for handle in tenant.kept) if tenant.kept else 0

    def take_changed(self) -> tuple[str, ...]:
        """Open sessions of which something moved since the last call."""
        if not self._changed:
            return ()
        changed = tuple(name for name in self._changed if name in self._tenants)
        self._changed.clear()
        return changed

    @property
    def store(self) -> SwapStore:
        """Where swapped memory is."""
        return self._store

    @property
    def core(self) -> Vram:
        """For reading; stimuli go through this class."""
        return self._vram

    # -- insides -------------------------------------------------------------------------------------------------------------------

    def _on(self, stimulus: Stimulus) -> list[Decision]:
        """Tell the core, and begin what it decides."""
        decisions = self._vram.on(stimulus)
        self.journal.add(stimulus, decisions)
        for decision in decisions:
            match decision:
                case SwapOut(session, nbytes):
                    self._begin_out(self._tenants[session], nbytes)
                case SwapIn(session, nbytes):
                    self._begin_in(self._tenants[session], nbytes)
                case MemoryReady(session):
                    self._ready[session] = None
                case _:
                    continue  # an answer to who asked
        if self._moves:
            self._rank()
        return decisions

    def _rank(self) -> None:
        """What leaves goes at the highest priority of the batches that wait for it: the one that needs the room, the one of its own
        session. What no batch waits for goes last."""
        sessions = self._vram.state.sessions
        for name, move in self._moves.items():
            if move.out and move.job is not None:
                concerned = (sessions[name], sessions.get(sessions[name].leaving_for))
                waiting = [session.priority for session in concerned if session is not None and session.waiter is not None]
                move.job.priority = min(waiting, default=PRIORITIES)

    def _holds(self, tenant: Tenant, *, over: bool = True) -> None:
        space = tenant.space
        held_bytes = space.resident_bytes - space.shared_bytes + space.workspace_bytes
        figures = (held_bytes, self.swapped_bytes(tenant), space.shared_bytes, self._content.block_bytes)
        self._on(Holds(time.monotonic_ns(), tenant.session, *figures, over))

    def _trim(self, tenant: Tenant, wanted_bytes: int) -> bool:
        """Give up the memory an earlier program worked in, unless the next one works in it as it is."""
        held_bytes = tenant.space.workspace_bytes
        if held_bytes in (0, wanted_bytes):
            return False
        tenant.space.trim()
        self._on(Freed(time.monotonic_ns(), tenant.session, held_bytes - tenant.space.workspace_bytes))
        return True

    def _used(self, tenant: Tenant, plan: Plan, named: Iterable[int]) -> None:
        now_ns = time.monotonic_ns()
        tenant.used_ns.update(dict.fromkeys(named, now_ns))
        tenant.used_ns.update(dict.fromkeys(plan.made, now_ns))
        tenant.used_ns.update(dict.fromkeys(plan.created, now_ns))

    def _drop(self, tenant: Tenant, handles: Iterable[int]) -> None:
        for handle in handles:
            kept = tenant.kept.pop(handle, None)
            if kept is not None:
                self._store.leave(kept)
                self._mover.stir()

    # -- moves ---------------------------------------------------------------------------------------------------------------------

    def _begin_out(self, tenant: Tenant, nbytes: int) -> None:
        """Temporaries first, they cost nothing; then the coldest buffers, but none that its own waiting batch names."""
        move = _Move(tenant, out=True, dropped_bytes=tenant.space.workspace_bytes)
        tenant.space.trim()
        move.dropped_bytes -= tenant.space.workspace_bytes
        shared = self._content.shared_handles(tenant.session)
        stay = frozenset(tenant.pinned if self._vram.state.sessions[tenant.session].leaving_for == tenant.session else ())
        candidates = (
            (handle, size, tenant.used_ns.get(handle, 0))
            for handle, size in tenant.sizes.items()
            if handle not in tenant.kept and handle not in shared and handle not in stay
        )
        self._begin(move, self._out(move, coldest(candidates, nbytes - move.dropped_bytes)))

    def _begin_in(self, tenant: Tenant, nbytes: int) -> None:
        """What the waiting batch names; without one, what was used last."""
        handles: Iterable[int] = tenant.wanted
        if not tenant.wanted:
            handles = hottest(((h, tenant.sizes[h], tenant.used_ns.get(h, 0)) for h in tenant.kept), nbytes)
        move = _Move(tenant, out=False)
        self._begin(move, self._in(move, tuple(handles)))

    def _begin(self, move: _Move, steps: Generator[None]) -> None:
        move.job = Job(move.tenant.session, move.tenant.priority, steps)
        self._moves[move.tenant.session] = move
        self._mover.add(move.job)

    def _out(self, move: _Move, handles: Iterable[int]) -> Generator[None]:
        """In the moving thread."""
        space, sizes = move.tenant.space, move.tenant.sizes
        for handle in handles:
            kept = Kept(sizes[handle])
            try:
                yield from self._store.put(kept, partial(self._read, space, handle))
            except SwapFull as full:
                move.problem = str(full)
                return
            with self.gate.moving():
                space.park(handle)
            move.done[handle] = kept
            move.moved_bytes += kept.nbytes

    def _in(self, move: _Move, handles: Iterable[int]) -> Generator[None]:
        """In the moving thread."""
        tenant = move.tenant
        for handle in handles:
            try:
                with self.gate.moving():
                    tenant.space.unpark(handle)
            except OutOfMemory as full:
                move.problem = f"bringing swapped memory back failed: {full}"
                return
            try:
                yield from self._store.get(tenant.kept[handle], partial(self._write, tenant.space, handle))
            except Exception as error:
                with self.gate.moving():
                    tenant.space.park(handle)  # it is kept where it was
                if isinstance(error, SwapCorrupt):
                    move.lost = f"{error}: the session's memory is lost, run the script again"
                elif isinstance(error, SwapAway):
                    move.problem = f"bringing swapped memory back failed: {error}"
                else:
                    raise
                return
            move.done[handle] = tenant.kept[handle]
            move.moved_bytes += tenant.sizes[handle]

    def _read(self, space: Space, handle: int, at: int, into: Bytes) -> None:
        """In the moving thread."""
        for start in range(0, into.size, _PIECE_BYTES):
            part = into[start : start + _PIECE_BYTES]
            with self.gate.moving():
                np.copyto(part, np.frombuffer(space.read(handle, at + start, part.size), np.uint8))

    def _write(self, space: Space, handle: int, at: int, data: Bytes) -> None:
        """In the moving thread."""
        for start in range(0, data.size, _PIECE_BYTES):
            with self.gate.moving():
                space.write(handle, at + start, data[start : start + _PIECE_BYTES].data)

    def _moved(self, move: _Move) -> None:
        """A move is over: the books follow."""
        tenant, now_ns = move.tenant, time.monotonic_ns()
        name = tenant.session
        self._changed[name] = None
        if move.job is not None and move.job.failure:
            move.problem = f"the node failed while moving memory ({move.job.failure})"
        if move.out:
            tenant.kept.update(move.done)
            if move.problem:
                get_logger().warning("swap abandoned", **tenant.about, problem=move.problem, moved_bytes=move.moved_bytes)
                self._on(SwapFailed(now_ns, name, move.moved_bytes, move.dropped_bytes))
            else:
                self._on(SwappedOut(now_ns, name, move.moved_bytes, move.dropped_bytes))
            return
        self._drop(tenant, tuple(move.done))
        tenant.used_ns.update(dict.fromkeys(move.done, now_ns))
        tenant.problem = move.problem
        if move.lost:
            get_logger().error("swapped memory is lost", **tenant.about, problem=move.lost)
            tenant.lost = move.lost
            self._on(SwapLost(now_ns, name, move.moved_bytes))
        else:
            self._on(SwappedIn(now_ns, name, move.moved_bytes))


def _named(tenant: Tenant, plan: Plan, batch: Batch) -> list[int]:
    """The session's buffers from before the batch that its program or its reads need on the device, each once."""
    if plan.ready is not None and not batch.reads and not plan.made:  # then all that its program does not make are from before
        return list(dict.fromkeys([plan.handles[at] for at in plan.ready.external]))
    handles = plan.handles if not batch.reads else [*plan.handles, *(read.handle for read in batch.reads)]
    return [handle for handle in dict.fromkeys(handles) if handle in tenant.sizes]
