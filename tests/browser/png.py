"""Small PNGs of screenshots: a palette of the commonest colours, each pixel the nearest of them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["palette_png"]

Pixels = npt.NDArray[np.uint8]
_LEAST = 6
"""Pixels that a colour of its own needs."""


def palette_png(pixels: Pixels, colours: int = 96) -> bytes:
    """``pixels``: height x width x RGB. At most 256 ``colours``; colours closer than a 32nd of the range count as one."""
    height, width, _ = pixels.shape
    buckets = (pixels >> 3).astype(np.uint32) @ np.array([1 << 10, 1 << 5, 1], np.uint32)
    present, inverse, counts = np.unique(buckets.ravel(), return_inverse=True, return_counts=True)
    means = np.stack([np.bincount(inverse, pixels[..., channel].ravel()) for channel in range(3)], axis=1) / counts[:, None]
    chosen = _chosen(means, counts, colours)
    nearest = np.empty(len(present), np.uint8)
    for start in range(0, len(present), 1024):
        part = means[start : start + 1024]
        nearest[start : start + 1024] = ((part[:, None, :] - means[chosen][None]) ** 2).sum(axis=2).argmin(axis=1)
    indexed = nearest[inverse].reshape(height, width)
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = indexed
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    palette = means[chosen].round().astype(np.uint8).tobytes()
    chunks: list[tuple[bytes, Any]] = [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chosen(means: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], colours: int) -> list[int]:
    """Half of them the commonest; the others each time the one farthest from all chosen, so that a small red dot stays red."""
    chosen = [int(one) for one in np.argsort(-counts, kind="stable")[: colours // 2]]
    distance = np.full(len(means), np.inf)
    for one in chosen:
        distance = np.minimum(distance, ((means - means[one]) ** 2).sum(axis=1))
    distance[counts < _LEAST] = 0
    while len(chosen) < min(colours, len(means)) and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((means - means[chosen[-1]]) ** 2).sum(axis=1))
    return chosen


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
