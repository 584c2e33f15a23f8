"""What the verifier makes of a kernel: calls become code, sites, costs, alignments; limits; bytes of both versions."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.wis_kernels import seeded_case
from wis.errors import DecodeError, VerifyError
from wis.kernel.certificate import statically_safe
from wis.kernel.inline import Size, inline, recursion, sizes
from wis.kernel.interpret import Launch, launch
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import (
    Block,
    Br,
    Call,
    Function,
    Kernel,
    Op,
    RegType,
    Ret,
    Sync,
    TrapKind,
    decode_kernel,
    encode_kernel,
    shared_bytes,
    shared_offsets,
)
from wis.kernel.ops import BY_NAME
from wis.kernel.text import parse_kernel, print_kernel
from wis.kernel.verify import Barriers, Site, VerifiedKernel, verify_kernel

HEAD = "kernel 2 k\nmath strict\nthreads 32\n"


def verified(text: str) -> VerifiedKernel:
    return verify_kernel(parse_kernel(HEAD + text))


NESTED = """param buf i32 w
file "k.cu"
regs i32 i32 i32
block 0
 r0 = special(tid.x) @1
 br 1
block 1
 call 1 (r0, r0) -> (r1), 2
block 2
 call 0 (r1) -> (r1), 3
block 3
 r2 = const(2) @3
 r0 = shl r0, r2
 store(p0 i32) r0, r1 @4
 ret
function 0 double (r0) -> (r0)
regs i32
block 0
 r0 = add r0, r0 @10
 ret
function 1 count (r0, r1) -> (r2)
regs i32 i32 i32 i32 pred
block 0
 r2 = const(0) @20
 r3 = const(0) @20
 br 1
block 1
 r4 = lt_s r3, r0 @21
 cbr r4, 2, 4
block 2
 call 0 (r2) -> (r2), 3
block 3
 r2 = add r2, r1 @22
 call 2 (r3) -> (r3), 1
block 4
 ret
function 2 next (r0) -> (r1)
regs i32 i32 i32
block 0
 r2 = const(1) @30
 r1 = add r0, r2 @30
 ret
