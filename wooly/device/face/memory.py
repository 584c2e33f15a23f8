"""Device memory in torch.cuda's terms.

There is no caching allocator: reserved equals allocated, one pool, nothing is ever split or retried.
"""

from __future__ import annotations

from typing import Any, Final

from bus_schemas.session import DeviceInfo, SessionOpened
from wooly.device.face.api import Face

__all__ = ["stats", "reset_peak", "reset_accumulated", "set_fraction", "fraction", "mem_get_info", "device_of"]

_POOLS: Final = ("all", "large_pool", "small_pool")
_BYTES: Final = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")
_COUNTS: Final = ("allocation", "active", "segment")
_UNUSED: Final = ("inactive_split", "inactive_split_bytes")
_SINGLE: Final = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size")

_fractions: Final[dict[int, float]] = {}


def stats(face: Face, index: int) -> dict[str, Any]:
    """The nested dictionary that torch.cuda.memory_stats flattens. Of allocations only refusals are counted."""
    none = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    memory = face.apis[index].heap.memory
    used = {"current": memory.allocated, "peak": max(memory.peak, memory.allocated), "allocated": memory.allocated, "freed": 0}
    result: dict[str, Any] = {}
    for name in _BYTES:
        result[name] = {pool: dict(used if pool != "small_pool" else none) for pool in _POOLS}
    for name in (*_COUNTS, *_UNUSED):
        result[name] = {pool: dict(none) for pool in _POOLS}
    result["oversize_allocations"] = dict(none)
    result["oversize_segments"] = dict(none)
    result.update(dict.fromkeys(_SINGLE, 0))
    result["num_ooms"] = memory.refusals
    return result


def reset_peak(face: Face, index: int) -> None:
    face.apis[index].heap.memory.reset_peak()


def reset_accumulated(index: int) -> None:
    """Totals over the process are not kept, so there is nothing to forget."""


def set_fraction(face: Face, fraction: float, index: int) -> None:
    """Allow this process a share of what it could have: allocating more is out of memory."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _, total = mem_get_info(face, index)
    _fractions[index] = fraction
    face.apis[index].heap.memory.limit(max(int(total * fraction), 1))


def fraction(index: int) -> float:
    return _fractions.get(index, 1.0)


def mem_get_info(face: Face, index: int) -> tuple[int, int]:
    """(free, total) bytes: of the task's quota when it has one, which other tasks cannot take; else of the device, after everything that
    was recorded is done there, with what other tasks hold."""
    api = face.apis[index]
    info = api.info()
    if info.quota_bytes:
        return max(info.quota_bytes - api.heap.memory.allocated, 0), info.quota_bytes
    device = device_of(info)
    if device is None:
        return 0, 0
    return min(api.free_bytes(), device.vram_bytes), device.vram_bytes


def device_of(info: SessionOpened) -> DeviceInfo | None:
    """The device a session is on; None when the node did not say."""
    devices = info.node.devices if info.node is not None else ()
    wanted = info.gpus[0] if info.gpus else 0
    return next((device for device in devices if device.index == wanted), None)
