"""What the definition says about memory in bytes, traps, atomics, barriers and warps, beside plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.kernel_ops import edge_values, one_op, run_op
from wis.kernel.interpret import Launch, Outcome, launch
from wis.kernel.model import LOCAL_BASE, SHARED_BASE, Atomic, Shuffle, TrapKind, Vote
from wis.kernel.model import RegType as T
from wis.kernel.text import parse_kernel
from wis.kernel.traps import Trap
from wis.kernel.verify import verify_kernel

Array = np.ndarray[Any, Any]


def run(
    head: str,
    body: str,
    params: Sequence[Any],
    threads: int = 1,
    blocks: int = 1,
    dynamic_bytes: int = 0,
    fuel: int | None = None,
    addresses: Sequence[int] | None = None,
) -> Outcome:
    """Run a kernel whose lines are given without indents, separated by newlines or ``/``."""
    lines = [line.strip() for line in f"{head}\n{body}".replace(" / ", "\n").strip().splitlines()]
    verified = verify_kernel(parse_kernel("kernel 2 k\nmath strict\nthreads 1024\n" + "\n".join(lines) + "\n"))
    raw = [p.view(np.uint8) if isinstance(p, np.ndarray) else p for p in params]
    return launch(verified, Launch((blocks, 1, 1), (threads, 1, 1), dynamic_bytes=dynamic_bytes), raw, fuel, addresses)


def test_offsets_are_bytes_and_i32_ones_unsigned() -> None:
    data, out = np.arange(16, dtype=np.uint8), np.zeros(4, np.uint32)
    outcome = run(
        "param buf u8 r\nparam buf u32 w\nregs i32 i64 i32 i32",
        "block 0 / r0 = const(4) / r2 = load(p0 u32 +4) r0 / r1 = const(0) / store(p1 u32) r1, r2 / r0 = const(-4)"
        " / r3 = load(p0 u16 -8) r0 / store(p1 u32 +4) r1, r3 / ret",
        [data, out],
    )
    # -4 without sign is 2**32 - 4; minus 8 that is far outside.
    assert out.tolist() == [0x0B0A0908, 0, 0, 0]
    assert outcome.trap == Trap(TrapKind.OUTSIDE, 0, 0, 2)


@pytest.mark.parametrize(
    ("offset", "kind"),
    [(0, None), (16, None), (8, TrapKind.MISALIGNED), (4, TrapKind.MISALIGNED), (17, TrapKind.OUTSIDE),
     (24, TrapKind.OUTSIDE), (32, TrapKind.OUTSIDE),
     (-16, TrapKind.OUTSIDE), (-1, TrapKind.OUTSIDE), (2**63 - 1, TrapKind.OUTSIDE), (-(2**63), TrapKind.OUTSIDE)],
)  # fmt: skip
def test_vectors_are_inside_and_aligned_as_a_whole_or_nothing(offset: int, kind: TrapKind | None) -> None:
    data, out = np.arange(1, 9, dtype=np.int32), np.full(8, -7, np.int32)
    outcome = run(
        "param buf i32 r\nparam buf i32 w\nparam i64\nregs i64 i32 i32 i32 i32 i64",
        "block 0 / r0 = param(p2) / r1, r2, r3, r4 = load(p0 i32x4) r0 / r5 = const(0) / store(p1 i32x4) r5, r1, r2, r3, r4"
        " / store(p1 i32x4) r0, r4, r3, r2, r1 / ret",
        [data, out, offset],
    )
    got = [1 + offset // 4 + i for i in range(4)] if kind is None else [0] * 4
    want = [*got, *[-7] * 4]
    if kind is None:
        want[offset // 4 : offset // 4 + 4] = got[::-1]
    assert out.tolist() == want
    assert (outcome.trap.kind if outcome.trap else None) is kind


def test_the_least_trap_is_kept() -> None:
    """Thread 5 of block 1 traps at a later site than thread 7; thread order counts before the site's."""
    outcome = run(
        "param buf i32 rw\nregs i32 i32 i32 pred i32",
        "block 0 / r0 = special(tid.x) / r1 = special(ctaid.x) / r2 = const(1) / r3 = eq r1, r2 / cbr r3, 1, 3"
        " / block 1 / r2 = const(7) / r3 = eq r0, r2 / r4 = load(p0 i32 +400) r0 / cbr r3, 2, 3 / block 2 / raise / br 3 / block 3 / ret",
        [np.zeros(101, np.int32)],
        threads=8,
        blocks=3,
    )
    assert outcome.trap == Trap(TrapKind.OUTSIDE, 1, 1, 0)  # thread 0 reads the last element; thread 1 reads beyond it
    assert outcome.trapped


