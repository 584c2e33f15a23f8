"""What kernels call beside their own code: accesses lane by lane, addresses, trap records. Compiled once, for all kernels.

May live here: code that is the same for every kernel and every width of a gang. May not: anything on a fast path.
"""

from __future__ import annotations

from typing import Final

from wis.kernel.model import LOCAL_BASE, SHARED_BASE, TrapKind

__all__ = ["DECLARATIONS", "ENVIRONMENT_WORDS", "NAMES", "LIMIT", "RUNTIME_TEXT", "SPENT", "STATE_WORDS", "TRAP"]

STATE_WORDS: Final = 8
TRAP, SPENT, LIMIT = 0, 1, 2
"""The state of a launch, in i64: least trap key, thread-instructions, their limit (-1: stop)."""
ENVIRONMENT_WORDS: Final = 6
"""Where addresses lead, in i64: table of buffers, how many, shared memory, its bytes, local memory of lane 0, bytes a lane. A row of the
table: first byte, bytes, address, rights."""

NAMES: Final = ("simt_trap", "simt_raise", "simt_load", "simt_store", "simt_find", "simt_arena_load", "simt_arena_store")

DECLARATIONS: Final = {
    "simt_trap": "declare void @simt_trap(ptr, i64, i64, i64, i64) cold",
    "simt_raise": "declare void @simt_raise(ptr, i64, i64, i64, i64) cold",
    "simt_load": "declare void @simt_load(ptr, i64, i64, ptr, i64, i64, ptr, i64, i64, ptr, i64)",
    "simt_store": "declare void @simt_store(ptr, i64, i64, ptr, i64, i64, ptr, i64, i64, ptr, i64)",
    "simt_find": "declare i64 @simt_find(ptr, i64, i64, i64, i64)",
    "simt_arena_load": "declare void @simt_arena_load(ptr, ptr, i64, i64, ptr, i64, i64, ptr, i64)",
    "simt_arena_store": "declare void @simt_arena_store(ptr, ptr, i64, i64, ptr, i64, i64, ptr, i64)",
}


def _lanes(name: str, parameters: str, running: str, idle: str) -> str:
    """A function that does something for every lane of ``%lanes``; the body follows with ``%p`` (the lane's place)."""
    return f"""
define void @{name}({parameters}) {{
entry:
  br label %head
head:
  %lane = phi i64 [ 0, %entry ], [ %next, %latch ]
  %more = icmp ult i64 %lane, %lanes
  br i1 %more, label %look, label %exit
exit:
  ret void
look:
  %data = mul i64 %lane, %size
  %mine = getelementptr i8, ptr %out, i64 %data
  %shifted = lshr i64 {running}, %lane
  %on = trunc i64 %shifted to i1
  br i1 %on, label %run, label %idle
idle:
{idle}
  br label %latch
latch:
  %next = add i64 %lane, 1
  br label %head
run:
  %pp = getelementptr i64, ptr %places, i64 %lane
  %p = load i64, ptr %pp
  %key1 = add i64 %key, %lane
"""


_ZERO: Final = "  call void @llvm.memset.p0.i64(ptr %mine, i8 0, i64 %size, i1 false)"
_BAD: Final = f"""
bad:
  %kind = phi i64 [ {int(TrapKind.OUTSIDE)}, %look2 ], [ {int(TrapKind.MISALIGNED)}, %inside ]
  call void @simt_raise(ptr %state, i64 %key1, i64 1, i64 %site, i64 %kind)
  br label %idle
}}
"""
_IN_REGION: Final = """
  br label %look2
look2:
  %n1 = add i64 %nbytes, 1
  %limit = call i64 @llvm.usub.sat.i64(i64 %n1, i64 %size)
  %in = icmp ult i64 %p, %limit
  br i1 %in, label %inside, label %bad
inside:
  %low = sub i64 %size, 1
  %off = and i64 %p, %low
  %even = icmp eq i64 %off, 0
  br i1 %even, label %do, label %bad
do:
  %shift = mul i64 %lane, %stride
  %q = add i64 %p, %shift
  %there = getelementptr i8, ptr %base, i64 %q
"""
_IN_ARENA: Final = """
  %found = call i64 @simt_find(ptr %environment, i64 %p, i64 %size, i64 {rights}, i64 %lane)
  br label %look2
look2:
  %in = icmp ne i64 %found, 0
  br i1 %in, label %inside, label %bad
inside:
  %even = icmp ne i64 %found, 1
  br i1 %even, label %do, label %bad
do:
  %there = inttoptr i64 %found to ptr
"""
_COPY_IN: Final = "  call void @llvm.memcpy.p0.p0.i64(ptr %mine, ptr %there, i64 %size, i1 false)\n  br label %latch\n"
_COPY_OUT: Final = "  call void @llvm.memcpy.p0.p0.i64(ptr %there, ptr %mine, i64 %size, i1 false)\n  br label %latch\n"

