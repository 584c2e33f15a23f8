"""The edge: is this message a batch the node may look at? Pure.

Everything that needs no program, no memory and no order is checked here; a message that fails changes nothing on the node.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
from blake3 import blake3

from bus_schemas import faults
from bus_schemas.batch import DEFLATED, LIMITS, ORIGIN_CHARS_MAX, Batch, Fault, Limits, decode_batch, unpack_message
from bus_schemas.limits import MALFORMED, SEQ_MAX
from wis.encoding import DIGEST_BYTES

_PLACES_MAX: Final = 20
_PLACE_CHARS_MAX: Final = 300
"""A place may quote what the message says: the answer must stay small however large that is."""
_SMALL_BYTES: Final = 64 << 10
"""Less is inflated and decoded in two milliseconds whatever it holds."""
_ELEMENT_COST: Final = 64
"""An element of an array takes as long to make as this many bytes to inflate."""
_UPLOAD_COST: Final = 8
"""Elements that take as long as an upload."""
NAMED_BODY_BYTES_MAX: Final = 256 << 10
"""Of a larger program the node does not name the operations."""
_NAMED_BYTE_COST: Final = 8
"""A byte of a program takes as long, because of that, as so many to inflate."""
_CHUNK_BYTES: Final = 2 + DIGEST_BYTES
"""Encoded."""
_COUNTED: Final = {
    "scalars": "scalars_max",
    "reads": "reads_max",
    "allocs": "buffers_max",
    "uploads": "buffers_max",
    "frees": "buffers_max",
    "kernels": "instructions_max",
}
"""Fields of a batch, and the limit of how many each may hold; a program names at most one kernel an instruction."""
_outline: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(
    msgspec.defstruct(
        "_Outline",
        [(field.name, msgspec.Raw, msgspec.Raw(b"\x90")) for field in msgspec.structs.fields(Batch)],
        array_like=True,
        tag=Batch.__struct_config__.tag,
    )
)
"""A batch whose fields stay encoded."""


class _Upload(msgspec.Struct, array_like=True, frozen=True):
    """An upload whose bytes and chunks stay encoded."""

    handle: int
    nbytes: int
    inline: msgspec.Raw = msgspec.Raw(b"\xc4\x00")
    chunks: msgspec.Raw = msgspec.Raw(b"\x90")


_uploads: Final = msgspec.msgpack.Decoder(tuple[_Upload, ...])


class Bad(Exception):
    """The message is not acceptable; ``fault`` says why and where, and is fatal if not even the batch's place in its session can be read.

    ``batch``: else, what the message says of that: its sequence number, and which buffers it would make, use and free.
    """

    def __init__(self, name: str, places: list[str], batch: Batch | None = None) -> None:
        self.fault = _fault(name, places, fatal=batch is None)
        self.batch = batch
        super().__init__(self.fault.message)


def read_batch(data: bytes, session: str, limits: Limits = LIMITS) -> tuple[Batch, bytes]:
    """The batch in message ``data``, sent on ``session``'s subject, and its encoding. Raises Bad with every broken rule and its place."""
    if len(data) > limits.batch_bytes_max:
        raise Bad(faults.OVERSIZED, [f"bytes @ batch: {len(data)} bytes, at most {limits.batch_bytes_max} are accepted"])
    try:
        body = unpack_message(data, limits.batch_bytes_max)
    except msgspec.DecodeError as error:
        raise Bad(faults.MALFORMED, [f"encoding @ batch: {error}"]) from None
    try:
        if len(body) > _SMALL_BYTES:
            _check_outline(body, session, limits)
        batch = decode_batch(body)
    except MALFORMED as error:
        raise Bad(faults.MALFORMED, [f"encoding @ batch: {error}"], _claims(body, session, limits)) from None
    places = [*islice(_contradictions(batch, session), _PLACES_MAX)]
    if places:
        raise Bad(faults.MALFORMED, places, _claims(body, session, limits))
    places = [*islice(_excesses(batch, limits), _PLACES_MAX)]
    if places:
        raise Bad(faults.OVERSIZED, places, _claims(body, session, limits))
    return batch, body


def small_body(data: bytes) -> bytes | None:
    """The encoded batch in message ``data`` if it is small; None for any other, and for what cannot be inflated."""
    if data[:1] != DEFLATED:
        return data if len(data) <= _SMALL_BYTES else None
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(data, _SMALL_BYTES)
    except zlib.error:
        return None
    return body if inflater.eof else None


def cost_of(batch: Batch, nbytes: int) -> int:
    """What reading this batch, ``nbytes`` inflated, took, and naming what it runs takes, in bytes."""
    elements = len(batch.scalars) + len(batch.reads) + len(batch.allocs) + len(batch.uploads) + len(batch.frees) + len(batch.kernels)
    if batch.uploads:
        elements += sum(_UPLOAD_COST + len(upload.chunks) for upload in batch.uploads)
    named_bytes = len(batch.program_body) if len(batch.program_body) <= NAMED_BODY_BYTES_MAX else 0
    return nbytes + elements * _ELEMENT_COST + named_bytes * _NAMED_BYTE_COST


def content_digest(batch: Batch) -> bytes:
    """Names what a batch runs: program, dims and scalars, not who runs it nor on which handles. Goes into the launch digest."""
    return blake3(batch.program + batch.dims + _encode(batch.scalars)).digest()


