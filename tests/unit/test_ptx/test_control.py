"""Branches, calls, barriers and what threads of a warp do together."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.ptx_snippets import HEADER, kernel_of, module_of, run
from wis.frontends.ptx import PtxError, import_ptx
from wis.kernel.model import Bar, Cbr, Switch, Sync, TrapKind
from wis.kernel.verify import verify_kernel

_ENTRY = """.visible .entry k(.param .u64 o, .param .u32 count) {
    .reg .pred p, q; .reg .b32 t, v, w, x, n; .reg .b64 out, at; .reg .f32 f, g;
    ld.param.u64 out, [o]; cvta.to.global.u64 out, out; ld.param.u32 n, [count]; mov.u32 t, %tid.x;
    mul.wide.u32 at, t, 4; add.s64 at, out, at;
    setp.eq.u32 p, n, 12345; @p trap;
"""


def threads(code: str, n: int = 0, block: int = 32, before: str = "") -> list[int]:
    """What each thread leaves in ``v``."""
    verified = kernel_of(f"{before}{_ENTRY} {code} st.global.u32 [at], v; ret; }}")
    (out, *_), trap = run(verified, [np.zeros(block, np.int32), n], block=block)
    assert trap is None
    return [int(x) for x in out]


def test_guards_choose_or_skip() -> None:
    code = "setp.lt.u32 p, t, 2; mov.u32 v, 5; @p add.u32 v, t, 100; @!p mad.lo.u32 v, t, 2, v;"
    assert threads(code, block=4) == [100, 101, 9, 11]
    assert threads("setp.ge.u32 p, t, 99; mov.u32 v, 1; @p trap; @p bra L; mov.u32 v, 2; L:", block=2) == [2, 2]


def test_a_guarded_access_does_not_happen() -> None:
    verified = kernel_of(_ENTRY + "setp.lt.u32 p, t, n; @p st.global.u32 [at], 7; ret; }")
    (out, _), trap = run(verified, [np.zeros(2, np.int32), 2], block=8)
    assert (list(out), trap) == ([7, 7], None)
    (out, _), trap = run(verified, [np.zeros(2, np.int32), 3], block=8)
    assert trap is not None
    assert (trap.kind, trap.thread) == (TrapKind.OUTSIDE, 2)


def test_an_unwritten_register_is_zero() -> None:
    assert threads("setp.lt.u32 p, t, 2; @!p bra L; mov.u32 v, 9; L:", block=3) == [9, 9, 0]


def test_loops_and_early_exits() -> None:
    code = """mov.u32 v, 0; mov.u32 w, 0;
    L: setp.ge.u32 p, w, t; @p bra.uni E; add.u32 v, v, w; add.u32 w, w, 1; setp.gt.u32 q, v, 10; @q bra E; bra L; E:"""
    assert threads(code, block=8) == [0, 0, 1, 3, 6, 10, 15, 15]


def test_indirect_branches_are_switches() -> None:
    code = "rem.u32 w, t, 3; brx.idx w, T; T: .branchtargets A, B, C; A: mov.u32 v, 1; bra E; B: mov.u32 v, 2; bra E; C: mov.u32 v, 3; E:"
    assert threads(code, block=4) == [1, 2, 3, 1]
    verified = kernel_of(f"{_ENTRY} {code} st.global.u32 [at], v; ret; }}")
    assert any(isinstance(block.end, Switch) for block in verified.kernel.blocks)


def test_labels_belong_to_their_braces() -> None:
    code = "{ bra L; mov.u32 v, 9; L: mov.u32 v, 1; } { setp.eq.u32 p, t, 0; @p bra L; add.u32 v, v, 1; L: }"
    assert threads(code, block=2) == [1, 2]


@pytest.mark.parametrize(
    ("load", "pass_", "store"),
    [
        ("ld.param.b32 x, [a+4];", "st.param.b64 [p0], at;", "st.param.b32 [r], x;"),
        ("ld.param.v2.b32 {x, x}, [a];", "st.param.b64 [p0], at;", "st.param.b32 [r], x;"),
        ("ld.param.b64 y, [a];", "st.param.v2.b32 [p0], {t, v};", "st.param.b32 [r], x;"),
        ("ld.param.b64 y, [a];", "st.param.b64 [p0], at;", "st.param.b16 [r+2], h;"),
    ],
)
def test_a_number_passed_in_pieces_is_refused(load: str, pass_: str, store: str) -> None:
    before = f""".func (.param .b32 r) part(.param .b64 a) {{ .reg .b16 h; .reg .b32 x; .reg .b64 y; mov.b32 x, 0; mov.b16 h, 0;
        {load} {store} ret; }}"""
    code = f"{{ .param .b64 p0; {pass_} .param .b32 r0; call.uni (r0), part, (p0); ld.param.b32 v, [r0]; }}"
    with pytest.raises(PtxError, match="is passed as a whole"):
        threads(code, before=before)


def test_functions_are_called() -> None:
    before = """.func (.param .b32 r) twice(.param .b32 a) { .reg .b32 x; ld.param.b32 x, [a]; shl.b32 x, x, 1; st.param.b32 [r], x; ret; }
    .func (.reg .u32 r) sum(.reg .u32 a, .reg .u32 b) { .reg .pred p; setp.eq.u32 p, a, 3; @p ret; add.u32 r, a, b; ret; }
    """
    code = """{ .param .b32 p0; st.param.b32 [p0], t; .param .b32 r0; call.uni (r0), twice, (p0); ld.param.b32 v, [r0]; }
    call (w), sum, (t, v); add.u32 v, v, w;"""
    assert threads(code, block=5, before=before) == [0, 5, 10, 6, 20]


def test_structs_pass_through_calls_in_memory() -> None:
    before = """.func (.param .align 4 .b8 r[8]) swap(.param .align 4 .b8 a[8]) { .reg .b32 x, y;
        ld.param.v2.b32 {x, y}, [a]; st.param.b32 [r+4], x; st.param.b32 [r], y; ret; }"""
    code = """{ .param .align 4 .b8 p0[8]; st.param.b32 [p0], t; st.param.b32 [p0+4], 7; .param .align 4 .b8 r0[8];
    call (r0), swap, (p0); ld.param.v2.b32 {v, w}, [r0]; } mad.lo.u32 v, v, 100, w;"""
    assert threads(code, block=3, before=before) == [700, 701, 702]


def test_pointers_keep_their_buffer_through_calls() -> None:
    text = """.func store(.param .b64 p, .param .b32 v) { .reg .b64 a; .reg .b32 x; ld.param.b64 a, [p];
    ld.param.b32 x, [v]; st.b32 [a+4], x; ret; }
    .visible .entry k(.param .u64 o) { .reg .b64 a; ld.param.u64 a, [o]; { .param .b64 p0; st.param.b64 [p0], a; .param .b32 p1;
    st.param.b32 [p1], 5; call store, (p0, p1); } ret; }"""
    verified = kernel_of(text)
    assert verified.certificate.sliceable
    (out,), _ = run(verified, [np.zeros(2, np.int32)])
    assert list(out) == [0, 5]


def test_symbolic_math_is_a_named_op() -> None:
    text = """.extern .func (.param .b32 r) __wis_expf (.param .b32 a);
    .visible .entry k(.param .u64 o) { .reg .b64 a; .reg .f32 x; ld.param.u64 a, [o]; cvta.to.global.u64 a, a; ld.global.f32 x, [a];
    { .param .b32 p0; st.param.f32 [p0], x; .param .b32 r0; call.uni (r0), __wis_expf, (p0); ld.param.f32 x, [r0]; }
    st.global.f32 [a], x; ret; }"""
    (out,), _ = run(kernel_of(text), [np.array([1.0], np.float32)])
    assert out[0] == pytest.approx(np.e, rel=1e-6)


def test_a_failed_assertion_raises_and_ends_the_thread() -> None:
    text = """.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
    .visible .entry k(.param .u64 o) { .reg .pred p; .reg .b32 t; .reg .b64 a; ld.param.u64 a, [o]; cvta.to.global.u64 a, a;
    mov.u32 t, %tid.x; setp.ne.u32 p, t, 1; @p bra L; { .param .b64 z; st.param.b64 [z], 0; .param .b32 y; st.param.b32 [y], 0;
    call.uni __assertfail, (z, z, y, z, z); } L: red.global.add.u32 [a], 1; ret; }"""
    (out,), trap = run(kernel_of(text), [np.zeros(1, np.int32)], block=4)
    assert trap is not None
    assert (trap.kind, trap.thread, out[0]) == (TrapKind.RAISED, 1, 3)


def test_barriers() -> None:
    verified = kernel_of(_ENTRY + "bar.sync 0; barrier.sync 1, 64; bar.arrive 2, 64; bar.sync 2, n; bar.warp.sync -1; ret; }")
    ends = [type(block.end) for block in verified.kernel.blocks]
    assert [end for end in ends if end in (Bar, Sync)] == [Bar, Sync, Sync, Sync]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("setp.lt.u32 p, t, 5; bar.red.popc.u32 v, 0, p; bar.red.popc.u32 w, 0, !p; mad.lo.u32 v, v, 100, w;", [559] * 64),
        ("setp.lt.u32 p, t, 64; bar.red.and.pred q, 0, p; selp.u32 v, 1, 0, q;", [1] * 64),
        ("setp.lt.u32 p, t, 63; barrier.sync 1; bar.red.and.pred q, 1, p; selp.u32 v, 1, 0, q;", [0] * 64),
        ("setp.eq.u32 p, t, 63; bar.red.or.pred q, 0, 64, p; selp.u32 v, 1, 0, q;", [1] * 64),
    ],
)
def test_reductions_at_barriers(code: str, expected: list[int]) -> None:
    assert threads(code, block=64) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("shfl.sync.down.b32 v, t, 1, 31, -1;", [*range(1, 32), 31]),
        ("shfl.sync.up.b32 v|p, t, 2, 0, -1; @!p mov.u32 v, 99;", [99, 99, *range(30)]),
        ("shfl.sync.bfly.b32 v, t, 1, 31, -1;", [i ^ 1 for i in range(32)]),
        ("shfl.sync.idx.b32 v, t, 3, 6175, -1;", [i // 8 * 8 + 3 for i in range(32)]),
        ("cvt.rn.f32.u32 f, t; shfl.sync.idx.b32 g, f, 4, 31, -1; cvt.rzi.u32.f32 v, g;", [4] * 32),
        ("setp.lt.u32 p, t, 3; vote.sync.ballot.b32 v, p, -1;", [7] * 32),
        ("setp.lt.u32 p, t, 3; vote.sync.any.pred q, p, -1; selp.u32 v, 1, 0, q;", [1] * 32),
        ("setp.lt.u32 p, t, 3; vote.sync.all.pred q, p, 7; selp.u32 v, 1, 0, q;", [1] * 32),
        ("setp.lt.u32 p, t, 3; vote.sync.uni.pred q, p, -1; selp.u32 v, 1, 0, q;", [0] * 32),
        ("and.b32 w, t, 1; match.any.sync.b32 v, w, -1; and.b32 v, v, 15;", [5, 10] * 16),
        ("match.all.sync.b32 v|p, 7, 255; selp.u32 v, v, 0, p;", [255] * 32),
        ("activemask.b32 v;", [-1] * 32),
        ("redux.sync.add.u32 v, t, 15;", [6] * 32),
        ("sub.u32 w, t, 5; redux.sync.min.s32 v, w, -1;", [-5] * 32),
        ("elect.sync w|p, 48; selp.u32 v, w, 0, p;", [0] * 4 + [4] + [0] * 27),
        ("mov.u32 v, %laneid;", list(range(32))),
        (".shared .align 16 .b8 m[128]; mul.lo.u32 w, t, 4; mov.u32 x, m; add.u32 x, x, w; st.shared.u32 [x], t; bar.warp.sync -1; "
         "and.b32 w, t, 7; shl.b32 w, w, 4; mov.u32 x, m; add.u32 x, x, w; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {v}, [x];",
         list(range(32))),
    ],
)  # fmt: skip
def test_warps(code: str, expected: list[int]) -> None:
    assert threads(code) == expected


def test_ldmatrix_transposed() -> None:
    code = """.shared .align 16 .b8 m[128]; .reg .b16 h; mul.lo.u32 w, t, 4; mov.u32 x, m; add.u32 x, x, w;
    shl.b32 v, t, 1; add.u32 w, v, 1;
    shl.b32 w, w, 16; or.b32 v, v, w; st.shared.u32 [x], v; bar.warp.sync -1; and.b32 w, t, 7; shl.b32 w, w, 4; mov.u32 x, m;
    add.u32 x, x, w; ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {v}, [x];"""
    matrix = np.arange(64).reshape(8, 8)
    expected = [matrix[lane % 4 * 2, lane // 4] | matrix[lane % 4 * 2 + 1, lane // 4] << 16 for lane in range(32)]
    assert threads(code) == expected


def test_a_loop_with_two_entries_is_untangled() -> None:
    code = """mov.u32 v, 0; setp.eq.u32 p, t, 0; @p bra B;
    A: add.u32 v, v, 1; setp.gt.u32 q, v, 20; @q bra E;
    B: add.u32 v, v, 10; setp.gt.u32 q, v, 20; @!q bra A; E:"""
    assert threads(code, block=2) == [21, 22]
    verified = kernel_of(f"{_ENTRY} {code} st.global.u32 [at], v; ret; }}")
    assert verified.ordered


def test_blocks_are_numbered_so_that_threads_meet_again() -> None:
    """A loop's blocks side by side, what follows it after them."""
    text = (
        _ENTRY
        + """mov.u32 v, 0; bra C;
    X: add.u32 v, v, 100; bra E;
    L: add.u32 v, v, 1; setp.gt.u32 p, v, n; @p bra X;
    C: setp.lt.u32 q, v, t; @q bra L;
    E: st.global.u32 [at], v; ret; }"""
    )
    verified = kernel_of(text)
    assert verified.ordered
    assert sum(isinstance(block.end, Cbr) for block in verified.kernel.blocks) == 3
    (out, _), _ = run(verified, [np.zeros(8, np.int32), 3], block=8)
    assert list(out) == [0, 1, 2, 3, 104, 104, 104, 104]


def test_source_lines() -> None:
    text = (
        HEADER
        + """.visible .entry k(.param .u64 o)
    {
    .reg .b64 a; .reg .b32 x;
    .loc 1 10 3
    ld.param.u64 a, [o]; cvta.to.global.u64 a, a;
    .loc 2 77 1, function_name $L__info, inlined_at 1 12 5
    ld.global.u32 x, [a];
    .loc 1 13 1
    st.global.u32 [a+4], x;
    ret;
    }
    .file 1 "/somewhere/kernel.cu"
    .file 2 "/elsewhere/header.h"
    .section .debug_str
    {
    $L__info: .b8 95,0
    }
    """
    )
    kernel = import_ptx(text).entries[0].kernel
    assert (kernel.file, set(kernel.lines)) == ("kernel.cu", {10, 12, 13})
    assert [site.line for site in verify_kernel(kernel).sites] == [12, 13]


def test_without_source_lines_those_of_the_ptx_serve() -> None:
    module = import_ptx(HEADER + ".visible .entry k()\n{\nbar.sync 0;\ntrap;\nret;\n}", "mine.ptx")
    kernel = module.entries[0].kernel
    assert (kernel.file, list(kernel.lines)) == ("mine.ptx", [7])


def test_bounds_on_threads() -> None:
    assert module_of(".visible .entry k() .maxntid 64, 2, 1 .minnctapersm 2 { ret; }").entries[0].kernel.threads_max == 128
    assert module_of(".visible .entry k() .reqntid 33 { ret; }").entries[0].kernel.threads_max == 33
    assert module_of(".visible .entry k() { ret; }").entries[0].kernel.threads_max == 1024
