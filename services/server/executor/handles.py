"""The rules of a batch's handles: which buffers it makes, names, reads and frees, and whether it may. Nothing here changes anything."""

from __future__ import annotations

import zlib

import numpy as np

from bus_schemas import faults
from bus_schemas.batch import LIMITS, Batch, Fault
from services.server.executor.content import Content
from services.server.executor.errors import Refused
from services.server.executor.programs import Ready
from services.server.executor.tenant import Tenant

__all__ = ["bad", "check_handles", "check_reads_and_frees", "created_by", "decode_handles", "new_buffers"]


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
    return Refused(Fault(name, message))
