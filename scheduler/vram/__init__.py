"""How much of one device's memory each session may hold: quota, overcommit, victims, and the core that answers requests. Pure.

May live here: decisions about memory. May not: bytes and moves (services.server.executor).
"""

from scheduler.vram.core import Vram
from scheduler.vram.decisions import Allow, Await, Decision, MemoryReady, Refuse, SwapIn, SwapOut
from scheduler.vram.overcommit import PERCENT_MAX, effective_percent, schedulable_bytes
from scheduler.vram.quota import DEVICE_FULL, QUOTA_EXCEEDED, SESSION_UNKNOWN, Verdict, check_quota
from scheduler.vram.state import SessionMemory, VramState
from scheduler.vram.stimuli import (
    IDLE_NS,
    AllocationRequested,
    DeviceConfigured,
    Expected,
    Freed,
    Holds,
    PriorityChanged,
    SessionClosed,
    SessionOpened,
    Stimulus,
    SwapFailed,
    SwapLost,
    SwappedIn,
    SwappedOut,
    Tick,
)
from scheduler.vram.victims import coldest, hottest

__all__ = [
    "Vram", "VramState", "SessionMemory", "Stimulus", "DeviceConfigured", "SessionOpened", "SessionClosed", "AllocationRequested", "Holds",
    "Freed", "SwappedOut", "SwapFailed", "SwappedIn", "SwapLost", "Expected", "Tick", "PriorityChanged", "IDLE_NS",
    "Decision", "Allow", "Await", "Refuse", "SwapOut", "SwapIn", "MemoryReady",
    "PERCENT_MAX", "effective_percent", "schedulable_bytes", "QUOTA_EXCEEDED", "DEVICE_FULL", "SESSION_UNKNOWN", "Verdict", "check_quota",
    "coldest", "hottest",
]  # fmt: skip
