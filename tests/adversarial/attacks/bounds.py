"""Attacks by accesses beyond the ends of the launch's own buffers."""

from __future__ import annotations

import numpy as np

from tests.adversarial.attack import Completes, Shot, Traps, attack, cuda, launch, wisk
from tests.conformance.kernels.binding import Bound
from wis.kernel.model import TrapKind

OUTSIDE, MISALIGNED = Traps(TrapKind.OUTSIDE), Traps(TrapKind.MISALIGNED)


def words(n: int) -> np.ndarray:
    return np.arange(1, n + 1, dtype=np.int32)


def zeros(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


def holds(number: int, expected: list[int], dtype: type = np.int32):
    def check(bound: Bound) -> None:
        assert bound.memories[number].inside.view(dtype).tolist() == expected

    return check


def one_access(
    access: str, offset: str = "r0 = const(0)", *, params: str = "param buf i32 r\nparam buf i32 w", regs: str = "i64 i32"
) -> str:
    """A kernel of one thread: an offset in r0, an access by it, its value r1 stored to p1."""
    return f"kernel 2 k\nmath strict\nthreads 32\n{params}\nregs {regs} i64\nblock 0\n  {offset}\n  {access}\n  ret\n"


LOAD_STORE = "r2 = const(0)\n  store(p1 i32) r2, r1"


@attack("bounds/wild read", OUTSIDE)
def wild_read() -> Shot:
    """Reads 4 GiB beyond its input; gets zeros."""
    source = 'extern "C" __global__ void k(const int *in, int *out) { out[threadIdx.x] = in[threadIdx.x + (1LL << 30)] + 1; }'
    return cuda(source, [words(32), zeros(32)], launch(), after=holds(1, [1] * 32))


@attack("bounds/wild write", OUTSIDE)
def wild_write() -> Shot:
    """Writes right behind and far behind its buffer."""
    source = 'extern "C" __global__ void k(int *out) { out[32 + threadIdx.x] = 7; out[32LL + threadIdx.x * 99991LL] = 8; }'
    return cuda(source, [zeros(32)], launch(), after=holds(0, [0] * 32))


@attack("bounds/negative offset", Traps(TrapKind.OUTSIDE, 0, 0))
def negative_offset() -> Shot:
    """Reads and writes before its buffer's first element."""
    source = 'extern "C" __global__ void k(int *x, int d) { int v = x[(int)threadIdx.x - d]; x[(int)threadIdx.x - d] = v + 1; }'
    return cuda(source, [zeros(32), np.int32(4)], launch(), after=holds(0, [1] * 28 + [0] * 4))


@attack("bounds/stride wraps 64 bits to the neighbours", OUTSIDE)
def stride_wraps() -> Shot:
    """Strides so large that the byte offset wraps around 2^64 and lands just before the buffer."""
    source = 'extern "C" __global__ void k(int *x, long long s) { x[threadIdx.x * s - 1] = 9; }'
    return cuda(source, [zeros(32), np.int64(1 << 62)], launch(), after=holds(0, [0] * 32))


@attack("bounds/stride wraps 64 bits to oneself", Completes())
def stride_wraps_home() -> Shot:
    """The same, landing on its own element: allowed, and the same everywhere."""
    source = 'extern "C" __global__ void k(int *x, long long s) { if (threadIdx.x == 1) x[threadIdx.x * s + 5] = 9; }'
    return cuda(source, [zeros(8), np.int64(1 << 62)], launch(), after=holds(0, [0, 0, 0, 0, 0, 9, 0, 0]))


@attack("bounds/32-bit offset as if negative", OUTSIDE)
def offset_32() -> Shot:
    """A 32-bit offset of all ones less three must count as 4 GiB, not as minus four."""
    text = one_access("r1 = load(p0 i32) r0\n  " + LOAD_STORE, "r0 = const(-4)", regs="i32 i32")
    return wisk(text, [words(8), zeros(8)], launch(block=1), after=holds(1, [0] * 8))


@attack("bounds/32-bit offset and displacement wrap", OUTSIDE)
def offset_32_wraps() -> Shot:
    """Offset 2^32 - 4 and displacement 4 must be 2^32, not 0."""
    text = one_access("r1 = load(p0 i32 +4) r0\n  " + LOAD_STORE, "r0 = const(-4)", regs="i32 i32")
    return wisk(text, [words(8), zeros(8)], launch(block=1), after=holds(1, [0] * 8))


@attack("bounds/64-bit offset and displacement wrap", OUTSIDE)
def displacement_wraps() -> Shot:
    """The greatest offset with a displacement wraps to a negative place."""
    text = one_access("r1 = load(p0 i32 +8) r0\n  store(p1 i32 +16) r0, r1", f"r0 = const({2**63 - 4})")
    return wisk(text, [words(8), words(8)], launch(block=1), after=holds(1, list(range(1, 9))))


@attack("bounds/negative offset made good", Completes())
def made_good() -> Shot:
    """Offset minus eight with displacement twelve is place four: exact arithmetic, allowed."""
    text = one_access("r1 = load(p0 i32 +12) r0\n  " + LOAD_STORE, "r0 = const(-8)")
    return wisk(text, [words(8), zeros(8)], launch(block=1), after=holds(1, [2] + [0] * 7))


@attack("bounds/element index wraps", OUTSIDE)
def index_wraps() -> Shot:
    """An element index of 2^62 times four bytes is 2^64: still far outside."""
    text = one_access("r1 = ld(p0 i32) r0\n  st(p1 i32) r0, r1", f"r0 = const({1 << 62})")
    return wisk(text, [words(8), words(8)], launch(block=1), after=holds(1, list(range(1, 9))))


@attack("bounds/negative element index", OUTSIDE)
def index_negative() -> Shot:
    """Element minus one."""
    text = one_access("r1 = ld(p0 i32) r0\n  st(p1 i32) r0, r1", "r0 = const(-1)")
    return wisk(text, [words(8), words(8)], launch(block=1), after=holds(1, list(range(1, 9))))


@attack("bounds/straddles the end", OUTSIDE)
def straddles_end() -> Shot:
    """Eight bytes of which only four are its own: all zeros, and nothing of a store arrives."""
    text = one_access("r0 = load(p0 i64) r2\n  store(p1 i64) r2, r0", "r2 = const(24)", regs="i64 i32")
    return wisk(text, [words(7), words(7)], launch(block=1), after=holds(1, list(range(1, 8))))


@attack("bounds/straddles the beginning", OUTSIDE)
def straddles_beginning() -> Shot:
    """Sixteen bytes from minus four on."""
    text = one_access("store(p1 i32x4) r2, r1, r1, r1, r1", "r2 = const(-4)\n  r1 = const(77)")
    return wisk(text, [words(7), words(8)], launch(block=1), after=holds(1, list(range(1, 9))))


@attack("bounds/misaligned", MISALIGNED)
def misaligned() -> Shot:
    """An integer from an odd address."""
    source = 'extern "C" __global__ void k(const char *in, int *out) { out[threadIdx.x] = *(const int *)(in + 1 + 4 * threadIdx.x) | 1; }'
    return cuda(source, [words(40), zeros(32)], launch(), after=holds(1, [1] * 32))


@attack("bounds/misaligned vector", MISALIGNED)
def misaligned_vector() -> Shot:
    """Four floats from an address that suits one, and a store of two to such a one."""
    source = """extern "C" __global__ void k(const float *in, float *out) {
        float4 v = *(const float4 *)(in + 1);
        *(float2 *)(out + 1) = make_float2(5.0f, 6.0f);
        out[0] = v.x + v.y + v.z + v.w;
    }"""
    floats = np.arange(1, 9, dtype=np.float32)
    return cuda(source, [floats, np.zeros(8, np.float32)], launch(block=1), after=holds(1, [0.0] * 8, np.float32))


@attack("bounds/misaligned and outside", OUTSIDE)
def misaligned_outside() -> Shot:
    """Both at once is outside."""
    text = one_access("r1 = load(p0 i32) r0\n  store(p1 i32) r0, r1", "r0 = const(1000001)")
    return wisk(text, [words(8), words(8)], launch(block=1), after=holds(1, list(range(1, 9))))


@attack("bounds/misaligned atomic", MISALIGNED)
def misaligned_atomic() -> Shot:
    """An atomic on half of one word and half of the next."""
    text = one_access("r1 = const(1)\n  red(add p0 i32) r0, r1", "r0 = const(2)", params="param buf i32 rw")
    return wisk(text, [words(8)], launch(block=32), after=holds(0, list(range(1, 9))))


@attack("bounds/atomic outside", Traps(TrapKind.OUTSIDE, 0, 0))
def atomic_outside() -> Shot:
    """Atomics behind the end give zero and change nothing."""
    source = """extern "C" __global__ void k(int *x, unsigned long long *y, float *z) {
        int i = threadIdx.x;
        x[i] = atomicAdd(&x[32 + i], 1) + atomicCAS(&x[-1 - i], 0, 5) + atomicExch(&x[1 << 29], 3);
        atomicMax(&y[4 + i], 9ull);
        atomicAdd(&z[4 + i], 1.0f);
    }"""
    arrays = [words(32), np.zeros(4, np.uint64), np.zeros(4, np.float32)]
    return cuda(source, arrays, launch(), after=holds(0, [0] * 32))


@attack("bounds/empty buffer", Traps(TrapKind.OUTSIDE, 0, 0))
def empty_buffer() -> Shot:
    """A buffer of no bytes, as a null pointer is."""
    source = 'extern "C" __global__ void k(int *nothing, int *out) { out[threadIdx.x] = nothing[threadIdx.x] + 3; nothing[0] = 1; }'
    return cuda(source, [zeros(0), zeros(32)], launch(), after=holds(1, [3] * 32))


@attack("bounds/every thread elsewhere", Traps(TrapKind.OUTSIDE))
def scattered() -> Shot:
    """A whole grid writes all over the address space by a hash of its number."""
    source = """extern "C" __global__ void k(int *x) {
        unsigned long long h = (blockIdx.x * blockDim.x + threadIdx.x + 1) * 0x9e3779b97f4a7c15ull;
        x[(long long)(h ^ h >> 29)] = 1;
        x[(int)h] = 2;
        *(int *)((char *)x + (h >> 1)) = 3;
    }"""
    return cuda(source, [zeros(16)], launch(grid=64, block=128))


def lanes(body: str, regs: str = "i32 i32 i32 i64 i64") -> str:
    """A kernel of one warp, r0 its lane number."""
    head = "kernel 2 k\nmath strict\nthreads 32\nparam buf i32 rw\nparam buf i32 w\n"
    return f"{head}regs {regs}\nblock 0\n  r0 = special(tid.x)\n{body}  ret\n"


@attack("bounds/32-bit offsets wrap within a warp", Traps(TrapKind.OUTSIDE, 0, 0))
def warp_wraps_32() -> Shot:
    """Offsets side by side that begin below zero: lanes 0 to 15 are 4 GiB away, lanes 16 to 31 at home."""
    body = "  r1 = const(4)\n  r0 = mul r0, r1\n  r1 = const(-64)\n  r0 = add r0, r1\n  r2 = load(p0 i32) r0\n  store(p1 i32) r0, r2\n"
    return wisk(lanes(body), [words(32), zeros(32)], launch(), after=holds(1, [*range(1, 17)] + [0] * 16))


@attack("bounds/64-bit offsets wrap within a warp", Traps(TrapKind.OUTSIDE, 0, 0))
def warp_wraps_64() -> Shot:
    """Byte offsets that pass 2^64 in the middle of a warp, by an element number near 2^62."""
    source = """extern "C" __global__ void k(const int *in, int *out, long long m) {
        out[threadIdx.x + m] = in[threadIdx.x + m] + 1;
    }"""
    return cuda(source, [words(32), zeros(32), np.int64((1 << 62) - 16)], launch(), after=holds(1, [*range(2, 18)] + [0] * 16))


@attack("bounds/element indices below zero within a warp", Traps(TrapKind.OUTSIDE, 0, 0))
def warp_indices() -> Shot:
    """Element indices side by side from minus sixteen on, and such that pass 2^63 in the middle of a warp."""
    body = f"  r3 = sext r0\n  r4 = const(-16)\n  r4 = add r3, r4\n  r2 = ld(p0 i32) r4\n  st(p1 i32) r4, r2\n  r4 = const({2**63 - 16})\n"
    body += "  r4 = add r3, r4\n  r2 = ld(p0 i32) r4\n  st(p1 i32) r4, r2\n"
    return wisk(lanes(body), [words(32), zeros(32)], launch(), after=holds(1, [*range(1, 17)] + [0] * 16))


@attack("bounds/strides that wrap 32 bits", OUTSIDE)
def strides_32() -> Shot:
    """An index whose product wraps in 32 bits, signed and unsigned, in a loop over blocks and turns."""
    source = """extern "C" __global__ void k(int *x, int stride, unsigned ustride) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        for (int j = 0; j < 5; j++) {
            x[i * stride + j] = 1;
            x[i * ustride - j] = 1;
        }
    }"""
    return cuda(source, [zeros(64), np.int32(2**30 + 1), np.uint32(2**31 + 3)], launch(grid=3, block=64))


@attack("bounds/buffers smaller than an element", Traps(TrapKind.OUTSIDE, 0, 0))
def tiny() -> Shot:
    """Elements of 4, 8 and 16 bytes at the beginning of buffers of three bytes: the size left would be less than nothing."""
    body = """  r1 = const(0)
  r2 = load(p0 i32) r1
  r3 = load(p0 i64) r1
  r3, r4 = load(p0 i64x2) r1
  store(p1 i32) r1, r0
  store(p1 i64x2) r1, r3, r3
  red(add p0 i32) r1, r2
  r4 = const(0)
  r2 = ld(p0 i32) r4
  st(p1 i32) r4, r2
"""
    tiny = np.arange(1, 4, dtype=np.uint8)
    return wisk(lanes(body), [tiny, tiny], launch(), after=holds(1, [1, 2, 3], np.uint8), constant=(0,))


@attack("bounds/vector over a ragged end", OUTSIDE)
def ragged_vector() -> Shot:
    """Four floats a lane, side by side, in a buffer that ends amid one lane's four: that lane gets nothing, the ones before theirs."""
    source = 'extern "C" __global__ void k(const float4 *in, float4 *out) { out[threadIdx.x] = in[threadIdx.x]; }'
    floats = np.arange(1, 71, dtype=np.float32)
    expected = [*floats[:68].tolist(), 0.0, 0.0, *[0.0] * 58]
    return cuda(source, [floats, np.zeros(128, np.float32)], launch(), after=holds(1, expected, np.float32))
