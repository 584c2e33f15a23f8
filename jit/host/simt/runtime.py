"""Runtime functions that kernels call: accesses lane by lane, addresses, trap records. Compiled once, for all kernels."""

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

JUDGE_WORDS: Final = 48
"""Room that ``simt_judge`` works in. It looks at all barriers of a block none of whose threads can run: 0, no thread waits; the bits of the
barriers that are complete; or, below 0, none is: the complement of the lowest waiting thread. A row of ``sites``, in i64: the barrier's
number, whether its count is given, where in a gang's record the waiting lanes are, where their counts."""
_ALL: Final = -(1 << 40)
"""Instead of a count: all threads that have not ended."""

NAMES: Final = ("simt_trap", "simt_raise", "simt_load", "simt_store", "simt_find", "simt_arena_load", "simt_arena_store", "simt_judge")

DECLARATIONS: Final = {
    "simt_trap": "declare void @simt_trap(ptr, i64, i64, i64, i64) cold",
    "simt_raise": "declare void @simt_raise(ptr, i64, i64, i64, i64) cold",
    "simt_load": "declare void @simt_load(ptr, i64, i64, ptr, i64, i64, ptr, i64, i64, ptr, i64)",
    "simt_store": "declare void @simt_store(ptr, i64, i64, ptr, i64, i64, ptr, i64, i64, ptr, i64)",
    "simt_find": "declare i64 @simt_find(ptr, i64, i64, i64, i64)",
    "simt_arena_load": "declare void @simt_arena_load(ptr, ptr, i64, i64, ptr, i64, i64, ptr, i64)",
    "simt_judge": "declare i64 @simt_judge(ptr, i64, i64, i64, ptr, i64, ptr, ptr)",
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
declare i64 @llvm.ctpop.i64(i64)
declare i64 @llvm.umin.i64(i64, i64)

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

define i64 @simt_judge(ptr %records, i64 %stride, i64 %gangs, i64 %lanes, ptr %sites, i64 %n, ptr %arrivals, ptr %work) {{
entry:
  call void @llvm.memset.p0.i64(ptr %work, i8 0, i64 {8 * JUDGE_WORDS}, i1 false)
  br label %site.head
site.head:
  %s = phi i64 [ 0, %entry ], [ %s.next, %gang.done ]
  %total = phi i64 [ 0, %entry ], [ %total.g, %gang.done ]
  %first = phi i64 [ 9223372036854775807, %entry ], [ %first.g, %gang.done ]
  %s.more = icmp ult i64 %s, %n
  br i1 %s.more, label %site, label %judge
site:
  %row = mul i64 %s, 4
  %rp = getelementptr i64, ptr %sites, i64 %row
  %number = load i64, ptr %rp
  %cp = getelementptr i64, ptr %rp, i64 1
  %counted = load i64, ptr %cp
  %mp = getelementptr i64, ptr %rp, i64 2
  %mask.at = load i64, ptr %mp
  %vp = getelementptr i64, ptr %rp, i64 3
  %count.at = load i64, ptr %vp
  %waiting.p = getelementptr i64, ptr %work, i64 %number
  %lowest.n = add i64 %number, 16
  %lowest.p = getelementptr i64, ptr %work, i64 %lowest.n
  %need.n = add i64 %number, 32
  %need.p = getelementptr i64, ptr %work, i64 %need.n
  br label %gang.head
gang.head:
  %g = phi i64 [ 0, %site ], [ %g.next, %gang.latch ]
  %total.g = phi i64 [ %total, %site ], [ %total.l, %gang.latch ]
  %first.g = phi i64 [ %first, %site ], [ %first.l, %gang.latch ]
  %g.more = icmp ult i64 %g, %gangs
  br i1 %g.more, label %gang, label %gang.done
gang.done:
  %s.next = add i64 %s, 1
  br label %site.head
gang:
  %r.at = mul i64 %g, %stride
  %record = getelementptr i8, ptr %records, i64 %r.at
  %doing = load i64, ptr %record
  %waits = icmp ugt i64 %doing, 1
  br i1 %waits, label %look, label %gang.latch
look:
  %m.p = getelementptr i8, ptr %record, i64 %mask.at
  %mask = load i64, ptr %m.p
  %none = icmp eq i64 %mask, 0
  br i1 %none, label %gang.latch, label %some
some:
  %k = call i64 @llvm.ctpop.i64(i64 %mask)
  %before = load i64, ptr %waiting.p
  %now = add i64 %before, %k
  store i64 %now, ptr %waiting.p
  %total.s = add i64 %total.g, %k
  %lane = call i64 @llvm.cttz.i64(i64 %mask, i1 false)
  %t0 = mul i64 %g, %lanes
  %thread = add i64 %t0, %lane
  %first.s = call i64 @llvm.umin.i64(i64 %first.g, i64 %thread)
  %old = load i64, ptr %lowest.p
  %old0 = icmp eq i64 %before, 0
  %lower = icmp ult i64 %thread, %old
  %take = or i1 %old0, %lower
  br i1 %take, label %lowest, label %gang.latch
lowest:
  store i64 %thread, ptr %lowest.p
  %c.p = getelementptr i8, ptr %record, i64 %count.at
  %c.lane = getelementptr i32, ptr %c.p, i64 %lane
  %is.counted = icmp ne i64 %counted, 0
  br i1 %is.counted, label %given, label %all
given:
  %c32 = load i32, ptr %c.lane
  %c64 = sext i32 %c32 to i64
  store i64 %c64, ptr %need.p
  br label %gang.latch
all:
  store i64 {_ALL}, ptr %need.p
  br label %gang.latch
gang.latch:
  %total.l = phi i64 [ %total.g, %gang ], [ %total.g, %look ], [ %total.s, %some ], [ %total.s, %given ], [ %total.s, %all ]
  %first.l = phi i64 [ %first.g, %gang ], [ %first.g, %look ], [ %first.s, %some ], [ %first.s, %given ], [ %first.s, %all ]
  %g.next = add i64 %g, 1
  br label %gang.head
judge:
  %over = icmp eq i64 %total, 0
  br i1 %over, label %no.waiters, label %number.head
no.waiters:
  ret i64 0
number.head:
  %b = phi i64 [ 0, %judge ], [ %b.next, %number.latch ]
  %free = phi i64 [ 0, %judge ], [ %free.l, %number.latch ]
  %b.more = icmp ult i64 %b, 16
  br i1 %b.more, label %number.body, label %verdict
number.body:
  %w.p = getelementptr i64, ptr %work, i64 %b
  %w = load i64, ptr %w.p
  %w.none = icmp eq i64 %w, 0
  br i1 %w.none, label %number.latch, label %number.some
number.some:
  %need.i = add i64 %b, 32
  %need.b = getelementptr i64, ptr %work, i64 %need.i
  %need = load i64, ptr %need.b
  %a.p = getelementptr i64, ptr %arrivals, i64 %b
  %arrived = load i64, ptr %a.p
  %is.all = icmp eq i64 %need, {_ALL}
  %all.there = icmp eq i64 %w, %total
  %enough = icmp sge i64 %arrived, %need
  %done = select i1 %is.all, i1 %all.there, i1 %enough
  br i1 %done, label %complete, label %number.latch
complete:
  store i64 0, ptr %a.p
  %bit = shl i64 1, %b
  %free.c = or i64 %free, %bit
  br label %number.latch
number.latch:
  %free.l = phi i64 [ %free, %number.body ], [ %free, %number.some ], [ %free.c, %complete ]
  %b.next = add i64 %b, 1
  br label %number.head
verdict:
  %stuck = icmp eq i64 %free, 0
  %minus = xor i64 %first, -1
  %answer = select i1 %stuck, i64 %minus, i64 %free
  ret i64 %answer
}}
"""
