"""Who may hold how much of one device's memory: quota, overcommit, and the core that answers requests. Pure."""

from scheduler.vram.core import (
    AllocationRequested,
    Allow,
    DeviceConfigured,
    Freed,
    Refuse,
    SessionClosed,
    SessionOpened,
    Stimulus,
    Vram,
    VramState,
)
from scheduler.vram.overcommit import PERCENT_MAX, effective_percent, schedulable_bytes
from scheduler.vram.quota import DEVICE_FULL, QUOTA_EXCEEDED, SESSION_UNKNOWN, Verdict, check_quota

__all__ = [
    "Vram", "VramState", "Stimulus", "AllocationRequested", "Freed", "SessionOpened", "SessionClosed", "DeviceConfigured",
    "Allow", "Refuse", "PERCENT_MAX", "effective_percent", "schedulable_bytes",
    "QUOTA_EXCEEDED", "DEVICE_FULL", "SESSION_UNKNOWN", "Verdict", "check_quota",
]  # fmt: skip
