"""Attacks by kernels that are too large, too deep or too slow to import."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np

from tests.adversarial.attack import ATTACKS, Attack, Completes, Refused, Shot, attack, cuda, launch, ptx, shot, wisk
from tests.adversarial.attacks.bounds import holds, words, zeros
from wis.errors import VerifyError, WisError
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import Kernel, decode_kernel, encode_kernel
from wis.kernel.text import parse_kernel
from wis.kernel.verify import verify_kernel
from wooly.errors import CompileError

LIMIT = Refused(VerifyError, "limit")
ANY = Refused((WisError, CompileError))


def kernel(body: str, regs: str = "i32 i32 pred", more: str = "") -> str:
    return f"kernel 2 k\nmath strict\nthreads 64\n{more}regs {regs}\n{body}"


@attack("bombs/straight code", LIMIT)
def straight() -> Shot:
    """More ops than a kernel may have."""
    body = "block 0\n  r0 = const(1)\n" + "  r0 = add r0, r0\n" * KERNEL_LIMITS.ops_max + "  ret\n"
    return wisk(kernel(body), [], launch())


@attack("bombs/blocks", LIMIT)
def blocks() -> Shot:
    """More blocks than a kernel may have."""
    n = KERNEL_LIMITS.blocks_max + 1
    return wisk(kernel("".join(f"block {b}\n  br {b + 1}\n" for b in range(n - 1)) + f"block {n - 1}\n  ret\n"), [], launch())


@attack("bombs/registers", LIMIT)
def registers() -> Shot:
    """More registers than a kernel may have."""
    return wisk(kernel("block 0\n  ret\n", regs="i64 " * (KERNEL_LIMITS.regs_max + 1)), [], launch())


@attack("bombs/registers all alive", Completes())
def registers_alive() -> Shot:
    """Two thousand values that are all needed to the end."""
    n = 2000
    lines = ["block 0", "  r0 = special(tid.x)", "  r1 = const(4)", "  r0 = mul r0, r1", "  r2 = load(p0 i32) r0"]
    lines += [f"  r{i} = mul r{i - 1}, r{i - 1}" if i % 2 else f"  r{i} = add r{i - 1}, r2" for i in range(3, n)]
    lines += [f"  r2 = xor r2, r{i}" for i in range(3, n)] + ["  store(p0 i32) r0, r2", "  ret", ""]
    text = kernel("\n".join(lines), regs="i32 " * n, more="param buf i32 rw\n")
    return wisk(text, [words(32)], launch())


@attack("bombs/parameters", LIMIT)
def parameters() -> Shot:
    """More parameters than a kernel may have."""
    text = kernel("block 0\n  ret\n", more="param i32\n" * (KERNEL_LIMITS.params_max + 1))
    return wisk(text, [0] * (KERNEL_LIMITS.params_max + 1), launch())


@attack("bombs/as many parameters as there may be", Completes())
def most_parameters() -> Shot:
    """Every parameter there may be, half of them buffers, and the last one written."""
    n = KERNEL_LIMITS.params_max
    more = "param buf i32 rw\nparam i64\n" * (n // 2)
    text = kernel(f"block 0\n  r0 = const(0)\n  r1 = const(9)\n  store(p{n - 2} i32) r0, r1\n  ret\n", more=more)
    args = [words(1) if i % 2 == 0 else i for i in range(n)]
    return wisk(text, args, launch(), after=holds(n - 2, [9]), constant=tuple(range(0, n - 2, 2)))


@attack("bombs/shared memory", Refused(VerifyError, "shared"))
def shared() -> Shot:
    """More static shared memory than a block may have."""
    return wisk(kernel("block 0\n  ret\n", more=f"shared u8[{KERNEL_LIMITS.shared_bytes_max + 1}]\n"), [], launch())


@attack("bombs/shared memory that wraps", Refused(VerifyError, "shared"))
def shared_wraps() -> Shot:
    """Shared arrays whose sizes sum up to little modulo 2^64."""
    return wisk(kernel("block 0\n  ret\n", more=f"shared f64[{2**61}]\nshared u8[64]\n"), [], launch())


@attack("bombs/local memory", LIMIT)
def local() -> Shot:
    """A megabyte on every thread's stack."""
    return wisk(kernel("block 0\n  ret\n", more=f"local {1 << 20}\n"), [], launch())


@attack("bombs/stack of a source", ANY)
def stack() -> Shot:
    """The same from CUDA C++: an array of a megabyte indexed by data."""
    source = """extern "C" __global__ void k(const int *in, int *out) {
        volatile int a[1 << 18];
        for (int i = 0; i < 8; i++) a[in[i]] = i;
        out[threadIdx.x] = a[in[8]];
    }"""
    return cuda(source, [words(9), zeros(32)], launch())


