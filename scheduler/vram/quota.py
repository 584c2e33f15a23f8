"""May a session take this many more bytes? The quota first, then the device. Pure arithmetic over bytes."""

from __future__ import annotations

from typing import Final

import msgspec

QUOTA_EXCEEDED: Final = "quota_exceeded"
DEVICE_FULL: Final = "device_full"
SESSION_UNKNOWN: Final = "session_unknown"


class Verdict(msgspec.Struct, array_like=True, frozen=True):
    """``reason`` empty: allowed. ``quota_bytes`` 0: none but the device. ``text`` is for a person: names quota, use and request."""

    reason: str
    quota_bytes: int
    use_bytes: int
    request_bytes: int
    free_bytes: int
    text: str = ""


def check_quota(quota_bytes: int, use_bytes: int, request_bytes: int, free_bytes: int) -> Verdict:
    """Judge a request of a session that holds ``use_bytes`` of its ``quota_bytes`` (0: no quota), on a device with ``free_bytes`` free."""
    if min(quota_bytes, use_bytes, request_bytes) < 0:
        raise ValueError(f"bytes are not negative: quota {quota_bytes}, use {use_bytes}, request {request_bytes}")
    if quota_bytes and use_bytes + request_bytes > quota_bytes:
        text = (
            f"out of memory: the request for {_mib(request_bytes)} does not fit the task's quota of {_mib(quota_bytes)}, "
            f"of which {_mib(use_bytes)} is in use; raise REQUIRED_VRAM or free tensors"
        )
        return Verdict(QUOTA_EXCEEDED, quota_bytes, use_bytes, request_bytes, free_bytes, text)
    if request_bytes > free_bytes:
        return device_full(quota_bytes, use_bytes, request_bytes, free_bytes)
    return Verdict("", quota_bytes, use_bytes, request_bytes, free_bytes)


def device_full(quota_bytes: int, use_bytes: int, request_bytes: int, free_bytes: int, waited_ns: int = 0) -> Verdict:
    """The refusal of a request that the device has no room for, after its batch waited ``waited_ns`` for others."""
    quota = f" (quota {_mib(quota_bytes)})" if quota_bytes else ""
    waited = f" after waiting {waited_ns // 1_000_000_000} s for what other tasks hold" if waited_ns else ""
    text = (
        f"out of memory: the request for {_mib(request_bytes)} does not fit the device, of which {_mib(max(free_bytes, 0))} is free"
        f"{waited}; this task holds {_mib(use_bytes)}{quota}; free tensors or ask for another device"
    )
    return Verdict(DEVICE_FULL, quota_bytes, use_bytes, request_bytes, free_bytes, text)


def _mib(nbytes: int) -> str:
    """Bytes as MiB with two decimals, without floats."""
    hundredths = (nbytes * 100 + (1 << 19)) >> 20
    return f"{hundredths // 100}.{hundredths % 100:02d} MiB"
