"""A memory core of a small device for tests of victims and moves. Times in ms, memory in units."""

from __future__ import annotations

from scheduler.vram import (
    AllocationRequested,
    Allow,
    Await,
    Decision,
    DeviceConfigured,
    Holds,
    SessionOpened,
    Stimulus,
    SwapOut,
    SwappedOut,
    Vram,
)

__all__ = ["IDLE", "Device", "leaving"]

IDLE = 100


class Device:
    """A core that gets stimuli in order; ``at`` is the time of the next one."""

    def __init__(self, physical: int = 100, reserve: int = 0, swap: int = 1000) -> None:
        self.vram = Vram()
        self.at = 0
        self.tell(DeviceConfigured(0, physical, reserve, swap, IDLE, 50))

    def tell(self, stimulus: Stimulus) -> list[Decision]:
        return self.vram.on(stimulus)

    def open(self, session: str, priority: int = 3, *, quota: int = 0, swap: bool = True, wait: int = 1000) -> None:
        self.tell(SessionOpened(self.at, session, quota, 0, priority, swap, wait))

    def ask(self, session: str, nbytes: int, back: int = 0, pinned: int = 0) -> list[Decision]:
        return self.tell(AllocationRequested(self.at, session, nbytes, back, pinned))

    def over(self, session: str, held: int | None = None) -> list[Decision]:
        now = self.vram.state.sessions[session]
        return self.tell(Holds(self.at, session, now.held if held is None else held, now.swapped, now.shared))

    def holding(self, session: str, nbytes: int, priority: int = 3, *, swap: bool = True) -> None:
        """A session that ran at the present time and holds this much."""
        self.open(session, priority, swap=swap)
        assert Allow(session, nbytes) in self.ask(session, nbytes)
        self.over(session)

    def out(self, session: str, nbytes: int) -> list[Decision]:
        return self.tell(SwappedOut(self.at, session, nbytes))


def leaving() -> Device:
    """Of 80 bytes that "a" holds, 30 leave for a batch of "b"; "c" is open."""
    device = Device()
    device.holding("a", 80)
    device.open("b")
    device.open("c")
    device.at = 200
    assert device.ask("b", 50) == [SwapOut("a", 30, "b"), Await("b", 1200)]
    return device
