"""Executing one batch: everything is checked first, so that a refused batch leaves no trace; then it is begun, and runs in one or more
pieces.

Order inside a batch: allocs, uploads, program, reads, frees. What comes before the program is done with its first piece, what comes after
it with its last.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from bus_schemas import faults
from bus_schemas.batch import LIMITS, Batch, Done, Fault, ReadResult, encode_done
from jit.engine import Launch, Run, Space, Stop
from jit.errors import BadBuffer, Interrupted, OutOfMemory
from scheduler.vram import AllocationRequested, Freed, Refuse, Vram
from services.server.executor.content import Content
from services.server.executor.errors import Needs, Refused
from services.server.executor.handles import bad, check_handles, check_reads_and_frees, decode_handles, new_buffers
from services.server.executor.plan import Plan, UnderWay
from services.server.executor.programs import Programs, Ready
from services.server.executor.staging import Staging
from services.server.executor.tenant import Tenant
from wis.errors import LaunchError

__all__ = ["Outcome", "Runner"]

_DONE_INLINE_BYTES: Final = 1 << 20
"""All inline answers of one batch together; what is beyond goes over the data port."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``launch``: the account of this piece, None when no program ran. ``over``: the batch is; otherwise it was stopped and there is no
    ``done`` yet. ``done``: encoded. ``blobs``: names of blobs made for it."""

    launch: Launch | None
    done: bytes
    blobs: tuple[str, ...]
    faulted: bool
    over: bool = True


class Runner:
    """Applies batches to tenants of one device. Owned by the launching thread."""

    def __init__(self, programs: Programs, staging: Staging, content: Content, vram: Vram) -> None:
        self._programs = programs
        self._staging = staging
        self._content = content
        self._vram = vram

    def run(self, tenant: Tenant, batch: Batch | None, chain: bytes, limit_ns: int = 0, stop: Stop | None = None) -> Outcome:
        """Begin ``batch``, the next of its session, or go on with the one under way; ``chain`` is the session's launch digest after it.

        Ends with the batch, after about ``limit_ns`` (0: no limit), or soon after ``stop`` says so. Raises Needs, with nothing changed,
        when bodies or chunks are missing. Every other end is an Outcome.
        """
        way = tenant.under_way
        if way is None:
            if batch is None:
                raise ValueError(f"session {tenant.session} has no batch under way")
            try:
                plan = self._check(tenant, batch)
                self._reserve(tenant, plan)
            except Refused as refusal:
                return self._refused(tenant, batch, chain, refusal.fault)
            way = UnderWay(batch, plan, None)
        try:
            if tenant.under_way is None:
                self._begin(tenant, way)
                tenant.under_way = way
            launch = None if way.run is None else way.run.go(limit_ns, stop)
        except (OutOfMemory, BadBuffer, Interrupted, LaunchError) as error:
            # Beyond what the plan could see: the device is fuller than its books say, the run was stopped, a grid is too large.
            self._undo(tenant, way)
            return self._refused(tenant, way.batch, chain, _beyond(error))
        if launch is not None:
            way.core_ns += launch.core_ns
            if launch.stopped:
                return Outcome(launch, b"", (), False, over=False)
        self._settle(tenant, way)
        return self._answer(tenant, way, launch, chain)

    def drop(self, tenant: Tenant) -> None:
        """Give up what is left of the batch under way, if there is one. Its session is about to end."""
        way, tenant.under_way = tenant.under_way, None
        if way is not None and way.run is not None:
            way.run.drop()

    # -- accounts ------------------------------------------------------------------------------------------------------------------

    def charged_bytes(self, tenant: Tenant) -> int:
        """What the session is charged for: its own buffers on the device, and its part of shared blocks."""
        return self._content.charged(tenant.session)

    def memory_of(self, tenant: Tenant) -> tuple[int, int, int]:
        """Bytes of its buffers: all of them, those swapped out, those on shared blocks (in full)."""
        return tenant.space.resident_bytes, 0, self._content.held_bytes(tenant.session)

    def take_changed(self, but: str) -> tuple[tuple[str, int], ...]:
        """Sessions other than ``but`` whose charge may have changed since the last call, with their charge now."""
        return tuple((name, self._content.charged(name)) for name in self._content.take_changed() if name != but)

    # -- checking ------------------------------------------------------------------------------------------------------------------

    def _check(self, tenant: Tenant, batch: Batch) -> Plan:
        """Every reason to refuse, before anything changes."""
        missing = self._content.missing(tenant.session, batch.uploads)
        if missing:
            raise Needs(missing)
        made = new_buffers(tenant, batch, self._content)
        ready: Ready | None = None
        handles: list[int] = []
        created: dict[int, int] = {}
        if batch.program:
            ready = self._programs.ready(batch)
            handles = decode_handles(batch.handles, len(ready.buffers))
            created = check_handles(tenant, made, handles, ready)
            if len(batch.scalars) != ready.scalars:
                raise bad(faults.MALFORMED, f"the program takes {ready.scalars} scalars, the batch brings {len(batch.scalars)}")
        elif batch.handles or batch.scalars:
            raise bad(faults.MALFORMED, "handles or scalars without a program")
        check_reads_and_frees(tenant, batch, made, created)
        self._check_answers(tenant, batch)
        scalars = tuple(complex(*value) if isinstance(value, tuple) else value for value in batch.scalars)
        return Plan(ready, handles, scalars, made, created)

    def _check_answers(self, tenant: Tenant, batch: Batch) -> None:
        """What the reads ask for is held in the node's memory until it is fetched: that is bounded like the session's own."""
        asked = sum(read.nbytes for read in batch.reads)
        room, most = self._staging.answer_room(tenant.session)
        if asked > max(room, _DONE_INLINE_BYTES):
            text = (
                f"the reads of this batch ask for {asked >> 20} MiB, {(most - room) >> 20} MiB of earlier answers wait to be fetched and "
                f"{most >> 20} MiB may: read less at once"
            )
            raise Refused(Fault(faults.QUOTA_EXCEEDED, text, fatal=False))

    def _reserve(self, tenant: Tenant, plan: Plan) -> None:
        """Ask for all the memory at once, temporaries included; raises Refused, not fatal, when the quota or the device is full."""
        wanted, workspace = plan.wanted_bytes, plan.workspace_bytes
        verdict = self._ask(tenant, wanted + max(0, workspace - tenant.workspace_bytes))
        if verdict and tenant.workspace_bytes:
            self._trim(tenant)  # what an earlier program worked in
            verdict = self._ask(tenant, wanted + workspace)
        if verdict:
            raise Refused(Fault(faults.QUOTA_EXCEEDED, verdict, fatal=False))
        tenant.workspace_bytes = max(tenant.workspace_bytes, workspace)

    def _ask(self, tenant: Tenant, nbytes: int) -> str:
        """Why ``nbytes`` more cannot be had; empty when they were reserved."""
        if nbytes:
            for decision in self._vram.on(AllocationRequested(time.monotonic_ns(), tenant.session, nbytes)):
                if isinstance(decision, Refuse):
                    return decision.verdict.text
        return ""

    def _trim(self, tenant: Tenant) -> None:
        tenant.space.trim()
        self._vram.on(Freed(time.monotonic_ns(), tenant.session, tenant.workspace_bytes))
        tenant.workspace_bytes = 0

    # -- applying ------------------------------------------------------------------------------------------------------------------

    def _begin(self, tenant: Tenant, way: UnderWay) -> None:
        """Everything before the program's first step."""
        space, sizes, batch, plan = tenant.space, tenant.sizes, way.batch, way.plan
        loose = plan.written.union(batch.frees)
        for handle, nbytes in batch.allocs:
            space.alloc(handle, nbytes)
            sizes[handle] = nbytes
        for upload in batch.uploads:
            self._content.upload(tenant.session, upload, loose)
            sizes[upload.handle] = upload.nbytes
        if plan.ready is not None:
            self._content.release(tenant.session, plan.written)
            way.run = _begun(space, plan)
            sizes.update(plan.created)
        for upload in batch.uploads:
            if upload.chunks:
                self._staging.used(tenant.session, upload.chunks)

    def _settle(self, tenant: Tenant, way: UnderWay) -> None:
        """The program has run to its end."""
        tenant.under_way = None
        if way.run is not None:
            unused = tenant.workspace_bytes - tenant.space.workspace_bytes
            if unused > 0:  # this back end drops its temporaries after a run
                self._vram.on(Freed(time.monotonic_ns(), tenant.session, unused))
                tenant.workspace_bytes -= unused

    def _undo(self, tenant: Tenant, way: UnderWay) -> None:
        """Take back what a batch allocated that failed."""
        tenant.under_way = None
        if way.run is not None:
            way.run.drop()
        for handle in (*way.plan.made, *way.plan.created):
            tenant.sizes.pop(handle, None)
            self._content.freed(tenant.session, handle)
            try:
                tenant.space.free(handle)
            except BadBuffer:
                continue  # it had not come that far
        if way.plan.wanted_bytes:
            self._vram.on(Freed(time.monotonic_ns(), tenant.session, way.plan.wanted_bytes))

    def _answer(self, tenant: Tenant, way: UnderWay, launch: Launch | None, chain: bytes) -> Outcome:
        batch = way.batch
        fault = None
        if launch is not None and launch.out_of_fuel:
            fault = Fault(faults.OUT_OF_FUEL, launch.out_of_fuel)
        elif launch is not None and launch.trap:
            fault = Fault(faults.TRAP, launch.trap)
        reads, blobs = self._reads(tenant, batch) if fault is None else ((), ())
        freed = 0
        for handle in batch.frees:
            self._content.freed(tenant.session, handle)
            tenant.space.free(handle)
            freed += tenant.sizes.pop(handle)
        if freed:
            self._vram.on(Freed(time.monotonic_ns(), tenant.session, freed))
        done = Done(
            tenant.session,
            batch.seq,
            way.core_ns,
            launch.instructions if launch else 0,
            tenant.space.resident_bytes,
            reads,
            fault,
            launch_digest=chain,
        )
        return Outcome(launch, encode_done(done), blobs, fault is not None)

    def _reads(self, tenant: Tenant, batch: Batch) -> tuple[tuple[ReadResult, ...], tuple[str, ...]]:
        results: list[ReadResult] = []
        blobs: list[str] = []
        room = _DONE_INLINE_BYTES
        for read in batch.reads:
            data = tenant.space.read(read.handle, read.offset, read.nbytes)
            if read.nbytes <= min(LIMITS.inline_bytes_max, room):
                room -= read.nbytes
                results.append(ReadResult(read.ticket, read.nbytes, bytes(data)))
            else:
                blob = self._staging.add_blob(tenant.session, memoryview(bytes(data)))
                blobs.append(blob)
                results.append(ReadResult(read.ticket, read.nbytes, blob=blob))
        return tuple(results), tuple(blobs)

    def _refused(self, tenant: Tenant, batch: Batch, chain: bytes, fault: Fault) -> Outcome:
        done = Done(tenant.session, batch.seq, resident_bytes=tenant.space.resident_bytes, fault=fault, launch_digest=chain)
        return Outcome(None, encode_done(done), (), fault.fatal)


def _begun(space: Space, plan: Plan) -> Run:
    assert plan.ready is not None
    if hasattr(space, "begin"):
        return space.begin(plan.ready.prepared, plan.scalars, plan.handles)
    return _Whole(space, plan)


class _Whole:
    """A run of a back end whose runs do not stop."""

    over = False

    def __init__(self, space: Space, plan: Plan) -> None:
        self._space = space
        self._plan = plan

    def go(self, limit_ns: int = 0, stop: Stop | None = None) -> Launch:
        del limit_ns, stop
        assert self._plan.ready is not None
        return self._space.run(self._plan.ready.prepared, self._plan.scalars, self._plan.handles)

    def drop(self) -> None:
        pass


def _beyond(error: Exception) -> Fault:
    if isinstance(error, OutOfMemory):
        return Fault(faults.QUOTA_EXCEEDED, str(error), fatal=False)
    return Fault(faults.KERNEL_REFUSED if isinstance(error, LaunchError) else faults.NODE_FAULT, str(error))
