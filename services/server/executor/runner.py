"""Executing one batch: everything is checked first, so that a refused batch leaves no trace; then it is applied.

Order inside a batch: allocs, uploads, program, reads, frees.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from bus_schemas import faults
from bus_schemas.batch import LIMITS, Batch, Done, Fault, ReadResult, encode_done
from jit.engine import Launch, Number
from jit.errors import BadBuffer, Interrupted, OutOfMemory
from scheduler.vram import AllocationRequested, Freed, Refuse, Vram
from services.server.executor.errors import Needs, Refused
from services.server.executor.programs import Programs, Ready
from services.server.executor.staging import Staging
from services.server.executor.tenant import Tenant
from wis.errors import LaunchError

__all__ = ["Outcome", "Runner"]

_DONE_INLINE_BYTES: Final = 1 << 20
"""All inline answers of one batch together; what is beyond goes over the data port."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``launch`` None: no program ran. ``done``: encoded. ``blobs``: names of blobs made for it."""

    launch: Launch | None
    done: bytes
    blobs: tuple[str, ...]
    faulted: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """A batch that may be applied. ``made``: handles that its allocs and uploads make, with sizes; ``created``: those its program makes."""

    ready: Ready | None
    handles: list[int]
    scalars: tuple[Number, ...]
    made: dict[int, int]
    created: dict[int, int]
    wanted_bytes: int


