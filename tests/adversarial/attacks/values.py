"""Attacks by values at the limits of arithmetic."""

from __future__ import annotations

import numpy as np

from tests.adversarial.attack import Completes, Shot, Traps, attack, cuda, launch, wisk
from tests.adversarial.attacks.bounds import holds, zeros
from wis.kernel.model import TrapKind


@attack("values/division by zero", Completes())
def division() -> Shot:
    """Quotients and remainders by zero, of 32 and 64 bits, and the one quotient that overflows."""
    ops = [("i32", 2**31, 0), ("i32", 2**31, 2**32 - 1), ("i64", 2**63, 0), ("i64", 2**63, 2**64 - 1)]
    body, offset = "block 0\n  r4 = const(0)\n", 0
    for kind, a, b in ops:
        signed = [v - 2 ** int(kind[1:]) if v >> int(kind[1:]) - 1 else v for v in (a, b)]
        x, y, z = ("r0", "r1", "r5") if kind == "i32" else ("r2", "r3", "r6")
        body += f"  {x} = const({signed[0]})\n  {y} = const({signed[1]})\n"
        for op in ("div_s", "div_u", "rem_s", "rem_u"):
            body += f"  {z} = {op} {x}, {y}\n  store(p0 {kind} +{offset}) r4, {z}\n"
            offset += 8
    text = f"kernel 2 k\nmath strict\nthreads 32\nparam buf i64 w\nregs i32 i32 i64 i64 i32 i32 i64\n{body}  ret\n"
    expected = [0] * 4 + [-(2**31) % 2**32, 0, 0, 2**31] + [0] * 4 + [-(2**63), 0, 0, -(2**63)]
    return wisk(text, [np.zeros(16, np.int64)], launch(block=1), after=holds(0, expected, np.int64))


@attack("values/shifts past the width", Completes())
def shifts() -> Shot:
    """Shifts by the width, by more, by minus one."""
    body, expected, offset = "block 0\n  r3 = const(0)\n  r0 = const(-7)\n", [], 0
    for by in (31, 32, 33, 255, 2**31 - 1, -1):
        body += f"  r1 = const({by})\n"
        for op in ("shl", "shr_s", "shr_u"):
            body += f"  r2 = {op} r0, r1\n  store(p0 i32 +{offset}) r3, r2\n"
            offset += 4
        expected += [-(2**31), -1, 1] if by == 31 else [0, -1, 0]
    text = f"kernel 2 k\nmath strict\nthreads 32\nparam buf i32 w\nregs i32 i32 i32 i32\n{body}  ret\n"
    return wisk(text, [zeros(18)], launch(block=1), after=holds(0, expected))


@attack("values/NaN as an index", Traps(TrapKind.OUTSIDE))
def nan_index() -> Shot:
    """Indices out of NaN, infinities and floats beyond every integer."""
    source = """extern "C" __global__ void k(const float *f, int *out) {
        float v = f[threadIdx.x];
        out[(int)v] = 1;
        out[(long long)v] = 2;
        out[(unsigned)v] = 3;
    }"""
    values = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -1.5, 1.0] * 4, np.float32)
    return cuda(source, [values, zeros(8)], launch())


@attack("values/raised", Traps(TrapKind.RAISED, 1, 7))
def raised() -> Shot:
    """A kernel that traps of its own accord, in one thread; the first one by number is named."""
    source = 'extern "C" __global__ void k(int *x) { if (blockIdx.x && threadIdx.x >= 7) __trap(); atomicAdd(x, 1); }'
    return cuda(source, [zeros(1)], launch(grid=3))


@attack("values/first trap of many", Traps(TrapKind.OUTSIDE, 2, 5))
def first_trap() -> Shot:
    """Many threads trap in many ways; which is reported does not depend on who was quicker."""
    source = """extern "C" __global__ void k(int *x) {
        int t = threadIdx.x, b = blockIdx.x;
        if (b >= 2 && t >= 5) {
            if (t > 20) *(int *)((char *)x + 1 + t) = 3;
            x[1000 + t] = 1;
            if (b > 4) __trap();
        }
    }"""
    return cuda(source, [zeros(64)], launch(grid=30, block=96))


@attack("values/infinities through memory", Completes())
def infinities() -> Shot:
    """Float atomics that overflow to infinity and on to NaN."""
    source = """extern "C" __global__ void k(float *x, int *out) {
        for (int i = 0; i < 3; i++) atomicAdd(x, 3e38f);
        __syncthreads();
        if (threadIdx.x == 0) atomicAdd(x, -__int_as_float(0x7f800000));
        __syncthreads();
        out[threadIdx.x] = isnan(*(volatile float *)x);
    }"""
    return cuda(source, [np.zeros(1, np.float32), zeros(32)], launch(), after=holds(1, [1] * 32))


