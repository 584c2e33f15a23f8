"""The edge: is this message a batch the node may look at? Pure.

Everything that needs no program, no memory and no order is checked here; a message that fails changes nothing on the node.
"""

from __future__ import annotations

from typing import Final

import msgspec
from blake3 import blake3

from bus_schemas import faults
from bus_schemas.batch import LIMITS, Batch, Fault, Limits, decode_batch, unpack_message
from wis.encoding import DIGEST_BYTES

__all__ = ["Bad", "read_batch", "content_digest"]

_SEQ_MAX: Final = 1 << 62
_PLACES_MAX: Final = 20
_PLACE_CHARS_MAX: Final = 300
"""A place may quote what the message says: the answer must stay small however large that is."""


class Bad(Exception):
    """The message is not acceptable; ``fault`` says why and where."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def read_batch(data: bytes, session: str, limits: Limits = LIMITS) -> tuple[Batch, bytes]:
    """The batch in message ``data``, sent on ``session``'s subject, and its encoding. Raises Bad with every broken rule and its place."""
    if len(data) > limits.batch_bytes_max:
        raise Bad(_fault(faults.OVERSIZED, [f"bytes @ batch: {len(data)} bytes, at most {limits.batch_bytes_max} are accepted"]))
    try:
        body = unpack_message(data, limits.batch_bytes_max)
        batch = decode_batch(body)
    except msgspec.DecodeError as error:
        raise Bad(_fault(faults.MALFORMED, [f"encoding @ batch: {error}"])) from None
    places = [*_contradictions(batch, session)]
    if places:
        raise Bad(_fault(faults.MALFORMED, places))
    places = [*_excesses(batch, limits)]
    if places:
        raise Bad(_fault(faults.OVERSIZED, places))
    return batch, body


def content_digest(batch: Batch) -> bytes:
    """Names what a batch runs: program, dims and scalars, not who runs it nor on which handles. Goes into the launch digest."""
    return blake3(batch.program + batch.dims + _encode(batch.scalars)).digest()


_encode: Final = msgspec.msgpack.Encoder().encode


def _contradictions(batch: Batch, session: str) -> list[str]:
    places = []
    if batch.session != session:
        places.append(f"session @ batch: it names session {batch.session!r} and came on the subject of {session!r}")
    if not 0 < batch.seq < _SEQ_MAX:
        places.append(f"seq @ batch: {batch.seq} is not a positive sequence number")
    for what, name in (("program", batch.program), ("dims", batch.dims)):
        if len(name) not in (0, DIGEST_BYTES):
            places.append(f"digest @ {what}: {len(name)} bytes, a digest has {DIGEST_BYTES}")
    if bool(batch.program) != bool(batch.dims):
        places.append("digest @ dims: program and dims go together")
    if not batch.program and (batch.program_body or batch.dims_body or batch.dims_delta):
        places.append("body @ program: a body without a digest")
    for at, upload in enumerate(batch.uploads):
        if any(len(digest) != DIGEST_BYTES for digest in upload.chunks):
            places.append(f"digest @ upload {at}: a chunk's digest has {DIGEST_BYTES} bytes")
    return places


def _excesses(batch: Batch, limits: Limits) -> list[str]:
    places = []
    counts = (
        ("scalars", len(batch.scalars), limits.scalars_max),
        ("reads", len(batch.reads), limits.reads_max),
        ("allocs", len(batch.allocs), limits.buffers_max),
        ("uploads", len(batch.uploads), limits.buffers_max),
        ("frees", len(batch.frees), limits.buffers_max),
    )
    places += [f"count @ {what}: {count}, at most {most} are accepted" for what, count, most in counts if count > most]
    for at, upload in enumerate(batch.uploads):
        if len(upload.inline) > limits.inline_bytes_max:
            places.append(f"inline @ upload {at}: {len(upload.inline)} bytes, above {limits.inline_bytes_max} use the data port")
    return places


def _fault(name: str, places: list[str]) -> Fault:
    cut = (place if len(place) <= _PLACE_CHARS_MAX else place[:_PLACE_CHARS_MAX] + "..." for place in places[:_PLACES_MAX])
    return Fault(name, "the batch was refused as a whole, nothing of it was done", tuple(cut))
