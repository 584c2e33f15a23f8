"""Executing one batch: everything is checked first, so that a refused batch leaves no trace; then it is begun, and runs in one or more
pieces.

Order inside a batch: allocs, uploads, program, reads, frees. What comes before the program is done with its first piece, what comes after
it with its last.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np

from bus_schemas import faults
from bus_schemas.batch import LIMITS, Batch, Done, Fault, ReadResult, encode_done
from jit.engine import Launch, Number, Stop
from jit.errors import BadBuffer, Interrupted, OutOfMemory
from jit.runs import reached
from services.server.executor.content import Content
from services.server.executor.errors import Needs, Refused, Unprepared
from services.server.executor.memory import DeviceMemory
from services.server.executor.programs import Plan, Programs, Ready, UnderWay
from services.server.executor.staging import Staging
from services.server.executor.tenant import Tenant
from wis.errors import LaunchError
from wis.program import BufferKind, Program

__all__ = ["Outcome", "Runner", "decode_handles"]

_DONE_INLINE_BYTES: Final = 1 << 20
"""All inline answers of one batch together; what is beyond goes over the data port."""
_PIECE_BYTES: Final = 1 << 20
"""Of an answer for the data port: what a launch of a higher priority waits for at most."""


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

    def __init__(self, programs: Programs, staging: Staging, content: Content, memory: DeviceMemory) -> None:
        self._programs = programs
        self._staging = staging
        self._content = content
        self.memory = memory

    def run(
        self, tenant: Tenant, batch: Batch | None, chain: bytes, limit_ns: int = 0, stop: Stop | None = None, refused: Fault | None = None
    ) -> Outcome:
        """Begin ``batch``, the next of its session, or go on with the one under way; ``chain`` is the session's launch digest after it.
        ``refused``: the batch may not run, and why.

        Ends with the batch, after about ``limit_ns`` (0: no limit), or soon after ``stop`` says so. Raises Needs, with nothing
        changed, when bodies or chunks are missing, Awaits when memory is, Unprepared when its program is to be compiled. Every other end is
        an Outcome.
        """
        way = tenant.under_way
        if way is None:
            if batch is None:
                raise ValueError(f"session {tenant.session} has no batch under way")
            came, batch = batch, tenant.poisoned.without(batch)
            plan: Plan | None = None
            try:
                if refused is not None:
                    raise Refused(refused)
                plan = self._plan(tenant, batch)
                self._check(tenant, batch, plan)
                self.memory.ask(tenant, plan, batch)
            except Refused as refusal:
                return self._refused(tenant, came, chain, refusal.fault, plan)
            tenant.poisoned.accepted(came, plan)
            way = UnderWay(came, batch, plan, None)
        began_ns = time.monotonic_ns()
        try:
            if tenant.under_way is None:
                with self.memory.gate.launching():
                    self._begin(tenant, way)
                tenant.under_way = way
            launch = None if way.run is None or way.launch is not None else way.run.go(limit_ns, stop)
        except (OutOfMemory, BadBuffer, Interrupted, LaunchError) as error:
            # Beyond what the plan could see: the device is fuller than its books say, the run was stopped, a grid is too large.
            self._undo(tenant, way)
            return self._refused(tenant, way.batch, chain, _beyond(error), way.plan)
        if launch is not None:
            way.core_ns += launch.core_ns
            if launch.stopped:
                return Outcome(launch, b"", (), False, over=False)
            way.launch = launch
        stopped = self._read_on(tenant, way, began_ns, limit_ns, stop)
        if stopped is not None:
            return Outcome(launch or stopped, b"", (), False, over=False)
        tenant.under_way = None
        if launch is None and way.launch is not None:  # charged for already
            launch = replace(way.launch, start_ns=began_ns, end_ns=began_ns, core_ns=0)
        return self._answer(tenant, way, launch, chain)

    def drop(self, tenant: Tenant) -> None:
        """Give up what is left of the batch under way, if there is one. Its session is about to end."""
        way, tenant.under_way = tenant.under_way, None
        if way is not None:
            self._drop(tenant, way)
        self.memory.over(tenant)

    def _drop(self, tenant: Tenant, way: UnderWay) -> None:
        if way.run is not None:
            way.run.drop()
        for name, _ in way.blobs.values():
            self._staging.drop_blob(tenant.session, name)

    # -- accounts ------------------------------------------------------------------------------------------------------------------

    def charged_bytes(self, tenant: Tenant) -> int:
        """What the session is charged for: its own buffers on the device, and its part of shared blocks."""
        return self._content.charged(tenant.session)

    def memory_of(self, tenant: Tenant) -> tuple[int, int, int]:
        """Bytes of its buffers: all of them, those swapped out, those on shared blocks (in full)."""
        swapped_bytes = self.memory.swapped_bytes(tenant)
        return tenant.space.resident_bytes + swapped_bytes, swapped_bytes, self._content.held_bytes(tenant.session)

    def take_changed(self, but: str) -> tuple[tuple[str, int], ...]:
        """Sessions other than ``but`` whose charge may have changed since the last call, with their charge now."""
        content, memory = self._content.take_changed(), self.memory.take_changed()
        if not content and not memory:
            return ()
        names = dict.fromkeys((*content, *memory))
        return tuple((name, self._content.charged(name)) for name in names if name != but)

    # -- checking ------------------------------------------------------------------------------------------------------------------

    def _plan(self, tenant: Tenant, batch: Batch) -> Plan:
        """What the batch asks for, by its own account."""
        missing = self._content.missing(tenant.session, batch.uploads)
        if missing:
            raise Needs(missing)
        made = new_buffers(tenant, batch, self._content)
        ready: Ready | None = None
        handles: list[int] = []
        created: dict[int, int] = {}
        if batch.program:
            ready = self._ready(tenant, batch)
            handles = decode_handles(batch.handles, len(ready.buffers))
            created = created_by(handles, ready)
            if len(batch.scalars) != ready.scalars:
                raise bad(faults.MALFORMED, f"the program takes {ready.scalars} scalars, the batch brings {len(batch.scalars)}")
        elif batch.handles or batch.scalars:
            raise bad(faults.MALFORMED, "handles or scalars without a program")
        return Plan(ready, handles, _numbers(batch), made, created)

    def _check(self, tenant: Tenant, batch: Batch, plan: Plan) -> None:
        """Every reason to refuse, before anything changes."""
        tenant.poisoned.check(handle for handle in _touched(plan, batch) if handle not in plan.created and handle not in plan.made)
        if plan.ready is not None:
            check_handles(tenant, plan.made, plan.created, plan.handles, plan.ready)
        check_reads_and_frees(tenant, batch, plan.made, plan.created)
        self._check_answers(tenant, batch)

    def _ready(self, tenant: Tenant, batch: Batch) -> Ready:
        """What runs the batch's program. All sessions wait for this thread: it raises what was found when the batch was prepared, and
        Unprepared when that is still to be done."""
        brought = tenant.brought.get(batch.seq)
        if brought is not None and brought.problem is not None:
            raise brought.problem
        ready = self._programs.at_once(batch, tenant.whose)
        if ready is None:
            raise Unprepared
        return ready

    def _check_answers(self, tenant: Tenant, batch: Batch) -> None:
        """What the reads ask for is held in the node's memory until it is fetched: that is bounded like the session's own."""
        if not batch.reads:
            return
        asked = sum(read.nbytes for read in batch.reads)
        denied = self._staging.refuse_answers(tenant.session, asked) if asked > _DONE_INLINE_BYTES else None
        if denied is not None:
            text = f"the reads of this batch ask for {asked} bytes: {denied.message}"
            raise Refused(Fault(faults.QUOTA_REACHED, text, fatal=False, excess=denied.excess))

    # -- applying ------------------------------------------------------------------------------------------------------------------

    def _begin(self, tenant: Tenant, way: UnderWay) -> None:
        """Everything before the program's first step."""
        space, sizes, batch, plan = tenant.space, tenant.sizes, way.batch, way.plan
        written = plan.written if self._content.sharing(tenant.session) else frozenset[int]()
        loose = written.union(batch.frees)
        for handle, nbytes in batch.allocs:
            space.alloc(handle, nbytes)
            sizes[handle] = nbytes
        for upload in batch.uploads:
            self._content.upload(tenant.session, upload, loose)
            sizes[upload.handle] = upload.nbytes
        if plan.ready is not None:
            self._content.release(tenant.session, written)
            way.run = space.begin(plan.ready.prepared, plan.scalars, plan.handles)
            sizes.update(plan.created)
        for upload in batch.uploads:
            if upload.chunks:
                self._staging.used(tenant.session, upload.chunks)
        room = _DONE_INLINE_BYTES
        for at, read in enumerate(batch.reads):
            if read.nbytes <= min(LIMITS.inline_bytes_max, room):
                room -= read.nbytes
            else:
                way.blobs[at] = self._staging.add_blob(tenant.session, read.nbytes)

    def _undo(self, tenant: Tenant, way: UnderWay) -> None:
        """Take back what a batch allocated that failed."""
        tenant.under_way = None
        self._drop(tenant, way)
        for handle in (*way.plan.made, *way.plan.created):
            tenant.sizes.pop(handle, None)
            try:
                self.memory.free(tenant, handle)
            except BadBuffer:
                continue  # it had not come that far
        self.memory.over(tenant)

    def _answer(self, tenant: Tenant, way: UnderWay, launch: Launch | None, chain: bytes) -> Outcome:
        batch = way.batch
        fault = None
        if launch is not None and launch.out_of_fuel:
            fault = Fault(faults.OUT_OF_FUEL, launch.out_of_fuel)
        elif launch is not None and launch.trap:
            fault = Fault(faults.TRAP, launch.trap, instruction=launch.trap_at)
        if fault is not None:
            self._drop(tenant, way)
            way.blobs.clear()
        for handle in batch.frees:
            self.memory.free(tenant, handle)
        self.memory.over(tenant)
        done = Done(
            session=tenant.session,
            seq=batch.seq,
            core_ns=way.core_ns,
            instructions=launch.instructions if launch else 0,
            resident_bytes=tenant.space.resident_bytes,
            reads=tuple(way.answers),
            fault=fault,
            launch_digest=chain,
        )
        return Outcome(launch, encode_done(done), tuple(name for name, _ in way.blobs.values()), fault is not None)

    def _read_on(self, tenant: Tenant, way: UnderWay, began_ns: int, limit_ns: int, stop: Stop | None) -> Launch | None:
        """Take the answers, now that the program is over. The account of the time that took if it was stopped."""
        if way.launch is not None and (way.launch.out_of_fuel or way.launch.trap):
            return None
        if way.reading is None:
            way.reading = self._reads(tenant, way)
        for _ in way.reading:
            now_ns = time.monotonic_ns()
            if reached(stop) or 0 < limit_ns <= now_ns - began_ns:
                return Launch(began_ns, now_ns, core_ns=0, cores=0, instructions=0, trap=None, stopped=True)
        return None

    def _reads(self, tenant: Tenant, way: UnderWay) -> Iterator[None]:
        """Take the answers of a batch. Before each piece of one for the data port others may have the device for a while."""
        gate = self.memory.gate
        for number, read in enumerate(way.batch.reads):
            name, pieces = way.blobs.get(number, ("", []))
            for at in range(0, read.nbytes, _PIECE_BYTES):
                if name:
                    yield
                with gate.launching():
                    pieces.append(bytes(tenant.space.read(read.handle, read.offset + at, min(_PIECE_BYTES, read.nbytes - at))))
            way.answers.append(ReadResult(read.ticket, read.nbytes, b"" if name else b"".join(pieces), blob=name))

    def _refused(self, tenant: Tenant, batch: Batch, chain: bytes, fault: Fault, plan: Plan | None) -> Outcome:
        for upload in batch.uploads:
            if upload.chunks:
                self._staging.used(tenant.session, upload.chunks)  # no upload will use them: they may go when room is needed
        if not fault.fatal:
            fault = self._poison(tenant, batch, plan, fault) or fault
        done = Done(tenant.session, batch.seq, resident_bytes=tenant.space.resident_bytes, fault=fault, launch_digest=chain)
        return Outcome(None, encode_done(done), (), fault.fatal)

    def _poison(self, tenant: Tenant, batch: Batch, plan: Plan | None, fault: Fault) -> Fault | None:
        """The session goes on without what this batch would have made and written. The fault, when that is too much."""
        if plan is not None:
            made, written = {*plan.made, *plan.created}, plan.written
        else:
            made, written = claimed(batch, self._programs.outline(batch, tenant.whose) if batch.program else None, tenant.sizes)
        held = made & tenant.sizes.keys()  # named as new by mistake
        try:
            frees = tenant.poisoned.refused(batch, made - held, written | held, fault)
        except Refused as refusal:
            return refusal.fault
        tenant.poisoned.owed = self.memory.let_go(tenant, frees)
        return None


