"""Quota and overcommit: who may hold memory, and what a person reads when refused."""

from __future__ import annotations

import pytest

from scheduler.errors import StimulusError
from scheduler.vram import (
    AllocationRequested,
    Allow,
    DeviceConfigured,
    Freed,
    Refuse,
    SessionClosed,
    SessionOpened,
    Vram,
    check_quota,
    effective_percent,
    schedulable_bytes,
)

MIB = 1 << 20


def test_the_refusal_names_quota_use_and_request() -> None:
    verdict = check_quota(quota_bytes=512 * MIB, use_bytes=500 * MIB, request_bytes=12 * MIB + 1, free_bytes=1 << 40)
    assert verdict.reason == "quota_exceeded"
    assert "request for 12.00 MiB" in verdict.text
    assert "quota of 512.00 MiB" in verdict.text
    assert "500.00 MiB is in use" in verdict.text


@pytest.mark.parametrize(
    ("quota", "use", "nbytes", "free", "reason"),
    [
        (100, 90, 10, 1000, ""),
        (100, 90, 11, 1000, "quota_exceeded"),
        (0, 90, 11, 1000, ""),
        (0, 90, 1001, 1000, "device_full"),
        (100, 0, 50, 49, "device_full"),
        (100, 0, 50, -5, "device_full"),
        (100, 100, 0, 0, ""),
    ],
)
def test_quota_first_then_the_device(quota: int, use: int, nbytes: int, free: int, reason: str) -> None:
    verdict = check_quota(quota, use, nbytes, free)
    assert verdict.reason == reason and bool(verdict.text) == bool(reason)
    assert (verdict.quota_bytes, verdict.use_bytes, verdict.request_bytes, verdict.free_bytes) == (quota, use, nbytes, free)


@pytest.mark.parametrize(
    ("node", "stored", "default", "percent"),
    [(0, 50, 70, 0), (None, 50, 70, 50), (None, 0, 70, 0), (None, None, 70, 70), (1000, 1, 1, 1000)],
)
def test_overcommit_precedence(node: int | None, stored: int | None, default: int, percent: int) -> None:
    assert effective_percent(node, stored, default) == percent


def test_schedulable_is_exact_for_large_devices() -> None:
    assert schedulable_bytes(80 * (1 << 30) + 1, 33) == (80 * (1 << 30) + 1) * 133 // 100


def test_sessions_share_a_device() -> None:
    vram = Vram()
    vram.on(DeviceConfigured(0, 100))
    vram.on(SessionOpened(1, "a", 60))
    vram.on(SessionOpened(2, "b", 0))
    assert vram.on(AllocationRequested(3, "a", 60)) == [Allow("a", 60)]
    (refused,) = vram.on(AllocationRequested(4, "b", 41))
    assert isinstance(refused, Refuse)
    assert refused.verdict.reason == "device_full"
    assert vram.on(AllocationRequested(5, "b", 40)) == [Allow("b", 40)]
    vram.on(Freed(6, "a", 20))
    assert vram.on(AllocationRequested(7, "b", 20)) == [Allow("b", 20)]
    vram.on(SessionClosed(8, "a"))
    assert vram.state.free_bytes == 40
    (unknown,) = vram.on(AllocationRequested(9, "a", 1))
    assert isinstance(unknown, Refuse)
    assert unknown.verdict.reason == "session_unknown"


def test_freeing_more_than_held_is_the_shells_bug() -> None:
    vram = Vram()
    vram.on(DeviceConfigured(0, 100))
    vram.on(SessionOpened(1, "a", 60, use_bytes=5))
    with pytest.raises(StimulusError, match="holds 5 bytes"):
        vram.on(Freed(2, "a", 6))
    assert vram.state.sessions["a"].held == vram.state.used_bytes == 5


@pytest.mark.parametrize(
    ("nbytes", "attached", "allowed"), [(60, 0, True), (61, 0, False), (10, 50, True), (10, 51, False), (0, 60, True), (0, 61, False)]
)
def test_bytes_on_shared_blocks_count_for_the_quota(nbytes: int, attached: int, allowed: bool) -> None:
    """Of a quota of 60 bytes: new buffers and those on blocks that others have as well, in full."""
    vram = Vram()
    vram.on(DeviceConfigured(0, 1000))
    vram.on(SessionOpened(1, "a", 60))
    (decision,) = vram.on(AllocationRequested(2, "a", nbytes, attached_bytes=attached))
    if allowed:
        assert decision == Allow("a", nbytes)
    else:
        assert isinstance(decision, Refuse) and decision.verdict.reason == "quota_exceeded"
        assert decision.verdict.request_bytes == nbytes + attached


@pytest.mark.parametrize(("copied", "allowed"), [(40, True), (41, False)])
def test_private_copies_count_for_the_device_and_not_for_the_quota(copied: int, allowed: bool) -> None:
    vram = Vram()
    vram.on(DeviceConfigured(0, 100))
    vram.on(SessionOpened(1, "a", 60))
    (decision,) = vram.on(AllocationRequested(2, "a", 60, copied_bytes=copied))
    if allowed:
        assert decision == Allow("a", 60 + copied)
    else:
        assert isinstance(decision, Refuse) and decision.verdict.reason == "device_full"