_encode: Final = msgspec.msgpack.Encoder().encode


def _contradictions(batch: Batch, session: str) -> Iterator[str]:
    if batch.session != session:
        yield f"session @ batch: it names session {batch.session!r} and came on the subject of {session!r}"
    if not 0 < batch.seq < SEQ_MAX:
        yield f"seq @ batch: {batch.seq} is not a positive sequence number"
    for what, name in (("program", batch.program), ("dims", batch.dims)):
        if len(name) not in (0, DIGEST_BYTES):
            yield f"digest @ {what}: {len(name)} bytes, a digest has {DIGEST_BYTES}"
    if bool(batch.program) != bool(batch.dims):
        yield "digest @ dims: program and dims go together"
    if not batch.program and (batch.program_body or batch.dims_body or batch.dims_delta):
        yield "body @ program: a body without a digest"
    for at, upload in enumerate(batch.uploads):
        if any(len(digest) != DIGEST_BYTES for digest in upload.chunks):
            yield _bad_chunk(at)


def _bad_chunk(at: int) -> str:
    return f"digest @ upload {at}: a chunk's digest has {DIGEST_BYTES} bytes"


def _excesses(batch: Batch, limits: Limits) -> Iterator[str]:
    yield from _too_many({what: len(getattr(batch, what)) for what in _COUNTED}, limits)
    for at, upload in enumerate(batch.uploads):
        if len(upload.inline) > limits.inline_bytes_max:
            yield f"inline @ upload {at}: {len(upload.inline)} bytes, above {limits.inline_bytes_max} use the data port"
    if len(batch.origin) > ORIGIN_CHARS_MAX:
        yield f"text @ origin: {len(batch.origin)} characters, at most {ORIGIN_CHARS_MAX} are accepted"


def _too_many(counts: Mapping[str, int], limits: Limits) -> Iterator[str]:
    for what, count in counts.items():
        most = getattr(limits, _COUNTED[what])
        if count > most:
            yield f"count @ {what}: {count}, at most {most} are accepted"


def _check_outline(body: bytes, session: str, limits: Limits) -> None:
    """Refuse a body that holds too many of something without making these: a message of 8 KB can inflate to millions of uploads, or of
    chunks of one, which would take seconds. What is as long as a digest cannot be that many. Raises Bad, msgspec.DecodeError."""
    outline = _outline.decode(body)
    places = [*_too_many({what: _length(getattr(outline, what)) for what in _COUNTED}, limits)]
    if places:
        raise Bad(faults.OVERSIZED, places, _claims(body, session, limits))
    chunks = (upload.chunks for upload in _uploads.decode(outline.uploads))
    places = [_bad_chunk(at) for at, encoded in enumerate(chunks) if _length(encoded) * _CHUNK_BYTES > len(encoded)]
    if places:
        raise Bad(faults.MALFORMED, places, _claims(body, session, limits))


_CLAIMS: Final[dict[str, msgspec.msgpack.Decoder[Any]]] = {
    "program": msgspec.msgpack.Decoder(bytes),
    "program_body": msgspec.msgpack.Decoder(bytes),
    "handles": msgspec.msgpack.Decoder(bytes),
    "allocs": msgspec.msgpack.Decoder(tuple[tuple[int, int], ...]),
    "uploads": _uploads,
    "frees": msgspec.msgpack.Decoder(tuple[int, ...]),
}
_text: Final = msgspec.msgpack.Decoder(str)
_int: Final = msgspec.msgpack.Decoder(int)


def _claims(body: bytes, session: str, limits: Limits) -> Batch | None:
    """A batch that names what the one in ``body`` does with buffers, as far as that can be read, and asks for nothing else; None when its
    session or its place there cannot be read. No field is decoded that holds more than a batch may."""
    try:
        outline = _outline.decode(body)
        named, epoch, seq = _text.decode(outline.session), _int.decode(outline.epoch), _int.decode(outline.seq)
    except MALFORMED:
        return None
    if named != session or not 0 < seq < SEQ_MAX:
        return None
    found: dict[str, Any] = {}
    for field, decoder in _CLAIMS.items():
        raw = getattr(outline, field)
        if field in _COUNTED and _length(raw) > getattr(limits, _COUNTED[field]):
            continue
        with contextlib.suppress(*MALFORMED):
            found[field] = decoder.decode(raw)
    uploads = found.pop("uploads", ())
    found["allocs"] = (*found.get("allocs", ()), *((upload.handle, upload.nbytes) for upload in uploads))
    return Batch(session, epoch, seq, **found)


def _length(array: msgspec.Raw) -> int:
    """How many elements an encoded msgpack array has; 0 for anything else, which decoding refuses."""
    kind, *size = memoryview(array)[:5]
    if kind == 0xDC or kind == 0xDD:
        return int.from_bytes(size[: 2 if kind == 0xDC else 4], "big")
    return kind & 0x0F if kind & 0xF0 == 0x90 else 0


def _fault(name: str, places: list[str], *, fatal: bool) -> Fault:
    cut = (place if len(place) <= _PLACE_CHARS_MAX else place[:_PLACE_CHARS_MAX] + "..." for place in places[:_PLACES_MAX])
    return Fault(name, "the batch was refused as a whole, nothing of it was done", tuple(cut), fatal)
