"""Journals of the dispatcher and of the memory core, run again and compared decision by decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from scheduler.dispatch import Dispatch, DispatchConfig, DispatchState, Stimulus, restore
from scheduler.frames import Journal
from scheduler.vram import Vram
from scheduler.vram.journal import decode_state
from scheduler.vram.stimuli import Stimulus as VramStimulus

__all__ = ["ReplayMismatch", "replay", "replay_vram", "verify", "verify_vram"]


class Recorded(Protocol):
    """A record of one core."""

    @property
    def stimulus(self) -> Any: ...

    @property
    def decisions(self) -> tuple[Any, ...]: ...


class ReplayMismatch(Exception):
    """A recorded decision, made again, is another one. The message names the first record that differs."""


def _dispatch(config: DispatchConfig | None, snapshot: bytes) -> Dispatch:
    return Dispatch(restore(snapshot) if snapshot else DispatchState(config=config or DispatchConfig()))


def _replay(stimuli: Iterable[Any], on: Callable[[Any], Iterable[Any]]) -> Journal:
    journal = Journal()
    for stimulus in stimuli:
        journal.add(stimulus, on(stimulus))
    return journal


def _check(records: Iterable[Recorded], on: Callable[[Any], Iterable[Any]]) -> None:
    for index, record in enumerate(records):
        again = tuple(on(record.stimulus))
        if again != record.decisions:
            raise ReplayMismatch(f"record {index}, {record.stimulus!r}: recorded {record.decisions!r}, replayed {again!r}")


def replay(stimuli: Iterable[Stimulus], config: DispatchConfig | None = None, snapshot: bytes = b"") -> tuple[Dispatch, Journal]:
    """Feed ``stimuli`` to a new dispatcher, or one restored from ``snapshot``; it, and the journal it would have written."""
    dispatch = _dispatch(config, snapshot)
    return dispatch, _replay(stimuli, dispatch.on)


def verify(records: Iterable[Recorded], config: DispatchConfig | None = None, snapshot: bytes = b"") -> Dispatch:
    """The dispatcher after the last of ``records``. Raises ReplayMismatch at the first difference."""
    dispatch = _dispatch(config, snapshot)
    _check(records, dispatch.on)
    return dispatch


def replay_vram(stimuli: Iterable[VramStimulus], snapshot: bytes = b"") -> tuple[Vram, Journal]:
    """Feed ``stimuli`` to a memory core that begins with ``snapshot``; the core, and the journal it would have written."""
    vram = Vram(decode_state(snapshot))
    return vram, _replay(stimuli, vram.on)


def verify_vram(records: Iterable[Recorded], snapshot: bytes = b"") -> Vram:
    """The memory core after the last of ``records``. Raises ReplayMismatch at the first difference."""
    vram = Vram(decode_state(snapshot))
    _check(records, vram.on)
    return vram
