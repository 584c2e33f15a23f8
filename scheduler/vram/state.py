"""The memory core's state: what each session holds of one device and what is on its way. Data only; changed by core.py and nowhere else."""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler.vram.stimuli import IDLE_NS, RETRY_NS

WAITING: Final = 0
COLLECTING: Final = 1
COMING: Final = 2
READY: Final = 3
ASKED: Final = 4
"""A batch that waits: for others to become idle, finish or free; for victims to leave; for its own to come back; no more (its memory is set
aside); no more (it shall ask again, without anything set aside)."""


class Waiter(msgspec.Struct, array_like=True):
    """A session's batch that asked and was not allowed yet. ``new_bytes`` and ``back_bytes``: what it needs of the device.
    ``pinned_bytes``: what of its own must stay. ``since_ns``: when it asked first."""

    state: int
    new_bytes: int
    back_bytes: int
    pinned_bytes: int
    since_ns: int
    until_ns: int

    @property
    def need_bytes(self) -> int:
        return self.new_bytes + self.back_bytes


class SessionMemory(msgspec.Struct, array_like=True):
    """One session. On the device: ``held`` (its own), ``coming`` (set aside for what comes back), ``grant`` (set aside for its
    waiting batch); of ``held``, ``leaving`` is being swapped out for ``leaving_for``. Elsewhere: ``swapped``. ``shared``: what it has on
    shared blocks, in full. ``turn``: when it was chosen as a victim last, counted over all choices, 0: never. ``used_ns``: when it used
    the device last."""

    session: str
    priority: int
    quota: int
    swap: bool
    wait_ns: int
    used_ns: int
    held: int = 0
    swapped: int = 0
    shared: int = 0
    coming: int = 0
    grant: int = 0
    leaving: int = 0
    leaving_for: str = ""
    under_way: bool = False
    barred_until_ns: int = 0
    turn: int = 0
    waiter: Waiter | None = None

    @property
    def logical(self) -> int:
        """What counts against its quota."""
        return self.held + self.swapped + self.shared

    @property
    def on_device(self) -> int:
        """What it alone takes of the device."""
        return self.held + self.coming + self.grant

    @property
    def moving(self) -> bool:
        return self.leaving > 0 or self.coming > 0


class VramState(msgspec.Struct, array_like=True):
    """``used_bytes``: the sum of ``on_device`` of all sessions and ``shared_bytes``, the shared blocks, each once. ``turns``: victims
    chosen so far. ``served_ns``: when those who wait were looked at last. ``waiting``: sessions with a waiter, in the order in which they
    asked first."""

    now_ns: int = 0
    physical_bytes: int = 0
    reserve_bytes: int = 0
    swap_bytes: int = 0
    idle_ns: int = IDLE_NS
    retry_ns: int = RETRY_NS
    used_bytes: int = 0
    shared_bytes: int = 0
    swapped_bytes: int = 0
    leaving_bytes: int = 0
    turns: int = 0
    served_ns: int = 0
    sessions: dict[str, SessionMemory] = {}
    waiting: list[str] = []

    @property
    def free_bytes(self) -> int:
        """Neither used nor set aside; negative after the device was configured smaller than what is used."""
        return self.physical_bytes - self.used_bytes

    @property
    def swap_room_bytes(self) -> int:
        """How much more may be swapped out."""
        return self.swap_bytes - self.swapped_bytes - self.leaving_bytes
