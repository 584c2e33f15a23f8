"""What cannot be had is refused where it stands, and no text makes the front end fail in another way."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.ptx_snippets import HEADER
from wis.errors import VerifyError
from wis.frontends.ptx import PtxError, import_ptx
from wis.kernel.verify import verify_kernel

_BODY = HEADER + ".visible .entry k(.param .u64 o)\n{\n.reg .pred p; .reg .b32 a, b, c, d; .reg .b64 x; .reg .f32 f;\n{}\nret;\n}\n"

_WMMA = "wmma.mma.sync.aligned.row.col.m16n16k16"
REFUSED = [
    ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {f,f,f,f}, {a,b}, {a,b}, {f,f,f,f};", "not portable", "torch.matmul"),
    ("mma.sync.aligned.m16n8k8.row.col.satfinite.f32.f16.f16.f32 {f,f,f,f}, {a,b}, {a}, {f,f,f,f};", "sums of floats", "torch.matmul"),
    (
        "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.s32 {a,b,c,d,a,b,c,d}, {a,b}, {a,b}, {a,b,c,d,a,b,c,d};",
        "not portable",
        "torch.matmul",
    ),
    (
        "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.f32 {a,b,c,d,a,b,c,d}, {a,b}, {a,b}, {f,f,f,f,f,f,f,f};",
        "not portable",
        "torch.matmul",
    ),
    (
        "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32 {a,b,c,d,a,b,c,d}, {a,b,c}, {a,b}, {a,b,c,d,a,b,c,d};",
        "takes 2 registers",
        "",
    ),
    ("wmma.load.c.sync.aligned.m16n16k16.global.f32 {f,f,f,f,f,f,f,f}, [x], a;", "not portable", "torch.matmul"),
    ("wmma.load.a.sync.aligned.row.m32n8k16.global.f16 {a,b,c,d,a,b,c,d}, [x], a;", "not portable", "torch.matmul"),
    ("wgmma.fence.sync.aligned;", "not portable", "torch.matmul"),
    ("tex.2d.v4.f32.f32 {f,f,f,f}, [x, {f, f}];", "", "textures"),
    ("suld.b.1d.b32.trap a, [x];", "not portable", "pointer"),
    ("mov.u32 a, %clock;", "%clock is not portable", "events"),
    ("mov.u64 x, %globaltimer;", "not portable", "events"),
    ("mov.u32 a, %smid;", "not portable", "ctaid"),
    ("mov.u32 a, %reserved_smem_offset_1;", "not portable", "32 threads"),
    ("mov.u32 a, %envreg1;", "not portable", "launches"),
    ("mov.u32 a, %nosuch;", "neither declared nor a special register", ""),
    ("mapa.shared::cluster.u32 a, b, c;", "not portable", "clusters"),
    ("barrier.cluster.arrive;", "not portable", "blocks"),
    ("mbarrier.init.shared.b64 [a], 1;", "not portable", "syncthreads"),
    ("cp.async.bulk.global.shared::cta.bulk_group [x], [a], 16;", "not portable", "loads and stores"),
    ("call.uni vprintf, (a);", "vprintf is not portable", "buffer"),
    ("call.uni malloc, (a);", "malloc is not portable", "buffer"),
    ("call.uni cudaLaunchDeviceV2, (x);", "not portable", "host"),
    ("call.uni nosuch, (a);", "called but not defined", "same source"),
    ("call (a), x, (b), proto;", "function pointers", "by name"),
    ("alloca.u64 x, 8, 8;", "not portable", "fixed size"),
    ("cvt.rn.satfinite.tf32.f32 a, f;", "not supported", ""),
    ("cvt.rn.satfinite.e4m3x2.f32 a, f, f;", "not supported", ""),
    ("{ .shared .b32 s; st.shared.u32 [s], a; } { .shared .b64 s; st.shared.u64 [s], x; }", "two variables of k are called s", "rename"),
    ("frobnicate.u32 a, b;", "frobnicate.u32 is not known", ""),
    ("add.foo.u32 a, b, c;", ".foo is not supported", ""),
    ("add.u32 a, b;", "takes 3 operands, not 2", ""),
    ("add.u32;", "takes 3 operands, not 0", ""),
    ("mov.u32 a;", "takes 2 operands, not 1", ""),
    ("add.u32 a, b, x;", "cannot be used as i32", ""),
    ("add.u32 a, b, nosuch;", "nosuch is not declared", ""),
    ("add.u32 5, b, c;", "needs a register", ""),
    ("bra NOWHERE;", "no label NOWHERE", ""),
    ("@a bra L; L:", "predicate", ""),
    ("brx.idx a, T; T: .branchtargets L, M; L:", "no label M", ""),
    ("addc.u32 a, b, c;", "no carry", ""),
    ("bar.sync a;", "must be a constant", ""),
    ("bar.sync 16;", "0 to 15", ""),
    ("lop3.b32 a, b, c, d, 256;", "0 to 255", ""),
    ("atom.global.min.f32 f, [x], f;", "not supported", ""),
    ("atom.global.cas.b32 a, [x], b;", "takes 2 values, not 1", ""),
    ("atom.global.add.u32 a, [x], b, c, d;", "takes 1 values, not 3", ""),
    ("red.global.cas.b32 [x], a, b;", "not supported", ""),
    ("red.global.exch.b32 [x], a;", "not supported", ""),
    ("atom.global.exch.b128 x, [x], x;", "supported", ""),
    ("ld.global.v2.u32 a, [x];", "2 registers expected", ""),
    ("ld.param.u32 a, [nosuch];", "not a parameter", ""),
    ("ld.param.u64 x, [o+8];", "8 bytes", ""),
    ("ld.global.u32 a, x;", "brackets", ""),
    (".reg .b128 w; mov.b128 w, {x, x};", "supported", ""),
    (".reg .b32 a<5;", "expected '>'", ""),
    ("L: L:", "stands twice", ""),
    ("mov.u32 a, 99999999999999999999999;", "64 bits", ""),
    ("mov.u32 a, 0xZZ;", "", ""),
    ("mov.u32 a, `;", "cannot stand here", ""),
    ("st.const.u32 [x], a;", "constants cannot be written", "__device__"),
    ("atom.const.add.u32 a, [x], b;", "not supported", ""),
    ("mov a, b;", "does not say the type", ""),
    ("sqrt.rn.u32 a, b;", "not a form that is known", ""),
    ("mul.wide.u64 x, x, x;", "128 bits", ""),
    ("cvt.pack.sat.s16.s32 {a, b}, c;", "not a form that is known", ""),
    ("setp.lo.f32 p, f, f;", "not compared by .lo", ""),
    ("fma.rn.oob.f32 f, f, f, f;", ".oob is not supported", ""),
    ("shfl.sync.b32 a, b, c, d, a;", "from where", ""),
    ("add.u33 a, b, c;", ".u33 is not supported", ""),
    ("addd.u32 a, b, c;", "there is add", ""),
]


@pytest.mark.parametrize(("code", "text", "hint"), REFUSED)
def test_refused_in_place(code: str, text: str, hint: str) -> None:
    with pytest.raises(PtxError) as caught:
        import_ptx(_BODY.replace("{}", code))
    error = caught.value
    assert error.line == 7, str(error)
    assert code.startswith(error.ptx[:40])
    assert text in f"{error.reason} {error.hint}"
    assert hint in f"{error.reason} {error.hint}"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "starts with .version"),
        ("hello", 1, "starts with .version"),
        (".version 5.0\n.target sm_50\n", 1, "version 5.0 of PTX is not known"),
        (".version 99.0\n.target sm_50\n", 1, "not known"),
        (".version x\n", 1, "not a version"),
        (".version 8.0\n.target sm_90\n.address_size 32\n", 3, "64 bits"),
        (HEADER, 1, "no kernel"),
        (HEADER + ".visible .entry k() {", 4, "ends too early"),
        (HEADER + ".visible .entry k() { ret; } }", 4, "outside of functions"),
        (HEADER + ".visible .entry k() { ret; }\n.visible .entry k() { ret; }", 5, "defined twice"),
        (HEADER + ".global .texref t;\n.visible .entry k() { ret; }", 4, "textures"),
        (HEADER + ".visible .entry k(.param .texref t) { ret; }", 4, "textures"),
        (HEADER + ".extern .global .u32 x;\n.visible .entry k() { .reg .u32 a; ld.global.u32 a, [x]; ret; }", 4, "not defined"),
        (HEADER + ".global .u32 y; .global .u64 x = y;\n.visible .entry k() { .reg .u64 a; ld.global.u64 a, [x]; ret; }", 4, "addresses"),
        (
            HEADER + ".global .u32 y; .global .b8 x[3] = {1, 0xFF(y), 0XFF00(generic(y)+4)};\n"
            ".visible .entry k() { .reg .u16 a; ld.global.u8 a, [x]; ret; }",
            4,
            "addresses",
        ),
        (HEADER + ".global .u32 x = {1, 2};\n.visible .entry k() { ret; }", 4, "8 bytes for a variable of 4"),
        (
            HEADER
            + ".visible .const .u32 c = 1;\n.visible .entry k() { .reg .u64 a; mov.u64 a, c; cvta.const.u64 a, a; st.u32 [a], 1; ret; }",
            5,
            "constants cannot be written",
        ),
        (HEADER + ".func f() { call f; ret; }\n.visible .entry k() { call f; ret; }", 4, "calls itself"),
        (HEADER + ".func f() { exit; }\n.visible .entry k() { call f; ret; }", 4, "exit inside of a function"),
        (HEADER + ".visible .entry k() .reqnctapercluster 2, 1, 1 { ret; }", 4, "clusters"),
    ],
)
def test_files_that_are_none(text: str, line: int, reason: str) -> None:
    with pytest.raises(PtxError) as caught:
        import_ptx(text)
    assert (caught.value.line, reason in str(caught.value)) == (line, True), str(caught.value)


def test_bytes_of_addresses_in_a_variable_that_is_not_used() -> None:
    import_ptx(HEADER + ".global .u32 y; .global .b8 x[3] = {1, 0xFF(y), 0xFF00(generic(y)+4)}; .visible .entry k() { ret; }")


def test_numbers_beyond_a_variable_s_type() -> None:
    import_ptx(HEADER + ".global .f32 x[2] = {1e39, -1e39}; .visible .entry k() { ret; }")
    with pytest.raises(PtxError, match="64 bits"):
        import_ptx(HEADER + f".global .f32 x = {10**400}; .visible .entry k() {{ ret; }}")


def test_an_error_survives_pickling() -> None:
    with pytest.raises(PtxError) as caught:
        import_ptx(_BODY.replace("{}", "mov.u32 a, %clock;"))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.line, again.hint, again.ptx) == (
        str(caught.value), caught.value.line, caught.value.hint, caught.value.ptx,
    )  # fmt: skip


def test_an_irreducible_maze_is_refused_by_name() -> None:
    """Every block leads to many others: splitting would double it again and again."""
    n = 60
    blocks = " ".join(
        f"L{i}: add.u32 a, a, {i}; setp.eq.u32 p, a, {i}; @p bra L{(i * 7 + 3) % n}; setp.gt.u32 p, a, {i}; @p bra L{(i * 13 + 5) % n};"
        for i in range(n)
    )
    with pytest.raises(PtxError, match="more than one entry"):
        import_ptx(_BODY.replace("{}", f"mov.u32 a, %tid.x; setp.eq.u32 p, a, 1; @p bra L{n // 2}; {blocks}"))


_SAMPLE = (
    HEADER
    + """
