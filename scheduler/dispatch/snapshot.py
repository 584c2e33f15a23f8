"""The whole state of a dispatcher as bytes, so that a journal can begin at any time: what is restored decides as the one it was taken from.

Queues are left out: they are made again from the sessions, and equal states give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from scheduler.dispatch import queues
from scheduler.dispatch.occupancy import Occupancy
from scheduler.dispatch.state import DispatchState, Flight, SessionState
from scheduler.dispatch.stimuli import DispatchConfig
from scheduler.errors import JournalError

__all__ = ["restore", "snapshot"]

_VERSION: Final = 1


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
_decoder: Final = msgspec.msgpack.Decoder(_Snapshot)


def snapshot(state: DispatchState) -> bytes:
    """The state, but for what its queues hold."""
    return _encoder.encode(
        _Snapshot(
            _VERSION,
            state.config,
            state.now_ns,
            state.arrivals,
            list(state.sessions.values()),
            state.flights,
            state.head_since_ns,
            state.open_by_priority,
            state.targets,
            state.target_ns,
            [level.vtime for level in state.levels],
            state.turns,
            state.reserve_credit,
            state.occupancy,
        )
    )


def restore(data: bytes) -> DispatchState:
    """The state that ``snapshot`` wrote (empty bytes: that of a new dispatcher). Raises JournalError on anything else."""
    if not data:
        return DispatchState()
    try:
        read = _decoder.decode(data)
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
