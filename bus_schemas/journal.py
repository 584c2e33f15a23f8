"""The journal of a node's pure cores on the bus: their stimuli and their decisions, for deterministic replay. Pure.

One message carries consecutive records of one core of one device as that core's own frames (scheduler.dispatch.journal and
scheduler.vram.journal know them). The records are divided into *segments*: each begins with an empty state or a snapshot of one.
Array-like: new fields go last and have defaults; nothing is renamed, reordered or retyped.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["DISPATCH", "VRAM", "JournalPart", "decode_part", "encode_part"]

DISPATCH: Final = "dispatch"
VRAM: Final = "vram"
"""Lanes: which core."""


class JournalPart(msgspec.Struct, array_like=True, frozen=True, tag="journal.v1"):
    """``segment`` grows with every life of this core on this device. ``first``: the number of the first record in its segment, from 0.
    ``frames``: ``records`` of them. ``digest``: the journal's digest (32 bytes) after the last one. ``snapshot``: of a part with first
    0, the state that the segment begins with (empty: a new core). ``unix_offset_ns``: Unix time minus the times in the records."""

    node: str
    epoch: int
    gpu: int
    lane: str
    segment: int
    first: int
    records: int
    frames: bytes
    digest: bytes
    unix_offset_ns: int
    snapshot: bytes = b""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(JournalPart)


def encode_part(part: JournalPart) -> bytes:
    return _encoder.encode(part)


def decode_part(data: bytes) -> JournalPart:
    """Raises msgspec.DecodeError on anything that is not a JournalPart."""
    try:
        return _decoder.decode(data)
    except UnicodeDecodeError as error:  # msgspec lets it through
        raise msgspec.DecodeError(str(error)) from None