.extern .func (.param .b32 r) __wis_expf (.param .b32 a);
.visible .const .align 4 .b8 table[8] = {1, 0, 0, 0, 2};
.func (.param .b32 r) twice(.param .b32 a) { .reg .b32 x; ld.param.b32 x, [a]; shl.b32 x, x, 1; st.param.b32 [r], x; ret; }
.visible .entry k(.param .u64 .ptr .align 1 o, .param .align 8 .b8 s[16], .param .u32 n) .maxntid 128, 1, 1
{
    .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<4>; .reg .b16 %rs<3>;
    .shared .align 4 .b8 m[64];
    ld.param.u64 %rd1, [o]; cvta.to.global.u64 %rd1, %rd1; ld.param.v2.u32 {%r1, %r2}, [s+8]; ld.const.u32 %r3, [table+4];
    .loc 1 3 4
    mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r4, %r1, -3; mul.wide.u32 %rd2, %r4, 4; add.s64 %rd3, %rd1, %rd2;
$L1: ld.global.f32 %f1, [%rd3+-4]; { .param .b32 p0; st.param.f32 [p0], %f1; .param .b32 q0; call.uni (q0), __wis_expf, (p0);
    ld.param.f32 %f2, [q0]; } fma.rn.f32 %f3, %f2, 0f3F800000, %f1; st.shared.f32 [m], %f3; bar.sync 0;
    shfl.sync.down.b32 %r6|%p1, %r5, 1, 31, -1;
    { .param .b32 p1; st.param.b32 [p1], %r6; .param .b32 q1; call.uni (q1), twice, (p1); ld.param.b32 %r7, [q1]; }
    setp.lt.and.s32 %p2|%p3, %r7, %r2, %p1; @!%p2 atom.global.cas.b32 %r8, [%rd3], 1, %r7; @%p3 bra $L1; cvt.rn.f16.f32 %rs1, %f3;
    brx.idx %r8, T; T: .branchtargets $L1, $L2; $L2: st.global.b16 [%rd3], %rs1; trap; ret;
}
"""
)
_PIECES = st.sampled_from(
    ["add.s32", ".reg", "{", "}", ";", ",", "[", "]", "%r1", "%rd1", "%p1", "0x7", "-1", "0f3F800000", "ret", "bra", "$L1", "@", "!", "|",
     ".param", ".shared", "st.global.v4.u64", "call", "(", ")", ".b8", ":", "mov.b64", "cvt.u8.f64", "%tid.x", "_", ".loc", '"', "/*", "m",
     "99999999999", "shfl.sync.bfly.b32", "bfe.s64", "setp.ltu.f16x2", "ld.param.b8", ".v4", "<", ">", "=", "atom.add.f16", "selp.pred"]
)  # fmt: skip


def _import_or_refuse(text: str) -> None:
    try:
        module = import_ptx(text)
    except PtxError:
        return
    for entry in module.entries:
        try:
            verify_kernel(entry.kernel)
        except VerifyError as error:  # what the front end makes may only break limits and rules about the code's own shape
            assert {finding.rule for finding in error.findings} <= {"limit", "flow", "math"}, str(error)


def test_the_sample_of_the_property_tests_is_good() -> None:
    verify_kernel(import_ptx(_SAMPLE).entries[0].kernel)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_changed_text_is_imported_or_refused(data: st.DataObject) -> None:
    words = _SAMPLE.split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(8, len(words) - 1))
        kind = data.draw(st.integers(0, 3))
        if kind == 0:
            del words[at]
        elif kind == 1:
            words[at] = data.draw(_PIECES)
        elif kind == 2:
            words.insert(at, data.draw(_PIECES))
        else:
            other = data.draw(st.integers(8, len(words) - 1))
            words[at] = words[other]
    _import_or_refuse(" ".join(words))


@settings(max_examples=100, deadline=None)
@given(st.lists(_PIECES, max_size=40), st.text(max_size=20))
def test_garbage_is_refused(pieces: list[str], text: str) -> None:
    _import_or_refuse(_BODY.replace("{}", f"{' '.join(pieces)} {text}"))
    _import_or_refuse(text)
