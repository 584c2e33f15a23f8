"""Choice of a victim's buffers to swap out when part of its memory is enough. Pure: sizes and times in, handles out."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["coldest", "hottest"]


def coldest(buffers: Iterable[tuple[int, int, int]], want_bytes: int) -> list[int]:
    """Handles to give up so that at least ``want_bytes`` come free (all of them when that is less), from (handle, nbytes, used_ns).

    Those unused for longest go first, the larger first among equals; one that turns out not to be needed stays, and of these the one
    used last. So of a victim goes what it misses last, and hardly more than was asked for.
    """
    order = sorted(((used_ns, -nbytes, handle) for handle, nbytes, used_ns in buffers if nbytes), key=lambda b: b)
    chosen: list[tuple[int, int]] = []
    got = 0
    for _, negative, handle in order:
        if got >= want_bytes:
            break
        chosen.append((handle, -negative))
        got -= negative
    kept: set[int] = set()
    for handle, nbytes in reversed(chosen):
        if got - nbytes >= want_bytes:
            got -= nbytes
            kept.add(handle)
    return [handle for handle, _ in chosen if handle not in kept]


def hottest(buffers: Iterable[tuple[int, int, int]], room_bytes: int) -> list[int]:
    """Handles to bring back into ``room_bytes`` ahead of need, from (handle, nbytes, used_ns): those used last first, as many as fit."""
    chosen = []
    for _, nbytes, handle in sorted((-used_ns, nbytes, handle) for handle, nbytes, used_ns in buffers):
        if nbytes <= room_bytes:
            chosen.append(handle)
            room_bytes -= nbytes
    return chosen
