"""Device memory in torch.cuda's terms: how much, and its history (what was allocated and freed, when, and at which lines).

There is no caching allocator: reserved equals allocated, one pool, nothing is ever split or retried. The history is recorded by other
methods of the first device's buffers, so that a process that records none pays nothing.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from bus_schemas.session import DeviceInfo, SessionOpened
from wooly.device.backend import HANDLE_SHIFT
from wooly.device.face.api import Face
from wooly.device.tensors import HEAP

__all__ = ["stats", "reset_peak", "reset_accumulated", "set_fraction", "fraction", "mem_get_info", "device_of", "bindings"]

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


_FRAMES_MAX: Final = 64
_SMALL_BYTES: Final = 1 << 20
"""What torch's allocator takes from its pool of small blocks."""
_OURS: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
"""The folder of the package wooly, whose frames are left out."""
_Buf: Final[Any] = HEAP.Buf
_ALWAYS: Final = (_Buf.__init__, _Buf.__del__)

Frames = list[dict[str, Any]]


class _History:
    """``live``: size and frames of each buffer that was made while this recorded, by address. ``traced``: events, the oldest first;
    ``None``: only what is live is recorded. ``skipped``: actions that are not."""

    def __init__(self) -> None:
        self.live: dict[int, tuple[int, Frames]] = {}
        self.traced: deque[dict[str, Any]] | None = None
        self.skipped: frozenset[str] = frozenset()
        self.enabled = False
        atexit.register(self.end)  # buffers that die with the interpreter find none of its modules

    def begin(self, events_max: int, contexts: Sequence[str], skipped: Sequence[str], *, clear: bool) -> None:
        """Record from now on, at most ``events_max`` events (0: none). ``contexts``: whether ``alloc`` and ``free`` events have frames."""
        if clear or not self.enabled:
            self.live, self.traced = {}, None
        self.traced = deque(self.traced or (), maxlen=min(events_max, sys.maxsize)) if events_max else None
        self.skipped, self.enabled = frozenset(skipped), True
        always_init, always_del = _ALWAYS

        def init(buffer: Any, handle: int, nbytes: int) -> None:
            always_init(buffer, handle, nbytes)
            frames = _frames() if "alloc" in contexts else []
            self.live[handle << HANDLE_SHIFT] = nbytes, frames
            self._note("alloc", handle << HANDLE_SHIFT, nbytes, frames)

        def die(buffer: Any) -> None:
            always_del(buffer)
            frames = _frames() if "free" in contexts else []
            address = buffer.handle << HANDLE_SHIFT
            if self.live.pop(address, None) is not None:
                self._note("free_requested", address, buffer.nbytes, frames)
                self._note("free_completed", address, buffer.nbytes, frames)

        _set(init, die)

    def end(self) -> None:
        """Record no more; what was recorded stays."""
        self.enabled = False
        _set(*_ALWAYS)

    def _note(self, action: str, address: int, nbytes: int, frames: Frames) -> None:
        if self.traced is not None and action not in self.skipped:
            now_us = time.time_ns() // 1000
            self.traced.append({"action": action, "addr": address, "size": nbytes, "stream": 0, "time_us": now_us, "frames": frames})

    def snapshot(self) -> dict[str, Any]:
        """What ``torch.cuda.memory._snapshot`` gives: each live buffer is a segment with one block."""
        segments = [_segment(address, *found) for address, found in sorted(self.live.items())]
        return {"segments": segments, "device_traces": [list(self.traced or ())], "allocator_settings": {}, "external_annotations": []}


def _segment(address: int, nbytes: int, frames: Frames) -> dict[str, Any]:
    block = {"address": address, "size": nbytes, "requested_size": nbytes, "state": "active_allocated", "frames": frames}
    return {
        "device": 0,
        "address": address,
        "total_size": nbytes,
        "allocated_size": nbytes,
        "active_size": nbytes,
        "requested_size": nbytes,
        "stream": 0,
        "segment_type": "small" if nbytes <= _SMALL_BYTES else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": [block],
    }


def _set(init: Callable[..., None], die: Callable[..., None]) -> None:
    _Buf.__init__, _Buf.__del__ = init, die  # of every buffer from now on


def _frames() -> Frames:
    """The innermost first, without ours."""
    found: Frames = []
    frame = sys._getframe(2)
    while frame is not None and len(found) < _FRAMES_MAX:
        code = frame.f_code
        if not code.co_filename.startswith(_OURS):
            found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return found


def bindings() -> dict[str, Callable[..., Any]]:
    """The functions of ``torch._C`` that torch.cuda.memory calls."""
    history = _History()

    def record(enabled: str | None, context: str | None, stacks: str, max_entries: int, clear: bool, *rest: Any) -> None:
        if enabled is None:
            history.end()
            return
        if enabled not in ("state", "all"):
            raise RuntimeError(f"expected state to be 'state', 'all', or None, not {enabled!r}")
        if context not in (None, "state", "alloc", "all"):
            raise RuntimeError(f"expected context to be 'state', 'alloc', 'all', or None, not {context!r}")
        contexts = {None: (), "state": ("alloc",), "alloc": ("alloc",), "all": ("alloc", "free")}[context]
        history.begin(
            max_entries if enabled == "all" else 0, contexts, rest[-1] if rest and isinstance(rest[-1], list) else (), clear=clear
        )

    def record_legacy(enabled: bool, context: bool, max_entries: int, traced_context: bool, cpp: bool, clear: bool, *rest: Any) -> None:
        record("all" if enabled else None, "all" if context or traced_context else None, "all", max_entries, clear, *rest)

    return {
        "_cuda_record_memory_history": record,
        "_cuda_record_memory_history_legacy": record_legacy,
        "_cuda_memorySnapshot": lambda pool_id=None, include_traces=True: history.snapshot(),
        "_cuda_isHistoryEnabled": lambda: history.enabled,
    }
