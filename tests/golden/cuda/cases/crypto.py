"""Ciphers and digests; the answers come from hashlib, zlib or a plain form that is checked with a published vector."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.draw import Rng, integers

_M32, _M64 = 2**32 - 1, 2**64 - 1


@case("crypto/sha256", grid=2, block=32)
def sha256(rng: Rng) -> Given:
    n, lengths = 40, integers(rng, np.int32, 40, low=0, high=56)
    lengths[:2] = 0, 55
    data = integers(rng, np.uint8, n, 64)
    digests = b"".join(hashlib.sha256(data[i, : lengths[i]].tobytes()).digest() for i in range(n))
    answer = np.frombuffer(digests, np.uint32).reshape(n, 8)
    return Given((data, lengths, np.int32(64), np.zeros_like(answer), np.int32(n)), {3: answer})


def _chacha_block(key: list[int], counter: int, nonce: list[int]) -> list[int]:
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *key, counter, *nonce]
    x = list(start)
    lanes = [(i, 4 + i, 8 + i, 12 + i) for i in range(4)] + [(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)]
    for _ in range(10):
        for a, b, c, d in lanes:
            for p, q, r, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[p] = x[p] + x[q] & _M32
                v = x[r] ^ x[p]
                x[r] = (v << turn | v >> 32 - turn) & _M32
    return [u + v & _M32 for u, v in zip(x, start, strict=True)]


@case("crypto/chacha20", grid=1, block=32)
def chacha20(rng: Rng) -> Given:
    standard = _chacha_block(list(np.arange(32, dtype=np.uint8).view(np.uint32).tolist()), 1, [0x09000000, 0x4A000000, 0])
    assert standard[:4] == [0xE4E7F110, 0x15593BD1, 0x1FDD0F50, 0xC47120A3]
    words, key, nonce, counter = 390, integers(rng, np.uint32, 8), integers(rng, np.uint32, 3), 2**32 - 5
    text = integers(rng, np.uint32, words)
    blocks = [_chacha_block(key.tolist(), counter + t & _M32, nonce.tolist()) for t in range(-(-words // 16))]
    stream = np.array(blocks, np.uint32).ravel()[:words]
    return Given((text, np.zeros_like(text), key, nonce.tobytes(), np.uint32(counter), np.int32(words)), {1: text ^ stream})


def _times(a: int, b: int) -> int:
    p = 0
    for i in range(8):
        p ^= (a << i) * (b >> i & 1)
    for i in range(14, 7, -1):
        p ^= (0x11B << i - 8) * (p >> i & 1)
    return p


def _box() -> list[int]:
    inverse = [next((w for w in range(256) if _times(v, w) == 1), 0) for v in range(256)]

    def turned(v: int, k: int) -> int:
        return (v << k | v >> 8 - k) & 255

    return [v ^ turned(v, 1) ^ turned(v, 2) ^ turned(v, 3) ^ turned(v, 4) ^ 0x63 for v in inverse]


def _round_keys(key: bytes, box: list[int]) -> Array:
    words, constant = [list(key[i : i + 4]) for i in range(0, 16, 4)], 1
    for i in range(4, 44):
        w = words[-1]
        if i % 4 == 0:
            w = [box[v] for v in w[1:] + w[:1]]
            w[0] ^= constant
            constant = _times(constant, 2)
        words.append([a ^ b for a, b in zip(w, words[i - 4], strict=True)])
    return np.array(words, np.uint8).reshape(11, 16)


def _encrypted(state: Array, keys: Array, box: list[int]) -> Array:
    s = (state ^ keys[0]).reshape(4, 4).T.astype(int)  # rows by columns
    for r in range(1, 11):
        s = np.stack([np.roll(np.take(box, row), -i) for i, row in enumerate(s)])
        if r < 10:
            double = np.vectorize(lambda v: _times(v, 2))(s)
            s = double ^ np.roll(double ^ s, -1, 0) ^ np.roll(s, -2, 0) ^ np.roll(s, -3, 0)
        s = s ^ keys[r].reshape(4, 4).T
    return s.T.astype(np.uint8).ravel()


@case("crypto/byte_rounds", grid=2, block=(16, 4))
def byte_rounds(rng: Rng) -> Given:
    box, key = _box(), bytes(range(16))
    keys, x = _round_keys(key, box), integers(rng, np.uint8, 8, 16)
    x[0] = np.frombuffer(bytes.fromhex("00112233445566778899aabbccddeeff"), np.uint8)
    answer = np.stack([_encrypted(v, keys, box) for v in x])
    assert answer[0].tobytes().hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"
    return Given((x, keys, np.zeros_like(x), np.int32(10)), {2: answer})


def _siphash(data: bytes, k0: int, k1: int) -> int:
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def left(x: int, n: int) -> int:
        return (x << n | x >> 64 - n) & _M64

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0], v[2] = v[0] + v[1] & _M64, v[2] + v[3] & _M64
            v[1], v[3] = left(v[1], 13) ^ v[0], left(v[3], 16) ^ v[2]
            v[0] = left(v[0], 32)
            v[2], v[0] = v[2] + v[1] & _M64, v[0] + v[3] & _M64
            v[1], v[3] = left(v[1], 17) ^ v[2], left(v[3], 21) ^ v[0]
            v[2] = left(v[2], 32)

    padded = data + b"\0" * (7 - len(data) % 8) + bytes([len(data) & 255])
    for i in range(0, len(padded), 8):
        m = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= m
        rounds(2)
        v[0] ^= m
    v[2] ^= 255
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


@case("crypto/siphash", grid=2, block=32)
def siphash(rng: Rng) -> Given:
    key = np.arange(16, dtype=np.uint8).view(np.uint64)
    assert _siphash(bytes(range(15)), int(key[0]), int(key[1])) == 0xA129CA6149BE45E5
    lengths = rng.integers(0, 30, 60)
    begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = integers(rng, np.uint8, int(begin[-1]))
    answer = [_siphash(data[begin[i] : begin[i + 1]].tobytes(), int(key[0]), int(key[1])) for i in range(60)]
    return Given((data, begin, key.tobytes(), np.zeros(60, np.uint64), np.int32(60)), {3: np.array(answer, np.uint64)})


@case("crypto/crc32", grid=2, block=64)
def crc32(rng: Rng) -> Given:
    rows = integers(rng, np.uint8, 100, 37)
    answer = np.array([zlib.crc32(r.tobytes()) for r in rows], np.uint32)
    return Given((rows, np.int32(37), np.zeros(100, np.uint32), np.int32(100)), {2: answer})


@case("crypto/md5", grid=2, block=32)
def md5(rng: Rng) -> Given:
    data = integers(rng, np.uint32, 50, 2)
    digests = b"".join(hashlib.md5(r.tobytes(), usedforsecurity=False).digest() for r in data)
    return Given((data, np.zeros((50, 4), np.uint32), np.int32(50)), {1: np.frombuffer(digests, np.uint32).reshape(50, 4)})


@case("crypto/xtea", grid=2, block=32)
def xtea(rng: Rng) -> Given:
    data, key = integers(rng, np.uint32, 45, 2), integers(rng, np.uint32, 4)
    a, b, total = data[:, 0].copy(), data[:, 1].copy(), 0
    four, five = np.uint32(4), np.uint32(5)
    for _ in range(32):
        a += (((b << four) ^ (b >> five)) + b) ^ np.uint32(total + int(key[total & 3]) & _M32)
        total = total + 0x9E3779B9 & _M32
        b += (((a << four) ^ (a >> five)) + a) ^ np.uint32(total + int(key[total >> 11 & 3]) & _M32)
    args = (data, np.zeros_like(data), np.zeros_like(data), key.tobytes(), np.int32(45))
    return Given(args, {1: np.stack([a, b], 1), 2: data})
