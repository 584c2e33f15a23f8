"""``mma`` of every accepted type and shape beside plain matrices, whose elements are placed as the PTX manual places them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.ptx_snippets import evaluate, kernel_of, run, same
from wis.reference.numeric import fma

Array = npt.NDArray[Any]


def elements(kind: str, rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Random elements as numbers, and as unsigned words of their size."""
    if kind in ("s8", "u8"):
        values = rng.integers(-128, 128, shape) if kind == "s8" else rng.integers(0, 256, shape)
        return values.astype(np.int32), values.astype(np.uint8)
    if kind == "f64":
        return (found := rng.standard_normal(shape)), found.view(np.uint64)
    if kind == "f16":
        half = rng.standard_normal(shape).astype(np.float16)
        return half.astype(np.float32), half.view(np.uint16)
    words = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
    if kind == "bf16":
        return (words & np.uint32(0xFFFF0000)).view(np.float32), (words >> 16).astype(np.uint16)
    return (words & np.uint32(0xFFFFE000)).view(np.float32), words


def packed(lanes: list[list[Any]], dtype: Any) -> Array:
    """Registers of 32 bits, by lane."""
    return np.array(lanes, dtype).reshape(32, -1).view(np.uint32)


def product(a: Array, b: Array, c: Array) -> Array:
    for k in range(a.shape[1]):
        x, y = np.broadcast_arrays(a[:, k : k + 1], b[k : k + 1, :])
        c = c + x * y if c.dtype.kind == "i" else fma(x, y, c)
    return c


def warp(instruction: str, registers: tuple[int, int, int, int], operands: Array, kind: str = "b32") -> Array:
    """Run one ``mma`` in a warp. ``registers``: of D, A, B and C; ``operands``: of A, B and C, one row a lane. Gives D, one row a lane."""
    names, n_d, total = "dabc", registers[0], sum(registers[1:])
    size = 8 if kind == "f64" else 4
    groups = {name: [f"%{name}{i}" for i in range(n)] for name, n in zip(names, registers, strict=True)}
    given = [*groups["a"], *groups["b"], *groups["c"]]
    lists = ", ".join(
        "{" + ", ".join(groups[name]) + "}" if len(groups[name]) > 1 or kind != "f64" or name in "dc" else groups[name][0] for name in names
    )
    code = "\n".join(
        [
            ".visible .entry k(.param .u64 in, .param .u64 out) {",
            *(f".reg .{kind} {', '.join(group)};" for group in groups.values()),
            ".reg .b32 t, u; .reg .b64 from, to, at;",
            "ld.param.u64 from, [in]; ld.param.u64 to, [out]; mov.u32 t, %tid.x;",
            f"mul.wide.u32 at, t, {total * size}; add.u64 from, from, at; mul.wide.u32 at, t, {n_d * size}; add.u64 to, to, at;",
            *(f"ld.global.{kind} {name}, [from+{i * size}];" for i, name in enumerate(given)),
            f"{instruction} {lists};",
            *(f"st.global.{kind} [to+{i * size}], {name};" for i, name in enumerate(groups["d"])),
            "ret; }",
        ]
    )
    (_, out), trap = run(kernel_of(code), [operands, np.zeros(32 * n_d, np.uint64 if kind == "f64" else np.uint32)], block=32)
    assert trap is None
    return np.asarray(out).reshape(32, n_d)