def _touched(plan: Plan, batch: Batch) -> Iterator[int]:
    """The buffers that a batch works on or reads."""
    return itertools.chain(plan.handles, (read.handle for read in batch.reads))


def _numbers(batch: Batch) -> tuple[Number, ...]:
    """The scalars as the engine takes them: complex ones travel as pairs."""
    pairs = [at for at, value in enumerate(batch.scalars) if type(value) is tuple]
    if not pairs:
        return cast(tuple[Number, ...], batch.scalars)
    return tuple(complex(*value) if isinstance(value, tuple) else value for value in batch.scalars)


def _beyond(error: Exception) -> Fault:
    if isinstance(error, OutOfMemory):
        return Fault(faults.QUOTA_EXCEEDED, str(error), fatal=False)
    if isinstance(error, LaunchError):
        return Fault(faults.KERNEL_REFUSED, str(error), fatal=False)
    return Fault(faults.NODE_FAULT, str(error))


def new_buffers(tenant: Tenant, batch: Batch, content: Content) -> dict[int, int]:
    """Handles that allocs and uploads make, with their sizes."""
    made: dict[int, int] = {}
    if not batch.allocs and not batch.uploads:
        return made
    for handle, nbytes in (*batch.allocs, *((upload.handle, upload.nbytes) for upload in batch.uploads)):
        if handle in made or handle in tenant.sizes:
            raise bad(faults.BAD_HANDLE, f"handle {handle} is in use already")
        if not 0 <= nbytes <= LIMITS.buffer_bytes_max:
            raise bad(faults.OVERSIZED, f"handle {handle}: a buffer has 0 to {LIMITS.buffer_bytes_max} bytes, not {nbytes}")
        made[handle] = nbytes
    for upload in batch.uploads:
        brought = len(upload.inline)
        if upload.chunks:
            brought += content.brought(tenant.session, upload)
        if brought != upload.nbytes or (upload.inline and upload.chunks):
            raise bad(faults.MALFORMED, f"upload of handle {upload.handle}: {upload.nbytes} bytes announced, {brought} came")
    return made


