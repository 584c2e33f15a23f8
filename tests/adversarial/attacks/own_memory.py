"""Attacks on shared, local and constant memory: accesses beyond their ends, and their initial contents."""

from __future__ import annotations

import numpy as np

from tests.adversarial.attack import Completes, Refused, Shot, Traps, attack, cuda, launch, ptx, wisk
from tests.adversarial.attacks.bounds import holds, words, zeros
from tests.conformance.kernels.binding import Bound
from wis.errors import VerifyError, WisError
from wis.kernel.model import TrapKind
from wooly.errors import CompileError

OUTSIDE = Traps(TrapKind.OUTSIDE)


def all_zero(number: int) -> object:
    def check(bound: Bound) -> None:
        assert not bound.memories[number].inside.any(), "memory held something at first"

    return check


@attack("own/shared overflow", OUTSIDE)
def shared_overflow() -> Shot:
    """Writes far behind a static shared array; its neighbour in shared memory stays."""
    source = """extern "C" __global__ void k(int *out, int by) {
        __shared__ int a[32], b[32];
        b[threadIdx.x] = 5;
        a[threadIdx.x] = 1;
        __syncthreads();
        for (int i = 1; i < 9; i++) a[threadIdx.x + i * by] = 7;
        __syncthreads();
        out[threadIdx.x] = b[threadIdx.x] * 10 + a[threadIdx.x];
    }"""
    return cuda(source, [zeros(32), np.int32(1 << 20)], launch(grid=2), after=holds(0, [51] * 32))


@attack("own/shared underflow", OUTSIDE)
def shared_underflow() -> Shot:
    """Negative indices into shared memory, read and atomically changed."""
    source = """extern "C" __global__ void k(int *out, int by) {
        __shared__ int a[32];
        a[threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = a[(int)threadIdx.x - by] + atomicAdd(&a[-1 - (int)threadIdx.x - by], 1);
    }"""
    return cuda(source, [words(32), np.int32(1 << 16)], launch(), after=holds(0, [0] * 32))


@attack("own/shared offset wraps 32 bits", Traps(TrapKind.OUTSIDE, 0, 0))
def shared_wraps() -> Shot:
    """A 32-bit offset of minus four in shared memory is 4 GiB less four."""
    text = """kernel 2 k
math strict
threads 32
param buf i32 w
shared i32[32]
shared i32[32]
regs i32 i32 i64
block 0
  r0 = const(-4)
  r1 = const(7)
  store(s1 i32) r0, r1
  store(s1 i32 +4) r0, r1
  r1 = load(s0 i32 +124) r0
  r2 = const(0)
  store(p0 i32) r2, r1
  ret
"""
    return wisk(text, [words(4)], launch(), after=holds(0, [0, 2, 3, 4]))


@attack("own/dynamic shared overflow", OUTSIDE)
def dynamic_overflow() -> Shot:
    """Dynamic shared memory beyond what the launch asked for."""
    source = """extern "C" __global__ void k(int *out) {
        extern __shared__ int s[];
        s[threadIdx.x] = threadIdx.x;
        __syncthreads();
        out[threadIdx.x] = s[31 - threadIdx.x];
    }"""
    return cuda(source, [words(32)], launch(dynamic=64), after=holds(0, [0] * 16 + list(range(15, -1, -1))))


@attack("own/dynamic shared not asked for", OUTSIDE)
def dynamic_missing() -> Shot:
    """Dynamic shared memory of no bytes."""
    source = """extern "C" __global__ void k(int *out) {
        extern __shared__ volatile int s[];
        s[threadIdx.x] = 5;
        out[threadIdx.x] = s[threadIdx.x];
    }"""
    return cuda(source, [words(32)], launch(), after=holds(0, [0] * 32))


@attack("own/misaligned shared", Traps(TrapKind.MISALIGNED))
def shared_misaligned() -> Shot:
    """Eight bytes of shared memory from an address that suits four."""
    source = """extern "C" __global__ void k(long long *out, int by) {
        __shared__ __align__(8) int s[80];
        s[threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = *(long long *)&s[2 * threadIdx.x + by];
    }"""
    return cuda(source, [np.ones(32, np.int64), np.int32(1)], launch(), after=all_zero(0))


@attack("own/local overflow", OUTSIDE)
def local_overflow() -> Shot:
    """An index into a local array that comes from data, far beyond it both ways."""
    source = """extern "C" __global__ void k(const int *at, int *out) {
        int a[16];
        for (int i = 0; i < 16; i++) a[i] = i;
        a[at[threadIdx.x]] = 99;
        out[threadIdx.x] = a[at[threadIdx.x + 32]];
    }"""
    at = np.zeros(64, np.int32)
    at[:32], at[32:] = np.arange(32) * 100_000 - 1_600_000, -np.arange(32) * 1000
    return cuda(source, [at, zeros(32)], launch(), after=lambda bound: None)


@attack("own/local memory that there is not", OUTSIDE)
def no_local() -> Shot:
    """Local memory in a kernel that declares none."""
    text = "kernel 2 k\nmath strict\nthreads 32\nregs i32\nblock 0\n  r0 = const(0)\n  store(local i32) r0, r0\n  ret\n"
    return wisk(text, [], launch())


