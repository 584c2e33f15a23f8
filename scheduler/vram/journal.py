"""The memory core's journal: every stimulus with the decisions it gave, as bytes.

A journal is a sequence of frames (``scheduler.frames``); a body is the canonical msgpack of (stimulus, decisions). ``digest`` rolls over
the bodies, so two journals that begin with one state and have one digest are one history. A segment begins with an empty core or a
snapshot. This file turns records into bytes and back; the shell owns where they go.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler.errors import JournalError
from scheduler.frames import Journal, decode_records
from scheduler.vram.decisions import Decision
from scheduler.vram.state import VramState
from scheduler.vram.stimuli import Stimulus

__all__ = ["Record", "Journal", "decode_journal", "encode_state", "decode_state"]


class Record(msgspec.Struct, array_like=True, frozen=True):
    stimulus: Stimulus
    decisions: tuple[Decision, ...]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)
_state: Final = msgspec.msgpack.Decoder(VramState)


def decode_journal(data: bytes | memoryview) -> tuple[list[Record], int]:
    """The whole records of ``data``, and how many bytes they take: see ``decode_records``."""
    return decode_records(data, _decoder)


def encode_state(state: VramState) -> bytes:
    """A snapshot: what a segment begins with that does not begin with an empty core."""
    return _encoder.encode(state)


def decode_state(snapshot: bytes) -> VramState:
    """Raises JournalError on anything that is not a snapshot of a state. Empty bytes: a new core's."""
    try:
        return _state.decode(snapshot) if snapshot else VramState()
    except msgspec.DecodeError as error:
        raise JournalError(f"this is no snapshot of a memory core ({error}): damaged, or written by a newer version") from error
