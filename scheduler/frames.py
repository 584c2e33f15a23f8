"""Shared parts of the journals of all cores: frames, the digest, and replay of decisions.

A frame is length (u32 little-endian), the first 8 bytes of blake3 of the body, body; a body is the canonical msgpack of (stimulus,
decisions).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol, TypeVar

import blake3
import msgspec

from scheduler.errors import JournalError, ReplayMismatch

__all__ = ["FRAME_BYTES_MAX", "Journal", "Recorded", "check_again", "decode_records", "frames", "pack_frame"]

FRAME_BYTES_MAX: Final = 16 << 20
_HEAD: Final = struct.Struct("<I8s")
_encoder: Final = msgspec.msgpack.Encoder()


class Recorded(Protocol):
    """A record of one core."""

    @property
    def stimulus(self) -> Any: ...

    @property
    def decisions(self) -> tuple[Any, ...]: ...


R = TypeVar("R", bound=Recorded)


class Journal:
    """Encodes the records of one core and keeps their digest (32 bytes, blake3 over the bodies in order)."""

    __slots__ = ("_hash", "records")

    def __init__(self) -> None:
        self._hash = blake3.blake3()
        self.records = 0

    def add(self, stimulus: msgspec.Struct, decisions: Iterable[msgspec.Struct]) -> bytes:
        """The frame to append."""
        body = _encoder.encode((stimulus, tuple(decisions)))
        self._hash.update(body)
        self.records += 1
        return pack_frame(body)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()


def decode_records(data: bytes | memoryview, decoder: msgspec.msgpack.Decoder[R]) -> tuple[list[R], int]:
    """The whole records of ``data``, and how many bytes they take. A torn last frame (the process died while writing) is left out;
    damage before it raises JournalError."""
    records: list[R] = []
    used = 0
    for end, body in frames(data):
        try:
            records.append(decoder.decode(body))
        except msgspec.DecodeError as error:
            raise JournalError(
                f"record {len(records)} at byte {used} is of an unknown kind ({error}): written by a newer version"
            ) from error
        used = end
    return records, used


def check_again(records: Iterable[Recorded], on: Callable[[Any], Iterable[Any]]) -> None:
    """Give every stimulus to ``on`` and compare decision by decision. Raises ReplayMismatch at the first difference."""
    for index, record in enumerate(records):
        again = tuple(on(record.stimulus))
        if again != record.decisions:
            raise ReplayMismatch(f"record {index}, {record.stimulus!r}: recorded {record.decisions!r}, replayed {again!r}")


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
