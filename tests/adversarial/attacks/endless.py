"""Attacks by launches that never end, or take too long."""

from __future__ import annotations

import numpy as np

from tests.adversarial.attack import Completes, Ends, OutOfFuel, Refused, Shot, attack, cuda, launch, ptx, wisk
from tests.adversarial.attacks.bounds import holds, zeros
from wis.errors import VerifyError

ENDLESS = OutOfFuel()


@attack("endless/uniform", ENDLESS)
def uniform() -> Shot:
    """All threads wait for a word that no thread writes."""
    return cuda('extern "C" __global__ void k(volatile int *x) { while (*x == 0) { } }', [zeros(1)], launch(grid=3, block=64))


@attack("endless/one thread", ENDLESS)
def one_thread() -> Shot:
    """One thread of one block of many goes round and round."""
    source = 'extern "C" __global__ void k(volatile int *x) { if (blockIdx.x == 5 && threadIdx.x == 17) while (*x == 0) { } }'
    return cuda(source, [zeros(1)], launch(grid=20, block=64, fuel=100_000))


@attack("endless/divergent", ENDLESS)
def divergent() -> Shot:
    """Every thread in a loop of its own length; those of odd number in one without end."""
    source = """extern "C" __global__ void k(volatile int *x) {
        unsigned n = 0;
        while (threadIdx.x % 2 ? *x == 0 : n < threadIdx.x) n++;
        x[1 + threadIdx.x] = n;
    }"""
    return cuda(source, [zeros(65)], launch(block=64))


@attack("endless/arithmetic only", ENDLESS)
def arithmetic() -> Shot:
    """A loop without any memory: the path of a number that never comes to one."""
    source = """extern "C" __global__ void k(unsigned *x) {
        unsigned v = *x;
        while (v != 1) v = v % 2 ? v + 2 : v;
        *x = v;
    }"""
    return cuda(source, [np.array([2], np.uint32)], launch())


@attack("endless/with barrier", ENDLESS)
def barrier() -> Shot:
    """A barrier in every turn."""
    source = """extern "C" __global__ void k(volatile int *x) {
        __shared__ int s[64];
        while (*x == 0) {
            s[threadIdx.x]++;
            __syncthreads();
        }
        x[1] = s[0];
    }"""
    return cuda(source, [zeros(2)], launch(block=64))


@attack("endless/spin lock", ENDLESS)
def spin_lock() -> Shot:
    """A lock that is taken and never given back."""
    source = 'extern "C" __global__ void k(int *lock, int *x) { while (atomicCAS(lock, 0, 1)) { } x[threadIdx.x]++; }'
    return cuda(source, [zeros(1), zeros(64)], launch(block=64))


@attack("endless/warp waits for itself", ENDLESS)
def warp_lock() -> Shot:
    """The lock's holder stands behind the loop in which its own warp spins."""
    source = """extern "C" __global__ void k(int *lock, int *x) {
        while (atomicCAS(lock, 0, 1)) { }
        x[0]++;
        __threadfence();
        atomicExch(lock, 0);
    }"""
    return cuda(source, [zeros(1), zeros(1)], launch(block=64))


@attack("endless/waits for another block", Ends())
def other_block() -> Shot:
    """The first block waits for what the last block writes: that they ever run at once is not guaranteed."""
    source = """extern "C" __global__ void k(volatile int *flag) {
        if (blockIdx.x == gridDim.x - 1) *flag = 1;
        if (blockIdx.x == 0) while (*flag == 0) { }
    }"""
    return cuda(source, [zeros(1)], launch(grid=200, block=64))


@attack("endless/barrier across the grid", ENDLESS)
def grid_barrier() -> Shot:
    """A barrier of one more block than there are."""
    source = """extern "C" __global__ void k(int *arrived) {
        if (threadIdx.x == 0) {
            atomicAdd(arrived, 1);
            while (*(volatile int *)arrived <= gridDim.x) { }
        }
        __syncthreads();
    }"""
    return cuda(source, [zeros(1)], launch(grid=4, block=32, fuel=100_000))


@attack("endless/2^62 turns", ENDLESS)
def centuries() -> Shot:
    """A loop that ends in some centuries."""
    source = """extern "C" __global__ void k(unsigned long long *x, unsigned long long n) {
        unsigned long long v = x[0];
        for (unsigned long long i = 0; i < n; i++) v = v * 6364136223846793005ull + (v >> 33);
        x[0] = v;
    }"""
    return cuda(source, [np.ones(1, np.uint64), np.uint64(1 << 62)], launch())


@attack("endless/nested loops", ENDLESS)
def nested() -> Shot:
    """Sixteen loops inside of each other, a hundred turns each."""
    loops = "".join(f"for (int i{k} = 0; i{k} < n; i{k}++) " for k in range(16))
    source = f'extern "C" __global__ void k(volatile int *x, int n) {{ {loops} *x = i15 + i0; }}'
    return cuda(source, [zeros(1), np.int32(100)], launch())


@attack("endless/no way out", Refused(VerifyError, "never end"))
def no_exit() -> Shot:
    """A loop that has no way out at all is not even a kernel."""
    text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n$L:\n    bra $L;\n}\n"
    return ptx(text, [], launch())


@attack("endless/many small blocks", ENDLESS)
def many_blocks() -> Shot:
    """Two thousand million blocks that each do nearly nothing."""
    source = 'extern "C" __global__ void k(int *x) { if (blockIdx.x == 0x7ffffff0) x[0] = 1; }'
    return cuda(source, [zeros(1)], launch(grid=2**31 - 1, block=32), after=lambda bound: None)


_COUNTED = """kernel 2 k
math strict
threads 32
param buf i32 rw
regs i32 i32
block 0
  r0 = const(0)
  r1 = const(1)
  red(add p0 i32) r0, r1
  ret
"""


@attack("endless/no fuel at all", OutOfFuel())
def fuel_zero() -> Shot:
    """A launch with fuel for nothing."""
    return wisk(_COUNTED, [zeros(1)], launch(fuel=0))


@attack("endless/one instruction short", OutOfFuel())
def fuel_short() -> Shot:
    """Four instructions by 64 threads are 256; there is fuel for 255."""
    return wisk(_COUNTED, [zeros(1)], launch(grid=2, fuel=255))


@attack("endless/exactly enough", Completes())
def fuel_exact() -> Shot:
    """The last drop of fuel still serves."""
    return wisk(_COUNTED, [zeros(1)], launch(grid=2, fuel=256), after=holds(0, [64]))


@attack("endless/counter wraps", OutOfFuel())
def counter_wraps() -> Shot:
    """A block of 1024 threads that endlessly runs long straight code, so that counts grow fast."""
    source = """extern "C" __global__ void k(volatile unsigned *x, volatile unsigned *y) {
        unsigned v = threadIdx.x;
        while (y[0] == 0) {
            #pragma unroll
            for (int i = 0; i < 200; i++) v = (v ^ i) * 1664525u;
        }
        x[threadIdx.x] = v;
    }"""
    return cuda(source, [np.zeros(1024, np.uint32), np.zeros(1, np.uint32)], launch(grid=2, block=1024))