def test_raise_traps_and_the_thread_goes_on() -> None:
    out = np.zeros(1, np.int32)
    outcome = run("param buf i32 w\nregs i64 i32", "block 0 / raise / r0 = const(0) / r1 = const(9) / store(p0 i32) r0, r1 / ret", [out])
    assert out.tolist() == [9] and outcome.trap == Trap(TrapKind.RAISED, 0, 0, 0) and outcome.instructions == 5


def test_shared_local_and_constants() -> None:
    out = np.zeros(8, np.int32)
    outcome = run(
        "param buf i32 w\nshared i32[3]\nshared u8[0]\ndynamic 1\nlocal 12\nconstants 05000000ff\nregs i32 i32 i32 i32",
        "block 0 / r0 = special(dynamic) / r1 = const(0) / store(p0 i32) r1, r0 / r2 = load(const u8 +4) r1 / store(p0 i32 +4) r1, r2"
        " / r2 = load(const i32) r1 / store(local i32 +8) r1, r2 / r3 = load(local i32 +8) r1 / store(p0 i32 +8) r1, r3"
        " / store(s1 i32 +4) r1, r3 / r3 = load(s1 u8 +4) r1 / store(p0 i32 +12) r1, r3 / r3 = load(s0 i32 +8) r1"
        " / store(p0 i32 +16) r1, r3 / r3 = load(s1 u8 +8) r1 / ret",
        [out],
        dynamic_bytes=8,
    )
    assert out.tolist() == [8, 255, 5, 5, 0, 0, 0, 0]
    assert outcome.trap is not None and (outcome.trap.kind, outcome.trap.site) == (TrapKind.OUTSIDE, 12)


def test_addresses_reach_buffers_shared_and_local_memory_and_obey_rights() -> None:
    source, sink, both = np.array([11, 12], np.int32), np.zeros(2, np.int32), np.zeros(8, np.int32)

    def at(address: int, what: str) -> Outcome:
        return run(
            "param buf i32 r\nparam buf i32 w\nparam buf i32 rw\nparam i64\nshared u8[5]\nshared i32[2]\nlocal 8\nregs i64 i32 i64 i32",
            f"block 0 / r0 = param(p3) / r1 = const(77) / r2 = const(0) / r3 = const(0) / {what} / store(p2 i32) r2, r3 / ret",
            [source, sink, both, address],
            addresses=[1000, 2000, 3000, 0],
        )

    assert at(1004, "r3 = load(arena i32) r0").trap is None and both[0] == 12
    assert at(1000, "store(arena i32) r0, r1").trap == Trap(TrapKind.OUTSIDE, 0, 0, 0) and source[0] == 11
    assert at(2004, "store(arena i32) r0, r1").trap is None and sink[1] == 77
    assert at(2004, "r3 = load(arena i32) r0").trapped and both[0] == 0
    assert at(2008, "store(arena i32) r0, r1").trapped
    assert at(3002, "store(arena i32) r0, r1").trap == Trap(TrapKind.MISALIGNED, 0, 0, 0)
    assert at(3006, "store(arena i32x2 +2) r0, r1, r1").trap is None and both[2:4].tolist() == [77, 77]
    assert at(SHARED_BASE + 16, "store(arena i32) r0, r1 / r3 = load(s1 i32) r2").trap is None and both[0] == 77
    assert at(SHARED_BASE + 24, "store(arena i32) r0, r1").trapped
    assert at(LOCAL_BASE + 4, "store(arena i32) r0, r1 / r3 = load(local i32 +4) r2").trap is None and both[0] == 77
    assert at(LOCAL_BASE + 8, "store(arena i32) r0, r1").trapped
    assert at(-1, "store(arena i32) r0, r1").trapped
    assert at(0, "r0 = addr(s1) / store(arena i32 +4) r0, r1 / r3 = load(s1 i32 +4) r2").trap is None and both[0] == 77
    assert at(0, "r0 = addr(p0) / r3 = load(arena i32) r0").trap is None and both[0] == 11
    assert at(0, "r0 = addr(local) / store(arena i32) r0, r1 / r3 = load(local i32) r2").trap is None and both[0] == 77


