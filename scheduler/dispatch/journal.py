"""The dispatcher's journal: every stimulus with the decisions it gave, as bytes, and the replay that checks them.

A journal is a sequence of frames: length (u32 little-endian), the first 8 bytes of blake3 of the body, body. The body is the
canonical msgpack of (stimulus, decisions). ``digest`` rolls over the bodies, so two journals with one digest are one history.
This file turns records into bytes and back; the shell owns the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import blake3
import msgspec

from scheduler.dispatch.core import Dispatch
from scheduler.dispatch.decisions import Decision
from scheduler.dispatch.state import DispatchState
from scheduler.dispatch.stimuli import DispatchConfig, Stimulus
from scheduler.errors import JournalError, ReplayMismatch

__all__ = ["Record", "Journal", "decode_journal", "replay", "verify"]

_HEAD: Final = struct.Struct("<I8s")
RECORD_BYTES_MAX: Final = 16 << 20


class Record(msgspec.Struct, array_like=True, frozen=True):
    stimulus: Stimulus
    decisions: tuple[Decision, ...]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)


class Journal:
    """Encodes records and keeps their digest (32 bytes, blake3 over the bodies in order)."""

    __slots__ = ("_hash", "records")

    def __init__(self) -> None:
        self._hash = blake3.blake3()
        self.records = 0

    def add(self, stimulus: Stimulus, decisions: Iterable[Decision]) -> bytes:
        """The frame to append to the file."""
        body = _encoder.encode(Record(stimulus, tuple(decisions)))
        self._hash.update(body)
        self.records += 1
        return _HEAD.pack(len(body), blake3.blake3(body).digest(length=8)) + body

    @property
    def digest(self) -> bytes:
        return self._hash.digest()


def decode_journal(data: bytes | memoryview) -> tuple[list[Record], int]:
    """The whole records of ``data``, and how many bytes they take. A torn last frame (the process died while writing) is left out;
    damage before it raises JournalError."""
    view = memoryview(data)
    records: list[Record] = []
    at = 0
    while at + _HEAD.size <= len(view):
        length, check = _HEAD.unpack_from(view, at)
        end = at + _HEAD.size + length
        if end > len(view):
            if length > RECORD_BYTES_MAX:
                raise JournalError(f"record {len(records)} at byte {at} claims {length} bytes: the journal is damaged, set it aside")
            break
        body = view[at + _HEAD.size : end]
        if blake3.blake3(body).digest(length=8) != check:
            if end == len(view):
                break  # the last frame's bytes did not all reach the disk
            raise JournalError(f"record {len(records)} at byte {at} does not match its checksum: the journal is damaged, set it aside")
        try:
            records.append(_decoder.decode(body))
        except msgspec.DecodeError as error:
            raise JournalError(f"record {len(records)} at byte {at} is of an unknown kind ({error}): written by a newer version") from error
        at = end
    return records, at


def replay(stimuli: Iterable[Stimulus], config: DispatchConfig | None = None) -> tuple[Dispatch, Journal]:
    """Feed ``stimuli`` to a new dispatcher; its state, and the journal it would have written."""
    dispatch = Dispatch(DispatchState(config=config or DispatchConfig()))
    journal = Journal()
    for stimulus in stimuli:
        journal.add(stimulus, dispatch.on(stimulus))
    return dispatch, journal


def verify(records: Iterable[Record], config: DispatchConfig | None = None) -> Dispatch:
    """Replay ``records`` and compare decision by decision; the dispatcher after the last. Raises ReplayMismatch at the first difference."""
    dispatch = Dispatch(DispatchState(config=config or DispatchConfig()))
    for index, record in enumerate(records):
        again = tuple(dispatch.on(record.stimulus))
        if again != record.decisions:
            raise ReplayMismatch(f"record {index}, {record.stimulus!r}: recorded {record.decisions!r}, replayed {again!r}")
    return dispatch