"""


def counted(tid: int) -> int:
    value = 0
    for _ in range(tid):
        value = 2 * value + tid
    return 2 * value


def test_calls_become_code() -> None:
    kernel = verified(NESTED)
    out = np.zeros(8 * 4, np.uint8)
    outcome = launch(kernel, Launch((1, 1, 1), (8, 1, 1)), [out])
    assert out.view(np.int32).tolist() == [counted(tid) for tid in range(8)]
    flat = kernel.flat
    assert not flat.functions and not any(isinstance(block.end, Call) for block in flat.blocks)
    assert len(flat.regs) == 3 + 1 + 5 + 3, "one set of registers a function, however often it is called"
    assert sizes(kernel.kernel) == Size(sum(len(b.code) for b in flat.blocks), len(flat.blocks))
    assert verify_kernel(flat).ordered and kernel.ordered, "copies stand in place, so order is kept"
    assert kernel.costs == tuple(len(b.code) + 1 for b in flat.blocks)
    assert outcome.instructions == sum(n * c for n, c in zip(outcome.executions, kernel.costs, strict=True))
    assert inline(flat) is flat


def test_a_call_costs_its_movs_and_branches() -> None:
    text = "regs i32 i32\nblock 0\n r0 = const(1)\n call 0 (r0, r0) -> (r1), 1\nblock 1\n ret\n"
    text += "function 0 f (r0, r1) -> (r2)\nregs i32 i32 i32\nblock 0\n r2 = add r0, r1\n ret\n"
    assert verified(text).costs == (1 + 2 + 1, 1 + 1, 1 + 1, 1)


def test_source_lines_follow_their_ops() -> None:
    kernel = verified(NESTED)
    assert len(kernel.flat.lines) == sum(len(b.code) for b in kernel.flat.blocks)
    (site,) = kernel.sites
    assert site.line == 4 and kernel.flat.blocks[site.block].code[site.op].op == BY_NAME["store"].code
    doubled = [line for line, op in zip(kernel.flat.lines, (op for b in kernel.flat.blocks for op in b.code), strict=True) if line == 10]
    assert len(doubled) == 2


def test_recursion_is_found_over_any_number_of_calls() -> None:
    def function(*callees: int) -> Function:
        blocks = (*(Block((), Call(f, (), (), i + 1)) for i, f in enumerate(callees)), Block((), Ret()))
        return Function("f", (), (), (), blocks)

    assert recursion([function(), function(0), function(0, 1)]) == ()
    assert recursion([function(0)]) == (0,)
    assert recursion([function(1), function(2), function(0), function(), function(3)]) == (0, 1, 2)
    assert recursion([function(1), function(1)]) == (0, 1), "what calls a recursive function is no better"


def test_a_bomb_of_calls_is_refused_before_it_goes_off() -> None:
    functions = [Function("f", (), (), (), (Block((), Ret()),))]
    functions += [
        Function("f", (), (), (), (Block((), Call(i, (), (), 1)), Block((), Call(i, (), (), 2)), Block((), Ret()))) for i in range(200)
    ]
    kernel = Kernel(2, "k", 0, 32, (), (), (), (Block((), Call(200, (), (), 1)), Block((), Ret())), functions=tuple(functions))
    with pytest.raises(VerifyError, match="after calls became code"):
        verify_kernel(kernel)


LOOPS = "block 0\n r0 = const(0)\n br 1\n" + "".join(f"block {b}\n br {b + 1}\n" for b in range(1, 41))
LOOPS += "".join(f"block {40 + i}\n cbr r0, {41 - i}, {41 + i}\n" for i in range(1, 41))


def test_depth_of_loops_counts_over_calls() -> None:
    text = f"regs pred\n{LOOPS.replace('block 40', 'block 40', 1)}block 81\n ret\n"
    assert max(loop.depth for loop in verified(text).flow.loops) == 40
    called = "regs pred\n" + LOOPS.replace("block 40\n br 41", "block 40\n call 0 () -> (), 41") + "block 81\n ret\n"
    called += f"function 0 f () -> ()\n{text}"
    with pytest.raises(VerifyError, match="a loop inside of 64 others"):
        verified(called)


def test_sites_and_alignments() -> None:
    text = (
        "param buf f32 r\nparam buf u8 rw\nparam i32\nparam buf f64 w\nparam buf f32 r\nshared f32[4]\nregs i32 i64 f32 f32\nblock 0\n"
        " r0 = const(0)\n r1 = const(0)\n r2, r3 = load(p0 f32x2) r0\n r2 = load(p0 f32) r0\n raise\n br 1\nblock 1\n"
        " red(add p1 u64) r0, r1\n store(arena f32x4) r1, r2, r2, r2, r2\n r2 = ld(s0 f32) r1\n r0 = load(p1 u8) r0\n ret"
    )
    kernel = verified(text)
    assert kernel.aligns == (8, 8, 1, 1, 1)
    assert kernel.sites == (Site(0, 2, 0), Site(0, 3, 0), Site(0, 4, 0), Site(1, 0, 0), Site(1, 1, 0), Site(1, 2, 0), Site(1, 3, 0))
    assert kernel.uses._asdict() == {"warp": False, "atomics": True, "shared": True, "local": False, "constants": False, "arena": True}
    assert kernel.barriers is Barriers.NONE


def test_shared_arrays_lie_at_multiples_of_16() -> None:
    kernel = parse_kernel(HEAD + "shared u8[3]\nshared f64[2]\nshared bool[1]\nshared u8[0]\ndynamic 1\nregs\nblock 0\n ret")
    assert shared_offsets(kernel) == (0, 16, 32, 48)
    assert shared_bytes(kernel) == 48 and shared_bytes(kernel, 100) == 148
    assert shared_bytes(parse_kernel(HEAD + "regs\nblock 0\n ret")) == 0


def test_barriers_with_a_count_are_not_proven() -> None:
    text = "regs i32\nblock 0\n r0 = const(32)\n sync 1, 3{}\nblock 1\n ret"
    assert verified(text.format("")).barriers is Barriers.UNIFORM
    assert verified(text.format(", r0")).barriers is Barriers.DIVERGENT


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"local_bytes": -1}, "-1 bytes of local memory"),
        ({"constants": bytes(KERNEL_LIMITS.constant_bytes_max + 1)}, "65537 bytes of constants"),
        ({"functions": (Function("f", (), (), (), (Block((), Ret()),)),) * 257}, "257 functions"),
        ({"dynamic": 1}, "last shared array of u8"),
        ({"lines": (1,)}, "1 source lines for 0 ops"),
        ({"version": 1, "local_bytes": 4}, "version 1 has no local_bytes"),
        ({"version": 0}, "version 0 is not 2"),
        ({"name": "x" * 100_000 + " "}, "is not a name"),
        ({"file": "f" * 1_001}, "1001 characters of file"),
        ({"blocks": (Block((), Sync(0, 0, 0, 0)),)}, "register 0 of 0"),
    ],
)
def test_limits_and_versions(changes: dict[str, Any], says: str) -> None:
    kernel = msgspec.structs.replace(parse_kernel(HEAD + "regs\nblock 0\n ret"), **changes)
    with pytest.raises(VerifyError) as caught:
        verify_kernel(kernel)
    text = "\n".join(map(str, caught.value.findings))
    assert says in text and len(text) < 1_000
    assert says in print_kernel(kernel, caught.value.findings), "every finding has a line"


def test_the_number_of_sites_fits_their_key() -> None:
    assert KERNEL_LIMITS.sites_max == (1 << 17) - 1, "one number more is the site of barriers"
    few = replace(KERNEL_LIMITS, sites_max=2)
    text = "shared f32[4]\nregs i64 f32\nblock 0\n r0 = const(0)\n r1 = ld(s0 f32) r0\n r1 = ld(s0 f32) r0\n raise\n ret"
    with pytest.raises(VerifyError, match="3 ops that may trap"):
        verify_kernel(parse_kernel(HEAD + text), few)


def test_bytes_of_version_1_are_the_first_eight_fields() -> None:
    kernel = parse_kernel("kernel 1 k\nmath strict\nthreads 1\nregs f32\nblock 0\n r0 = const(1.0)\n ret")
    data = encode_kernel(kernel)
    assert data == b"\x98\x01\xa1k\x00\x01\x90\x90\x91\x06\x91\x92\x91\x94\x01\x91\x00\x90\x91\xce\x3f\x80\x00\x00\x91\x02"
    assert decode_kernel(data) == kernel and verify_kernel(kernel).kernel.version == 1
    newer = msgspec.structs.replace(kernel, version=2)
    assert encode_kernel(newer) == b"\x9e\x02" + data[2:] + b"\x00\x00\xc4\x00\x90\xa0\x90"
    assert decode_kernel(encode_kernel(newer)) == newer


@pytest.mark.parametrize(
    "data",
    [
        b"\x98\x02\xa1k\x00\x01\x90\x90\x90\x90",  # version 2 in the form of version 1
        b"\x9e\x01\xa1k\x00\x01\x90\x90\x90\x90\x00\x00\xc4\x00\x90\xa0\x90",  # and the other way round
        b"\x98\x03\xa1k\x00\x01\x90\x90\x90\x90",
        b"\x98\x00\xa1k\x00\x01\x90\x90\x90\x90",
        b"\x98\x01\xa1\xff\x00\x01\x90\x90\x90\x90",  # no UTF-8
        b"\x91" * 100_000,
        b"\x98\x01\xa1k\x00\x01\x90\x90\x90\x91\x92\x90\x92\x07\x00",  # no such terminator
    ],
)
def test_bytes_that_are_no_kernel(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_kernel(data)


def test_registers_of_numbers_a_kernel_cannot_have_are_found() -> None:
    huge = (1 << 64) - 1
    op = Op(BY_NAME["mov"].code, (huge,), (0,))
    kernel = Kernel(2, "k", 0, 1, (), (), (RegType.I32,), (Block((op,), Ret()),))
    assert decode_kernel(encode_kernel(kernel)) == kernel
    with pytest.raises(VerifyError, match="register 18446744073709551615 of 1"):
        verify_kernel(kernel)


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_what_is_said_of_random_kernels_holds_when_they_run(first: int) -> None:
    """Accesses called safe never trap, barriers that threads were proven to meet at complete, flat kernels are kernels."""
    seen = {"safe": 0, "met": 0, "trapped": 0}
    for seed in range(first, first + 20):
        case = seeded_case(seed)
        kernel = verify_kernel(case.kernel)
        assert verify_kernel(kernel.flat).costs == kernel.costs
        safe = statically_safe(kernel.flat, kernel.flow, case.block)
        params = [p.copy() if isinstance(p, np.ndarray) else p for p in case.params]
        for block in range(prod(case.grid)):
            outcome = launch(kernel, Launch(case.grid, case.block, block, 1, case.dynamic_bytes), params, fuel=3_000_000)
            seen["trapped"] += outcome.trapped
            if outcome.trap is not None:
                assert outcome.trap.site not in safe
                assert outcome.trap.kind is not TrapKind.BARRIER or kernel.barriers is Barriers.DIVERGENT
        seen["safe"] += len(safe)
        seen["met"] += kernel.barriers in (Barriers.UNIFORM, Barriers.LIVE)
    assert all(seen.values()), seen


def test_registers_times_blocks_are_bounded() -> None:
    blocks = (Block((), Br(1)), *(Block((), Br(b + 1)) for b in range(1, 4095)), Block((), Ret()))
    with pytest.raises(VerifyError, match="registers times blocks"):
        verify_kernel(Kernel(2, "k", 0, 1, (), (), (RegType.I32,) * 40_000, blocks))