@attack("own/shared memory of those before", Completes())
def stale_shared() -> Shot:
    """Reads 16 KiB of shared memory that it never wrote, where the canary's kernel just ran."""
    text = """kernel 2 k
math strict
threads 64
param buf i32 w
shared i32[4096]
regs i32 i32 i32 i32 pred
block 0
  r0 = special(tid.x)
  r1 = const(4)
  r0 = mul r0, r1
  br 1
block 1
  r2 = load(s0 i32) r0
  store(p0 i32) r0, r2
  r1 = const(256)
  r0 = add r0, r1
  r3 = const(16384)
  r4 = lt_u r0, r3
  cbr r4, 1, 2
block 2
  ret
"""
    return wisk(text, [words(4096)], launch(block=64), after=all_zero(0))


@attack("own/dynamic shared memory of those before", Completes())
def stale_dynamic() -> Shot:
    """Reads dynamic shared memory that it never wrote."""
    source = """extern "C" __global__ void k(unsigned *out, int words) {
        extern __shared__ unsigned s[];
        for (int i = threadIdx.x; i < words; i += blockDim.x) out[i] = ((volatile unsigned *)s)[i];
    }"""
    return cuda(source, [words(4096), np.int32(4096)], launch(block=64, dynamic=16384), after=all_zero(0))


@attack("own/shared memory of the block before", Completes())
def stale_block() -> Shot:
    """Every block looks for what the blocks before it left in shared memory, then fills it itself."""
    source = """extern "C" __global__ void k(int *seen, int value) {
        __shared__ int s[512];
        int found = 0;
        for (int i = threadIdx.x; i < 512; i += 64) found |= ((volatile int *)s)[i];
        __syncthreads();
        for (int i = threadIdx.x; i < 512; i += 64) ((volatile int *)s)[i] = value;
        atomicOr(seen, found);
    }"""
    return cuda(source, [zeros(1), np.int32(0x7777)], launch(grid=40, block=64), after=all_zero(0))


@attack("own/local memory of those before", Completes())
def stale_local() -> Shot:
    """Reads local memory that it never wrote, in several blocks, each of which then fills it."""
    text = """kernel 2 k
math strict
threads 64
param buf i32 rw
local 256
regs i32 i32 i32 i32 pred i32
block 0
  r0 = const(0)
  r1 = const(0)
  r5 = const(-1)
  br 1
block 1
  r2 = load(local i32) r0
  r1 = or r1, r2
  store(local i32) r0, r5
  r2 = const(4)
  r0 = add r0, r2
  r3 = const(256)
  r4 = lt_u r0, r3
  cbr r4, 1, 2
block 2
  r0 = const(0)
  red(or p0 i32) r0, r1
  ret
"""
    return wisk(text, [zeros(1)], launch(grid=8, block=64), after=all_zero(0))


@attack("own/constants beyond their end", OUTSIDE)
def constants_end() -> Shot:
    """Reads behind the kernel's constants."""
    text = """kernel 2 k
math strict
threads 32
param buf i32 w
constants 0100000002000000
regs i32 i32 i32
block 0
  r0 = const(0)
  r1 = load(const i32 +8) r0
  r2 = load(const i32 +4) r0
  r1 = add r1, r2
  store(p0 i32) r0, r1
  ret
"""
    return wisk(text, [words(4)], launch(block=1), after=holds(0, [2, 2, 3, 4]))


@attack("own/constants written", Refused(VerifyError))
def constants_written() -> Shot:
    """A store to the kernel's constants."""
    text = "kernel 2 k\nmath strict\nthreads 32\nconstants 01000000\nregs i32\nblock 0\n  r0 = const(0)\n  store(const i32) r0, r0\n  ret\n"
    return wisk(text, [], launch())


@attack("own/__constant__ variable written", Refused((WisError, CompileError)))
def constant_variable() -> Shot:
    """PTX that stores to a variable of constant memory."""
    text = """.version 8.0
.target sm_80
.address_size 64
.const .align 4 .b8 table[16];
.visible .entry k()
{
    .reg .b32 %r<2>;
    mov.u32 %r1, 5;
    st.const.u32 [table], %r1;
    ret;
}
"""
    return ptx(text, [], launch())


@attack("own/offsets wrap within a warp", Traps(TrapKind.OUTSIDE, 0, 0))
def warp_wraps() -> Shot:
    """Offsets into shared and local memory side by side that begin below zero."""
    text = """kernel 2 k
math strict
threads 32
param buf i32 w
shared i32[32]
local 128
regs i32 i32 i32 i32
block 0
  r0 = special(tid.x)
  r1 = const(4)
  r2 = mul r0, r1
  r1 = const(-64)
  r1 = add r2, r1
  store(s0 i32) r1, r0
  store(local i32) r1, r0
  bar 1
block 1
  r3 = load(local i32) r1
  r0 = load(s0 i32) r1
  r0 = add r0, r3
  store(p0 i32) r2, r0
  ret
"""
    return wisk(text, [words(32)], launch(), after=holds(0, [0] * 16 + [2 * v for v in range(16, 32)]))
