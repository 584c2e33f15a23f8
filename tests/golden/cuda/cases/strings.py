"""Bytes and text."""

from __future__ import annotations

import base64

import numpy as np

from tests.golden.cuda.case import Array, Given, case
from tests.golden.cuda.cases.draw import Rng, integers

_TEXT = "Übergröße, naïve café; 雨が降る — Ωμέγα 🐑🐏 wool and straw, the quick brown fox jumps over the lazy dog; 42 sheep. " * 3


def raw(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8).copy()


def _code_points(data: bytes) -> list[int]:
    out = []
    for i, c in enumerate(data):
        size = 1 if c < 0x80 else 2 if c >> 5 == 6 else 3 if c >> 4 == 14 else 4 if c >> 3 == 30 else 0
        try:
            out.append(-1 if c >> 6 == 2 else ord(data[i : i + size].decode()))
        except (UnicodeDecodeError, TypeError):
            out.append(0xFFFD)
    return out


@case("strings/utf8_decode", grid=5, block=128)
def utf8_decode(rng: Rng) -> Given:
    broken = [b"\xc0\xaf", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff\xfe", b"\xc3", b"\xf0\x9f\x90A", b"\xf8\x88\x80"]
    data = b"a".join([_TEXT.encode(), *broken, integers(rng, np.uint8, 60).tobytes(), b"\xe2\x82"])
    n = len(data)
    return Given((raw(data), np.zeros(n, np.int32), np.int32(n)), {1: np.array(_code_points(data), np.int32)})


@case("strings/base64_encode", grid=2, block=64)
def base64_encode(rng: Rng) -> Given:
    data = integers(rng, np.uint8, 331).tobytes()
    answer = raw(base64.b64encode(data))
    return Given((raw(data), np.zeros_like(answer), np.int32(331)), {1: answer})


@case("strings/base64_decode", grid=2, block=64)
def base64_decode(rng: Rng) -> Given:
    data = integers(rng, np.uint8, 300).tobytes()
    letters = raw(base64.b64encode(data))
    wrong = letters.copy()
    wrong[[5, 77, 201]] = [ord("="), ord(" "), 200]
    bits = np.array([b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".find(bytes([c])) & 63 for c in wrong], np.int64)
    words = bits.reshape(-1, 4) @ (64 ** np.arange(3, -1, -1))
    answer = np.stack([words >> 16, words >> 8, words], 1).astype(np.uint8)
    return Given((wrong, np.zeros(300, np.uint8), np.zeros(1, np.int32), np.int32(100)), {1: answer, 2: np.array([3], np.int32)})


def _distance(a: str, b: str) -> int:
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    table[:, 0], table[0] = range(len(a) + 1), range(len(b) + 1)
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (x != y))
    return int(table[-1, -1])


@case("strings/levenshtein", grid=2, block=48)
def levenshtein(rng: Rng) -> Given:
    words = ["kitten", "sitting", "", "saturday", "sunday", "flaw", "lawn", "warehouse", "greenhouse", "a", "intention", "execution"]
    begin = np.cumsum([0, *map(len, words)]).astype(np.int32)
    pairs = integers(rng, np.int32, 90, 2, low=0, high=len(words))
    answer = np.array([_distance(words[i], words[j]) for i, j in pairs], np.int32)
    return Given((raw("".join(words).encode()), begin, pairs, np.zeros(90, np.int32), np.int32(90)), {3: answer})


@case("strings/find_all", grid=4, block=128)
def find_all(rng: Rng) -> Given:
    text, needle = bytes(rng.choice(list(b"ab"), 490).tolist()), b"abaab"
    marks = np.zeros(490, np.uint8)
    marks[: 490 - 4] = [text[i : i + 5] == needle for i in range(490 - 4)]
    first = np.array([text.find(needle)], np.uint32)
    assert marks.any()
    args = (raw(text), np.int32(490), raw(needle), np.int32(5), np.zeros(490, np.uint8), np.array([2**32 - 1], np.uint32))
    return Given(args, {4: marks, 5: first})


@case("strings/run_length", grid=1, block=512)
def run_length(rng: Rng) -> Given:
    x = np.repeat(integers(rng, np.uint8, 200, low=0, high=4), rng.integers(1, 5, 200))[:460]
    heads = np.flatnonzero(np.concatenate([[True], x[1:] != x[:-1]]))
    runs = len(heads)
    bytes_, lengths = np.zeros(512, np.uint8), np.zeros(512, np.int32)
    bytes_[:runs], lengths[:runs] = x[heads], np.diff(np.append(heads, len(x)))
    args = (x, np.int32(len(x)), np.zeros(512, np.uint8), np.zeros(512, np.int32), np.zeros(1, np.int32))
    return Given(args, {2: bytes_, 3: lengths, 4: np.array([runs], np.int32)})


@case("strings/title_case", grid=3, block=128)
def title_case(rng: Rng) -> Given:
    text = b"the wOOL of SHEEP;and[goats]is spun:at`night{and}DAY@home 9lives x-ray" * 4
    return Given((raw(text), np.zeros(len(text), np.uint8), np.int32(len(text))), {1: raw(text.title())})


@case("strings/parse_decimals", grid=1, block=64)
def parse_decimals(rng: Rng) -> Given:
    most = 2**63 - 1
    texts = ["0", "-0", "7", "-42", "99999999999999999999999", "12a", "", "-", "--1"]
    texts += [str(v) for v in (most, most + 1, -most - 1, -most - 2)]
    texts += [str(v) for v in integers(rng, np.int64, 30)]
    values, good = [], []
    for text in texts:
        number = text.removeprefix("-").isdigit() and not text.startswith("--")
        good.append(number)
        values.append(max(-most - 1, min(most, int(text))) if number else 0)
    fields = raw("".join(t.rjust(24) for t in texts).encode())
    n = len(texts)
    args = (fields, np.int32(24), np.zeros(n, np.int64), np.zeros(n, np.bool_), np.int32(n))
    return Given(args, {2: np.array(values, np.int64), 3: np.array(good)})


@case("strings/lz_expand", grid=1, block=32)
def lz_expand(rng: Rng) -> Given:
    most, packed, begin, plain, lengths = 120, b"", [0], np.zeros((20, 120), np.uint8), np.zeros(20, np.int32)
    for row in range(20):
        text = bytearray()
        for _ in range(6):
            literal = integers(rng, np.uint8, int(rng.integers(1, 8))).tobytes()
            text += literal
            packed += bytes([len(literal) - 1]) + literal
            distance, count = int(rng.integers(1, len(text) + 1)), int(rng.integers(2, 12))
            packed += bytes([count + 126, distance])
            for _ in range(count):
                text.append(text[-distance])
        begin.append(len(packed))
        plain[row, : len(text)], lengths[row] = list(text), len(text)
    args = (raw(packed), np.array(begin, np.int32), np.zeros_like(plain), np.zeros(20, np.int32), np.int32(most), np.int32(20))
    return Given(args, {2: plain, 3: lengths})
