"""The native half of the walker, as LLVM text: the loop of the caller, the loop of a helper, and when a walk stops.

A phase that several threads may share is open while its ticket (end << 32 | next) has claims left; claiming is adding 1 to it. To stop
inside a phase the caller exchanges the ticket for 0, in one step: what was claimed until then will be done, what was not is what is left.
A helper that was just about to claim adds to a closed ticket, gets nothing, or to the next one, which is as good.
"""

from __future__ import annotations

import platform
from typing import Final

# Slots of the shared block, in i64; what several threads write lies on cache lines of its own.
_TICKET, _DONE, STOP, TABLES, _SLEEPERS, QUIT, _TAKING, ACCOUNT, _MUTEX, _CONDITION, SCRATCH = 0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96
WORD, VALUE, LIMIT, DEADLINE, BUDGET, NEXT = range(STOP + 1, STOP + 7)
"""When to stop: ``STOP`` is not 0; the u64 at the address in ``WORD`` is ``VALUE`` or more; the cycle counter is at ``DEADLINE``, which a
walk that finds a ``LIMIT`` sets that many cycles from its start; the caller has run ``BUDGET`` claims. ``NEXT``: where in its phase a walk
stopped, 0: before the phase."""
NEVER: Final = (1 << 63) - 1
THREADS_MAX: Final = 64
SLOTS: Final = SCRATCH + THREADS_MAX
_SPIN_CYCLES: Final = 150_000

_X86: Final = platform.machine().lower() in ("x86_64", "amd64")
_PAUSE: Final = "@llvm.x86.sse2.pause()" if _X86 else "@llvm.aarch64.hint(i32 1)"
_PAUSE_TYPE: Final = "@llvm.x86.sse2.pause()" if _X86 else "@llvm.aarch64.hint(i32)"

