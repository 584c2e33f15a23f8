"""The memory core of one device: stimuli in, decisions out.

It keeps what each session holds and answers every request with Allow or Refuse. Swapping will add its decisions (swap out, swap in) in
front of an Allow; times are in the stimuli for that reason: a victim is chosen by how long it has not used the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from scheduler.errors import StimulusError
from scheduler.vram.quota import SESSION_UNKNOWN, Verdict, check_quota

__all__ = [
    "DeviceConfigured", "SessionOpened", "SessionClosed", "AllocationRequested", "Freed", "Stimulus", "Allow", "Refuse", "Decision",
    "VramState", "Vram",
]  # fmt: skip


class DeviceConfigured(msgspec.Struct, array_like=True, frozen=True, tag="device_configured.v1"):
    """The device's memory, and how much of it stays unallocated."""

    at_ns: int
    physical_bytes: int
    reserve_bytes: int = 0


class SessionOpened(msgspec.Struct, array_like=True, frozen=True, tag="session_opened.v1"):
    """``quota_bytes`` 0: no quota but the device. ``use_bytes``: what it already holds (after a restart)."""

    at_ns: int
    session: str
    quota_bytes: int
    use_bytes: int = 0


class SessionClosed(msgspec.Struct, array_like=True, frozen=True, tag="session_closed.v1"):
    """All it held is free again."""

    at_ns: int
    session: str


class AllocationRequested(msgspec.Struct, array_like=True, frozen=True, tag="allocation_requested.v1"):
    """``nbytes``: all a batch is about to allocate, asked as one so that a batch gets everything or nothing."""

    at_ns: int
    session: str
    nbytes: int


class Freed(msgspec.Struct, array_like=True, frozen=True, tag="freed.v1"):
    at_ns: int
    session: str
    nbytes: int


Stimulus = DeviceConfigured | SessionOpened | SessionClosed | AllocationRequested | Freed


class Allow(msgspec.Struct, array_like=True, frozen=True, tag="allow.v1"):
    session: str
    nbytes: int


class Refuse(msgspec.Struct, array_like=True, frozen=True, tag="refuse.v1"):
    session: str
    verdict: Verdict


Decision = Allow | Refuse


@dataclass(slots=True)
class VramState:
    """``held``: bytes by session. ``held_bytes`` is their sum."""

    now_ns: int = 0
    physical_bytes: int = 0
    reserve_bytes: int = 0
    quota: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    held_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """May be negative after the device was configured smaller than what is held."""
        return self.physical_bytes - self.reserve_bytes - self.held_bytes


class Vram:
    """One door: only ``on`` changes the state."""

    __slots__ = ("state",)

    def __init__(self, state: VramState | None = None) -> None:
        self.state = state if state is not None else VramState()

    def on(self, stimulus: Stimulus) -> list[Decision]:
        """Raises StimulusError, the state unchanged, when more is freed than is held or time runs backwards."""
        state = self.state
        if stimulus.at_ns < state.now_ns:
            raise StimulusError(f"{stimulus!r}: time ran backwards, the last stimulus was at {state.now_ns} ns")
        if isinstance(stimulus, Freed) and not 0 <= stimulus.nbytes <= state.held.get(stimulus.session, 0):
            raise StimulusError(f"{stimulus!r}: the session holds {state.held.get(stimulus.session, 0)} bytes")
        state.now_ns = stimulus.at_ns
        match stimulus:
            case AllocationRequested():
                return [self._request(stimulus)]
            case Freed():
                self._add(stimulus.session, -stimulus.nbytes)
            case SessionOpened():
                state.quota[stimulus.session] = stimulus.quota_bytes
                self._add(stimulus.session, stimulus.use_bytes - state.held.get(stimulus.session, 0))
            case SessionClosed():
                state.held_bytes -= state.held.pop(stimulus.session, 0)
                state.quota.pop(stimulus.session, None)
            case DeviceConfigured():
                state.physical_bytes = stimulus.physical_bytes
                state.reserve_bytes = stimulus.reserve_bytes
        return []

    def _request(self, request: AllocationRequested) -> Decision:
        state = self.state
        if request.session not in state.quota:
            text = f"session {request.session} is not open on this device"
            return Refuse(request.session, Verdict(SESSION_UNKNOWN, 0, 0, request.nbytes, state.free_bytes, text))
        verdict = check_quota(state.quota[request.session], state.held[request.session], request.nbytes, state.free_bytes)
        if verdict.reason:
            return Refuse(request.session, verdict)
        self._add(request.session, request.nbytes)
        return Allow(request.session, request.nbytes)

    def _add(self, session: str, nbytes: int) -> None:
        self.state.held[session] = self.state.held.get(session, 0) + nbytes
        self.state.held_bytes += nbytes
