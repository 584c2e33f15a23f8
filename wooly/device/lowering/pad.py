"""Padding by reflection and replication, and its gradient: strips copied (or added back) one dimension at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta

__all__: list[str] = []

_REFLECT: Final = "reflect"
_REPLICATE: Final = "replicate"
Strip = tuple[Meta, Meta]


def _strips(x: Meta, out: Meta, dim: int, before: int, after: int, mode: str) -> list[Strip]:
    """Pairs (part of the padded tensor, what of the unpadded one it repeats)."""
    n = x.shape[dim]
    cut, drop = max(-before, 0), max(-after, 0)
    before, after = max(before, 0), max(after, 0)
    kept = n - cut - drop
    pairs: list[Strip] = [(out.narrow(dim, before, kept), x.narrow(dim, cut, kept))]
    for size, place, nearest, away in ((before, 0, 0, 1), (after, before + kept, n - 1, -1)):
        if not size:
            continue
        target = out.narrow(dim, place, size)
        if mode == _REPLICATE:
            edge = x.narrow(dim, nearest, 1)
            pairs.append((target, edge.expand(target.shape)))
        else:  # the strip next to the edge, without the edge itself, backwards
            start = nearest + away if away < 0 else nearest + size
            pairs.append((target, x.narrow(dim, start, size, -1)))
    return pairs


def _padded(t: Trace, x: Meta, padding: Sequence[int], mode: str) -> Meta:
    for i in range(len(padding) // 2):
        before, after = padding[2 * i], padding[2 * i + 1]
        if before == after == 0:
            continue
        dim = x.ndim - 1 - i
        out = t.temp(x.dtype, (*x.shape[:dim], x.shape[dim] + before + after, *x.shape[dim + 1 :]))
        for target, source in _strips(x, out, dim, before, after, mode):
            t.store(target, source)
        x = out
    return x


def _unpadded(t: Trace, dy: Meta, x: Meta, padding: Sequence[int], mode: str) -> Meta:
    wide = t.acc(dy)
    for i in reversed(range(len(padding) // 2)):
        before, after = padding[2 * i], padding[2 * i + 1]
        if before == after == 0:
            continue
        dim = x.ndim - 1 - i
        out = t.full((*wide.shape[:dim], wide.shape[dim] - before - after, *wide.shape[dim + 1 :]), 0, wide.dtype)
        for from_padded, into in _strips(out, wide, dim, before, after, mode):
            if mode == _REPLICATE and into.strides[dim] == 0 and from_padded.shape[dim] > 1:
                into, from_padded = into.narrow(dim, 0, 1), t.reduce("sum", from_padded, [dim], True)
            t.emit("add", [into], [into, from_padded])
        wide = out
    return wide


for _rank in (1, 2, 3):
    lowers(f"aten::reflection_pad{_rank}d")(lambda t, x, padding: _padded(t, x, padding, _REFLECT))
    lowers(f"aten::replication_pad{_rank}d")(lambda t, x, padding: _padded(t, x, padding, _REPLICATE))
    lowers(f"aten::reflection_pad{_rank}d_backward")(lambda t, dy, x, padding: _unpadded(t, dy, x, padding, _REFLECT))
    lowers(f"aten::replication_pad{_rank}d_backward")(lambda t, dy, x, padding: _unpadded(t, dy, x, padding, _REPLICATE))
