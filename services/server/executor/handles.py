"""The rules of a batch's handles: which buffers it makes, names, reads and frees, and whether it may. Nothing here changes anything."""

from __future__ import annotations

import zlib
from collections.abc import Container

import numpy as np

from bus_schemas import faults
from bus_schemas.batch import LIMITS, Batch, Fault
from services.server.executor.content import Content
from services.server.executor.errors import Refused
from services.server.executor.programs import Ready
from services.server.executor.tenant import Tenant
from wis.program import BufferKind, Program

__all__ = ["bad", "check_handles", "check_reads_and_frees", "claimed", "created_by", "decode_handles", "new_buffers"]


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
