"""cvt, comparisons, selections, moves: each form against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.support.ptx_snippets import bits_of, evaluate, same, value_of

INF, NAN = math.inf, math.nan

CONVERSIONS = [
    ("cvt.u32.u8 r, a;", "u32", [("u16", 0x1FF)], 0xFF),
    ("cvt.s32.s8 r, a;", "s32", [("u16", 0x1FF)], -1),
    ("cvt.s32.s8 r, a;", "s32", [("u32", 0x1FE)], -2),
    ("cvt.u8.u32 h16, a; cvt.u32.u16 r, h16;", "u32", [("u32", 0x1FE)], 0xFE),
    ("cvt.s8.s32 h16, a; cvt.s32.s16 r, h16;", "s32", [("u32", 0x1FE)], -2),
    ("cvt.u16.u32 r, a;", "u16", [("u32", 0x12345)], 0x2345),
    ("cvt.s64.s32 r, a;", "s64", [("s32", -5)], -5),
    ("cvt.u64.u32 r, a;", "u64", [("s32", -5)], 2**32 - 5),
    ("cvt.s64.s16 r, a;", "s64", [("s16", -5)], -5),
    ("cvt.u32.u64 r, a;", "u32", [("u64", 2**40 + 3)], 3),
    ("cvt.u64.u8 r, a;", "u64", [("u16", 0xFFAB)], 0xAB),
    ("cvt.sat.s8.s32 h16, a; cvt.s32.s16 r, h16;", "s32", [("s32", -500)], -128),
    ("cvt.sat.u8.s32 h16, a; cvt.s32.s16 r, h16;", "s32", [("s32", -500)], 0),
    ("cvt.sat.u8.u32 h16, a; cvt.u32.u16 r, h16;", "s32", [("u32", 500)], 255),
    ("cvt.sat.s32.s64 r, a;", "s32", [("s64", 2**40)], 2**31 - 1),
    ("cvt.sat.u32.s32 r, a;", "u32", [("s32", -1)], 0),
    ("cvt.sat.s32.u32 r, a;", "s32", [("u32", 2**32 - 1)], 2**31 - 1),
    ("cvt.rn.f32.s32 r, a;", "f32", [("s32", 2**24 + 1)], float(2**24)),
    ("cvt.rp.f32.s32 r, a;", "f32", [("s32", 2**24 + 1)], float(2**24 + 2)),
    ("cvt.rz.f32.u32 r, a;", "f32", [("u32", 2**32 - 1)], 4294967040.0),
    ("cvt.rn.f32.u64 r, a;", "f32", [("u64", 2**63)], 2.0**63),
    ("cvt.rm.f64.s64 r, a;", "f64", [("s64", -(2**60) - 1)], -(2.0**60) - 256),
    ("cvt.rn.f64.u32 r, a;", "f64", [("u32", 2**32 - 1)], 4294967295.0),
    ("cvt.rn.f32.u8 r, a;", "f32", [("u16", 0x1FE)], 254.0),
    ("cvt.rn.f16.s32 r, a;", "f16", [("s32", 2049)], 2048.0),
    ("cvt.rn.sat.f16.s32 r, a;", "f16", [("s32", 7)], 1.0),
    ("cvt.rn.f16.u16 r, a;", "f16", [("u16", 65535)], INF),
    ("cvt.rp.f16.s32 r, a;", "f16", [("s32", 2049)], 2050.0),
    ("cvt.rn.bf16.s32 r, a;", "bf16", [("s32", 2**24 + 2**16 + 1)], 2.0**24 + 2.0**17),
    ("cvt.rn.bf16.s64 r, a;", "bf16", [("s64", 2**62 + 2**54 + 1)], 2.0**62 + 2.0**55),
    ("cvt.rn.bf16.s64 r, a;", "bf16", [("s64", -(2**62) - 2**54)], -(2.0**62)),
    ("cvt.rn.bf16.u64 r, a;", "bf16", [("u64", 2**63 + 2**55 + 1)], 2.0**63 + 2.0**56),
    ("cvt.rz.bf16.s64 r, a;", "bf16", [("s64", 2**62 - 1)], 2.0**62 - 2.0**54),
    ("cvt.rm.bf16.s64 r, a;", "bf16", [("s64", -(2**62) - 1)], -(2.0**62) - 2.0**55),
    ("cvt.rp.bf16.s64 r, a;", "bf16", [("s64", 1 - 2**63)], -(2.0**63) + 2.0**55),
    ("cvt.rp.bf16.u64 r, a;", "bf16", [("u64", 2**64 - 1)], 2.0**64),
    ("cvt.rn.bf16.s64 r, a;", "bf16", [("s64", 0xFFF)], 2.0**12),
    ("cvt.rz.f16.s64 r, a;", "f16", [("s64", -4095)], -4094.0),
    ("cvt.rzi.s32.f32 r, a;", "s32", [("f32", -2.7)], -2),
    ("cvt.rni.s32.f32 r, a;", "s32", [("f32", 2.5)], 2),
    ("cvt.rmi.s32.f32 r, a;", "s32", [("f32", -2.1)], -3),
    ("cvt.rpi.s64.f64 r, a;", "s64", [("f64", 2.1)], 3),
    ("cvt.rzi.u32.f32 r, a;", "u32", [("f32", -5.0)], 0),
    ("cvt.rzi.s32.f32 r, a;", "s32", [("f32", 1e20)], 2**31 - 1),
    ("cvt.rzi.s32.f32 r, a;", "s32", [("f32", NAN)], 0),
    *[(f"cvt.rzi.{to}.{source} r, a;", to, [(source, NAN)], 0) for source in ("f16", "f32") for to in ("s16", "u16", "s32", "u32")],
    *[(f"cvt.rzi.{to}{bits}.f64 r, a;", f"u{bits}", [("f64", NAN)], 1 << bits - 1) for bits in (16, 32, 64) for to in "su"],
    *[(f"cvt.rni.{to}.{source} r, a;", "u64", [(source, NAN)], 1 << 63) for source in ("f16", "f32") for to in ("s64", "u64")],
    ("cvt.rzi.s8.f64 h16, a; cvt.s32.s16 r, h16;", "s32", [("f64", NAN)], -128),
    ("cvt.rzi.u8.f64 h16, a; cvt.s32.s16 r, h16;", "s32", [("f64", NAN)], 128),
    ("cvt.rzi.s64.f64 r, a;", "s64", [("f64", INF)], 2**63 - 1),
    ("cvt.rzi.u32.f64 r, a;", "u32", [("f64", -INF)], 0),
    ("cvt.rzi.u64.f32 r, a;", "u64", [("f32", 1e10)], 10**10),
    ("cvt.rzi.s16.f32 r, a;", "s16", [("f32", -1e9)], -32768),
    ("cvt.rzi.u8.f32 h16, a; cvt.u32.u16 r, h16;", "u32", [("f32", 300.0)], 255),
    ("cvt.rni.s8.f32 h16, a; cvt.s32.s16 r, h16;", "s32", [("f32", -300.0)], -128),
    ("cvt.rzi.s32.f16 r, a;", "s32", [("f16", -7.9)], -7),
    ("cvt.rni.f32.f32 r, a;", "f32", [("f32", 3.5)], 4.0),
    ("cvt.rzi.f32.f32 r, a;", "f32", [("f32", -3.5)], -3.0),
    ("cvt.rmi.f64.f64 r, a;", "f64", [("f64", -3.5)], -4.0),
    ("cvt.rpi.ftz.f32.f32 r, a;", "f32", [("f32", 3.5)], 4.0),
    ("cvt.sat.f32.f32 r, a;", "f32", [("f32", NAN)], 0.0),
    ("cvt.rn.f32.f64 r, a;", "f32", [("f64", 1 + 2.0**-24)], 1.0),
    ("cvt.rp.f32.f64 r, a;", "f32", [("f64", 1 + 2.0**-40)], 1 + 2.0**-23),
    ("cvt.f64.f32 r, a;", "f64", [("f32", 0.5)], 0.5),
    ("cvt.rn.f16.f32 r, a;", "f16", [("f32", 1 + 2.0**-11)], 1.0),
    ("cvt.rz.f16.f32 r, a;", "f16", [("f32", 65519.0)], 65504.0),
    ("cvt.rn.f16.f64 r, a;", "f16", [("f64", 1 + 2.0**-11 + 2.0**-40)], 1 + 2.0**-10),
    ("cvt.f32.f16 r, a;", "f32", [("f16", 2.0**-24)], 2.0**-24),
    ("cvt.f64.f16 r, a;", "f64", [("f16", 1.5)], 1.5),
    ("cvt.rn.bf16.f32 r, a;", "bf16", [("f32", 1 + 2.0**-8)], 1.0),
    ("cvt.rn.relu.bf16.f32 r, a;", "bf16", [("f32", -1.0)], 0.0),
    ("cvt.f32.bf16 r, a;", "f32", [("bf16", 3.0)], 3.0),
    ("cvt.rn.f16x2.f32 r, a, b;", "f16x2", [("f32", 1.0), ("f32", 2.0)], 0x3C004000),
    ("cvt.rn.relu.bf16x2.f32 r, a, b;", "bf16x2", [("f32", 1.0), ("f32", -2.0)], 0x3F800000),
    ("cvt.rn.satfinite.f16.f32 r, a;", "f16", [("f32", 1e9)], 65504.0),
]

COMPARISONS = [
    *[(f"setp.{how}.s32 p, a, b; selp.s32 r, 1, 0, p;", "s32", [("s32", a), ("s32", b)], int(expected))
      for a, b in ((-1, 1), (1, -1), (3, 3))
      for how, expected in (("eq", a == b), ("ne", a != b), ("lt", a < b), ("le", a <= b), ("gt", a > b), ("ge", a >= b))],
    *[(f"setp.{how}.u32 p, a, b; selp.s32 r, 1, 0, p;", "s32", [("u32", a), ("u32", b)], int(expected))
      for a, b in ((2**32 - 1, 1), (3, 3))
      for how, expected in (("lo", a < b), ("ls", a <= b), ("hi", a > b), ("hs", a >= b), ("lt", a < b), ("ge", a >= b))],
    *[(f"setp.{how}.f32 p, a, b; selp.s32 r, 1, 0, p;", "s32", [("f32", a), ("f32", b)], int(expected))
      for a, b in ((1.0, 2.0), (2.0, 2.0), (NAN, 2.0))
      for nan in (math.isnan(a) or math.isnan(b),)
      for how, expected in (
          ("eq", a == b), ("ne", a != b and not nan), ("lt", a < b), ("le", a <= b), ("gt", a > b), ("ge", a >= b),
          ("equ", a == b or nan), ("neu", a != b or nan), ("ltu", a < b or nan), ("leu", a <= b or nan), ("gtu", a > b or nan),
          ("geu", a >= b or nan), ("num", not nan), ("nan", nan))],
    ("setp.lt.f64 p, a, b; selp.s32 r, 1, 0, p;", "s32", [("f64", 1.0), ("f64", 2.0)], 1),
    ("setp.gt.f16 p, a, b; selp.s32 r, 1, 0, p;", "s32", [("f16", 1.0), ("f16", 2.0)], 0),
    ("setp.eq.b64 p, a, b; selp.s32 r, 1, 0, p;", "s32", [("u64", 5), ("u64", 5)], 1),
    ("setp.ne.s16 p, a, b; selp.s32 r, 1, 0, p;", "s32", [("s16", 5), ("s16", 5)], 0),
    ("setp.lt.s32 p|q, a, b; selp.s32 t32, 1, 0, p; selp.s32 r, 10, t32, q;", "s32", [("s32", 5), ("s32", 1)], 10),
    ("setp.eq.s32 q, a, a; setp.lt.and.s32 p, a, b, q; selp.s32 r, 1, 0, p;", "s32", [("s32", 0), ("s32", 1)], 1),
    ("setp.eq.s32 q, a, a; setp.lt.and.s32 p|q, a, b, q; selp.s32 r, 1, 0, q;", "s32", [("s32", 0), ("s32", 1)], 0),
    ("setp.eq.s32 q, a, a; setp.lt.xor.s32 p, a, b, !q; selp.s32 r, 1, 0, p;", "s32", [("s32", 0), ("s32", 1)], 1),
    ("setp.gt.f16x2 p|q, a, b; selp.s32 t32, 1, 0, p; selp.s32 u32, 2, 0, q; add.s32 r, t32, u32;", "s32",
     [("f16x2", 0x3C004000), ("f16x2", 0x40003C00)], 1),
    ("set.lt.u32.s32 r, a, b;", "u32", [("s32", 0), ("s32", 1)], 2**32 - 1),
    ("set.lt.f32.s32 r, a, b;", "f32", [("s32", 0), ("s32", 1)], 1.0),
    ("set.gtu.u32.f32 r, a, b;", "u32", [("f32", NAN), ("f32", 1.0)], 2**32 - 1),
    ("set.gt.f16x2.f16x2 r, a, b;", "f16x2", [("f16x2", 0x3C004000), ("f16x2", 0x40003C00)], 0x00003C00),
    ("setp.eq.s32 p, a, 3; selp.f32 r, b, 0f00000000, p;", "f32", [("s32", 3), ("f32", 2.5)], 2.5),
    ("setp.eq.s32 p, a, 3; selp.b64 r, b, 9, p;", "u64", [("s32", 4), ("u64", 7)], 9),
    ("slct.s32.s32 r, a, b, c;", "s32", [("s32", 1), ("s32", 2), ("s32", -1)], 2),
    ("slct.f32.f32 r, a, b, c;", "f32", [("f32", 1.0), ("f32", 2.0), ("f32", -0.0)], 1.0),
    ("slct.u64.f32 r, a, b, c;", "u64", [("u64", 1), ("u64", 2), ("f32", NAN)], 2),
]  # fmt: skip

MOVES = [
    ("mov.b32 r, {a, b};", "u32", [("u16", 0x1234), ("u16", 0x5678)], 0x56781234),
    ("mov.b32 {h16, _}, a; mov.b16 r, h16;", "u16", [("u32", 0x56781234)], 0x1234),
    ("mov.b32 {_, h16}, a; mov.b16 r, h16;", "u16", [("u32", 0x56781234)], 0x5678),
    ("mov.b64 r, {a, b};", "u64", [("u32", 1), ("u32", 2)], (2 << 32) + 1),
    ("mov.b64 {t32, u32}, a; sub.u32 r, u32, t32;", "u32", [("u64", (7 << 32) + 3)], 4),
    ("mov.b64 {t32, u32}, a; mov.b32 r, u32;", "u32", [("f64", 1.0)], 0x3FF00000),
    ("mov.b32 r, {0, a};", "f32", [("bf16", 2.0)], 2.0),
    ("mov.b64 r, {a, b, a, b};", "u64", [("u16", 1), ("u16", 2)], 0x0002000100020001),
    ("mov.b32 f32, a; add.f32 r, f32, f32;", "f32", [("u32", 0x3F800000)], 2.0),
    ("mov.pred p, 1; selp.u32 r, a, 0, p;", "u32", [("u32", 5)], 5),
    ("mov.u32 r, 0x80000000;", "u32", [], 2**31),
    ("mov.u32 r, 037;", "u32", [], 31),
    ("mov.u32 r, 0b101;", "u32", [], 5),
    ("mov.f32 r, 1.5;", "f32", [], 1.5),
    ("mov.f32 r, 1e39;", "f32", [], INF),
    ("mov.f32 r, -1e39;", "f32", [], -INF),
    ("mov.f64 r, 0d3FF8000000000000;", "f64", [], 1.5),
    ("mov.s64 r, -5;", "s64", [], -5),
    ("mov.u32 r, WARP_SZ;", "u32", [], 32),
    ("mov.u32 r, %lanemask_eq;", "u32", [], 1),
    ("mov.u32 r, %lanemask_le;", "u32", [], 1),
    ("mov.u32 r, %lanemask_lt;", "u32", [], 0),
    ("mov.u32 r, %lanemask_ge;", "u32", [], 2**32 - 1),
    ("mov.u32 r, %lanemask_gt;", "u32", [], 2**32 - 2),
    ("mov.u32 r, %nwarpid;", "u32", [], 1),
    ("mov.u32 r, %cluster_nctaid.x;", "u32", [], 1),
    ("{ .reg .b32 a; mov.u32 a, 7; mov.u32 t32, a; } add.u32 r, a, t32;", "u32", [("u32", 5)], 12),
    (".reg .v2 .b32 pair; mov.u32 pair.x, 3; mov.u32 pair.y, 4; mul.lo.u32 r, pair.x, pair.y;", "u32", [], 12),
]


@pytest.mark.parametrize(("code", "out", "inputs", "expected"), CONVERSIONS + COMPARISONS + MOVES)
def test_instruction(code: str, out: str, inputs: list[tuple[str, float]], expected: float) -> None:
    got, wanted = evaluate(code, out, inputs), bits_of(out, expected)
    assert same(out, got, wanted), f"{value_of(out, got)} ({got:#x}), expected {value_of(out, wanted)} ({wanted:#x})"