@attack("bombs/recursion", ANY)
def recursion() -> Shot:
    """A function that calls itself."""
    source = """__noinline__ __device__ int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }
    extern "C" __global__ void k(int *out) { out[threadIdx.x] = f(threadIdx.x); }"""
    return cuda(source, [zeros(32)], launch())


@attack("bombs/recursion of two", Refused(VerifyError, "call"))
def mutual() -> Shot:
    """Two functions that call each other."""
    functions = "".join(
        f"function {i} f{i} (r0) -> (r0)\nregs i32\nblock 0\n  call {1 - i} (r0) -> (r0), 1\nblock 1\n  ret\n" for i in range(2)
    )
    return wisk(kernel("block 0\n  r0 = const(1)\n  call 0 (r0) -> (r0), 1\nblock 1\n  ret\n" + functions), [], launch())


def doubling(depth: int) -> str:
    """Functions of which each calls the next twice."""
    text = kernel("block 0\n  r0 = const(1)\n  call 0 (r0) -> (r0), 1\nblock 1\n  ret\n")
    for i in range(depth - 1):
        text += f"function {i} f{i} (r0) -> (r0)\nregs i32\nblock 0\n  call {i + 1} (r0) -> (r0), 1\n"
        text += f"block 1\n  call {i + 1} (r0) -> (r0), 2\nblock 2\n  ret\n"
    return text + f"function {depth - 1} f{depth - 1} (r0) -> (r0)\nregs i32\nblock 0\n  r0 = add r0, r0\n  ret\n"


@attack("bombs/calls that double", LIMIT)
def calls_double() -> Shot:
    """Sixty functions, each of which calls the next one twice: 2^60 once inlined. Refused without trying."""
    return wisk(doubling(60), [], launch())


@attack("bombs/calls that double, from a source", ANY)
def calls_double_source() -> Shot:
    """The same in CUDA C++ with functions that are kept apart."""
    functions = "".join(f"__noinline__ __device__ int f{i}(int x) {{ return f{i - 1}(x) ^ f{i - 1}(x + 1); }}\n" for i in range(1, 25))
    source = f"__noinline__ __device__ int f0(int x) {{ return x * 3; }}\n{functions}" + (
        'extern "C" __global__ void k(int *out) { out[threadIdx.x] = f24(threadIdx.x); }'
    )
    return cuda(source, [zeros(32)], launch())


@attack("bombs/functions", LIMIT)
def functions() -> Shot:
    """More functions than a kernel may have."""
    text = kernel("block 0\n  ret\n")
    return wisk(
        text + "".join(f"function {i} f{i} () -> ()\nregs\nblock 0\n  ret\n" for i in range(KERNEL_LIMITS.functions_max + 1)), [], launch()
    )


def switch(targets: int) -> str:
    """A switch to blocks that each store another number."""
    body = "block 0\n  r0 = special(tid.x)\n  r1 = const(4)\n  r1 = mul r0, r1\n"
    body += "  switch r0, [" + ", ".join(str(i + 1) for i in range(targets)) + f"], {targets + 1}\n"
    for i in range(targets):
        body += f"block {i + 1}\n  r0 = const({i * 7})\n  br {targets + 1}\n"
    return kernel(body + f"block {targets + 1}\n  store(p0 i32) r1, r0\n  ret\n", more="param buf i32 w\n")


@attack("bombs/switch", LIMIT)
def switch_large() -> Shot:
    """A switch of more targets than one may have."""
    return wisk(switch(KERNEL_LIMITS.targets_max + 1), [zeros(32)], launch())


@attack("bombs/switch of every lane", Completes())
def switch_lanes() -> Shot:
    """A switch by which every lane of two warps goes another way."""
    return wisk(switch(64), [zeros(64)], launch(block=64), after=holds(0, [7 * i for i in range(64)]))


@attack("bombs/irreducible", Refused(VerifyError, "flow"))
def irreducible() -> Shot:
    """A loop with two entries."""
    body = "block 0\n  r0 = const(1)\n  r2 = eq r0, r0\n  cbr r2, 1, 2\nblock 1\n  cbr r2, 2, 3\nblock 2\n  cbr r2, 1, 3\nblock 3\n  ret\n"
    return wisk(kernel(body), [], launch())


