"""From a flush to the bytes of a batch: bodies only when the node may not know them, dims as a difference where that is shorter."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from operator import sub
from typing import Final

import numpy as np
from msgspec import structs

from bus_schemas.batch import Batch, Read, Upload, encode_batch, pack_message
from bus_schemas.faults import OVERSIZED
from wooly.errors import RefusedError
from wooly.link import Flush
from wooly.shared.lru import LruDict

_KNOWN_MAX: Final = 65_536
_BASES_MAX: Final = 1_024


class BatchEncoder:
    """Encodes the batches of one session, in order."""

    def __init__(self, session: str, epoch: int, bytes_max: int) -> None:
        self._session = session
        self._epoch = epoch
        self._bytes_max = bytes_max
        #: what is encoded is run by another session of the task as well
        self.repeats = False
        #: digests of bodies that the node has been sent
        self._known: LruDict[bytes, None] = LruDict(_KNOWN_MAX)
        #: digest and bytes of the last dims, by digest of the program
        self._bases: LruDict[bytes, tuple[bytes, bytes]] = LruDict(_BASES_MAX)

    def encode(self, seq: int, flush: Flush, uploads: tuple[Upload, ...], trace: str = "") -> bytes:
        """The batch as a message, with the bodies that the node has not been sent yet. Raises RefusedError above ``bytes_max``."""
        program_body = b"" if not flush.program or self._is_known(flush.program) else flush.program_body
        dims_body, dims_delta = self._dims(flush)
        kernels = tuple(body for digest, body in flush.kernels if not self._is_known(digest))
        batch = self.batch(seq, flush, uploads, trace, program_body)
        data = encode_batch(structs.replace(batch, dims_body=dims_body, dims_delta=dims_delta, kernels=kernels))
        if len(data) > self._bytes_max:
            raise RefusedError(
                f"a batch of {len(data)} bytes exceeds the node's limit of {self._bytes_max}; synchronize more often", name=OVERSIZED
            )
        return _message(data, uploads)

    def encode_whole(self, seq: int, flush: Flush, uploads: tuple[Upload, ...], trace: str = "") -> bytes:
        """The batch as a message with all bodies: for a node that answered that it lacks some."""
        return _message(encode_batch(self.batch(seq, flush, uploads, trace, flush.program_body)), uploads)

    def batch(self, seq: int, flush: Flush, uploads: tuple[Upload, ...], trace: str, program_body: bytes) -> Batch:
        """With the bodies of dims and kernels."""
        return Batch(
            session=self._session,
            epoch=self._epoch,
            seq=seq,
            program=flush.program,
            dims=flush.dims_digest,
            program_body=program_body,
            dims_body=flush.dims,
            scalars=tuple((value.real, value.imag) if isinstance(value, complex) else value for value in flush.scalars),
            handles=pack_handles(flush.handles) if flush.program else b"",
            allocs=tuple(flush.allocs),
            uploads=uploads,
            reads=tuple(Read(at, handle, offset, nbytes) for at, (handle, offset, nbytes) in enumerate(flush.reads)),
            frees=tuple(flush.frees),
            trace=trace,
            kernels=tuple(body for _, body in flush.kernels),
            origin=flush.origin.lines() if program_body and flush.origin is not None else "",
            repeats=self.repeats,
        )

    def _is_known(self, digest: bytes) -> bool:
        """Has the node been sent this body? From now on it has."""
        known = digest in self._known
        self._known[digest] = None
        return known

    def _dims(self, flush: Flush) -> tuple[bytes, tuple[bytes, bytes, bytes] | None]:
        """(body, None), (empty, difference) or (empty, None) when the node has these dims."""
        if not flush.program:
            return b"", None
        base = self._bases.get(flush.program)
        self._bases[flush.program] = (flush.dims_digest, flush.dims)
        if self._is_known(flush.dims_digest):
            return b"", None
        if base is not None and base[0] != flush.dims_digest and len(base[1]) == len(flush.dims):
            was, now = np.frombuffer(base[1], "<i8"), np.frombuffer(flush.dims, "<i8")
            positions = np.flatnonzero(was != now)
            if 12 * len(positions) + 32 < len(flush.dims):
                return b"", (base[0], positions.astype("<u4").tobytes(), now[positions].tobytes())
        return flush.dims, None


def _message(data: bytes, uploads: tuple[Upload, ...]) -> bytes:
    # Tensor data rarely deflates: a message that is mostly that goes as it is.
    return data if 2 * sum(len(upload.inline) for upload in uploads) > len(data) else pack_message(data)


def pack_handles(handles: Sequence[int]) -> bytes:
    """zlib of the first differences as little-endian i64."""
    return zlib.compress(struct.pack(f"<{len(handles)}q", *map(sub, handles, (0, *handles))), 1)


def unpack_handles(packed: bytes) -> list[int]:
    """The inverse of ``pack_handles``, for bytes that this program has written itself. Raises ValueError or zlib.error for others."""
    handles: list[int] = np.cumsum(np.frombuffer(zlib.decompress(packed), "<i8")).tolist()
    return handles