@pytest.mark.parametrize(
    ("shape", "d_type", "a_type", "b_type"),
    [
        ("m16n8k8", "f32", "f16", "f16"), ("m16n8k16", "f32", "f16", "f16"), ("m16n8k8", "f16", "f16", "f16"),
        ("m16n8k16", "f16", "f16", "f16"), ("m16n8k8", "f32", "bf16", "bf16"), ("m16n8k16", "f32", "bf16", "bf16"),
        ("m16n8k4", "f32", "tf32", "tf32"), ("m16n8k8", "f32", "tf32", "tf32"), ("m16n8k16", "s32", "s8", "s8"),
        ("m16n8k32", "s32", "s8", "u8"), ("m16n8k32", "s32", "u8", "s8"), ("m16n8k16", "s32", "u8", "u8"),
    ],
)  # fmt: skip
def test_mma(shape: str, d_type: str, a_type: str, b_type: str) -> None:
    rng = np.random.default_rng(5)
    depth = int(shape.rpartition("k")[2])
    a, a_words = elements(a_type, rng, (16, depth))
    b, b_words = elements(b_type, rng, (depth, 8))
    c = rng.integers(-1000, 1000, (16, 8)).astype(np.int32) if d_type == "s32" else rng.standard_normal((16, 8)).astype(np.float32)
    each = 4 // a_words.itemsize  # elements in a register
    half = depth // 2 if depth > 4 * each else depth
    groups = [(lane >> 2, lane % 4) for lane in range(32)]
    a_lanes = [
        [a_words[g + 8 * (i // each % 2), t * each + i % each + half * (i // (2 * each))] for i in range(depth * 16 // 32)]
        for g, t in groups
    ]
    b_lanes = [[b_words[t * each + i % each + half * (i // each), g] for i in range(depth * 8 // 32)] for g, t in groups]
    if d_type == "f16":
        c = c.astype(np.float16).astype(np.float32)
    stored = {"f16": np.float16, "f32": np.float32, "s32": np.int32}[d_type]
    c_lanes = [[c[g + 8 * (i >> 1), 2 * t + (i & 1)] for i in range(4)] for g, t in groups]
    sums = packed(c_lanes, stored)
    operands = np.concatenate([packed(a_lanes, a_words.dtype), packed(b_lanes, b_words.dtype), sums], axis=1)
    n_sums = sums.shape[1]
    counts = (n_sums, depth * 16 // 32 // each, depth * 8 // 32 // each, n_sums)
    got = warp(f"mma.sync.aligned.{shape}.row.col.{d_type}.{a_type}.{b_type}.{d_type}", counts, operands)
    want = product(a, b, c).astype(stored)
    values = got.reshape(-1).view(stored).reshape(32, 4)
    for lane, (g, t) in enumerate(groups):
        assert values[lane].tolist() == [want[g + 8 * (i >> 1), 2 * t + (i & 1)] for i in range(4)], lane


def test_mma_of_doubles() -> None:
    rng = np.random.default_rng(6)
    a, b, c = (rng.standard_normal(shape) for shape in ((8, 4), (4, 8), (8, 8)))
    lanes = [(lane >> 2, lane % 4) for lane in range(32)]
    operands = np.array([[a[g, t], b[t, g], c[g, 2 * t], c[g, 2 * t + 1]] for g, t in lanes])
    got = warp("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", (2, 1, 1, 2), operands, "f64").view(np.float64)
    want = product(a, b, c)
    assert got.tolist() == [[want[g, 2 * t], want[g, 2 * t + 1]] for g, t in lanes]


@pytest.mark.parametrize(
    ("mods", "c", "want"), [(".satfinite", 2**31 - 5, 2**31 - 1), ("", 2**31 - 5, -(2**31) + 27), (".satfinite", -9, 23)]
)
def test_a_sum_of_bytes_wraps_or_stays_at_the_limit(mods: str, c: int, want: int) -> None:
    operands = np.array([[0x01010101] * 6 + [c] * 4] * 32, np.int64).astype(np.uint32)
    got = warp(f"mma.sync.aligned.m16n8k32.row.col{mods}.s32.s8.s8.s32", (4, 4, 2, 4), operands)
    assert got.view(np.int32).tolist() == [[want] * 4] * 32


@pytest.mark.parametrize(
    ("mode", "given", "want"),
    [
        ("rna", 0x3F801000, 0x3F802000), ("rn", 0x3F801000, 0x3F800000), ("rn", 0x3F803000, 0x3F804000), ("rna", 0x3F800FFF, 0x3F800000),
        ("rna", 0xBF801000, 0xBF802000), ("rna", 0x7F800000, 0x7F800000), ("rna", 0x7FFFFFFF, 0x7FFFFFFF), ("rn", 0xFF800000, 0xFF800000),
        ("rna", 0x7F7FFFFF, 0x7F800000), ("rna", 0x00000FFF, 0), ("rna", 0x00001000, 0x00002000),
    ],
)  # fmt: skip
def test_rounding_to_tf32(mode: str, given: int, want: int) -> None:
    got = evaluate(f"cvt.{mode}.tf32.f32 r, a;", "u32", [("u32", given)])
    assert same("f32", got, want), hex(got)


def wmma(
    kind: str, shape: str, d_type: str, counts: tuple[int, int, int], layouts: tuple[str, str, str], strides: tuple[str, str, str]
) -> str:
    """A kernel that loads A, B and C, multiplies, and stores D where C was. ``counts``: registers of A, B and C."""
    named = "" if kind == "f16" else f".{kind}.{kind}"
    sums = ".f32" if d_type == "f32" else ".b32"
    a, b, c = ("{" + ", ".join(f"%{name}{i}" for i in range(n)) + "}" for name, n in zip("abc", counts, strict=True))
    saturated = ".satfinite" if kind == "s8" else ""
    return f"""
    .visible .entry k(.param .u64 in_a, .param .u64 in_b, .param .u64 in_c) {{
    .reg .b32 %a<8>, %b<8>; .reg {sums} %c<8>; .reg .b64 pa, pb, pc; .reg .b32 sa, sb, sc;
    ld.param.u64 pa, [in_a]; ld.param.u64 pb, [in_b]; ld.param.u64 pc, [in_c]; mov.u32 sa, 24; mov.u32 sb, 32; mov.u32 sc, 20;
    wmma.load.a.sync.aligned.{layouts[0]}.{shape}.global.{kind} {a}, [pa]{strides[0]};
    wmma.load.b.sync.aligned.{layouts[1]}.{shape}.{kind} {b}, [pb]{strides[1]};
    wmma.load.c.sync.aligned.{layouts[2]}.{shape}.global.{d_type} {c}, [pc]{strides[2]};
    wmma.mma.sync.aligned.{layouts[0]}.{layouts[1]}.{shape}.{d_type}{named}.{d_type}{saturated} {c}, {a}, {b}, {c};
    wmma.store.d.sync.aligned.{layouts[2]}.{shape}.global.{d_type} [pc], {c}{strides[2]};
    ret; }}"""


@pytest.mark.parametrize("layouts", [("row", "col", "row"), ("col", "row", "col"), ("row", "row", "row")])
@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize(
    ("kind", "d_type", "counts"),
    [("f16", "f32", (8, 8, 8)), ("f16", "f16", (8, 8, 4)), ("bf16", "f32", (4, 4, 8)), ("tf32", "f32", (4, 4, 8)), ("s8", "s32", (2, 2, 8)),
     ("u8", "s32", (2, 2, 8))],
)  # fmt: skip
def test_wmma(kind: str, d_type: str, counts: tuple[int, int, int], spaced: bool, layouts: tuple[str, str, str]) -> None:
    rng = np.random.default_rng(8)
    depth = 8 if kind == "tf32" else 16
    a, a_words = elements(kind, rng, (16, depth))
    b, b_words = elements(kind, rng, (depth, 16))
    stored = {"f16": np.float16, "f32": np.float32, "s32": np.int32}[d_type]
    c = (rng.integers(-9, 9, (16, 16)) if d_type == "s32" else rng.standard_normal((16, 16))).astype(stored)

    def in_memory(x: Array, layout: str, stride: int) -> Array:
        by_major = x if layout == "row" else x.T
        room = np.zeros((len(by_major), stride if spaced else by_major.shape[1]), x.dtype)
        room[:, : by_major.shape[1]] = by_major
        return room

    strides = (", sa", ", sb", ", sc") if spaced else ("", "", "")
    code = wmma(kind, f"m16n16k{depth}", d_type, counts, layouts, strides)
    given = [in_memory(x, layout, n) for x, layout, n in zip((a_words, b_words, c), layouts, (24, 32, 20), strict=True)]
    (*_, after), trap = run(kernel_of(code), given, block=32)
    assert trap is None
    wide = c.astype(np.int32 if d_type == "s32" else np.float32)
    want = np.concatenate([product(a, b[:, :8], wide[:, :8]), product(a, b[:, 8:], wide[:, 8:])], axis=1).astype(stored)
    found = np.asarray(after).reshape(given[2].shape)[:, :16]
    assert np.array_equal(found if layouts[2] == "row" else found.T, want)
