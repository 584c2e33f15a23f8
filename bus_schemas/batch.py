"""Messages of a session to its node, and the answers. Pure: data types, limits and codecs.

Order inside a batch: allocs, uploads, program, reads, frees. A node executes a session's batches in ``seq`` order, each once.
Structs are array-like: new fields go last and have defaults; nothing is renamed, reordered or retyped.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from bus_schemas.limits import Trace, decoding
from bus_schemas.quotas import Excess


class Limits(msgspec.Struct, frozen=True):
    """What a node accepts; checked at the edge, and sent to the client when its session opens."""

    batch_bytes_max: int = 8 << 20
    inline_bytes_max: int = 64 << 10  # an upload or a read above this goes over the data port
    chunk_bytes: int = 4 << 20
    instructions_max: int = 20_000
    buffers_max: int = 40_000
    scalars_max: int = 100_000
    reads_max: int = 4_096
    outstanding_batches_max: int = 32
    buffer_bytes_max: int = 1 << 40


LIMITS: Final = Limits()
ORIGIN_CHARS_MAX: Final = 200


class Upload(msgspec.Struct, array_like=True, frozen=True):
    """Bytes for a fresh buffer ``handle`` (allocated by this upload, ``nbytes`` long): inline, or digests (blake3, 32 bytes each) of chunks
    that the session put through the data port."""

    handle: int
    nbytes: int
    inline: bytes = b""
    chunks: tuple[bytes, ...] = ()


class Read(msgspec.Struct, array_like=True, frozen=True):
    """Ask for ``nbytes`` of buffer ``handle`` from byte ``offset``, as they are after the program."""

    ticket: int
    handle: int
    offset: int
    nbytes: int


class Batch(msgspec.Struct, array_like=True, frozen=True, tag="batch.v1"):
    """One flush of a session.

    ``program`` and ``dims`` are blake3 digests (32 bytes; empty: no program); their bodies ride along when the node may not know them
    yet. ``dims_delta``: instead of a dims body, (digest of the dims to start from, u32 positions, i64 values), little-endian.
    ``handles``: zlib of little-endian i64, first differences, of one session-unique handle for every EXTERNAL and CREATED buffer in buffer
    order.
    ``trace``: W3C traceparent or empty. ``kernels``: bodies (wis.kernel.model) of kernels that the program names and the node may not
    know.
    ``origin``: with a program body, the lines of the user's script that recorded it (at most ``ORIGIN_CHARS_MAX`` characters); else empty.
    ``repeats``: another session of the task runs the batch as well, on another node; the word of the client.
    """

    session: str
    epoch: int
    seq: int
    program: bytes = b""
    dims: bytes = b""
    program_body: bytes = b""
    dims_body: bytes = b""
    dims_delta: tuple[bytes, bytes, bytes] | None = None
    scalars: tuple[int | float | tuple[float, float], ...] = ()
    handles: bytes = b""
    allocs: tuple[tuple[int, int], ...] = ()
    uploads: tuple[Upload, ...] = ()
    reads: tuple[Read, ...] = ()
    frees: tuple[int, ...] = ()
    trace: Trace = ""
    kernels: tuple[bytes, ...] = ()
    origin: str = ""
    repeats: bool = False


class ReadResult(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a Read: the bytes, or (when large) the id of a blob to fetch once from the data port."""

    ticket: int
    nbytes: int
    inline: bytes = b""
    blob: str = ""


class Fault(msgspec.Struct, array_like=True, frozen=True):
    """Why a batch was refused or ended: a name of the error tree, a sentence that says what to do, the places (``rule @ place: text``).

    ``instruction``: of a trap, the instruction of the program that ``message`` is about; -1 for none.
    ``fatal``: the session is over. ``cause_seq``: the earlier batch whose refusal is the cause, for this one needs its results; 0: none.
    ``excess``: the quota that refuses it, if one does.
    """

    name: str
    message: str
    places: tuple[str, ...] = ()
    fatal: bool = True
    instruction: int = -1
    cause_seq: int = 0
    excess: Excess | None = None


class Done(msgspec.Struct, array_like=True, frozen=True, tag="done.v1"):
    """Every batch gets one. ``needs``: digests (program, dims, kernels) the node does not hold; the session resends the batch with bodies.

    ``core_ns`` is this batch's measured core time, ``instructions`` its exact element- and thread-instructions, ``resident_bytes`` the
    session's memory after it.
    ``launch_digest``: rolling blake3 over all launches of the session so far.
    """

    session: str
    seq: int
    core_ns: int = 0
    instructions: int = 0
    resident_bytes: int = 0
    reads: tuple[ReadResult, ...] = ()
    fault: Fault | None = None
    needs: tuple[bytes, ...] = ()
    launch_digest: bytes = b""


DEFLATED: Final = b"\x78"
"""First byte of a zlib stream; no encoded batch begins with it, for a batch is an array."""
_DEFLATE_BYTES_MIN: Final = 400

_encoder: Final = msgspec.msgpack.Encoder()
decode_batch: Final = decoding(msgspec.msgpack.Decoder(Batch))
decode_done: Final = decoding(msgspec.msgpack.Decoder(Done))


def encode_batch(batch: Batch) -> bytes:
    return _encoder.encode(batch)


def pack_message(batch: bytes) -> bytes:
    """An encoded batch as a message of the bus: deflated (zlib) where that is shorter and worth the time."""
    if len(batch) < _DEFLATE_BYTES_MIN:
        return batch
    deflated = zlib.compress(batch, 1)
    return deflated if len(deflated) < len(batch) else batch


def unpack_message(data: bytes, bytes_max: int) -> bytes:
    """The encoded batch in a message, at most ``bytes_max`` long. Raises msgspec.DecodeError."""
    if data[:1] != DEFLATED:
        return data
    inflater = zlib.decompressobj()
    try:
        batch = inflater.decompress(data, bytes_max)
    except zlib.error as error:
        raise msgspec.DecodeError(f"cannot be inflated: {error}") from None
    if not inflater.eof:
        raise msgspec.DecodeError(f"inflates to more than {bytes_max} bytes, or ends early")
    return batch


def encode_done(done: Done) -> bytes:
    return _encoder.encode(done)
