"""The journal of a node's pure cores on the bus: their stimuli and their decisions, for deterministic replay. Pure.

One message carries consecutive records of one core of one device as that core's own frames (scheduler.dispatch.snapshot,
scheduler.vram.journal and scheduler.quotas know them). The records are divided into *segments*: each begins with an empty state or a
snapshot of one.
Array-like: new fields go last and have defaults; nothing is renamed, reordered or retyped.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus_schemas.frames import HEAD, Frames, frame
from bus_schemas.limits import decoding

DISPATCH: Final = "dispatch"
VRAM: Final = "vram"
QUOTAS: Final = "quotas"
"""Lanes: which core."""
PROGRAMS: Final = "programs"
"""A lane of no core: which program a batch ran. Its frames are uses, each behind its length (u32, little-endian)."""
PROGRAM_NAME_BYTES: Final = 8


class JournalPart(msgspec.Struct, array_like=True, frozen=True, tag="journal.v1"):
    """``segment`` grows with every start of this core on this device. ``first``: the number of the first record in its segment, from 0.
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


class ProgramUse(msgspec.Struct, array_like=True, frozen=True):
    """Batches of ``content`` (the first bytes of ``BatchArrived.content``) run ``program`` (the first bytes of its digest; empty: none).
    ``operations``: its most frequent ones with their number, sent once a segment; empty: sent before, or not known. ``origin``: the lines
    of the user's script that recorded it in ``session``, sent once a segment and session; both are empty elsewhere. Sessions of several
    tenants may run one program: an origin is for the tenant of its session alone."""

    content: bytes
    program: bytes
    operations: tuple[str, ...] = ()
    session: str = ""
    origin: str = ""


_encoder: Final = msgspec.msgpack.Encoder()
decode_part: Final = decoding(msgspec.msgpack.Decoder(JournalPart))
_decode_use: Final = decoding(msgspec.msgpack.Decoder(ProgramUse))


def encode_part(part: JournalPart) -> bytes:
    return _encoder.encode(part)


def encode_use(use: ProgramUse) -> bytes:
    return frame(use)


def decode_uses(frames: bytes) -> list[ProgramUse]:
    """The frames of a part of lane PROGRAMS. Raises msgspec.DecodeError."""
    bodies = Frames().feed(frames)
    if sum(HEAD.size + len(body) for body in bodies) != len(frames):
        raise msgspec.DecodeError("the last frame of the part is cut off")
    return [_decode_use(body) for body in bodies]
