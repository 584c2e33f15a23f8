"""The languages: what each calls a type, a qualifier, a bit trick, a barrier, an atomic.

All generated text is in the words that a prelude defines (``u32``, ``GLOBAL``, ``AS_F32``, ...); what no macro can hide is a field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wis.dtypes import DType
from wis.kernel.model import RegType

ELEMENT: Final = {
    DType.BOOL: "u8", DType.I8: "s8", DType.I16: "s16", DType.I32: "s32", DType.I64: "s64", DType.U8: "u8", DType.U16: "u16",
    DType.U32: "u32", DType.U64: "u64", DType.F16: "u16", DType.BF16: "u16", DType.F32: "f32", DType.F64: "f64",
}  # fmt: skip
"""Types of elements in memory; half precision as its bits."""
REGISTER: Final = {
    RegType.PRED: "u8", RegType.I16: "u16", RegType.I32: "u32", RegType.I64: "u64", RegType.F16: "u16", RegType.BF16: "u16",
    RegType.F32: "f32", RegType.F64: "f64",
}  # fmt: skip
"""Types of registers; integers are unsigned, so that they wrap."""


def signed(kind: RegType) -> str:
    """The signed reading of an integer register."""
    return f"s{kind.bits}"


@dataclass(frozen=True, slots=True)
class Language:
    """``prelude``: what every program starts with. ``entry``: how a kernel is declared, with {threads} and {name} ({block}: x, y, z).

    ``math``: suffix of f32 functions. ``long``: suffix of 64-bit constants. ``wide``: named functions of f32 are computed in f64.
    ``cpu``: the device runs the threads of a block one after the other. ``warps``: it has warps of 32 whose lanes can be asked.
    ``private_bytes``: what a work-item that runs a block of threads may keep in arrays of its own; more goes to scratch memory.
    ``shared``, ``constant``: how arrays of a block of threads and of the program are declared. ``loop``: how a loop over threads or lanes
    begins: where compilers unroll those, a kernel becomes a hundred times as long.
    """

    name: str
    prelude: str
    entry: str
    math: str
    long: str
    wide: bool
    cpu: bool
    warps: bool
    private_bytes: int
    shared: str
    constant: str
    loop: str = "for ("


_TYPES: Final = """
typedef u8 ALIAS u8_m; typedef u16 ALIAS u16_m; typedef u32 ALIAS u32_m; typedef u64 ALIAS u64_m; typedef s8 ALIAS s8_m;
typedef s16 ALIAS s16_m; typedef s32 ALIAS s32_m; typedef s64 ALIAS s64_m; typedef f32 ALIAS f32_m; typedef f64 ALIAS f64_m;
"""

_OPENCL: Final = """#pragma OPENCL FP_CONTRACT OFF
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
typedef double f64;
#endif
#ifdef cl_khr_int64_base_atomics
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable
#endif
typedef uchar u8; typedef ushort u16; typedef uint u32; typedef ulong u64; typedef char s8; typedef short s16; typedef int s32;
typedef long s64; typedef float f32;
#define ALIAS __attribute__((may_alias))
#define GLOBAL __global
#define SHARED __local
#define CONSTANT __constant
#define PRIVATE __private
#define FN static inline
#define ALIGN16 __attribute__((aligned(16)))
#define AS_F32(x) as_float(x)
#define AS_U32(x) as_uint(x)
#define AS_F64(x) as_double(x)
#define AS_U64(x) as_ulong(x)
#define POPC32(x) popcount((u32)(x))
#define POPC64(x) ((u32)popcount(x))
#define CLZ32(x) clz((u32)(x))
#define CLZ64(x) ((u32)clz(x))
#define BREV32(x) wis_brev32(x)
#define BREV64(x) wis_brev64(x)
#define MULHI_U64(a, b) mul_hi((u64)(a), (u64)(b))
#define MULHI_S64(a, b) mul_hi((s64)(a), (s64)(b))
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define FENCE0 mem_fence(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define FENCE1 mem_fence(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define FENCE2 mem_fence(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#ifdef EXACT_DIVISION
#define DIV32(a, b) ((a) / (b))
#define SQRT32(a) sqrt(a)
#else
#define DIV32(a, b) ((f32)((f64)(a) / (f64)(b)))
#define SQRT32(a) ((f32)sqrt((f64)(a)))
#endif
#define ATOM_ADD32(p, v) atomic_add(p, v)
#define ATOM_ADD64(p, v) atom_add(p, v)
#define ATOM_MIN64(p, v) atom_min(p, v)
#define COUNT_ADD(p, v) atom_add((volatile __global ulong *)(p), (ulong)(v))
#define ATOM_CAS32(p, a, b) atomic_cmpxchg(p, a, b)
#define ATOM_CAS64(p, a, b) atom_cmpxchg(p, a, b)
#define ATOM_XCHG32(p, v) atomic_xchg(p, v)
#define ATOM_XCHG64(p, v) atom_xchg(p, v)
#define LOCAL_X ((u32)get_local_id(0))
#define LOCAL_Y ((u32)get_local_id(1))
#define LOCAL_Z ((u32)get_local_id(2))
#define GROUP ((u64)get_group_id(0))
""" + _TYPES.replace("typedef f64 ALIAS f64_m;", "\n#ifdef cl_khr_fp64\ntypedef f64 ALIAS f64_m;\n#endif")

_CUDA: Final = (
    """typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
typedef signed char s8; typedef short s16; typedef int s32; typedef long long s64; typedef float f32; typedef double f64;
#define ALIAS __attribute__((may_alias))
#define GLOBAL
#define SHARED
#define CONSTANT
#define PRIVATE
#define FN static __device__ __forceinline__
#define ALIGN16 __align__(16)
#define AS_F32(x) __uint_as_float(x)
#define AS_U32(x) __float_as_uint(x)
#define AS_F64(x) __longlong_as_double((s64)(x))
#define AS_U64(x) ((u64)__double_as_longlong(x))
#define POPC32(x) ((u32)__popc(x))
#define POPC64(x) ((u32)__popcll(x))
#define CLZ32(x) ((u32)__clz((s32)(x)))
#define CLZ64(x) ((u32)__clzll((s64)(x)))
#define BREV32(x) __brev(x)
#define BREV64(x) __brevll(x)
#define MULHI_U64(a, b) __umul64hi(a, b)
#define MULHI_S64(a, b) __mul64hi(a, b)
#define BARRIER __syncthreads()
#define FENCE0 __threadfence_block()
#define FENCE1 __threadfence()
#define FENCE2 __threadfence_system()
#define DIV32(a, b) ((a) / (b))
#define SQRT32(a) sqrtf(a)
#define ATOM_ADD32(p, v) atomicAdd((u32 *)(p), v)
#define ATOM_ADD64(p, v) atomicAdd((u64 *)(p), v)
#define ATOM_MIN64(p, v) atomicMin((u64 *)(p), v)
#define COUNT_ADD(p, v) atomicAdd((u64 *)(p), (u64)(v))
#define ATOM_CAS32(p, a, b) atomicCAS((u32 *)(p), a, b)
#define ATOM_CAS64(p, a, b) atomicCAS((u64 *)(p), a, b)
#define ATOM_XCHG32(p, v) atomicExch((u32 *)(p), v)
#define ATOM_XCHG64(p, v) atomicExch((u64 *)(p), v)
#define LOCAL_X threadIdx.x
#define LOCAL_Y threadIdx.y
#define LOCAL_Z threadIdx.z
#define GROUP ((u64)blockIdx.x)
#if defined(__HIP_PLATFORM_AMD__) || defined(__HIPCC_RTC__)
#define WARP_SHFL(mask, v, lane) __shfl(v, lane, 32)
#define WARP_BALLOT(mask, p) ((u32)(__ballot(p) >> (__lane_id() & 32u)))
#define WARP_SYNC(mask) __builtin_amdgcn_wave_barrier()
#else
#define WARP_SHFL(mask, v, lane) __shfl_sync(mask, v, lane)
#define WARP_BALLOT(mask, p) __ballot_sync(mask, p)
#define WARP_SYNC(mask) __syncwarp(mask)
#endif
"""
    + _TYPES
)

_C99: Final = (
    """#include <math.h>
#include <stdint.h>
#include <string.h>
#pragma STDC FP_CONTRACT OFF
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64; typedef int8_t s8; typedef int16_t s16;
typedef int32_t s32; typedef int64_t s64; typedef float f32; typedef double f64;
#define ALIAS __attribute__((may_alias))
#define GLOBAL
#define SHARED
#define CONSTANT
#define PRIVATE
#define FN static inline
#define ALIGN16 __attribute__((aligned(16)))
FN f32 AS_F32(u32 x) { f32 y; memcpy(&y, &x, 4); return y; }
FN u32 AS_U32(f32 x) { u32 y; memcpy(&y, &x, 4); return y; }
FN f64 AS_F64(u64 x) { f64 y; memcpy(&y, &x, 8); return y; }
FN u64 AS_U64(f64 x) { u64 y; memcpy(&y, &x, 8); return y; }
#define POPC32(x) ((u32)__builtin_popcount(x))
#define POPC64(x) ((u32)__builtin_popcountll(x))
FN u32 CLZ32(u32 x) { return x ? (u32)__builtin_clz(x) : 32; }
FN u32 CLZ64(u64 x) { return x ? (u32)__builtin_clzll(x) : 64; }
#define BREV32(x) wis_brev32(x)
#define BREV64(x) wis_brev64(x)
#define MULHI_U64(a, b) ((u64)((unsigned __int128)(a) * (b) >> 64))
#define MULHI_S64(a, b) ((u64)((__int128)(s64)(a) * (s64)(b) >> 64))
#define FENCE0 __sync_synchronize()
#define FENCE1 __sync_synchronize()
#define FENCE2 __sync_synchronize()
#define GROUP (cta - first)
#define DIV32(a, b) ((a) / (b))
#define SQRT32(a) sqrtf(a)
#define ATOM_ADD32(p, v) __sync_fetch_and_add(p, v)
#define ATOM_ADD64(p, v) __sync_fetch_and_add(p, v)
#define COUNT_ADD(p, v) __sync_fetch_and_add(p, v)
#define ATOM_CAS32(p, a, b) __sync_val_compare_and_swap(p, a, b)
#define ATOM_CAS64(p, a, b) __sync_val_compare_and_swap(p, a, b)
#define ATOM_XCHG32(p, v) __sync_lock_test_and_set(p, v)
#define ATOM_XCHG64(p, v) __sync_lock_test_and_set(p, v)
FN void ATOM_MIN64(volatile u64 *p, u64 v) { for (u64 o = *p; v < o;) { u64 f = ATOM_CAS64(p, o, v); if (f == o) break; o = f; } }
"""
    + _TYPES
)

C99: Final = Language(
    name="c99", prelude=_C99, entry="void {name}", math="f", long="ull", wide=True, cpu=True, warps=False, private_bytes=1 << 18, shared="",
    constant="static const",
)  # fmt: skip
"""For processors; runs a block of threads as a loop, and many blocks a call."""
CUDA: Final = Language(
    name="cuda", prelude=_CUDA, entry='extern "C" __global__ void __launch_bounds__({threads}) {name}', math="f", long="ull", wide=False,
    cpu=False, warps=True, private_bytes=1 << 13, shared="__shared__", constant="__constant__", loop='_Pragma("unroll 1") for (',
)  # fmt: skip


def opencl(*, cpu: bool, exact_division: bool = True) -> Language:
    """For a device with 64-bit atomics. ``cpu``: it is a processor (PoCL); ``exact_division``: programs are built with
    -cl-fp32-correctly-rounded-divide-sqrt."""
    return Language(
        name="opencl", prelude=("#define EXACT_DIVISION\n" if exact_division else "") + _OPENCL,
        entry="__kernel __attribute__((reqd_work_group_size({block}))) void {name}", math="", long="ul", wide=False, cpu=cpu, warps=False,
        private_bytes=1 << 18, shared="__local", constant="__constant",
    )  # fmt: skip


OPENCL: Final = opencl(cpu=True)
"""For PoCL."""
