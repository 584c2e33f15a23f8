"""The whole state of a dispatcher as bytes, so that a journal can begin at any time: what is restored decides as the one it was taken from.
The journal: every stimulus with the decisions it gave, as bytes.

Queues are left out: they are made again from the sessions, and equal states give equal bytes.

A journal is a sequence of frames (scheduler.frames), each the canonical msgpack of (stimulus, decisions). It begins with a new dispatcher,
or with a snapshot of one. ``digest`` rolls over the bodies, so two journals with one digest are one history.
This file turns records into bytes and back; the shell owns the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from scheduler.dispatch import queues
from scheduler.dispatch.decisions import Decision
from scheduler.dispatch.state import DispatchState, Flight, Occupancy, Phase, SessionState
from scheduler.dispatch.stimuli import DispatchConfig, Stimulus
from scheduler.errors import JournalError
from scheduler.frames import Journal, decode_records

__all__ = ["Journal", "Record", "decode_journal", "restore", "snapshot"]

_VERSION: Final = 2
"""Version 1 had two flags in place of a session's phase: it is still read."""


@dataclass(slots=True)
class _Snapshot:
    version: int
    config: DispatchConfig
    now_ns: int
    arrivals: int
    sessions: list[SessionState]
    flights: list[Flight]
    head_since_ns: int
    open_by_priority: list[int]
    targets: dict[int, int]
    target_ns: int
    vtimes: list[int]
    turns: int
    reserve_credit: int
    occupancy: Occupancy


_encoder: Final = msgspec.msgpack.Encoder()
_state_decoder: Final = msgspec.msgpack.Decoder(_Snapshot)


def snapshot(state: DispatchState) -> bytes:
    """The state, but for what its queues hold."""
    return _encoder.encode(
        _Snapshot(
            version=_VERSION,
            config=state.config,
            now_ns=state.now_ns,
            arrivals=state.arrivals,
            sessions=list(state.sessions.values()),
            flights=state.flights,
            head_since_ns=state.head_since_ns,
            open_by_priority=state.open_by_priority,
            targets=state.targets,
            target_ns=state.target_ns,
            vtimes=[level.vtime for level in state.levels],
            turns=state.turns,
            reserve_credit=state.reserve_credit,
            occupancy=state.occupancy,
        )
    )


def restore(data: bytes) -> DispatchState:
    """The state that ``snapshot`` wrote (empty bytes: that of a new dispatcher). Raises JournalError on anything else."""
    if not data:
        return DispatchState()
    try:
        read = _state_decoder.decode(data)
        if read.version == 1:
            read = _upgraded(msgspec.msgpack.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JournalError(
            f"a snapshot of {len(data)} bytes cannot be read ({error}): it is damaged, or written by another version"
        ) from error
    if read.version != _VERSION:
        raise JournalError(f"a snapshot of version {read.version}; this is version {_VERSION}")
    state = DispatchState(
        config=read.config,
        now_ns=read.now_ns,
        arrivals=read.arrivals,
        sessions={session.session: session for session in read.sessions},
        flights=read.flights,
        head_since_ns=read.head_since_ns,
        open_by_priority=read.open_by_priority,
        targets=read.targets,
        target_ns=read.target_ns,
        turns=read.turns,
        reserve_credit=read.reserve_credit,
        occupancy=read.occupancy,
    )
    for level, vtime in zip(state.levels, read.vtimes, strict=True):
        level.vtime = vtime
    queues.rebuild(state)
    return state


def _upgraded(old: dict[str, Any]) -> _Snapshot:
    """A snapshot of version 1: each session's phase from its flag ``faulted`` and from ``last_seq``; its story is not known. Raises
    msgspec.DecodeError."""
    phases = {(False, False): Phase.OPEN, (False, True): Phase.CLOSING, (True, False): Phase.FAULTED, (True, True): Phase.ENDING}
    for session in old["sessions"]:
        session["phase"] = phases[bool(session.get("faulted")), session.get("last_seq") is not None]
    return msgspec.convert({**old, "version": _VERSION}, _Snapshot)


class Record(msgspec.Struct, array_like=True, frozen=True):
    stimulus: Stimulus
    decisions: tuple[Decision, ...]


_decoder: Final = msgspec.msgpack.Decoder(Record)


def decode_journal(data: bytes | memoryview) -> tuple[list[Record], int]:
    """The whole records of ``data``, and how many bytes they take: see ``decode_records``."""
    return decode_records(data, _decoder)
