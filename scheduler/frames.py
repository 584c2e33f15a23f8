"""Shared parts of the journals of all cores: records and the digest.

A journal is a sequence of checked frames (bus_schemas.frames); a body is the canonical msgpack of (stimulus, decisions).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import blake3
import msgspec

from bus_schemas.frames import FrameDamage, checked_frame, checked_frames
from scheduler.errors import JournalError

_encoder: Final = msgspec.msgpack.Encoder()


R = TypeVar("R")


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
        return checked_frame(body)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()


def decode_records(data: bytes | memoryview, decoder: msgspec.msgpack.Decoder[R]) -> tuple[list[R], int]:
    """The whole records of ``data``, and how many bytes they take. A torn last frame (the process died while writing) is left out;
    damage before it raises JournalError."""
    records: list[R] = []
    used = 0
    try:
        for end, body in checked_frames(data):
            records.append(decoder.decode(body))
            used = end
    except msgspec.DecodeError as error:
        raise JournalError(f"record {len(records)} at byte {used} is of an unknown kind ({error}): written by a newer version") from error
    except FrameDamage as damage:
        raise JournalError(str(damage)) from None
    return records, used