class Runner:
    """Applies batches to tenants of one device. Owned by the launching thread."""

    def __init__(self, programs: Programs, staging: Staging, vram: Vram) -> None:
        self._programs = programs
        self._staging = staging
        self._vram = vram

    def run(self, tenant: Tenant, batch: Batch, chain: bytes) -> Outcome:
        """Execute ``batch``, the next of its session; ``chain`` is the session's launch digest after it.

        Raises Needs, with nothing changed, when bodies or chunks are missing. Every other end is an Outcome.
        """
        try:
            plan = self._check(tenant, batch)
            self._reserve(tenant, plan)
        except Refused as refusal:
            return self._refused(tenant, batch, chain, refusal.fault)
        try:
            launch = self._apply(tenant, batch, plan)
        except (OutOfMemory, BadBuffer, Interrupted, LaunchError) as error:
            # Beyond what the plan could see: the device is fuller than its books say, the run was stopped, a grid is too large.
            self._undo(tenant, plan)
            fatal = not isinstance(error, OutOfMemory)
            name = faults.QUOTA_EXCEEDED if isinstance(error, OutOfMemory) else faults.NODE_FAULT
            if isinstance(error, LaunchError):
                name = faults.KERNEL_REFUSED
            return self._refused(tenant, batch, chain, Fault(name, str(error), fatal=fatal))
        return self._answer(tenant, batch, plan, launch, chain)

    # -- checking ------------------------------------------------------------------------------------------------------------------

    def _check(self, tenant: Tenant, batch: Batch) -> _Plan:
        """Every reason to refuse, before anything changes."""
        missing = tuple(d for upload in batch.uploads for d in upload.chunks if self._staging.chunk(tenant.session, d) is None)
        if missing:
            raise Needs(missing)
        made = _new_buffers(tenant, batch, self._staging)
        ready: Ready | None = None
        handles: list[int] = []
        created: dict[int, int] = {}
        if batch.program:
            ready = self._programs.ready(batch)
            handles = _decode_handles(batch.handles, len(ready.buffers))
            created = _check_handles(tenant, made, handles, ready)
            if len(batch.scalars) != ready.scalars:
                raise _bad(faults.MALFORMED, f"the program takes {ready.scalars} scalars, the batch brings {len(batch.scalars)}")
        elif batch.handles or batch.scalars:
            raise _bad(faults.MALFORMED, "handles or scalars without a program")
        _check_reads_and_frees(tenant, batch, made, created)
        self._check_answers(tenant, batch)
        scalars = tuple(complex(*value) if isinstance(value, tuple) else value for value in batch.scalars)
        return _Plan(ready, handles, scalars, made, created, sum(made.values()) + sum(created.values()))

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

    def _reserve(self, tenant: Tenant, plan: _Plan) -> None:
        """Ask for all the memory at once, temporaries included; raises Refused, not fatal, when the quota or the device is full."""
        workspace = plan.ready.prepared.workspace_bytes if plan.ready is not None else 0
        verdict = self._ask(tenant, plan.wanted_bytes + max(0, workspace - tenant.workspace_bytes))
        if verdict and tenant.workspace_bytes:
            self._trim(tenant)  # what an earlier program worked in
            verdict = self._ask(tenant, plan.wanted_bytes + workspace)
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

    def _apply(self, tenant: Tenant, batch: Batch, plan: _Plan) -> Launch | None:
        space, sizes = tenant.space, tenant.sizes
        for handle, nbytes in batch.allocs:
            space.alloc(handle, nbytes)
            sizes[handle] = nbytes
        for upload in batch.uploads:
            space.alloc(upload.handle, upload.nbytes)
            sizes[upload.handle] = upload.nbytes
            if upload.inline:
                space.write(upload.handle, 0, upload.inline)
            at = 0
            for digest in upload.chunks:
                chunk = self._staging.chunk(tenant.session, digest)
                assert chunk is not None, "checked; chunks waiting for an upload are kept"
                space.write(upload.handle, at, chunk)
                at += len(chunk)
        launch = None
        if plan.ready is not None:
            launch = space.run(plan.ready.prepared, plan.scalars, plan.handles)
            sizes.update(plan.created)
            unused = tenant.workspace_bytes - space.workspace_bytes
            if unused > 0:  # this back end drops its temporaries after a run
                self._vram.on(Freed(time.monotonic_ns(), tenant.session, unused))
                tenant.workspace_bytes -= unused
        for upload in batch.uploads:
            if upload.chunks:
                self._staging.used(tenant.session, upload.chunks)
        return launch

    def _undo(self, tenant: Tenant, plan: _Plan) -> None:
        """Take back what a failed _apply allocated."""
        for handle in (*plan.made, *plan.created):
            tenant.sizes.pop(handle, None)
            try:
                tenant.space.free(handle)
            except BadBuffer:
                continue  # it had not come that far
        if plan.wanted_bytes:
            self._vram.on(Freed(time.monotonic_ns(), tenant.session, plan.wanted_bytes))

    def _answer(self, tenant: Tenant, batch: Batch, plan: _Plan, launch: Launch | None, chain: bytes) -> Outcome:
        fault = None
        if launch is not None and launch.out_of_fuel:
            fault = Fault(faults.OUT_OF_FUEL, launch.out_of_fuel)
        elif launch is not None and launch.trap:
            fault = Fault(faults.TRAP, launch.trap)
        reads, blobs = self._reads(tenant, batch) if fault is None else ((), ())
        freed = 0
        for handle in batch.frees:
            tenant.space.free(handle)
            freed += tenant.sizes.pop(handle)
        if freed:
            self._vram.on(Freed(time.monotonic_ns(), tenant.session, freed))
        done = Done(
            tenant.session,
            batch.seq,
            launch.core_ns if launch else 0,
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


# -- the rules of handles ----------------------------------------------------------------------------------------------------------------


def _new_buffers(tenant: Tenant, batch: Batch, staging: Staging) -> dict[int, int]:
    """Handles that allocs and uploads make, with their sizes."""
    made: dict[int, int] = {}
    for handle, nbytes in (*batch.allocs, *((upload.handle, upload.nbytes) for upload in batch.uploads)):
        if handle in made or handle in tenant.sizes:
            raise _bad(faults.BAD_HANDLE, f"handle {handle} is in use already")
        if not 0 <= nbytes <= LIMITS.buffer_bytes_max:
            raise _bad(faults.OVERSIZED, f"handle {handle}: a buffer has 0 to {LIMITS.buffer_bytes_max} bytes, not {nbytes}")
        made[handle] = nbytes
    for upload in batch.uploads:
        brought = len(upload.inline)
        if upload.chunks:
            brought += sum(len(staging.chunk(tenant.session, digest) or b"") for digest in upload.chunks)
        if brought != upload.nbytes or (upload.inline and upload.chunks):
            raise _bad(faults.MALFORMED, f"upload of handle {upload.handle}: {upload.nbytes} bytes announced, {brought} came")
    return made


def _decode_handles(packed: bytes, count: int) -> list[int]:
    """First differences of ``count`` i64, deflated: never inflates more than they take."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(packed, 8 * count + 1)
    except zlib.error as error:
        raise _bad(faults.MALFORMED, f"the handles cannot be inflated: {error}") from None
    if len(raw) != 8 * count:
        raise _bad(faults.MALFORMED, f"the program has {count} buffers to name, the handles name {len(raw) / 8:g}")
    handles: list[int] = np.cumsum(np.frombuffer(raw, "<i8")).tolist()
    return handles


def _check_handles(tenant: Tenant, made: dict[int, int], handles: list[int], ready: Ready) -> dict[int, int]:
    """EXTERNAL buffers exist and are large enough, CREATED ones are new; returns the latter with their sizes."""
    created: dict[int, int] = {}
    for handle, (nbytes, is_created) in zip(handles, ready.buffers, strict=True):
        size = tenant.sizes.get(handle, made.get(handle))
        if is_created:
            if size is not None or handle in created:
                raise _bad(faults.BAD_HANDLE, f"handle {handle} is in use already")
            created[handle] = nbytes
        elif size is None:
            raise _bad(faults.BAD_HANDLE, f"there is no buffer {handle}: it was freed, or never made")
        elif size < nbytes:
            raise _bad(faults.BAD_HANDLE, f"buffer {handle} has {size} bytes, the program needs {nbytes}")
    return created


def _check_reads_and_frees(tenant: Tenant, batch: Batch, made: dict[int, int], created: dict[int, int]) -> None:
    def size_of(handle: int) -> int:
        for sizes in (tenant.sizes, made, created):
            if handle in sizes:
                return sizes[handle]
        raise _bad(faults.BAD_HANDLE, f"there is no buffer {handle}: it was freed, or never made")

    for read in batch.reads:
        size = size_of(read.handle)
        if read.offset < 0 or read.nbytes < 0 or read.offset + read.nbytes > size:
            raise _bad(
                faults.BAD_HANDLE, f"bytes {read.offset}..{read.offset + read.nbytes} reach outside buffer {read.handle} of {size} bytes"
            )
    if len(set(batch.frees)) != len(batch.frees):
        raise _bad(faults.BAD_HANDLE, "a buffer is freed twice")
    for handle in batch.frees:
        size_of(handle)


def _bad(name: str, message: str) -> Refused:
    return Refused(Fault(name, message))
