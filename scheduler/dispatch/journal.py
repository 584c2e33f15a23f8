"""The dispatcher's journal: every stimulus with the decisions it gave, as bytes, and the replay that checks them.

A journal is a sequence of frames (scheduler.frames), each the canonical msgpack of (stimulus, decisions). It begins with a new dispatcher,
or with a snapshot of one. ``digest`` rolls over the bodies, so two journals with one digest are one history.
This file turns records into bytes and back; the shell owns the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import blake3
import msgspec

from scheduler.dispatch.core import Dispatch
from scheduler.dispatch.decisions import Decision
from scheduler.dispatch.snapshot import restore
from scheduler.dispatch.state import DispatchState
from scheduler.dispatch.stimuli import DispatchConfig, Stimulus
from scheduler.errors import JournalError, ReplayMismatch
from scheduler.frames import frames, pack_frame

__all__ = ["Record", "Journal", "decode_journal", "replay", "verify"]


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
        return pack_frame(body)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()


def decode_journal(data: bytes | memoryview) -> tuple[list[Record], int]:
    """The whole records of ``data``, and how many bytes they take. A torn last frame (the process died while writing) is left out;
    damage before it raises JournalError."""
    records: list[Record] = []
    used = 0
    for end, body in frames(data):
        try:
            records.append(_decoder.decode(body))
        except msgspec.DecodeError as error:
            raise JournalError(
                f"record {len(records)} at byte {used} is of an unknown kind ({error}): written by a newer version"
            ) from error
        used = end
    return records, used


def replay(stimuli: Iterable[Stimulus], config: DispatchConfig | None = None, snapshot: bytes = b"") -> tuple[Dispatch, Journal]:
    """Feed ``stimuli`` to a new dispatcher, or one restored from ``snapshot``; it, and the journal it would have written. Raises
    JournalError when the snapshot cannot be read."""
    dispatch = _begin(config, snapshot)
    journal = Journal()
    for stimulus in stimuli:
        journal.add(stimulus, dispatch.on(stimulus))
    return dispatch, journal


def verify(records: Iterable[Record], config: DispatchConfig | None = None, snapshot: bytes = b"") -> Dispatch:
    """Replay ``records`` and compare decision by decision; the dispatcher after the last. They begin where a new dispatcher does, or at
    ``snapshot``. Raises ReplayMismatch at the first difference, JournalError when the snapshot cannot be read."""
    dispatch = _begin(config, snapshot)
    for index, record in enumerate(records):
        again = tuple(dispatch.on(record.stimulus))
        if again != record.decisions:
            raise ReplayMismatch(f"record {index}, {record.stimulus!r}: recorded {record.decisions!r}, replayed {again!r}")
    return dispatch


def _begin(config: DispatchConfig | None, snapshot: bytes) -> Dispatch:
    return Dispatch(restore(snapshot) if snapshot else DispatchState(config=config or DispatchConfig()))
