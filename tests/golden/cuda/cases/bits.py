"""Bit tricks, each written out bit by bit or in whole numbers here."""

from __future__ import annotations

import numpy as np

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.draw import Rng, integers

_M32, _M64 = 2**32 - 1, 2**64 - 1


def signed(value: int, bits: int = 32) -> int:
    value &= 2**bits - 1
    return value - 2**bits if value >> bits - 1 else value


def u32(rows: list[list[int]]) -> Array:
    return np.array([[v & _M32 for v in row] for row in rows], np.uint32)


def _lead(bits: str) -> int:
    """Zeros before the first one."""
    return len(bits) - len(bits.lstrip("0"))


def _first(bits: str) -> int:
    """Place of the lowest one, from 1; 0 when there is none."""
    return bits[::-1].find("1") + 1


def _clamp(w: int) -> int:
    return max(-(2**31), min(2**31 - 1, w))


@case("bits/counts", grid=2, block=64)
def counts(rng: Rng) -> Given:
    v = integers(rng, np.uint64, 100) >> integers(rng, np.uint64, 100, low=0, high=64)
    v[:3] = 0, _M64, 1 << 32
    rows, turned = [], []
    for x in v.tolist():
        lo = x & _M32
        text, low_text = f"{x:064b}", f"{lo:032b}"
        brev, brevll = int(low_text[::-1], 2), int(text[::-1], 2)
        found = [low_text.count("1"), text.count("1"), _lead(low_text), _lead(text), _first(low_text), _first(text)]
        rows.append([*found, brev, brevll >> 32])
        turned.append(brevll)
    answer = u32(rows).view(np.int32)
    return Given((v, np.zeros_like(answer), np.zeros(100, np.uint64), np.int32(100)), {1: answer, 2: np.array(turned, np.uint64)})


def _field(v: int, p: int, size: int, sign: bool) -> int:
    bit = (v >> min(p + size - 1, 31) & 1) if sign and size else 0
    return sum((v >> p + i & 1 if i < size and p + i < 32 else bit) << i for i in range(32))


def _insert(field: int, base: int, p: int, size: int) -> int:
    for i in range(size):
        if p + i < 32:
            base = base & ~(1 << p + i) | (field >> i & 1) << p + i
    return base


@case("bits/fields", grid=2, block=64)
def fields(rng: Rng) -> Given:
    n = 120
    v, p, size = integers(rng, np.uint32, n), integers(rng, np.uint32, n, low=0, high=40), integers(rng, np.uint32, n, low=0, high=40)
    v[:2] = 0, _M32
    rows = []
    for x, a, s in zip(v.tolist(), p.tolist(), size.tolist(), strict=True):
        logical, arithmetic = x >> (a & 31), signed(x) >> (a & 31)
        shown = arithmetic if arithmetic >= 0 else ~arithmetic
        places = [logical.bit_length() - 1, shown.bit_length() - 1]
        rows.append([_field(x, a, s, False), _field(x, a, s, True), _insert(x, 0xAAAAAAAA, a, s), *places])
    answer = u32(rows)
    return Given((v, p, size, np.zeros_like(answer), np.int32(n)), {3: answer})


@case("bits/permute_bytes", grid=2, block=64)
def permute_bytes(rng: Rng) -> Given:
    n = 100
    a, b, s = integers(rng, np.uint32, n), integers(rng, np.uint32, n), integers(rng, np.uint32, n)
    rows = []
    for x, y, c in zip(a.tolist(), b.tolist(), s.tolist(), strict=True):
        pool, k = (y << 32 | x).to_bytes(8, "little"), c & 3
        plain = bytes(pool[c >> 4 * i & 7] for i in range(4))
        copied = bytes((255 if v >> 7 else 0) if c >> 4 * i & 8 else v for i, v in enumerate(plain))
        chosen = [[k + i for i in range(4)], [(k - i) % 8 for i in range(4)], [k] * 4]
        chosen += [[max(i, k) for i in range(4)], [min(i, k) for i in range(4)], [2 * (k & 1) + (i & 1) for i in range(4)]]
        words = [plain, *(bytes(pool[i] for i in way) for way in chosen), copied]
        rows.append([int.from_bytes(w, "little") for w in words])
    answer = u32(rows)
    return Given((a, b, s, np.zeros_like(answer), np.int32(n)), {3: answer})


@case("bits/funnel_shifts", grid=2, block=64)
def funnel_shifts(rng: Rng) -> Given:
    n = 120
    lo, hi, by = integers(rng, np.uint32, n), integers(rng, np.uint32, n), integers(rng, np.uint32, n, low=0, high=70)
    rows, wide = [], []
    for a, b, s in zip(lo.tolist(), hi.tolist(), by.tolist(), strict=True):
        v, w, c = b << 32 | a, s % 32, min(s, 32)
        rows.append([v << w >> 32, v >> w, v << c >> 32, v >> c])
        wide.append([v << s % 64 & _M64, v >> s % 64, signed(v, 64) >> s % 64 & _M64])
    answer, longs = u32(rows), np.array(wide, np.uint64)
    return Given((lo, hi, by, np.zeros_like(answer), np.zeros_like(longs), np.int32(n)), {3: answer, 4: longs})


@case("bits/morton", grid=2, block=64)
def morton(rng: Rng) -> Given:
    p = integers(rng, np.uint16, 100, 4, low=0, high=1024)
    code = sum((p[:, k].astype(np.uint32) >> np.uint32(i) & np.uint32(1)) << np.uint32(3 * i + k) for i in range(10) for k in range(3))
    code = np.asarray(code, np.uint32)
    back = p.copy()
    back[:, 3] = [v.bit_count() for v in code.tolist()]
    return Given((p, np.zeros(100, np.uint32), np.zeros_like(p), np.int32(100)), {1: code ^ code >> np.uint32(1), 2: back})


@case("bits/logic3", grid=2, block=64)
def logic3(rng: Rng) -> Given:
    a, b, c = (integers(rng, np.uint32, 100) for _ in range(3))
    table = np.zeros(100, np.uint32)
    for i in range(32):
        place = (a >> np.uint32(i) & 1) * 4 + (b >> np.uint32(i) & 1) * 2 + (c >> np.uint32(i) & 1)
        table |= (np.uint32(0x1B) >> place.astype(np.uint32) & np.uint32(1)) << np.uint32(i)
    chosen = c ^ (a & (b ^ c))
    most = (a & b) | (a & c) | (b & c)
    answer = np.stack([chosen, most, a ^ b ^ c, table, ~(a | b | c)], 1).astype(np.uint32)
    return Given((a, b, c, np.zeros_like(answer), np.int32(100)), {3: answer})


@case("bits/saturating", grid=2, block=64)
def saturating(rng: Rng) -> Given:
    a, b = integers(rng, np.int32, 100), integers(rng, np.int32, 100)
    rows = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        u, v = x & _M32, y & _M32
        averages = [(x + y) >> 1, (x + y + 1) >> 1]
        products = [signed(x, 24) * signed(y, 24), (u & 0xFFFFFF) * (v & 0xFFFFFF)]
        rows.append([abs(x - y) + 5, abs(u - v) + 7, *averages, _clamp(x + y), _clamp(x - y), *products])
    answer = u32(rows).view(np.int32)
    return Given((a, b, np.zeros_like(answer), np.int32(100)), {2: answer})
