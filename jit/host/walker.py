"""The walker: native code that runs a plan's table, and the threads that help it.

A plan is chunks {function, arguments, r0, r1}, claims (runs of chunks that one thread takes at once) and phases (runs of claims that are
independent of each other). The caller opens a phase by publishing one ticket word (end << 32 | next); caller and helpers claim by adding 1
to it. What a chunk computes does not depend on who runs it, so results are the same for any number of threads. A helper that finds
nothing spins for about 50 us and then sleeps on a condition until a phase with several claims opens. Whatever a helper uses (tables,
scratch) it reads after its claim succeeded: the caller changes them only while no phase is open.

May live here: the native loop and the threads. May not: what is in the tables.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from typing import Final

import numpy as np

from jit.host.record import SCRATCH_BYTES
from jit.host.toolchain import Toolchain, c_function
from jit.memory import new_block

__all__ = ["Walker", "Account"]

# Slots of the shared block, in i64; what several threads write lies on cache lines of its own.
_TICKET, _DONE, _STOP, _TABLES, _SLEEPERS, _QUIT, _TAKING, _ACCOUNT, _MUTEX, _CONDITION, _SCRATCH = 0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96
_THREADS_MAX: Final = 64
_SLOTS: Final = _SCRATCH + _THREADS_MAX
_SPIN_CYCLES: Final = 150_000

_X86: Final = platform.machine().lower() in ("x86_64", "amd64")
_PAUSE: Final = "@llvm.x86.sse2.pause()" if _X86 else "@llvm.aarch64.hint(i32 1)"
_PAUSE_TYPE: Final = "@llvm.x86.sse2.pause()" if _X86 else "@llvm.aarch64.hint(i32)"

_TEXT: Final = f"""
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
  %ct = getelementptr i64, ptr %d, i64 {_TABLES}
  %claims = load ptr, ptr %ct
  %kt = getelementptr i64, ptr %d, i64 {_TABLES + 1}
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

define i64 @jit_walk(ptr %d, ptr %phases, i64 %n) {{
entry:
  %sp = getelementptr i64, ptr %d, i64 {_SCRATCH}
  %scratch = load ptr, ptr %sp
  %stop = getelementptr i64, ptr %d, i64 {_STOP}
  %done = getelementptr i64, ptr %d, i64 {_DONE}
  %taking = getelementptr i64, ptr %d, i64 {_TAKING}
  %sleepers = getelementptr i64, ptr %d, i64 {_SLEEPERS}
  %account = getelementptr i64, ptr %d, i64 {_ACCOUNT}
  %most = getelementptr i64, ptr %account, i64 1
  %start = call i64 @llvm.readcyclecounter()
  br label %head
head:
  %p = phi i64 [ 0, %entry ], [ %pn, %closed ]
  %t0 = phi i64 [ %start, %entry ], [ %t1, %closed ]
  %more = icmp slt i64 %p, %n
  br i1 %more, label %poll, label %exit
poll:
  %s = load atomic i64, ptr %stop monotonic, align 8
  %stopped = icmp ne i64 %s, 0
  br i1 %stopped, label %exit, label %phase
phase:
  %bp = getelementptr i64, ptr %phases, i64 %p
  %begin = load i64, ptr %bp
  %ep = getelementptr i64, ptr %bp, i64 1
  %end = load i64, ptr %ep
  %count = sub i64 %end, %begin
  %single = icmp eq i64 %count, 1
  br i1 %single, label %alone, label %share
alone:
  call void @run_claim(ptr %d, i64 %begin, ptr %scratch)
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
  br i1 %mine, label %take, label %wait
wait:
  %w = phi i64 [ 0, %take ], [ %wn, %pause ], [ 0, %yield ]
  %finished = load atomic i64, ptr %done seq_cst, align 8
  %all = icmp sge i64 %finished, %count
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
  %mask = phi i64 [ 1, %alone ], [ -1, %wait ]
  %took = load atomic i64, ptr %taking seq_cst, align 8
  %who0 = and i64 %took, %mask
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
  br label %head
exit:
  %total = sub i64 %t0, %start
  %whole = getelementptr i64, ptr %account, i64 2
  %w0 = load i64, ptr %whole
  %w1 = add i64 %w0, %total
  store i64 %w1, ptr %whole
  ret i64 %p
}}

define void @jit_help(ptr %d, i64 %number) {{
entry:
  %bit = shl i64 1, %number
  %slot = add i64 %number, {_SCRATCH}
  %sp = getelementptr i64, ptr %d, i64 %slot
  %quit = getelementptr i64, ptr %d, i64 {_QUIT}
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


class Account:
    """What one run cost: ``core_cycles`` summed over phases and cores, ``cycles`` of the caller, ``cores`` at most."""

    __slots__ = ("core_cycles", "cores", "cycles")

    def __init__(self, core_cycles: int, cores: int, cycles: int) -> None:
        self.core_cycles = core_cycles
        self.cores = cores
        self.cycles = cycles


class Walker:
    """Owns the helper threads. ``run`` is called by one thread at a time."""

    def __init__(self, toolchain: Toolchain, threads: int) -> None:
        self.threads = min(threads, _THREADS_MAX)
        self._block = new_block(8 * _SLOTS, 8 * _SLOTS)
        self._words = self._block.data.view(np.int64)
        self._scratch_bytes = 0
        self.reserve(SCRATCH_BYTES)
        pointer = ctypes.c_void_p
        address = toolchain.functions(_TEXT, ("jit_walk", "jit_help", "jit_wake"), lambda: _TEXT, optimise=True)
        self._walk = c_function(address["jit_walk"], ctypes.c_int64, pointer, pointer, ctypes.c_int64)
        self._wake = c_function(address["jit_wake"], None, pointer)
        helper = c_function(address["jit_help"], None, pointer, ctypes.c_int64)
        self._helpers = [
            threading.Thread(target=helper, args=(self._block.address, number), name=f"jit-helper-{number}", daemon=True)
            for number in range(1, self.threads)
        ]
        for thread in self._helpers:
            thread.start()

    def reserve(self, nbytes: int) -> None:
        """At least this much scratch for every thread; between runs only."""
        if nbytes <= self._scratch_bytes:
            return
        blocks = [new_block(nbytes, nbytes) for _ in range(self.threads)]
        for number, block in enumerate(blocks):
            self._words[_SCRATCH + number] = block.address
        self._scratch_blocks = blocks
        self._scratch_bytes = nbytes

    def begin(self, claims: int, chunks: int) -> None:
        """Set the tables and clear the account; before the first ``walk`` of a run."""
        self.tables(claims, chunks)
        self._words[_ACCOUNT : _ACCOUNT + 3] = 0

    def tables(self, claims: int, chunks: int) -> None:
        """Set the tables (addresses) that ``walk`` reads; between two of its calls."""
        self._words[_TABLES] = claims
        self._words[_TABLES + 1] = chunks

    def clear_stop(self) -> None:
        self._words[_STOP] = 0

    def stop(self) -> None:
        """Make the walk in progress end after its phase."""
        self._words[_STOP] = 1

    def walk(self, phases: int, count: int) -> bool:
        """Run ``count`` phases from the table at address ``phases``; False when stopped before the end."""
        done: int = self._walk(self._block.address, phases, count)
        return done == count

    def account(self) -> Account:
        core, most, cycles = self._words[_ACCOUNT : _ACCOUNT + 3].tolist()
        return Account(core, most, cycles)

    def close(self) -> None:
        """End the helper threads."""
        self._words[_QUIT] = 1
        self._wake(self._block.address)
        for thread in self._helpers:
            thread.join()
        self._helpers = []