TEXT: Final = f"""
declare i64 @llvm.readcyclecounter()
declare i64 @llvm.ctpop.i64(i64)
declare void {_PAUSE_TYPE}
declare i32 @sched_yield()
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

define internal void @run_claim(ptr %d, i64 %claim, ptr %scratch) {{
entry:
  %ct = getelementptr i64, ptr %d, i64 {TABLES}
  %claims = load ptr, ptr %ct
  %kt = getelementptr i64, ptr %d, i64 {TABLES + 1}
  %chunks = load ptr, ptr %kt
  %bp = getelementptr i64, ptr %claims, i64 %claim
  %begin = load i64, ptr %bp
  %ep = getelementptr i64, ptr %bp, i64 1
  %end = load i64, ptr %ep
  br label %head
head:
  %k = phi i64 [ %begin, %entry ], [ %kn, %body ]
  %more = icmp slt i64 %k, %end
  br i1 %more, label %body, label %exit
body:
  %at = mul i64 %k, 4
  %fp = getelementptr i64, ptr %chunks, i64 %at
  %fn = load ptr, ptr %fp
  %ap = getelementptr i64, ptr %fp, i64 1
  %args = load ptr, ptr %ap
  %r0p = getelementptr i64, ptr %fp, i64 2
  %r0 = load i64, ptr %r0p
  %r1p = getelementptr i64, ptr %fp, i64 3
  %r1 = load i64, ptr %r1p
  call void %fn(ptr %args, i64 %r0, i64 %r1, ptr %scratch)
  %kn = add i64 %k, 1
  br label %head
exit:
  ret void
}}

define internal i1 @claim(ptr %d, i64 %bit, ptr %sp) {{
entry:
  %seen = load atomic i64, ptr %d seq_cst, align 8
  %next0 = and i64 %seen, 4294967295
  %limit0 = lshr i64 %seen, 32
  %open = icmp ult i64 %next0, %limit0
  br i1 %open, label %take, label %none
take:
  %got = atomicrmw add ptr %d, i64 1 seq_cst
  %next = and i64 %got, 4294967295
  %limit = lshr i64 %got, 32
  %mine = icmp ult i64 %next, %limit
  br i1 %mine, label %work, label %none
work:
  %taking = getelementptr i64, ptr %d, i64 {_TAKING}
  %old = atomicrmw or ptr %taking, i64 %bit seq_cst
  %scratch = load atomic ptr, ptr %sp seq_cst, align 8
  call void @run_claim(ptr %d, i64 %next, ptr %scratch)
  %done = getelementptr i64, ptr %d, i64 {_DONE}
  %was = atomicrmw add ptr %done, i64 1 seq_cst
  ret i1 true
none:
  ret i1 false
}}

define void @jit_wake(ptr %d) {{
  %m = getelementptr i64, ptr %d, i64 {_MUTEX}
  %c = getelementptr i64, ptr %d, i64 {_CONDITION}
  %a = call i32 @pthread_mutex_lock(ptr %m)
  %b = call i32 @pthread_cond_broadcast(ptr %c)
  %e = call i32 @pthread_mutex_unlock(ptr %m)
  ret void
}}

define internal i1 @stopped(ptr %d, i64 %now) alwaysinline {{
  %sp = getelementptr i64, ptr %d, i64 {STOP}
  %s = load atomic i64, ptr %sp monotonic, align 8
  %requested = icmp ne i64 %s, 0
  %wpp = getelementptr i64, ptr %d, i64 {WORD}
  %wp = load ptr, ptr %wpp
  %w = load atomic i64, ptr %wp monotonic, align 8
  %vp = getelementptr i64, ptr %d, i64 {VALUE}
  %v = load i64, ptr %vp
  %reached = icmp uge i64 %w, %v
  %lp = getelementptr i64, ptr %d, i64 {DEADLINE}
  %l = load i64, ptr %lp
  %late = icmp sge i64 %now, %l
  %bp = getelementptr i64, ptr %d, i64 {BUDGET}
  %b = load i64, ptr %bp
  %spent = icmp sle i64 %b, 0
  %x = or i1 %requested, %reached
  %y = or i1 %late, %spent
  %z = or i1 %x, %y
  ret i1 %z
}}

define internal void @spend(ptr %d) alwaysinline {{
  %bp = getelementptr i64, ptr %d, i64 {BUDGET}
  %b = load i64, ptr %bp
  %b1 = sub i64 %b, 1
  store i64 %b1, ptr %bp
  ret void
}}

define i64 @jit_stopped(ptr %d) {{
  %now = call i64 @llvm.readcyclecounter()
  %s = call i1 @stopped(ptr %d, i64 %now)
  %r = zext i1 %s to i64
  ret i64 %r
}}

define i64 @jit_cycles() {{
  %now = call i64 @llvm.readcyclecounter()
  ret i64 %now
}}

define i64 @jit_walk(ptr %d, ptr %phases, i64 %n, i64 %p0, i64 %c0) {{
entry:
  %sp = getelementptr i64, ptr %d, i64 {SCRATCH}
  %scratch = load ptr, ptr %sp
  %done = getelementptr i64, ptr %d, i64 {_DONE}
  %taking = getelementptr i64, ptr %d, i64 {_TAKING}
  %sleepers = getelementptr i64, ptr %d, i64 {_SLEEPERS}
  %account = getelementptr i64, ptr %d, i64 {ACCOUNT}
  %most = getelementptr i64, ptr %account, i64 1
  %np = getelementptr i64, ptr %d, i64 {NEXT}
  %start = call i64 @llvm.readcyclecounter()
  %lp = getelementptr i64, ptr %d, i64 {LIMIT}
  %limit = load i64, ptr %lp
  %limited = icmp ne i64 %limit, 0
  br i1 %limited, label %wind, label %head
wind:
  store i64 0, ptr %lp
  %dp = getelementptr i64, ptr %d, i64 {DEADLINE}
  %deadline = add i64 %start, %limit
  store i64 %deadline, ptr %dp
  br label %head
head:
  %p = phi i64 [ %p0, %entry ], [ %p0, %wind ], [ %pn, %closed ]
  %c = phi i64 [ %c0, %entry ], [ %c0, %wind ], [ 0, %closed ]
  %t0 = phi i64 [ %start, %entry ], [ %start, %wind ], [ %t1, %closed ]
  %more = icmp slt i64 %p, %n
  br i1 %more, label %poll, label %exit
poll:
  %stop = call i1 @stopped(ptr %d, i64 %t0)
  br i1 %stop, label %exit, label %phase
phase:
  %bp = getelementptr i64, ptr %phases, i64 %p
  %first = load i64, ptr %bp
  %ep = getelementptr i64, ptr %bp, i64 1
  %end = load i64, ptr %ep
  %whole = icmp eq i64 %c, 0
  %begin = select i1 %whole, i64 %first, i64 %c
  %count = sub i64 %end, %begin
  %single = icmp eq i64 %count, 1
  br i1 %single, label %alone, label %share
alone:
  call void @run_claim(ptr %d, i64 %begin, ptr %scratch)
  call void @spend(ptr %d)
  br label %closed
share:
  store atomic i64 0, ptr %done seq_cst, align 8
  store atomic i64 0, ptr %taking seq_cst, align 8
  %high = shl i64 %end, 32
  %ticket = or i64 %high, %begin
  store atomic i64 %ticket, ptr %d seq_cst, align 8
  %asleep = load atomic i64, ptr %sleepers seq_cst, align 8
  %any = icmp ne i64 %asleep, 0
  br i1 %any, label %rouse, label %take
rouse:
  call void @jit_wake(ptr %d)
  br label %take
take:
  %mine = call i1 @claim(ptr %d, i64 1, ptr %sp)
  br i1 %mine, label %took, label %wait
took:
  call void @spend(ptr %d)
  %tc = call i64 @llvm.readcyclecounter()
  %halt = call i1 @stopped(ptr %d, i64 %tc)
  br i1 %halt, label %close, label %take
close:
  %old = atomicrmw xchg ptr %d, i64 0 seq_cst
  %upto = and i64 %old, 4294967295
  %beyond = icmp ugt i64 %upto, %end
  %left = select i1 %beyond, i64 %end, i64 %upto
  br label %wait
wait:
  %w = phi i64 [ 0, %take ], [ 0, %close ], [ %wn, %pause ], [ 0, %yield ]
  %upto0 = phi i64 [ %end, %take ], [ %left, %close ], [ %upto0, %pause ], [ %upto0, %yield ]
  %taken = sub i64 %upto0, %begin
  %finished = load atomic i64, ptr %done seq_cst, align 8
  %all = icmp sge i64 %finished, %taken
  br i1 %all, label %closed, label %pause0
pause0:
  %wn = add i64 %w, 1
  %long = icmp sgt i64 %wn, 2000
  br i1 %long, label %yield, label %pause
pause:
  call void {_PAUSE}
  br label %wait
yield:
  %y = call i32 @sched_yield()
  br label %wait
closed:
  %at = phi i64 [ %end, %alone ], [ %upto0, %wait ]
  %mask = phi i64 [ 1, %alone ], [ -1, %wait ]
  %took1 = load atomic i64, ptr %taking seq_cst, align 8
  %who0 = and i64 %took1, %mask
  %who = or i64 %who0, 1
  %cores = call i64 @llvm.ctpop.i64(i64 %who)
  %t1 = call i64 @llvm.readcyclecounter()
  %dt = sub i64 %t1, %t0
  %busy = mul i64 %dt, %cores
  %sum0 = load i64, ptr %account
  %sum = add i64 %sum0, %busy
  store i64 %sum, ptr %account
  %most0 = load i64, ptr %most
  %higher = icmp sgt i64 %cores, %most0
  %most1 = select i1 %higher, i64 %cores, i64 %most0
  store i64 %most1, ptr %most
  %pn = add i64 %p, 1
  %part = icmp slt i64 %at, %end
  br i1 %part, label %exit, label %head
exit:
  %next = phi i64 [ %c, %head ], [ %c, %poll ], [ %at, %closed ]
  %te = phi i64 [ %t0, %head ], [ %t0, %poll ], [ %t1, %closed ]
  store i64 %next, ptr %np
  %total = sub i64 %te, %start
  %spent = getelementptr i64, ptr %account, i64 2
  %w0 = load i64, ptr %spent
  %w1 = add i64 %w0, %total
  store i64 %w1, ptr %spent
  ret i64 %p
}}

define void @jit_help(ptr %d, i64 %number) {{
entry:
  %bit = shl i64 1, %number
  %slot = add i64 %number, {SCRATCH}
  %sp = getelementptr i64, ptr %d, i64 %slot
  %quit = getelementptr i64, ptr %d, i64 {QUIT}
  %sleepers = getelementptr i64, ptr %d, i64 {_SLEEPERS}
  %m = getelementptr i64, ptr %d, i64 {_MUTEX}
  %c = getelementptr i64, ptr %d, i64 {_CONDITION}
  br label %fresh
fresh:
  %since = call i64 @llvm.readcyclecounter()
  br label %look
look:
  %q = load atomic i64, ptr %quit seq_cst, align 8
  %over = icmp ne i64 %q, 0
  br i1 %over, label %exit, label %try
try:
  %did = call i1 @claim(ptr %d, i64 %bit, ptr %sp)
  br i1 %did, label %fresh, label %idle
idle:
  call void {_PAUSE}
  %now = call i64 @llvm.readcyclecounter()
  %spun = sub i64 %now, %since
  %tired = icmp sgt i64 %spun, {_SPIN_CYCLES}
  br i1 %tired, label %bed, label %look
bed:
  %l = call i32 @pthread_mutex_lock(ptr %m)
  %s = atomicrmw add ptr %sleepers, i64 1 seq_cst
  %seen = load atomic i64, ptr %d seq_cst, align 8
  %next = and i64 %seen, 4294967295
  %limit = lshr i64 %seen, 32
  %open = icmp ult i64 %next, %limit
  %q2 = load atomic i64, ptr %quit seq_cst, align 8
  %over2 = icmp ne i64 %q2, 0
  %up = or i1 %open, %over2
  br i1 %up, label %rise, label %sleep
sleep:
  %z = call i32 @pthread_cond_wait(ptr %c, ptr %m)
  br label %rise
rise:
  %r = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  %u = call i32 @pthread_mutex_unlock(ptr %m)
  br label %fresh
exit:
  ret void
}}
"""