_PLAIN: Final = (
    "ptr %base, i64 %nbytes, i64 %stride, ptr %places, i64 %running, i64 %size, ptr %state, i64 %key, i64 %site, ptr %out, i64 %lanes"
)
_ARENA: Final = "ptr %environment, ptr %places, i64 %running, i64 %size, ptr %state, i64 %key, i64 %site, ptr %out, i64 %lanes"

RUNTIME_TEXT: Final = f"""
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.usub.sat.i64(i64, i64)
declare i64 @llvm.cttz.i64(i64, i1)

define void @simt_raise(ptr %state, i64 %key, i64 %bad, i64 %site, i64 %kind) {{
  %lane = call i64 @llvm.cttz.i64(i64 %bad, i1 false)
  %thread = add i64 %key, %lane
  %a = shl i64 %thread, 19
  %b = shl i64 %site, 2
  %c = or i64 %a, %b
  %d = or i64 %c, %kind
  %old = atomicrmw umin ptr %state, i64 %d monotonic
  ret void
}}

define void @simt_trap(ptr %state, i64 %key, i64 %outside, i64 %bad, i64 %site) {{
  %lane = call i64 @llvm.cttz.i64(i64 %bad, i1 false)
  %bit = lshr i64 %outside, %lane
  %out = and i64 %bit, 1
  %kind = xor i64 %out, 1
  call void @simt_raise(ptr %state, i64 %key, i64 %bad, i64 %site, i64 %kind)
  ret void
}}
{_lanes("simt_load", _PLAIN, "%running", _ZERO)}{_IN_REGION}{_COPY_IN}{_BAD}
{_lanes("simt_store", _PLAIN, "%running", "")}{_IN_REGION}{_COPY_OUT}{_BAD}
{_lanes("simt_arena_load", _ARENA, "%running", _ZERO)}{_IN_ARENA.format(rights=1)}{_COPY_IN}{_BAD}
{_lanes("simt_arena_store", _ARENA, "%running", "")}{_IN_ARENA.format(rights=2)}{_COPY_OUT}{_BAD}

define i64 @simt_fit(i64 %base, i64 %nbytes, i64 %offset, i64 %size) {{
  %n1 = add i64 %nbytes, 1
  %limit = call i64 @llvm.usub.sat.i64(i64 %n1, i64 %size)
  %in = icmp ult i64 %offset, %limit
  %low = sub i64 %size, 1
  %off = and i64 %offset, %low
  %even = icmp eq i64 %off, 0
  %there = add i64 %base, %offset
  %good = select i1 %even, i64 %there, i64 1
  %result = select i1 %in, i64 %good, i64 0
  ret i64 %result
}}

define i64 @simt_find(ptr %environment, i64 %address, i64 %size, i64 %rights, i64 %lane) {{
entry:
  %table = load ptr, ptr %environment
  %np = getelementptr i64, ptr %environment, i64 1
  %n = load i64, ptr %np
  %sp = getelementptr i64, ptr %environment, i64 2
  %shared = load i64, ptr %sp
  %snp = getelementptr i64, ptr %environment, i64 3
  %shared_n = load i64, ptr %snp
  %lp = getelementptr i64, ptr %environment, i64 4
  %local = load i64, ptr %lp
  %lnp = getelementptr i64, ptr %environment, i64 5
  %local_n = load i64, ptr %lnp
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %other ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %look, label %own
look:
  %row = mul i64 %i, 4
  %bp = getelementptr i64, ptr %table, i64 %row
  %base = load i64, ptr %bp
  %nbp = getelementptr i64, ptr %bp, i64 1
  %nbytes = load i64, ptr %nbp
  %ap = getelementptr i64, ptr %bp, i64 2
  %start = load i64, ptr %ap
  %rp = getelementptr i64, ptr %bp, i64 3
  %has = load i64, ptr %rp
  %offset = sub i64 %address, %start
  %in = icmp ult i64 %offset, %nbytes
  br i1 %in, label %here, label %other
other:
  %next = add i64 %i, 1
  br label %head
here:
  %both = and i64 %has, %rights
  %may = icmp eq i64 %both, %rights
  %r = call i64 @simt_fit(i64 %base, i64 %nbytes, i64 %offset, i64 %size)
  %result = select i1 %may, i64 %r, i64 0
  ret i64 %result
own:
  %so = sub i64 %address, {SHARED_BASE}
  %in_shared = icmp ult i64 %so, %shared_n
  br i1 %in_shared, label %in_s, label %not_s
in_s:
  %rs = call i64 @simt_fit(i64 %shared, i64 %shared_n, i64 %so, i64 %size)
  ret i64 %rs
not_s:
  %lo = sub i64 %address, {LOCAL_BASE}
  %move = mul i64 %lane, %local_n
  %mine = add i64 %local, %move
  %rl = call i64 @simt_fit(i64 %mine, i64 %local_n, i64 %lo, i64 %size)
  ret i64 %rl
}}
"""