@attack("bombs/irreducible everywhere", ANY)
def irreducible_ptx() -> Shot:
    """Twenty blocks of PTX of which each may jump to each: splitting them would be 20! blocks."""
    n = 20
    body = "".join(
        f"$L{i}:\n    add.u32 %r1, %r1, {i};\n"
        + "".join(f"    setp.eq.u32 %p1, %r1, {i * n + j};\n    @%p1 bra $L{j};\n" for j in range(n))
        for i in range(n)
    )
    text = f""".version 8.0
.target sm_80
.address_size 64
.visible .entry k()
{{
    .reg .b32 %r<2>;
    .reg .pred %p<2>;
    mov.u32 %r1, %tid.x;
{body}    ret;
}}
"""
    return ptx(text, [], launch())


@attack("bombs/loops in loops", LIMIT)
def loops() -> Shot:
    """Loops nested deeper than they may be."""
    return wisk(kernel(nested(KERNEL_LIMITS.loop_depth_max + 1)), [], launch())


def nested(depth: int) -> str:
    """``depth`` loops inside of each other, of one turn each."""
    body = "block 0\n  r0 = const(0)\n  r1 = const(1)\n  r2 = lt_s r1, r0\n  br 1\n"
    body += "".join(f"block {d}\n  br {d + 1}\n" for d in range(1, depth + 1))
    body += "".join(f"block {depth + 1 + i}\n  cbr r2, {depth - i}, {depth + 2 + i}\n" for i in range(depth))
    return body + f"block {2 * depth + 1}\n  ret\n"


@attack("bombs/loops as deep as they may be", Completes())
def loops_deep() -> Shot:
    """Loops nested as deep as they may be."""
    return wisk(kernel(nested(KERNEL_LIMITS.loop_depth_max)), [], launch())


@attack("bombs/many diamonds", Completes())
def diamonds() -> Shot:
    """Five hundred branches one after the other: 2^500 paths."""
    n = 500
    body = "block 0\n  r0 = special(tid.x)\n  r1 = const(3)\n  br 1\n"
    for i in range(n):
        b = 1 + 3 * i
        body += f"block {b}\n  r2 = lt_u r0, r1\n  cbr r2, {b + 1}, {b + 2}\nblock {b + 1}\n  r0 = mul r0, r1\n  br {b + 2}\n"
        body += f"block {b + 2}\n  r0 = xor r0, r1\n  br {b + 3}\n"
    return wisk(kernel(body + f"block {3 * n + 1}\n  ret\n"), [], launch())


@attack("bombs/numbers of a source line", Refused((VerifyError, WisError)))
def lines() -> Shot:
    """Fewer source lines than ops."""
    sound = parse_kernel(kernel("block 0\n  r0 = const(1)\n  r1 = const(1)\n  ret\n"))
    return _verified(sound, lines=(1,))


@attack("bombs/name", LIMIT)
def name() -> Shot:
    """A name of a million letters."""
    return _verified(parse_kernel(kernel("block 0\n  ret\n")), name="k" * 1_000_000)


@attack("bombs/bytes", Refused((WisError,)))
def huge_bytes() -> None:
    """More bytes than a kernel may have."""
    sound = parse_kernel(kernel("block 0\n  ret\n"))
    decode_kernel(encode_kernel(sound) + bytes(KERNEL_LIMITS.bytes_max))


@attack("bombs/deeply nested bytes", Refused((WisError,)))
def nested_bytes() -> None:
    """A hundred thousand arrays inside of each other."""
    decode_kernel(b"\x91" * 100_000 + b"\x00")


def _verified(sound: Kernel, **changed: object) -> Shot:
    return shot(verify_kernel(msgspec.structs.replace(sound, **changed)), [], launch())


_PTX_HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
_BAD_PTX = {
    "version": ".version 99.7\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n",
    "instruction": _PTX_HEAD + ".visible .entry k() {\n .reg .b32 %r<2>;\n frobnicate.u32 %r1, 5;\n ret;\n}\n",
    "unclosed": _PTX_HEAD + ".visible .entry k() {\n ret;\n",
    "long line": _PTX_HEAD + ".visible .entry k() { .reg .b32 %r<2>; mov.u32 %r1, " + "9" * 300_000 + "; ret; }\n",
    "shared": _PTX_HEAD
    + ".shared .align 4 .b8 s[99999999999];\n.visible .entry k() {\n .reg .b32 %r<2>;\n"
    + " mov.u32 %r1, s;\n st.shared.u32 [%r1], %r1;\n ret;\n}\n",
    "unknown label": _PTX_HEAD + ".visible .entry k() {\n bra $nowhere;\n}\n",
    "unknown register": _PTX_HEAD + ".visible .entry k() {\n add.u32 %r1, %r2, %r3;\n ret;\n}\n",
    "tensor cores": _PTX_HEAD
    + ".visible .entry k() {\n .reg .b32 %r<9>;\n .reg .f32 %f<9>;\n mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, "
    + "{%r1,%r2}, {%r5,%r6}, {%f1,%f2,%f3,%f4};\n ret;\n}\n",
    "nothing": "",
    "not text": "\x00\x01\xff" * 100,
    "call of an unknown function": _PTX_HEAD + ".visible .entry k() {\n call.uni mystery, ();\n ret;\n}\n",
}