@attack("values/uninitialised register", Completes())
def uninitialised() -> Shot:
    """A variable that the source never gives a value: its value reveals no other session's data, and the kernel ends."""
    source = """extern "C" __global__ void k(unsigned *x, int n) {
        unsigned v;
        if (threadIdx.x < n) v = 7;
        x[threadIdx.x] = v == 0x5EC2E75Eu;
    }"""
    return cuda(source, [np.zeros(32, np.uint32), np.int32(5)], launch(), after=holds(0, [0] * 32, np.uint32))


@attack("values/division by what comes from memory", Completes())
def division_by_data() -> Shot:
    """Divisors of which some are zero or minus one, in lanes that divide, and in lanes that had better not."""
    source = """extern "C" __global__ void k(const int *a, const int *b, const long *c, const long *d, int *out, long *wide) {
        int t = threadIdx.x;
        out[t] = b[t] ? a[t] / b[t] : 7;
        wide[t] = d[t] ? c[t] % d[t] : 7;
        unsigned q = b[t] ? (unsigned)a[t] % (unsigned)b[t] : 1;
        atomicXor(&out[t], q & 0);
    }"""
    a, b = np.arange(32, dtype=np.int32) * 1000 - 5000, np.arange(32, dtype=np.int32) % 5 - 1
    quotients = [int(x) // int(y) if y > 0 else -int(x) if y else 7 for x, y in zip(np.abs(a), b, strict=True)]
    expected = [q if x >= 0 or y == 0 else -q for q, x, y in zip(quotients, a.tolist(), b.tolist(), strict=True)]
    args = [a, b, a.astype(np.int64), b.astype(np.int64), zeros(32), np.zeros(32, np.int64)]
    return cuda(source, args, launch(), after=holds(4, expected))


@attack("values/unguarded division by what comes from memory", Completes())
def division_unguarded() -> Shot:
    """The machine's own division would stop the process: by zero, and the least integer by minus one, in 32 and 64 bits."""
    body, at = "", 8
    for op in ("div_s", "div_u", "rem_s", "rem_u"):
        body += f"  r4 = {op} r1, r2\n  store(p1 i32 +{at * 32}) r0, r4\n"
        body += f"  r5 = sext r1\n  r6 = sext r2\n  r7 = const(32)\n  r5 = shl r5, r7\n  r5 = {op} r5, r6\n"
        body += "  r4 = narrow r5\n  red(or p1 i32) r0, r4\n"
        at += 4
    text = f"""kernel 2 k
math strict
threads 32
param buf i32 r
param buf i32 rw
regs i32 i32 i32 i32 i32 i64 i64 i64
block 0
  r0 = special(tid.x)
  r3 = const(4)
  r0 = mul r0, r3
  r1 = load(p0 i32) r0
  r2 = load(p0 i32 +128) r0
{body}  ret
"""
    data = np.array([-(2**31), 5, -5, 0] * 8 + [-1] * 16 + [0] * 16, np.int32)
    return wisk(text, [data, zeros(32 * 8)], launch(), after=lambda bound: None)


@attack("values/shifts by what comes from memory", Completes())
def shifts_by_data() -> Shot:
    """Amounts from memory at and past the width."""
    text = """kernel 2 k
math strict
threads 32
param buf i32 r
param buf i32 w
regs i32 i32 i32 i32 i32
block 0
  r0 = special(tid.x)
  r3 = const(4)
  r0 = mul r0, r3
  r1 = load(p0 i32) r0
  r2 = const(-7)
  r3 = shl r2, r1
  r4 = shr_u r2, r1
  r3 = or r3, r4
  r4 = shr_s r2, r1
  r3 = sub r3, r4
  store(p1 i32) r0, r3
  ret
"""
    by = np.array([32, 33, 63, 64, 255, 2**31 - 1, -1, -(2**31)] * 4, np.int32)
    return wisk(text, [by, zeros(32)], launch(), after=holds(1, [1] * 32))


@attack("values/floats beyond every integer", Completes())
def float_to_int() -> Shot:
    """NaN, infinities and floats beyond the range, from memory, to every width and sign: saturated, NaN is zero."""
    body, expected = "", []
    kinds = [("f2s", "i32", -(2**31), 2**31 - 1), ("f2u", "i32", 0, -1), ("f2s", "i64", -(2**63), 2**63 - 1), ("f2u", "i64", 0, -1)]
    for n, (op, kind, _, _) in enumerate(kinds):
        wide = "r4" if kind == "i64" else "r3"
        body += f"  {wide} = {op} r2\n" + ("" if kind == "i64" else "  r4 = sext r3\n") + f"  store(p1 i64 +{n * 64}) r1, r4\n"
        expected += [0, kinds[n][3], kinds[n][2], kinds[n][3], kinds[n][2], 0, 0, 1]
    text = f"""kernel 2 k
math strict
threads 32
param buf f32 r
param buf i64 w
regs i32 i32 f32 i32 i64
block 0
  r0 = special(tid.x)
  r1 = const(4)
  r0 = mul r0, r1
  r2 = load(p0 f32) r0
  r1 = add r0, r0
{body}  ret
"""
    values = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.9, -0.0, 1.5], np.float32)
    return wisk(text, [values, np.zeros(32, np.int64)], launch(block=8), after=holds(1, expected, np.int64))
