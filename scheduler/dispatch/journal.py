"""The dispatcher's journal: every stimulus with the decisions it gave, as bytes, and the replay that checks them.

A journal is a sequence of frames (scheduler.frames), each the canonical msgpack of (stimulus, decisions). It begins with a new dispatcher,
or with a snapshot of one. ``digest`` rolls over the bodies, so two journals with one digest are one history.
This file turns records into bytes and back; the shell owns the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from scheduler.dispatch.core import Dispatch
from scheduler.dispatch.decisions import Decision
from scheduler.dispatch.snapshot import restore
from scheduler.dispatch.state import DispatchState
from scheduler.dispatch.stimuli import DispatchConfig, Stimulus
from scheduler.frames import Journal, check_again, decode_records

__all__ = ["Record", "Journal", "decode_journal", "replay", "verify"]


class Record(msgspec.Struct, array_like=True, frozen=True):
    stimulus: Stimulus
    decisions: tuple[Decision, ...]


_decoder: Final = msgspec.msgpack.Decoder(Record)


def decode_journal(data: bytes | memoryview) -> tuple[list[Record], int]:
    """The whole records of ``data``, and how many bytes they take: see ``decode_records``."""
    return decode_records(data, _decoder)


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
    check_again(records, dispatch.on)
    return dispatch


def _begin(config: DispatchConfig | None, snapshot: bytes) -> Dispatch:
    return Dispatch(restore(snapshot) if snapshot else DispatchState(config=config or DispatchConfig()))