def _bad_ptx(text: str) -> Shot:
    return ptx(text, [], launch())


_ODD_PTX = {
    "fifty thousand scopes": _PTX_HEAD + ".visible .entry k() " + "{" * 50_000 + "ret;" + "}" * 50_000 + "\n",
    "unused registers": _PTX_HEAD + ".visible .entry k() {\n .reg .b32 %r<2000000000>;\n ret;\n}\n",
}


for _name, _text in _ODD_PTX.items():
    ATTACKS[f"ptx/{_name}"] = Attack(f"ptx/{_name}", f"PTX that is odd, and a kernel: {_name}.", Completes(), partial(_bad_ptx, _text))
for _name, _text in _BAD_PTX.items():
    ATTACKS[f"ptx/{_name}"] = Attack(f"ptx/{_name}", f"PTX that is no kernel: {_name}.", ANY, partial(_bad_ptx, _text))


@attack("bombs/unrolled", Completes())
def unrolled() -> Shot:
    """A few thousand ops of one basic block from a loop that was unrolled."""
    source = """extern "C" __global__ void k(unsigned *x) {
        unsigned v = x[threadIdx.x];
        #pragma unroll
        for (int i = 0; i < 1500; i++) v = (v ^ i) * 2654435761u;
        x[threadIdx.x] = v;
    }"""
    v = np.arange(32, dtype=np.uint32)
    for i in range(1500):
        v = (v ^ np.uint32(i)) * np.uint32(2654435761)
    return cuda(source, [np.arange(32, dtype=np.uint32)], launch(), after=holds(0, v.tolist(), np.uint32))


@attack("bombs/most local memory", Completes())
def most_local() -> Shot:
    """All the local memory there may be, in blocks of as many threads as there may be: 64 MiB a block."""
    text = f"""kernel 2 k
math strict
threads 1024
param buf i32 rw
local {KERNEL_LIMITS.local_bytes_max}
regs i32 i32 i32
block 0
  r0 = const(0)
  r1 = load(local i32 +{KERNEL_LIMITS.local_bytes_max - 4}) r0
  r2 = const(1)
  store(local i32 +{KERNEL_LIMITS.local_bytes_max - 4}) r0, r2
  r1 = add r1, r2
  red(add p0 i32) r0, r1
  ret
"""
    return wisk(text, [zeros(1)], launch(grid=3, block=1024), after=holds(0, [3 * 1024]))


@attack("bombs/many barriers", Completes())
def barriers() -> Shot:
    """Sixty barriers in a row, with a shared word handed on at each."""
    n = 60
    body = "block 0\n  r0 = special(tid.x)\n  r1 = const(4)\n  r0 = mul r0, r1\n  bar 1\n"
    for i in range(1, n):
        body += f"block {i}\n  r1 = load(s0 i32) r0\n  r1 = add r1, r0\n  store(s0 i32) r0, r1\n  bar {i + 1}\n"
    body += f"block {n}\n  r1 = load(s0 i32) r0\n  store(p0 i32) r0, r1\n  ret\n"
    text = kernel(body, more="param buf i32 w\nshared i32[64]\n")
    return wisk(text, [zeros(64)], launch(block=64), after=holds(0, [4 * t * (n - 1) for t in range(64)]))


@attack("bombs/many shuffles", Completes())
def shuffles() -> Shot:
    """A hundred shuffles in a row."""
    body = "block 0\n  r0 = special(tid.x)\n  r1 = const(1)\n  r3 = const(31)\n  r4 = const(-1)\n"
    body += "  r0, r2 = shfl(bfly) r0, r1, r3, r4\n" * 101
    body += "  r1 = special(tid.x)\n  r3 = const(4)\n  r1 = mul r1, r3\n  store(p0 i32) r1, r0\n  ret\n"
    text = kernel(body, regs="i32 i32 pred i32 i32", more="param buf i32 w\n")
    return wisk(text, [zeros(32)], launch(), after=holds(0, [t ^ 1 for t in range(32)]))