STEPS: dict[Atomic, Callable[..., int]] = {
    Atomic.ADD: lambda old, x: old + x,
    Atomic.MIN: min,
    Atomic.MAX: max,
    Atomic.AND: lambda old, x: old & x,
    Atomic.OR: lambda old, x: old | x,
    Atomic.XOR: lambda old, x: old ^ x,
    Atomic.EXCH: lambda old, x: x,
    Atomic.CAS: lambda old, expected, new: new if old == expected else old,
    Atomic.INC: lambda old, x: 0 if old >= x else old + 1,
    Atomic.DEC: lambda old, x: x if old == 0 or old > x else old - 1,
}


@pytest.mark.parametrize("form", ["atom", "red"])
@pytest.mark.parametrize(
    ("function", "dtype"), [(f, d) for f in Atomic for d in ("u32", "i32", "u64", "i64") if d == "u32" or f not in (Atomic.INC, Atomic.DEC)]
)
def test_integer_atomics_take_turns_in_thread_order(function: Atomic, dtype: str, form: str) -> None:
    rng = random.Random(f"{function}{dtype}")
    kind = np.dtype(f"{'uint' if dtype[0] == 'u' else 'int'}{dtype[1:]}")
    reg, n, places = f"i{dtype[1:]}", 70, 9
    where = np.array([rng.choice((0, 0, 1, rng.randrange(places))) for _ in range(n)], np.int32) * kind.itemsize
    info = np.iinfo(kind)
    pick = [info.min, info.max, 0, 1, 2, 3]
    values, second = (np.array([rng.choice(pick) for _ in range(n)], kind) for _ in range(2))
    memory, old = np.array([rng.choice(pick) for _ in range(places)], kind), np.zeros(n, kind)
    want_memory, want_old = memory.tolist(), []
    for place, x, y in zip((where // kind.itemsize).tolist(), values.tolist(), second.tolist(), strict=True):
        want_old.append(want_memory[place])
        result = STEPS[function](want_memory[place], *((x, y) if function is Atomic.CAS else (x,)))
        want_memory[place] = (result - info.min) % (1 << info.bits) + info.min
    operands = "r2, r3" if function is Atomic.CAS else "r2"
    act = f"{'r4 = ' if form == 'atom' else ''}{form}({function.name.lower()} p0 {dtype}) r1, {operands}"
    run(
        f"param buf {dtype} rw\nparam buf i32 r\nparam buf {dtype} r\nparam buf {dtype} r\nparam buf {dtype} w\n"
        f"regs i64 i32 {reg} {reg} {reg} i32",
        f"block 0 / r5 = special(tid.x) / r0 = sext r5 / r1 = ld(p1 i32) r0 / r2 = ld(p2 {dtype}) r0 / r3 = ld(p3 {dtype}) r0"
        f" / r4 = const(0) / {act} / st(p4 {dtype}) r0, r4 / ret",
        [memory, where, values, second, old],
        threads=n,
    )
    assert memory.tolist() == want_memory
    assert old.tolist() == (want_old if form == "atom" else [0] * n)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_float_sums_take_turns_in_thread_order(dtype: str) -> None:
    kind = np.float32 if dtype == "f32" else np.float64
    values = (np.random.default_rng(1).standard_normal(50) * 1e3).astype(kind)
    memory, want = np.zeros(2, kind), kind(0)
    for x in values:
        want = kind(want + x)
    old = np.zeros(50, kind)
    run(
        f"param buf {dtype} rw\nparam buf {dtype} r\nparam buf {dtype} w\nregs i64 i32 {dtype} {dtype} i32",
        f"block 0 / r1 = special(tid.x) / r0 = sext r1 / r2 = ld(p1 {dtype}) r0 / r4 = const(0) / r3 = atom(add p0 {dtype}) r4, r2"
        f" / red(add p0 {dtype} +{np.dtype(kind).itemsize}) r4, r2 / st(p2 {dtype}) r0, r3 / ret",
        [memory, values, old],
        threads=50,
    )
    assert memory.tolist() == [want, want] and old[0] == 0 and old[1] == values[0]


def test_a_lock_between_warps_is_taken_by_all() -> None:
    """Lane 0 of every warp spins; the holder of the lock must get its turn although its blocks of code have greater numbers."""
    memory = np.zeros(2, np.int32)
    outcome = run(
        "param buf i32 rw\nregs i32 i32 i32 i32 pred i32",
        "block 0 / r0 = special(lane) / r1 = const(0) / r2 = const(1) / r4 = eq r0, r1 / cbr r4, 1, 3"
        " / block 1 / r3 = atom(cas p0 i32) r1, r1, r2 / r4 = eq r3, r1 / cbr r4, 2, 1"
        " / block 2 / r5 = load(p0 i32 +4 volatile) r1 / r5 = add r5, r2 / store(p0 i32 +4 volatile) r1, r5 / fence(device)"
        " / r3 = atom(exch p0 i32) r1, r1 / br 3 / block 3 / ret",
        [memory],
        threads=96,
        blocks=4,
        fuel=1_000_000,
    )
    assert not outcome.out_of_fuel and memory.tolist() == [0, 12]


def test_a_barrier_waits_for_threads_that_have_not_ended() -> None:
    """Odd threads end at once; the even ones meet and read what their neighbours wrote."""
    out = np.zeros(8, np.int32)
    outcome = run(
        "param buf i32 w\nshared i32[8]\nregs i32 i32 i32 i32 pred",
        "block 0 / r0 = special(tid.x) / r1 = const(1) / r2 = and r0, r1 / r1 = const(0) / r4 = eq r2, r1 / cbr r4, 1, 3"
        " / block 1 / r1 = const(2) / r1 = shl r0, r1 / store(s0 i32) r1, r0 / sync 2, 0"
        " / block 2 / r2 = const(8) / r2 = xor r1, r2 / r3 = load(s0 i32) r2 / store(p0 i32) r1, r3 / br 3 / block 3 / ret",
        [out],
        threads=8,
    )
    assert out.tolist() == [2, 0, 0, 0, 6, 0, 4, 0] and outcome.trap is None


def test_threads_that_arrive_let_others_go_on() -> None:
    """Warp 0 writes and arrives at barrier 3; warp 1 waits there for both, twice."""
    out = np.zeros(64, np.int32)
    body = (
        "block 0 / r0 = special(tid.x) / r5 = const(64) / r1 = const(2) / r1 = shl r0, r1 / r2 = const(32)"
        " / r4 = lt_s r0, r2 / r6 = const(0) / br 1"
        " / block 1 / cbr r4, 2, 3"
        " / block 2 / r3 = add r0, r6 / store(s0 i32) r1, r3 / arrive 5, 3, r5"
        " / block 3 / sync 4, 3, r5"
        " / block 4 / r3 = load(s0 i32 -128) r1 / store(p0 i32) r1, r3 / br 5"
        " / block 5 / sync 6, 0"
        " / block 6 / r7 = const(1000) / r6 = add r6, r7 / r7 = const(2000) / r8 = lt_s r6, r7 / cbr r8, 1, 7 / block 7 / ret"
    )
    outcome = run("param buf i32 w\nshared i32[32]\nregs i32 i32 i32 i32 pred i32 i32 i32 pred", body, [out], threads=64)
    assert outcome.trap is None and out[32:].tolist() == [1000 + t for t in range(32)]


def test_a_barrier_that_can_never_complete_traps_and_ends_its_block() -> None:
    out = np.zeros(2, np.int32)
    body = (
        "block 0 / r0 = special(tid.x) / r1 = special(ctaid.x) / r2 = const(3) / r3 = lt_s r0, r2 / r4 = eq r1, r1 / cbr r3, 1, 2"
        " / block 1 / sync 3, 1 / block 2 / sync 3, 2 / block 3 / r2 = const(0) / r0 = const(1) / store(p0 i32) r2, r0 / ret"
    )
    outcome = run("param buf i32 w\nregs i32 i32 i32 pred pred", body, [out], threads=5, blocks=3)
    assert outcome.trap == Trap(TrapKind.BARRIER, 0, 0, 1) and out.tolist() == [0, 0]
    # Two threads that wait for three: lowest of them is thread 3.
    body = "block 0 / r0 = special(tid.x) / r2 = const(3) / r3 = lt_s r0, r2 / cbr r3, 2, 1 / block 1 / sync 2, 7, r2 / block 2 / ret"
    outcome = run("param buf i32 w\nregs i32 i32 i32 pred", body, [out], threads=5)
    assert outcome.trap == Trap(TrapKind.BARRIER, 0, 3, 0)


def test_switch_reads_its_index_unsigned() -> None:
    out = np.zeros(6, np.int32)
    run(
        "param buf i32 r\nparam buf i32 w\nregs i64 i32 i32",
        "block 0 / r1 = special(tid.x) / r0 = sext r1 / r1 = ld(p0 i32) r0 / switch r1, [1, 2, 1], 3"
        " / block 1 / r2 = const(10) / br 4 / block 2 / r2 = const(20) / br 4 / block 3 / r2 = const(30) / br 4"
        " / block 4 / st(p1 i32) r0, r2 / ret",
        [np.array([0, 1, 2, 3, -1, -(2**31)], np.int32), out],
        threads=6,
    )
    assert out.tolist() == [10, 20, 10, 30, 30, 30]


def test_calls_give_results_and_count() -> None:
    out = np.zeros(4, np.int32)
    outcome = run(
        "param buf i32 w\nregs i64 i32 i32",
        "block 0 / r1 = special(tid.x) / r0 = sext r1 / call 0 (r1) -> (r2), 1 / block 1 / st(p0 i32) r0, r2 / ret"
        " / function 0 twice (r0) -> (r1) / regs i32 i32 / block 0 / r1 = add r0, r0 / ret",
        [out],
        threads=4,
    )
    assert out.tolist() == [0, 2, 4, 6]
    assert outcome.instructions == 4 * ((2 + 1 + 1) + (1 + 1) + (1 + 1) + (1 + 1))  # + argument and br in, br for ret, result and br on
    assert outcome.executions == (4, 4, 4, 4)


def lanes_there(mask: Array, there: Array, lane: int) -> list[int]:
    return [k for k in range(32) if there[k] and int(mask[lane]) >> k & 1]


@pytest.mark.parametrize("mode", list(Shuffle))
def test_shuffles(mode: Shuffle) -> None:
    rng = np.random.default_rng(mode)
    x, b, c = (rng.integers(-(2**31), 2**31, 64).astype(np.int32) for _ in range(3))
    c[:32] = (c[:32] & 0x1C00) | 31
    (out, inside) = run_op(one_op("shfl", [T.I32, T.PRED], [T.I32] * 4, (mode,)), [T.I32, T.PRED], [x, b, c, np.full(64, -1, np.int32)])
    for t in range(64):
        lane, by, clamp, segment = t % 32, int(b[t]) & 31, int(c[t]) & 31, int(c[t]) >> 8 & 31
        most, least = (lane & segment) | (clamp & ~segment), lane & segment
        j = {Shuffle.UP: lane - by, Shuffle.DOWN: lane + by, Shuffle.BFLY: lane ^ by, Shuffle.IDX: least | (by & ~segment)}[mode]
        good = j >= most if mode is Shuffle.UP else j <= most
        assert inside[t] == good and out[t] == (x[t // 32 * 32 + j] if good else x[t])


def test_votes_ballots_matches_and_folds_see_the_members() -> None:
    rng = np.random.default_rng(5)
    n, some = 64, rng.integers(-(2**31), 2**31, 64).astype(np.int32)
    some[::5], some[3] = -1, 0
    p = rng.random(n) < 0.5
    p[:32] = True
    value = rng.integers(0, 3, n).astype(np.int32)
    value[32:] = 7
    there = np.ones(32, np.bool_)
    found = {mode: run_op(one_op("vote", [T.PRED], [T.PRED, T.I32], (mode,)), [T.PRED], [p, some])[0] for mode in Vote}
    (ballot,) = run_op(one_op("ballot", [T.I32], [T.PRED, T.I32]), [T.I32], [p, some])
    (match,) = run_op(one_op("match_any", [T.I32], [T.I32, T.I32]), [T.I32], [value, some])
    alike, same = run_op(one_op("match_all", [T.I32, T.PRED], [T.I32, T.I32]), [T.I32, T.PRED], [value, some])
    folds = {
        (f, s): run_op(one_op("redux", [T.I32], [T.I32, T.I32], (f, s)), [T.I32], [some, some])[0]
        for f in (Atomic.ADD, Atomic.MIN, Atomic.MAX, Atomic.AND, Atomic.OR, Atomic.XOR)
        for s in (0, 1)
    }
    for t in range(n):
        base = t // 32 * 32
        members = lanes_there(some[base : base + 32], there, t % 32)
        held = [bool(p[base + k]) for k in members]
        assert [found[m][t] for m in Vote] == [any(held), all(held), len(set(held)) < 2]
        assert int(ballot[t]) & 0xFFFFFFFF == sum(1 << k for k in members if p[base + k])
        assert int(match[t]) & 0xFFFFFFFF == sum(1 << k for k in members if value[base + k] == value[t])
        one = len({int(value[base + k]) for k in members}) < 2
        assert same[t] == one and int(alike[t]) & 0xFFFFFFFF == (sum(1 << k for k in members) if one else 0)
        for (f, s), got in folds.items():
            numbers = [int(some[base + k]) if s else int(some[base + k]) % 2**32 for k in members]
            neutral = {Atomic.MIN: 2**31 - 1 if s else 2**32 - 1, Atomic.MAX: -(2**31) if s else 0, Atomic.AND: -1}.get(f, 0)
            want = numbers[0] if numbers else neutral
            for x in numbers[1:]:
                want = STEPS[f](want, x)
            assert (int(got[t]) - want) % 2**32 == 0


def test_lanes_of_a_warp_wait_for_those_that_are_behind() -> None:
    """Threads take 0 to 3 turns in a loop; inside fewer and fewer are there, behind it all are again, in the ragged last warp too."""
    out = np.zeros((40, 5), np.uint32)
    run(
        "param buf u32 w\nregs i32 i32 i32 i32 pred i32 i32",
        "block 0 / r0 = special(tid.x) / r1 = const(20) / r1 = mul r0, r1 / r2 = const(3)"
        " / r2 = and r0, r2 / r3 = const(0) / r6 = const(1) / br 1"
        " / block 1 / r4 = lt_s r3, r2 / cbr r4, 2, 3"
        " / block 2 / r5 = activemask / store(p0 u32) r1, r5 / r5 = const(4) / r1 = add r1, r5 / r3 = add r3, r6 / br 1"
        " / block 3 / r5 = activemask / r2 = const(20) / r1 = mul r0, r2 / store(p0 u32 +16) r1, r5 / ret",
        [out.reshape(-1)],
        threads=40,
    )
    for t in range(40):
        alive = range(t // 32 * 32, min(40, t // 32 * 32 + 32))
        want = [sum(1 << k % 32 for k in alive if k % 4 > turn) if t % 4 > turn else 0 for turn in range(4)]
        assert out[t].tolist() == [*want, sum(1 << k % 32 for k in alive)]


@pytest.mark.parametrize("type_", [T.I16, T.I32, T.I64])
def test_counts_reversal_and_high_products(type_: T) -> None:
    a, b = edge_values(type_, 500, 1), edge_values(type_, 500, 2)
    width = type_.bits

    def unsigned(x: Any) -> int:
        return int(x) % (1 << width)

    def one(name: str, out: T, *ins: Array) -> list[int]:
        return [int(v) for v in run_op(one_op(name, [out], [type_] * len(ins)), [out], ins)[0]]

    assert one("popc", T.I32, a) == [unsigned(x).bit_count() for x in a]
    assert one("clz", T.I32, a) == [width - unsigned(x).bit_length() for x in a]
    assert [unsigned(x) for x in one("brev", type_, a)] == [int(f"{unsigned(x):0{width}b}"[::-1], 2) for x in a]
    assert one("mul_hi_s", type_, a, b) == [int(x) * int(y) >> width for x, y in zip(a, b, strict=True)]
    got = [unsigned(x) for x in one("mul_hi_u", type_, a, b)]
    assert got == [unsigned(x) * unsigned(y) >> width for x, y in zip(a, b, strict=True)]


def test_fields_permutations_and_funnels_beside_the_loops_of_the_manual() -> None:
    a, b, c = (edge_values(T.I32, 800, seed) for seed in (1, 2, 3))
    c = np.where(np.arange(800) % 2, c % 40, c).astype(np.int32)

    def ints(name: str, *ins: Array, attrs: tuple[int, ...] = ()) -> list[int]:
        return [int(v) % 2**32 for v in run_op(one_op(name, [T.I32], [T.I32] * len(ins), attrs), [T.I32], ins)[0]]

    def bfe(x: int, pos: int, length: int, signed: bool) -> int:
        pos, length = pos & 255, length & 255
        sign = x >> min(pos + length - 1, 31) & 1 if signed and length else 0
        return sum((x >> pos + i & 1 if i < length and pos + i <= 31 else sign) << i for i in range(32))

    def bfi(x: int, into: int, pos: int, length: int) -> int:
        pos, length = pos & 255, length & 255
        for i in range(length):
            if pos + i <= 31:
                into = into & ~(1 << pos + i) | (x >> i & 1) << pos + i
        return into

    def prmt(x: int, y: int, selector: int) -> int:
        both, result = y << 32 | x, 0
        for k in range(4):
            nibble = selector >> 4 * k & 15
            byte = both >> 8 * (nibble & 7) & 255
            result |= (255 * (byte >> 7) if nibble & 8 else byte) << 8 * k
        return result

    u = [[int(v) % 2**32 for v in x] for x in (a, b, c)]
    d = np.roll(c, 1)
    rows = list(zip(*u, (int(v) % 2**32 for v in d), strict=True))
    assert ints("bfe_u", a, c, d) == [bfe(x, p, n, False) for x, _, p, n in rows]
    assert ints("bfe_s", a, c, d) == [bfe(x, p, n, True) for x, _, p, n in rows]
    assert ints("bfi", a, b, c, d) == [bfi(x, y, p, n) for x, y, p, n in rows]
    assert ints("prmt", a, b, c, attrs=(0,)) == [prmt(x, y, z) for x, y, z, _ in rows]
    for wrap in (0, 1):
        pairs = [(y << 32 | x, z & 31 if wrap else min(z, 32)) for x, y, z, _ in rows]
        assert ints("shf_l", a, b, c, attrs=(wrap,)) == [both << k >> 32 & 0xFFFFFFFF for both, k in pairs]
        assert ints("shf_r", a, b, c, attrs=(wrap,)) == [both >> k & 0xFFFFFFFF for both, k in pairs]
    for table in (0xE8, 0x96, 0x01, 0xC5):
        want = [
            sum((table >> ((x >> i & 1) << 2 | (y >> i & 1) << 1 | (z >> i & 1)) & 1) << i for i in range(32)) for x, y, z, _ in rows[:100]
        ]
        assert ints("lop3", a, b, c, attrs=(table,))[:100] == want


def test_zeros_have_an_order_in_minima_and_maxima() -> None:
    a, b = np.array([0.0, -0.0, 0.0, -0.0]), np.array([-0.0, 0.0, 0.0, -0.0])
    for name, want in (("min", [1, 1, 0, 1]), ("fmin", [1, 1, 0, 1]), ("max", [0, 0, 0, 1]), ("fmax", [0, 0, 0, 1])):
        (got,) = run_op(one_op(name, [T.F64], [T.F64] * 2), [T.F64], [a, b])
        assert np.signbit(got).tolist() == [bool(x) for x in want]


def test_slices_of_a_grid_are_the_grid() -> None:
    """Specials, traps and counts of a slice are those that its blocks have in the whole grid."""
    body = "block 0 / r0 = special(ctaid.x) / r1 = const(0) / store(p0 i32 -8) r0, r1 / ret"
    verified = verify_kernel(
        parse_kernel("kernel 2 k\nmath strict\nthreads 4\nparam buf i32 w\nregs i32 i32\n" + body.replace(" / ", "\n"))
    )
    whole = launch(verified, Launch((12, 1, 1), (2, 1, 1)), [np.zeros(4, np.uint8)])
    parts = [launch(verified, Launch((12, 1, 1), (2, 1, 1), first, 4), [np.zeros(4, np.uint8)]) for first in (0, 4, 8)]
    assert whole.instructions == sum(p.instructions for p in parts) == 12 * 2 * 4
    assert [p.trap for p in parts] == [Trap(TrapKind.OUTSIDE, c, 0, 0) for c in (0, 4, 9)] and whole.trap == parts[0].trap


def test_fuel_is_what_may_be_spent() -> None:
    head, body = "param buf i32 w\nregs i32", "block 0 / r0 = const(0) / ret"
    out = np.zeros(1, np.int32)
    assert not run(head, body, [out], threads=10, fuel=20).out_of_fuel
    cut = run(head, body, [out], threads=10, fuel=19)
    assert cut.out_of_fuel and cut.instructions > 19
