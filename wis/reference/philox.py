"""Counter-based random numbers: Philox 4x32 with 10 rounds, and the distributions computed from its words.

Key: the seed's low and high 32 bits. Counter: the low and high 32 bits of a 64-bit number, then two zeros.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wis.dtypes import DType
from wis.ops import Dist
from wis.reference.access import Array

__all__ = ["draw", "words"]

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

_M0: Final = np.uint64(0xD2511F53)
_M1: Final = np.uint64(0xCD9E8D57)
_W0: Final = 0x9E3779B9
_W1: Final = 0xBB67AE85
_MASK: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)
_BLOCK: Final = 1 << 13
_SINGLE: Final = frozenset({DType.I32, DType.F32, DType.F16, DType.BF16})  # one word an element, but for normal


def words(seed: int, counter: U64) -> U32:
    """The four 32-bit words of each counter: shape [..., 4]."""
    c0, c1 = counter & _MASK, counter >> _HALF
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0), p1 & _MASK, (p0 >> _HALF) ^ c3 ^ np.uint64(k1), p0 & _MASK
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def _stream(seed: int, offset: int, n_words: int) -> U32:
    n_counters = -(-n_words // 4)
    counter = np.arange(n_counters, dtype=np.uint64) + np.uint64(offset & 0xFFFFFFFFFFFFFFFF)
    return words(seed, counter).reshape(-1)[:n_words]


def _pairs(seed: int, offset: int, n: int) -> U64:
    """Element i: words 2 * (i % 2) and the next of counter offset + i // 2, the first as the low half."""
    both = _stream(seed, offset, 2 * n).astype(np.uint64).reshape(n, 2)
    return np.asarray(both[:, 0] | both[:, 1] << _HALF)


def draw(dist: Dist, dtype: DType, seed: int, offset: int, n: int) -> Array:
    """``n`` elements in row-major order; f16 and bf16 as f32: values that those types hold (uniform) or still to be rounded (normal)."""
    if n > _BLOCK:  # in blocks that stay in a core's cache; _BLOCK is a multiple of both numbers of elements a counter
        each = 4 if dtype in _SINGLE and dist is not Dist.NORMAL else 2
        parts = [draw(dist, dtype, seed, offset + start // each, min(_BLOCK, n - start)) for start in range(0, n, _BLOCK)]
        return np.concatenate(parts)
    if dist is Dist.BITS:
        if dtype is DType.I64:
            return (_pairs(seed, offset, n) >> np.uint64(1)).astype(np.int64)
        return (_stream(seed, offset, n) >> np.uint32(1)).astype(np.int32)
    if dist is Dist.UNIFORM:
        if dtype is DType.F64:
            return np.asarray((_pairs(seed, offset, n) >> np.uint64(11)).astype(np.float64) * 2.0**-53)
        uniform = (_stream(seed, offset, n) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
        # Rounding down keeps the result below 1: drop the bits that the narrower significand lacks.
        drop = {DType.F16: 13, DType.BF16: 16}.get(dtype, 0)
        return np.asarray((uniform.view(np.uint32) >> np.uint32(drop) << np.uint32(drop)).view(np.float32))
    pairs = _pairs(seed, offset, n)
    first, second = (pairs & _MASK).astype(np.float64), (pairs >> _HALF).astype(np.float64)
    if dtype is DType.F64:
        u1, u2 = first * 2.0**-32, second * 2.0**-32
    else:
        u1, u2 = np.floor(first / 256) * 2.0**-24, np.floor(second / 256) * 2.0**-24
    normal = np.sqrt(-2.0 * np.log(1.0 - u1)) * np.cos(2.0 * np.pi * u2)
    return np.asarray(normal if dtype is DType.F64 else normal.astype(np.float32))
