"""Attacks by barriers and warps whose threads do not arrive together."""

from __future__ import annotations

import numpy as np

from tests.adversarial.attack import Completes, Ends, Refused, Shot, Traps, attack, cuda, launch, ptx, wisk
from tests.adversarial.attacks.bounds import holds, words, zeros
from wis.errors import VerifyError, WisError
from wis.kernel.model import TrapKind
from wooly.errors import CompileError

STUCK = Traps(TrapKind.BARRIER, 0, 0)


def bars(body: str, regs: str = "i32 i32 pred i32", params: str = "param buf i32 rw") -> str:
    return f"kernel 2 k\nmath strict\nthreads 1024\n{params}\nregs {regs}\n{body}"


_APART = """block 0
  r0 = special(tid.x)
  r1 = const({half})
  r2 = lt_u r0, r1
  cbr r2, 1, 2
block 1
  sync 3, 1
block 2
  sync 3, 2
block 3
  r1 = const(0)
  r3 = const(1)
  red(add p0 i32) r1, r3
  ret
"""


@attack("barriers/two halves at two barriers", STUCK)
def two_barriers() -> Shot:
    """Half of the block waits at barrier 1, the other half at barrier 2, each for all; the blocks behind run on."""
    return wisk(bars(_APART.format(half=32)), [zeros(1)], launch(grid=3, block=64), after=holds(0, [0]))


@attack("barriers/two lanes of a warp at two barriers", STUCK)
def two_lanes() -> Shot:
    """The same inside of one warp."""
    return wisk(bars(_APART.format(half=5)), [zeros(1)], launch(block=32), after=holds(0, [0]))


@attack("barriers/stuck in one block only", Traps(TrapKind.BARRIER, 0, 0))
def stuck_one_block() -> Shot:
    """Only block 0 gets stuck; what the other blocks do is done."""
    source = """extern "C" __global__ void k(int *x) {
        if (blockIdx.x == 0) {
            if (threadIdx.x < 16) asm volatile("bar.sync 1;" ::: "memory");
            else asm volatile("bar.sync 2;" ::: "memory");
        }
        atomicAdd(x, 1);
    }"""
    return cuda(source, [zeros(1)], launch(grid=3, block=64), after=holds(0, [128]))


@attack("barriers/count of more threads than there are", STUCK)
def count_too_large() -> Shot:
    """A barrier for 128 threads in a block of 64."""
    source = 'extern "C" __global__ void k(int *x) { asm volatile("bar.sync 3, 128;" ::: "memory"); atomicAdd(x, 1); }'
    return cuda(source, [zeros(1)], launch(block=64), after=holds(0, [0]))


@attack("barriers/counts that differ", Ends())
def counts_differ() -> Shot:
    """Every thread names another count for the same barrier."""
    text = bars("block 0\n  r0 = special(tid.x)\n  r1 = const(7)\n  r0 = xor r0, r1\n  sync 1, 3, r0\nblock 1\n  ret\n")
    return wisk(text, [zeros(1)], launch(block=64))


@attack("barriers/count of no thread", Ends())
def count_zero() -> Shot:
    """A barrier that needs no thread, one that needs minus one, one that needs 2^31 - 1."""
    text = bars(
        "block 0\n  r0 = const(0)\n  sync 1, 1, r0\nblock 1\n  r0 = const(-1)\n  sync 2, 2, r0\n"
        "block 2\n  r0 = const(2147483647)\n  sync 3, 3, r0\nblock 3\n  ret\n"
    )
    return wisk(text, [zeros(1)], launch(block=64))


@attack("barriers/arrivals without a waiter", Completes())
def arrivals() -> Shot:
    """Threads arrive a thousand times at a barrier where no thread waits."""
    source = """extern "C" __global__ void k(int *x, int n) {
        for (int i = 0; i < n; i++) asm volatile("bar.arrive 4, 96;" ::: "memory");
        atomicAdd(x, 1);
    }"""
    return cuda(source, [zeros(1), np.int32(1000)], launch(block=32), after=holds(0, [32]))


@attack("barriers/in a loop of different lengths", Completes())
def loop_lengths() -> Shot:
    """Every thread passes the barrier as often as its number says: those that ended are not waited for."""
    source = """extern "C" __global__ void k(int *x) {
        __shared__ int s;
        if (threadIdx.x == 0) s = 0;
        __syncthreads();
        for (int i = 0; i < threadIdx.x; i++) {
            atomicAdd(&s, 1);
            __syncthreads();
        }
        atomicMax(x, s);
    }"""
    return cuda(source, [zeros(1)], launch(block=40), after=holds(0, [40 * 39 // 2]))


@attack("barriers/half of the threads", Completes())
def half() -> Shot:
    """Only the lower half waits; the upper half ends, and so does the wait."""
    source = 'extern "C" __global__ void k(int *x) { if (threadIdx.x < 20) __syncthreads(); atomicAdd(x, 1); }'
    return cuda(source, [zeros(1)], launch(block=64), after=holds(0, [64]))


@attack("barriers/number that there is not", Refused((VerifyError, WisError, CompileError)))
def number_16() -> Shot:
    """Barrier 16."""
    return wisk(bars("block 0\n  sync 1, 16\nblock 1\n  ret\n"), [zeros(1)], launch())


@attack("barriers/number from a register", Refused((WisError, CompileError)))
def number_from_data() -> Shot:
    """A barrier whose number comes from data, in PTX."""
    text = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
    .reg .b32 %r<3>;
    mov.u32 %r1, %tid.x;
    bar.sync %r1, 32;
    ret;
}
"""
    return ptx(text, [zeros(1)], launch())


@attack("barriers/members that are not there", Completes())
def absent_members() -> Shot:
    """Masks that name lanes that ended or went another way, empty masks, masks without oneself."""
    source = """extern "C" __global__ void k(unsigned *x) {
        unsigned lane = threadIdx.x;
        if (lane >= 20) return;
        unsigned v = lane;
        if (lane % 2) {
            v += __ballot_sync(0xffffffffu, lane > 5);
            v += __shfl_sync(0xffffffffu, v, 30);
            v ^= __reduce_add_sync(0xffffffffu, lane);
        } else {
            v += __match_any_sync(0xfffffff0u, lane & 3);
            v += __any_sync(0u, true) + __all_sync(1u << 31, false);
        }
        __syncwarp(0xffffffffu);
        x[lane] = v;
    }"""
    return cuda(source, [np.zeros(32, np.uint32)], launch(block=32))


@attack("barriers/lanes out of range", Completes())
def lanes_out_of_range() -> Shot:
    """Shuffles from lanes far away, with clamps and widths of nonsense."""
    text = bars(
        """block 0
  r0 = special(tid.x)
  r1 = const(-1)
  r3 = const(123456789)
  r0, r2 = shfl(idx) r0, r3, r1, r1
  r0, r2 = shfl(up) r0, r1, r3, r1
  r0, r2 = shfl(down) r0, r3, r3, r3
  r0, r2 = shfl(bfly) r0, r1, r1, r3
  r3 = special(tid.x)
  r1 = const(4)
  r3 = mul r3, r1
  store(p0 i32) r3, r0
  ret
"""
    )
    return wisk(text, [words(32)], launch(block=32))