def decode_handles(packed: bytes, count: int) -> list[int]:
    """First differences of ``count`` i64, deflated: never inflates more than they take."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(packed, 8 * count + 1)
    except zlib.error as error:
        raise bad(faults.MALFORMED, f"the handles cannot be inflated: {error}") from None
    if len(raw) != 8 * count:
        raise bad(faults.MALFORMED, f"the program has {count} buffers to name, the handles name {len(raw) / 8:g}")
    handles: list[int] = np.frombuffer(raw, "<i8").cumsum().tolist()
    return handles


def claimed(batch: Batch, program: Program | None, held: Container[int]) -> tuple[set[int], frozenset[int]]:
    """(made, written): the buffers that a batch which may not run would have made, and those from before it that it would have written.

    ``program``: as it came, verified or not; without it every buffer that the batch names is one or the other: which, ``held`` says.
    """
    made = {handle for handle, _ in batch.allocs} | {upload.handle for upload in batch.uploads}
    if not batch.handles:
        return made, frozenset()
    kinds = () if program is None else program.buffers
    places = [at for at, kind in enumerate(kinds) if kind != BufferKind.TEMP]
    try:
        handles = decode_handles(batch.handles, len(places))
    except Refused:
        named = _named(batch.handles)
        return made | {handle for handle in named if handle not in held}, frozenset(handle for handle in named if handle in held)
    assert program is not None, "handles were decoded for its buffers"
    by_place = dict(zip(places, handles, strict=True))
    made.update(handle for at, handle in by_place.items() if kinds[at] == BufferKind.CREATED)
    outs = {ref.buffer for instr in program.code for ref in instr.outs}
    return made, frozenset(handle for at, handle in by_place.items() if at in outs and handle not in made)


def _named(packed: bytes) -> list[int]:
    """The handles of a batch whose program is not known, as many as a batch may name; none when they cannot be read."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(packed, 8 * LIMITS.buffers_max)
    except zlib.error:
        return []
    handles: list[int] = np.frombuffer(raw[: len(raw) // 8 * 8], "<i8").cumsum().tolist()
    return handles


def created_by(handles: list[int], ready: Ready) -> dict[int, int]:
    """The buffers that a program makes, by the names that the batch gives them, with their sizes."""
    return {handles[at]: nbytes for at, nbytes in ready.created}


def check_handles(tenant: Tenant, made: dict[int, int], created: dict[int, int], handles: list[int], ready: Ready) -> None:
    """EXTERNAL buffers exist and are large enough, CREATED ones are new."""
    for held in (tenant.sizes.keys(), made.keys()):
        if not created.keys().isdisjoint(held):
            raise bad(faults.BAD_HANDLE, f"handle {min(created.keys() & held)} is in use already")
    if len(created) < len(ready.created):
        raise bad(faults.BAD_HANDLE, "one handle is in use already for another buffer that the program makes")
    find = tenant.sizes.get
    for at in ready.external:
        handle, nbytes = handles[at], ready.buffers[at][0]
        size = find(handle)
        if size is None:
            size = made.get(handle)
        if size is None:
            raise bad(faults.BAD_HANDLE, f"there is no buffer {handle}: it was freed, or never made")
        if size < nbytes:
            raise bad(faults.BAD_HANDLE, f"buffer {handle} has {size} bytes, the program needs {nbytes}")


def check_reads_and_frees(tenant: Tenant, batch: Batch, made: dict[int, int], created: dict[int, int]) -> None:
    def size_of(handle: int) -> int:
        for sizes in (tenant.sizes, made, created):
            if handle in sizes:
                return sizes[handle]
        raise bad(faults.BAD_HANDLE, f"there is no buffer {handle}: it was freed, or never made")

    for read in batch.reads:
        size = size_of(read.handle)
        if read.offset < 0 or read.nbytes < 0 or read.offset + read.nbytes > size:
            raise bad(
                faults.BAD_HANDLE, f"bytes {read.offset}..{read.offset + read.nbytes} reach outside buffer {read.handle} of {size} bytes"
            )
    if len(set(batch.frees)) != len(batch.frees):
        raise bad(faults.BAD_HANDLE, "a buffer is freed twice")
    for handle in batch.frees:
        size_of(handle)


def bad(name: str, message: str) -> Refused:
    return Refused(Fault(name, message, fatal=False))
