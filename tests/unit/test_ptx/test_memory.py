"""Loads, stores, atomics, and where addresses lead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.ptx_snippets import bits_of, evaluate, kernel_of, module_of, run, same
from wis.kernel.model import Access, BufferParam, RegType, ScalarParam, Space, TrapKind
from wis.kernel.module import ArgKind
from wis.kernel.ops import BY_NAME

LOADS = [
    ("st.global.u32 [out+8], a; ld.global.u8 h16, [out+9]; cvt.u32.u16 r, h16;", "u32", [("u32", 0x8070F050)], 0xF0),
    ("st.global.u32 [out+8], a; ld.global.s8 h16, [out+9]; cvt.s32.s16 r, h16;", "s32", [("u32", 0x8070F050)], -16),
    ("st.global.u32 [out+8], a; ld.global.s16 r, [out+10];", "s32", [("u32", 0x8070F050)], 0x8070 - 65536),
    ("st.global.u32 [out+8], a; ld.global.u16 r, [out+10];", "s32", [("u32", 0x8070F050)], 0x8070),
    ("st.global.u32 [out+8], a; ld.volatile.global.u32 r, [out+8];", "u32", [("u32", 77)], 77),
    ("st.release.gpu.global.u32 [out+8], a; ld.acquire.gpu.global.u32 r, [out+8];", "u32", [("u32", 77)], 77),
    ("st.relaxed.sys.global.b32 [out+8], a; ld.relaxed.cta.global.b32 r, [out+8];", "u32", [("u32", 77)], 77),
    ("ld.global.nc.f32 r, [in];", "f32", [("f32", 1.5)], 1.5),
    ("ld.global.nc.L1::no_allocate.L2::128B.b32 r, [in];", "u32", [("u32", 5)], 5),
    ("ld.global.cg.v2.u32 {t32, u32}, [in]; add.u32 r, t32, u32;", "u32", [("u64", (3 << 32) + 4)], 7),
    ("ld.global.v2.b32 {f32, u32}, [in]; mov.b32 t32, f32; sub.u32 r, u32, t32;", "u32", [("u64", (7 << 32) + 4)], 3),
    ("ld.global.v4.u16 {h16, _, _, _}, [in]; cvt.u32.u16 r, h16;", "u32", [("u64", 9)], 9),
    ("st.global.v2.b32 [out+8], {a, b}; ld.global.b64 r, [out+8];", "u64", [("u32", 1), ("f32", 2.0)], (0x40000000 << 32) + 1),
    ("st.global.v2.f32 [out+8], {a, 0f3F800000}; ld.global.b64 r, [out+8];", "u64", [("f32", 2.0)], (0x3F800000 << 32) + 0x40000000),
    ("st.global.b8 [out+8], a; ld.global.u32 r, [out+8];", "u32", [("u32", 0x1FF)], 0xFF),
    (".reg .f32 x; ld.global.b32 x, [in]; add.f32 r, x, x;", "f32", [("f32", 1.5)], 3.0),
    (".shared .align 8 .b8 s[16]; st.shared.u32 [s+4], a; ld.shared.u32 r, [s+4];", "u32", [("u32", 5)], 5),
    (".reg .u32 w<4>; .shared .align 16 .b8 s[12]; st.shared.u32 [s+8], a; .pragma \"used_bytes_mask 4095\"; "
     "ld.shared.v4.u32 {w0, w1, w2, w3}, [s]; add.u32 r, w1, w2; add.u32 r, r, w3;", "u32", [("u32", 5)], 5),
    (".reg .u32 w<4>; .shared .align 16 .b8 s[16]; st.shared.u32 [s+8], a; .pragma \"used_bytes_mask 0xf00\"; "
     "ld.shared.v4.u32 {w0, w1, w2, w3}, [s]; mov.u32 r, w2;", "u32", [("u32", 5)], 5),
    (".reg .u16 w<4>; .shared .align 4 .b8 s[3]; st.shared.u8 [s+2], a; .pragma \"used_bytes_mask 7\"; "
     "ld.shared.v4.u8 {w0, w1, w2, w3}, [s]; cvt.u32.u16 r, w2;", "u32", [("u32", 5)], 5),
    (".reg .u32 w<4>; .shared .align 16 .u32 s[4]; st.shared.u32 [s], 1; st.shared.u32 [s+8], a; mov.u32 w0, s; "
     ".pragma \"used_bytes_mask 0xf0f\"; ld.shared.v4.u32 {w0, w1, w2, w3}, [w0]; add.u32 r, w0, w2;", "u32", [("u32", 5)], 6),
    (".reg .b64 w<4>; mov.u64 w0, in; ld.global.v4.u64 {w0, w1, w2, w3}, [w0]; add.u64 r, w2, w3;",
     "u64", [("u64", 1), ("u64", 2), ("u64", 3), ("u64", 4)], 7),
    (".shared .u32 s[4]; mov.u32 t32, s; add.u32 t32, t32, -8; st.shared.u32 [t32+12], a; ld.shared.u32 r, [s+4];", "u32", [("u32", 5)], 5),
    (".shared .u32 s[4]; mov.u32 t32, s; cvt.u64.u32 t64, t32; cvta.shared.u64 t64, t64; st.u32 [t64+4], a; ld.shared.u32 r, [s+4];",
     "u32", [("u32", 5)], 5),
    (".shared .u32 s[4]; mov.u64 t64, s; cvta.shared.u64 t64, t64; cvta.to.shared.u64 t64, t64; cvt.u32.u64 t32, t64; "
     "st.shared.u32 [t32+4], a; ld.shared.u32 r, [s+4];", "u32", [("u32", 5)], 5),
    (".shared .u32 s[4], z[4]; setp.eq.u32 p, a, 5; mov.u32 t32, s; mov.u32 u32, z; selp.b32 t32, t32, u32, p; st.shared.u32 [t32+8], a; "
     "ld.shared.u32 r, [s+8];", "u32", [("u32", 5)], 5),
    (".local .align 8 .b8 depot[32]; mov.u64 t64, depot; cvta.local.u64 t64, t64; st.u32 [t64+8], a; add.u64 t64, t64, 4; "
     "ld.u32 r, [t64+4];", "u32", [("u32", 5)], 5),
    (".local .b32 x; st.local.b32 [x], a; ld.local.b32 r, [x];", "u32", [("u32", 5)], 5),
    ("isspacep.global p, in; selp.u32 r, 1, 0, p;", "u32", [("u32", 5)], 1),
    (".shared .u32 s; mov.u64 t64, s; cvta.shared.u64 t64, t64; isspacep.shared p, t64; selp.u32 r, 1, 0, p;", "u32", [], 1),
    (".shared .u32 s; mov.u64 t64, s; cvta.shared.u64 t64, t64; isspacep.local p, t64; selp.u32 r, 1, 0, p;", "u32", [], 0),
    ("sub.s64 t64, out, out; add.s64 t64, t64, 12; cvt.u32.u64 r, t64;", "u32", [], 12),
    ("add.s64 t64, out, 4; setp.lt.u64 p, out, t64; selp.u32 r, 1, 0, p;", "u32", [], 1),
    ("setp.ne.s64 p, out, 0; selp.u32 r, 1, 0, p;", "u32", [], 1),
    ("setp.ne.s64 p, in, out; selp.u32 r, 1, 0, p;", "u32", [], 1),
    ("and.b64 t64, out, -16; sub.s64 t64, out, t64; cvt.u32.u64 r, t64;", "u32", [], 0),
    ("setp.eq.s32 p, a, 1; selp.b64 t64, in, out, p; ld.global.u32 r, [t64];", "u32", [("u32", 1)], 1),
    ("st.global.u64 [out+8], in; ld.global.u64 t64, [out+8]; ld.global.u32 r, [t64];", "u32", [("u32", 41)], 41),
    ("prefetch.global.L1 [in]; nanosleep.u32 100; membar.gl; fence.acq_rel.gpu; fence.sc.sys; mov.u32 r, 1;", "u32", [], 1),
    (".shared .align 16 .b8 s[16]; cp.async.ca.shared.global [s], [in], 8; cp.async.commit_group; cp.async.wait_group 0; "
     "ld.shared.u64 r, [s];", "u64", [("u64", 2**40 + 1)], 2**40 + 1),
    (".shared .align 16 .b8 s[16]; cp.async.cg.shared.global.L2::128B [s], [in], 16, a; cp.async.wait_all; ld.shared.u64 r, [s];",
     "u64", [("u32", 6), ("u32", 0)], 6),
    (".shared .align 16 .b8 s[16]; cp.async.ca.shared.global [s], [in], 8, a; ld.shared.u64 r, [s];", "u64", [("u32", 0)], 0),
    *((".shared .align 16 .b8 s[16]; st.shared.u64 [s+8], 7; cp.async.cg.shared.global [s], [in], 16, a; ld.shared.u64 r, [s+8];",
       "u64", [("u32", size), ("u64", 0x1112131415161718)],
       0x1112131415161718 & (1 << 8 * min(max(size - 8, 0), 8)) - 1) for size in (0, 7, 8, 9, 13, 15, 16, 99)),
    *((".shared .align 16 .b8 s[16]; st.shared.u64 [s+8], 7; setp.eq.u32 p, a, 1; selp.b32 t32, 16, 0, p; "
       "cp.async.cg.shared.global [s], [in], 16, t32; " + more + " ld.shared.u64 r, [s+8];", "u64",
       [("u32", a), ("u64", 0x1112131415161718)], value)
      for a, more, value in (
          (1, "", 0x1112131415161718), (0, "", 0),
          (1, "st.shared.u64 [s+8], 9;", 9),  # what was copied is not taken for what is there
          (1, "mov.b32 t32, 12; cp.async.cg.shared.global [s], [in], 16, t32;", 0x15161718),  # the register holds other sizes too
          (1, "selp.b32 u32, 8, 0, p; cp.async.cg.shared.global [s], [in], 16, u32;", 0),  # always 0 or 8, of 16
      )),
]  # fmt: skip

ATOMICS = [
    ("st.global.u32 [out+8], a; atom.global.add.u32 t32, [out+8], b; ld.global.u32 u32, [out+8]; mad.lo.u32 r, t32, 100, u32;",
     "u32", [("u32", 5), ("u32", 3)], 508),
    ("st.global.u32 [out+8], a; red.global.max.s32 [out+8], b; ld.global.u32 r, [out+8];", "s32", [("s32", -5), ("s32", -3)], -3),
    ("st.global.u32 [out+8], a; red.global.max.u32 [out+8], b; ld.global.u32 r, [out+8];", "s32", [("s32", -5), ("s32", 3)], -5),
    ("st.global.u64 [out+8], a; atom.global.min.s64 t64, [out+8], b; ld.global.u64 r, [out+8];", "s64", [("s64", -5), ("s64", 3)], -5),
    ("st.global.u32 [out+8], a; atom.relaxed.gpu.global.and.b32 t32, [out+8], b; ld.global.u32 r, [out+8];",
     "u32", [("u32", 6), ("u32", 3)], 2),
    ("st.global.u32 [out+8], a; atom.acq_rel.sys.or.b32 t32, [out+8], b; ld.global.u32 r, [out+8];", "u32", [("u32", 6), ("u32", 3)], 7),
    ("st.global.u32 [out+8], a; atom.xor.b32 _, [out+8], b; ld.global.u32 r, [out+8];", "u32", [("u32", 6), ("u32", 3)], 5),
    ("st.global.u32 [out+8], a; atom.exch.b32 r, [out+8], b;", "u32", [("u32", 6), ("u32", 3)], 6),
    ("st.global.u32 [out+8], a; atom.cas.b32 t32, [out+8], 6, b; ld.global.u32 u32, [out+8]; mad.lo.u32 r, t32, 10, u32;",
     "u32", [("u32", 6), ("u32", 3)], 63),
    ("st.global.u64 [out+8], a; atom.global.cas.b64 t64, [out+8], 7, b; ld.global.u64 r, [out+8];", "u64", [("u64", 6), ("u64", 3)], 6),
    ("st.global.u32 [out+8], a; atom.inc.u32 t32, [out+8], b; ld.global.u32 r, [out+8];", "u32", [("u32", 3), ("u32", 3)], 0),
    ("st.global.u32 [out+8], a; atom.dec.u32 t32, [out+8], b; ld.global.u32 r, [out+8];", "u32", [("u32", 0), ("u32", 3)], 3),
    ("st.global.f32 [out+8], a; red.global.add.f32 [out+8], b; ld.global.f32 r, [out+8];", "f32", [("f32", 1.5), ("f32", 2.0)], 3.5),
    ("st.global.f64 [out+8], a; atom.global.add.f64 r, [out+8], b;", "f64", [("f64", 1.5), ("f64", 2.0)], 1.5),
    (".shared .u32 s[2]; atom.shared.add.u32 t32, [s+4], a; ld.shared.u32 r, [s+4];", "u32", [("u32", 6)], 6),
    ("st.global.b32 [out+8], a; atom.global.add.noftz.f16x2 t32, [out+8], b; ld.global.b32 r, [out+8];",
     "f16x2", [("f16x2", 0x3C004000), ("f16x2", 0x3C003C00)], 0x40004200),
    ("st.global.b32 [out+8], a; red.global.add.noftz.bf16x2 [out+8], b; ld.global.b32 r, [out+8];",
     "bf16x2", [("bf16x2", 0x3F804000), ("bf16x2", 0x3F803F80)], 0x40004040),
    ("st.global.b32 [out+8], a; atom.global.add.noftz.f16 h16, [out+10], b; ld.global.b32 r, [out+8];",
     "u32", [("u32", 0x3C001234), ("f16", 2.0)], 0x42001234),
    (".shared .align 2 .b8 s[6]; atom.shared.add.noftz.f16 h16, [s+4], a; ld.shared.b16 r, [s+4];", "f16", [("f16", 2.0)], 2.0),
    (".shared .align 2 .b8 s[6], z[2]; mov.u32 t32, s; setp.eq.b16 p, a, 7; mov.u32 u32, z; selp.b32 t32, u32, t32, p; "
     "atom.shared.exch.b16 h16, [t32], a; ld.shared.b16 r, [t32];", "u16", [("u16", 7)], 7),
    ("st.global.b32 [out+8], a; atom.global.cas.b16 h16, [out+10], 0x1111, b; ld.global.b32 r, [out+8];",
     "u32", [("u32", 0x11112222), ("u16", 0x3333)], 0x33332222),
    ("st.global.b32 [out+8], a; atom.global.cas.b16 h16, [out+8], 0x1111, b; ld.global.b32 r, [out+8];",
     "u32", [("u32", 0x11112222), ("u16", 0x3333)], 0x11112222),
]  # fmt: skip


@pytest.mark.parametrize(("code", "out", "inputs", "expected"), LOADS + ATOMICS)
def test_instruction(code: str, out: str, inputs: list[tuple[str, float]], expected: float) -> None:
    got, wanted = evaluate(code, out, inputs), bits_of(out, expected)
    assert same(out, got, wanted), f"{got:#x}, expected {wanted:#x}"


def _accesses(text: str) -> list[tuple[str, int, int, int]]:
    """Name, space, which and displacement of each access."""
    kernel = kernel_of(text).kernel
    codes = {BY_NAME[name].code: name for name in ("load", "store", "atom", "red")}
    ops = [op for block in kernel.blocks for op in block.code if op.op in codes]
    return [(codes[op.op], op.attrs[0], op.attrs[1], op.attrs[4]) for op in ops]


def test_pointer_arithmetic_leads_back_to_the_parameter() -> None:
    text = """.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 n) {
        .reg .pred p; .reg .b64 %rd<9>; .reg .b32 %r<9>;
        ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [n]; cvta.to.global.u64 %rd4, %rd1;
        cvta.to.global.u64 %rd5, %rd2;
        mov.u32 %r1, %tid.x; mul.wide.u32 %rd6, %r1, 4; add.s64 %rd4, %rd4, %rd6; add.s64 %rd5, %rd5, %rd3;
    L: ld.global.u32 %r2, [%rd4+8]; st.global.u32 [%rd5+-4], %r2; add.s64 %rd4, %rd4, 128; add.s64 %rd5, %rd5, 128;
        setp.ne.u32 p, %r2, 0; @p bra L; ret; }"""
    assert _accesses(text) == [("load", Space.GLOBAL, 0, 8), ("store", Space.GLOBAL, 1, -4)]
    params = kernel_of(text).kernel.params
    assert [type(p) for p in params] == [BufferParam, BufferParam, ScalarParam]
    assert (params[0].access, params[1].access) == (Access.READ, Access.WRITE)


def test_constant_parts_of_addresses_become_displacements() -> None:
    text = """.visible .entry k(.param .u64 a) { .reg .b64 %rd<9>; .reg .b32 %r<9>;
        ld.param.u64 %rd1, [a]; cvta.to.global.u64 %rd2, %rd1; add.s64 %rd3, %rd2, 16; add.s64 %rd4, %rd3, 4;
        ld.global.u32 %r1, [%rd4+8]; st.global.u32 [%rd2], %r1; ret; }"""
    assert _accesses(text) == [("load", Space.GLOBAL, 0, 28), ("store", Space.GLOBAL, 0, 0)]
    assert sum(len(block.code) for block in kernel_of(text).kernel.blocks) == 3  # the offset 0, a load, a store


def test_pointers_declared_as_such() -> None:
    text = ".visible .entry k(.param .u64 .ptr .align 1 a, .param .u64 n) { .reg .b64 x; ld.param.b64 x, [a]; st.b64 [x], x; ret; }"
    entry = module_of(text).entries[0]
    assert [argument.kind for argument in entry.arguments] == [ArgKind.BUFFER, ArgKind.SCALAR]
    assert entry.arguments[1].param == -1  # unused


def test_a_pointer_that_is_only_kept_in_a_table_is_a_buffer() -> None:
    text = """.visible .entry k(.param .u64 o, .param .u64 x, .param .u64 y, .param .u64 n) { .reg .b32 %r<3>; .reg .b64 %rd<9>;
        .local .align 8 .b8 table[16]; mov.u64 %rd5, table; ld.param.u64 %rd1, [o]; cvta.to.global.u64 %rd1, %rd1;
        ld.param.u64 %rd2, [x]; ld.param.u64 %rd3, [y]; ld.param.u64 %rd4, [n]; st.local.u64 [%rd5], %rd2; st.local.u64 [%rd5+8], %rd3;
        mov.u32 %r1, %tid.x; mul.wide.u32 %rd6, %r1, 8; add.s64 %rd7, %rd5, %rd6; ld.local.u64 %rd7, [%rd7]; ld.u32 %r2, [%rd7];
        add.s64 %rd8, %rd1, %rd6; st.global.u32 [%rd8], %r2; st.global.u32 [%rd8+4], %rd4; ret; }"""
    assert [a.kind for a in module_of(text).entries[0].arguments] == [ArgKind.BUFFER] * 3 + [ArgKind.SCALAR]
    (out, *_), trap = run(kernel_of(text), [np.zeros(4, np.uint32), np.array([5], np.uint32), np.array([7], np.uint32), 3], block=2)
    assert (list(out), trap) == ([5, 3, 7, 3], None)


def test_shared_arrays_stay_apart_until_an_address_could_be_of_either() -> None:
    head = ".visible .entry k(.param .u32 n) { .shared .align 4 .b8 s[8]; .shared .align 4 .b8 t[8]; .reg .b32 %r<5>; .reg .pred p;"
    apart = head + "mov.u32 %r1, s; st.shared.u32 [%r1], 1; st.shared.u32 [t+4], 2; ret; }"
    assert _accesses(apart) == [("store", Space.SHARED, 0, 0), ("store", Space.SHARED, 1, 4)]
    either = head + (
        "mov.u32 %r1, s; mov.u32 %r2, t; ld.param.u32 %r3, [n]; setp.eq.u32 p, %r3, 0; "
        "selp.b32 %r1, %r1, %r2, p; st.shared.u32 [%r1], 1; ret; }"
    )
    assert _accesses(either) == [("store", Space.SHARED, 0, 0)]
    assert [array.n for array in kernel_of(either).kernel.shared] == [24]


def test_dynamic_shared_memory_is_the_last_array() -> None:
    text = """.extern .shared .align 16 .b8 dyn[];
        .visible .entry k(.param .u64 o) { .shared .align 4 .b8 s[8]; .reg .b32 %r<5>; .reg .b64 %rd<5>;
        ld.param.u64 %rd1, [o]; cvta.to.global.u64 %rd1, %rd1; st.shared.u32 [dyn+12], 7; st.shared.u32 [s], 1; ld.shared.u32 %r1, [dyn+12];
        st.global.u32 [%rd1], %r1; mov.u32 %r2, %dynamic_smem_size; st.global.u32 [%rd1+4], %r2; ret; }"""
    verified = kernel_of(text)
    assert verified.kernel.dynamic == 1
    assert [array.n for array in verified.kernel.shared] == [8, 0]
    (out,), trap = run(verified, [np.zeros(2, np.uint32)], dynamic_bytes=16)
    assert (list(out), trap) == ([7, 16], None)
    _, trap = run(verified, [np.zeros(2, np.uint32)], dynamic_bytes=8)
    assert trap is not None
    assert trap.kind is TrapKind.OUTSIDE


def test_module_variables_are_hidden_arguments() -> None:
    text = """.visible .const .align 4 .b8 table[8] = {1, 0, 0, 0, 2};
        .visible .global .align 4 .u32 counter = 5;
        .global .align 4 .f32 own[2] = {0f3F800000, 2.5};
        .visible .entry k(.param .u64 o) { .reg .b32 %r<5>; .reg .b64 %rd<5>; .reg .f32 %f<3>;
        ld.param.u64 %rd1, [o]; cvta.to.global.u64 %rd1, %rd1; ld.const.u32 %r1, [table+4]; st.global.u32 [%rd1], %r1;
        atom.global.add.u32 %r2, [counter], 3; st.global.u32 [%rd1+4], %r2; ld.global.f32 %f1, [own+4];
        st.global.f32 [%rd1+8], %f1; ret; }"""
    module = module_of(text)
    assert [(v.name, v.nbytes, v.constant, v.data) for v in module.variables] == [
        ("table", 8, 1, b"\x01\0\0\0\x02\0\0\0"[:5]), ("counter", 4, 0, b"\x05\0\0\0"),
    ]  # fmt: skip
    entry = module.entries[0]
    assert [(a.kind, a.variable) for a in entry.arguments] == [(ArgKind.BUFFER, -1), (ArgKind.VARIABLE, 0), (ArgKind.VARIABLE, 1)]
    assert [p.access for p in entry.kernel.params if isinstance(p, BufferParam)] == [Access.WRITE, Access.READ, Access.READ_WRITE]
    assert len(entry.kernel.constants) == 8
    given: list[Any] = [np.zeros(3, np.uint32), np.array([1, 2], np.uint32), np.array([5], np.uint32)]
    (out, _, counter), trap = run(kernel_of(text), given)
    assert (out[0], out[1], out.view(np.float32)[2], counter[0], trap) == (2, 5, 2.5, 8, None)


def test_structs_by_value_become_fields() -> None:
    text = """.visible .entry k(.param .align 8 .b8 s[24], .param .u64 o) { .reg .b32 %r<5>; .reg .b64 %rd<5>; .reg .f32 %f<3>;
        ld.param.u64 %rd1, [o]; cvta.to.global.u64 %rd1, %rd1; ld.param.f32 %f1, [s+4]; ld.param.v2.u32 {%r1, %r2}, [s+16];
        add.u32 %r1, %r1, %r2; st.global.u32 [%rd1], %r1; st.global.f32 [%rd1+4], %f1; ret; }"""
    struct = module_of(text).entries[0].arguments[0]
    assert (struct.kind, struct.nbytes, [f.offset for f in struct.fields]) == (ArgKind.STRUCT, 24, [4, 16, 20])
    kernel = kernel_of(text).kernel
    given: list[Any] = [0] * len(kernel.params)
    for field, value in zip(struct.fields, (2.5, 3, 4), strict=True):
        given[field.param] = value
    given[-1] = np.zeros(2, np.uint32)
    after, _ = run(kernel_of(text), given)
    assert (after[-1][0], after[-1].view(np.float32)[1]) == (7, 2.5)


def test_pointers_in_a_struct_become_buffers() -> None:
    text = """.visible .entry k(.param .align 8 .b8 s[32]) { .reg .b32 %r<5>; .reg .b64 %rd<7>;
        ld.param.v2.u64 {%rd1, %rd2}, [s]; cvta.to.global.u64 %rd1, %rd1; ld.param.u64 %rd3, [s+16]; ld.param.u64 %rd6, [s+24];
        mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 4; add.s64 %rd5, %rd1, %rd4; ld.global.u32 %r2, [%rd5]; cvt.u32.u64 %r3, %rd3;
        add.u32 %r2, %r2, %r3; add.s64 %rd5, %rd4, %rd2; add.s64 %rd5, %rd5, %rd6; st.global.u32 [%rd5], %r2; ret; }"""
    entry = module_of(text).entries[0]
    (struct,) = entry.arguments
    kinds = {field.offset: type(entry.kernel.params[field.param]) for field in struct.fields}
    assert kinds == {0: BufferParam, 8: BufferParam, 16: ScalarParam, 24: ScalarParam}
    given: list[Any] = [0] * len(entry.kernel.params)
    values = {0: np.array([1, 2, 3], np.uint32), 8: np.zeros(4, np.uint32), 16: 10, 24: 4}
    for field in struct.fields:
        given[field.param] = values[field.offset]
    after, trap = run(kernel_of(text), given, block=3)
    written = next(field.param for field in struct.fields if field.offset == 8)
    assert (list(after[written]), trap) == ([0, 11, 12, 13], None)


def test_a_pointer_is_found_by_the_address_of_its_struct() -> None:
    """As in the layout of a tensor: the pointer, then sizes that are indexed at run time."""
    text = """.visible .entry k(.param .align 8 .b8 s[16], .param .u64 o) { .reg .b32 %r<5>; .reg .b64 %rd<10>;
        mov.b64 %rd1, s; add.s64 %rd9, %rd1, 12; ld.param.u64 %rd2, [%rd9+-12]; ld.param.u64 %rd3, [o]; cvta.to.global.u64 %rd3, %rd3;
        mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, 4; add.s64 %rd5, %rd1, %rd4; ld.param.u32 %r2, [%rd5+8]; cvta.to.global.u64 %rd6, %rd2;
        mul.wide.u32 %rd7, %r2, 4; add.s64 %rd7, %rd6, %rd7; ld.global.u32 %r3, [%rd7]; add.s64 %rd8, %rd3, %rd4; st.global.u32 [%rd8], %r3;
        ret; }"""
    entry = module_of(text).entries[0]
    struct, out = entry.arguments
    given: list[Any] = [0] * len(entry.kernel.params)
    words = {0: np.array([5, 6, 7], np.uint32), 8: 2 + (1 << 32)}
    for field in struct.fields:
        given[field.param] = words[field.offset]
    given[out.param] = np.zeros(2, np.uint32)
    after, trap = run(kernel_of(text), given, block=2)
    assert (list(after[out.param]), trap) == ([7, 6], None)


def test_words_of_a_struct_that_is_copied_are_numbers() -> None:
    """Which of them are pointers is not known."""
    text = """.visible .entry k(.param .align 8 .b8 s[32], .param .u64 o) { .reg .b32 %r<5>; .reg .b64 %rd<7>;
        ld.param.u64 %rd1, [o]; cvta.to.global.u64 %rd1, %rd1; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 8; mov.b64 %rd3, s;
        add.s64 %rd3, %rd3, %rd2; ld.param.u64 %rd4, [%rd3]; ld.global.u32 %r2, [%rd4]; st.global.u32 [%rd1], %r2; ret; }"""
    entry = module_of(text).entries[0]
    assert {type(entry.kernel.params[field.param]) for field in entry.arguments[0].fields} == {ScalarParam}


def test_a_struct_indexed_at_run_time_is_copied() -> None:
    text = """.visible .entry k(.param .align 4 .b8 s[12], .param .u64 o) { .reg .b32 %r<5>; .reg .b64 %rd<5>;
        ld.param.u64 %rd1, [o]; cvta.to.global.u64 %rd1, %rd1; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; mov.b64 %rd3, s;
        add.s64 %rd3, %rd3, %rd2; ld.param.u32 %r2, [%rd3]; add.s64 %rd4, %rd1, %rd2; st.global.u32 [%rd4], %r2; ret; }"""
    entry = module_of(text).entries[0]
    given: list[Any] = [0] * len(entry.kernel.params)
    data = np.array([5, 6, 7], np.uint32).tobytes()
    for field in entry.arguments[0].fields:
        param = entry.kernel.params[field.param]
        assert isinstance(param, ScalarParam)
        size = 8 if param.reg_type == RegType.I64 else 4
        given[field.param] = int.from_bytes(data[field.offset : field.offset + size], "little")
    given[entry.arguments[1].param] = np.zeros(3, np.uint32)
    after, trap = run(kernel_of(text), given, block=3)
    assert (list(after[entry.arguments[1].param]), trap) == ([5, 6, 7], None)


def test_parts_of_a_scalar_argument() -> None:
    text = """.visible .entry k(.param .u64 n, .param .u64 o, .param .u8 c) { .reg .b32 %r<5>; .reg .b64 %rd<5>; .reg .b16 %rs<3>;
        ld.param.u64 %rd1, [o]; cvta.to.global.u64 %rd1, %rd1; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [n+4]; ld.param.s8 %rs1, [c];
        cvt.s32.s16 %r3, %rs1; st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r2; st.global.u32 [%rd1+8], %r3; ret; }"""
    after, _ = run(kernel_of(text), [(3 << 32) + 7, np.zeros(3, np.int32), 255])
    assert list(after[1]) == [7, 3, -1]


def test_a_function_may_return_a_constant_or_its_argument() -> None:
    text = """.func (.param .b32 r) one(.param .b32 a) { st.param.b32 [r], 7; ret; }
    .func (.param .b32 r) same(.param .b32 a) { .reg .b32 x; ld.param.b32 x, [a]; st.param.b32 [r], x; ret; }
    .visible .entry k(.param .u64 o) { .reg .b64 a; .reg .b32 x, y; ld.param.u64 a, [o]; cvta.to.global.u64 a, a;
    call (x), one, (5); call (y), same, (9); st.global.v2.u32 [a], {x, y}; ret; }"""
    (out,), trap = run(kernel_of(text), [np.zeros(2, np.int32)])
    assert (list(out), trap) == ([7, 9], None)
