"""Frames of a journal: length (u32 little-endian), the first 8 bytes of blake3 of the body, body. Bytes only; no record's meaning."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import blake3

from scheduler.errors import JournalError

__all__ = ["FRAME_BYTES_MAX", "pack_frame", "frames"]

FRAME_BYTES_MAX: Final = 16 << 20
_HEAD: Final = struct.Struct("<I8s")


def pack_frame(body: bytes) -> bytes:
    return _HEAD.pack(len(body), _check(body)) + body


def frames(data: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
    """The bodies of ``data`` and where each frame ends. A torn last frame (the process died while writing) is left out; damage before it
    raises JournalError."""
    view = memoryview(data)
    at = number = 0
    while at + _HEAD.size <= len(view):
        length, check = _HEAD.unpack_from(view, at)
        end = at + _HEAD.size + length
        if end > len(view):
            if length > FRAME_BYTES_MAX:
                raise JournalError(f"record {number} at byte {at} claims {length} bytes: the journal is damaged, set it aside")
            return
        body = view[at + _HEAD.size : end]
        if _check(body) != check:
            if end == len(view):
                return  # the last frame's bytes did not all reach the disk
            raise JournalError(f"record {number} at byte {at} does not match its checksum: the journal is damaged, set it aside")
        yield end, body
        at = end
        number += 1


def _check(body: bytes | memoryview) -> bytes:
    return blake3.blake3(body).digest(length=8)
