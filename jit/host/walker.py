"""The walker: native code that runs a plan's table, and the threads that help it.

A plan is chunks {function, arguments, r0, r1}, claims (runs of chunks that one thread takes at once) and phases (runs of claims that are
independent of each other). The caller opens a phase by publishing one ticket word (end << 32 | next); caller and helpers claim by adding 1
to it. What a chunk computes does not depend on who runs it, so results are the same for any number of threads. A helper that finds
nothing spins for about 50 us and then sleeps on a condition until a phase with several claims opens. Whatever a helper uses (tables,
scratch) it reads after its claim succeeded: the caller changes them only while no phase is open.

A walk may have a stop condition; the caller checks it between its claims and between phases. It then says how far it came, as a phase and a
claim in it, and a later walk goes on from there: every claim is run exactly once.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import time
from typing import Final

import numpy as np

from jit.engine import Stop
from jit.host.record import SCRATCH_BYTES
from jit.host.toolchain import Toolchain, c_function
from jit.host.walk_code import ACCOUNT, BUDGET, NEVER, NEXT, QUIT, SCRATCH, SLOTS, STOP, TABLES, TEXT, THREADS_MAX, WORD
from jit.memory import new_block

_ORDERS: Final = struct.Struct("<qqqqq")  # WORD, VALUE, LIMIT, DEADLINE, BUDGET
_TABLES: Final = struct.Struct("<qq")
_ACCOUNT: Final = struct.Struct("<qqq")
_I64: Final = 1 << 63
_TRUE_AFTER_NS: Final = 1_000_000
"""How long the cycle counter is watched before its rate is believed."""


class Account:
    """What one run cost: ``core_cycles`` summed over phases and cores, ``cycles`` of the caller, ``cores`` at most."""

    __slots__ = ("core_cycles", "cores", "cycles")

    def __init__(self, core_cycles: int, cores: int, cycles: int) -> None:
        self.core_cycles = core_cycles
        self.cores = cores
        self.cycles = cycles


class Walker:
    """Owns the helper threads. ``run`` is called by one thread at a time. ``scratch_bytes``: of each thread."""

    def __init__(self, toolchain: Toolchain, threads: int) -> None:
        self.threads = min(threads, THREADS_MAX)
        self._block = new_block(8 * SLOTS, 8 * SLOTS)
        self._words = self._block.data.view(np.int64)
        self._bytes = self._block.data.data
        self._never = self._block.address + 8 * STOP
        self.scratch_bytes = 0
        self.reserve(SCRATCH_BYTES)
        pointer, word = ctypes.c_void_p, ctypes.c_int64
        names = ("jit_walk", "jit_help", "jit_wake", "jit_stopped", "jit_cycles")
        address = toolchain.functions(TEXT, names, lambda: TEXT, optimise=True)
        self._walk = c_function(address["jit_walk"], word, pointer, pointer, word, word, word)
        self._wake = c_function(address["jit_wake"], None, pointer)
        self._stopped = c_function(address["jit_stopped"], word, pointer)
        self._cycles = c_function(address["jit_cycles"], word)
        self._since, self._counted_ns, self._known_rate = (time.monotonic_ns(), self._cycles()), 0, 0.0
        self.order()
        helper = c_function(address["jit_help"], None, pointer, word)
        self._helpers = [
            threading.Thread(target=helper, args=(self._block.address, number), name=f"jit-helper-{number}", daemon=True)
            for number in range(1, self.threads)
        ]
        for thread in self._helpers:
            thread.start()

    def reserve(self, nbytes: int, kept_bytes: int = NEVER) -> None:
        """At least this much scratch for every thread; between runs only. ``kept_bytes``: what is beyond that and not needed goes."""
        if nbytes <= self.scratch_bytes <= max(nbytes, kept_bytes):
            return
        blocks = [new_block(nbytes, nbytes) for _ in range(self.threads)]
        for number, block in enumerate(blocks):
            self._words[SCRATCH + number] = block.address
        self._scratch_blocks = blocks
        self.scratch_bytes = nbytes

    def order(self, limit_ns: int = 0, stop: Stop | None = None, claims: int = 0) -> None:
        """When the walks that follow stop: ``limit_ns`` after the start of the first, as ``stop`` says, after so many claims of the caller.

        0, None, 0: never. A walk whose limit is short runs one claim nevertheless.
        """
        address, value = (self._never, 1) if stop is None else (stop.address, (stop.value + _I64) % (2 * _I64) - _I64)
        limit = max(1, int(limit_ns * self._rate())) if limit_ns else 0
        _ORDERS.pack_into(self._bytes, 8 * WORD, address, value, limit, NEVER, claims or NEVER)

    def begin(self, claims: int, chunks: int) -> None:
        """Set the tables and clear the account; before the first ``walk`` of a run or of a piece of it."""
        self.tables(claims, chunks)
        _ACCOUNT.pack_into(self._bytes, 8 * ACCOUNT, 0, 0, 0)

    def tables(self, claims: int, chunks: int) -> None:
        """Set the tables (addresses) that ``walk`` reads; between two of its calls."""
        _TABLES.pack_into(self._bytes, 8 * TABLES, claims, chunks)

    def clear_stop(self) -> None:
        self._words[STOP] = 0

    def stop(self) -> None:
        """Make the walk in progress end soon."""
        self._words[STOP] = 1

    @property
    def stopped(self) -> bool:
        """A walk would stop now."""
        return bool(self._stopped(self._block.address))

    def walk(self, phases: int, count: int, phase: int = 0, claim: int = 0) -> tuple[int, int]:
        """Run phases of the table at address ``phases``, which has ``count``, from ``claim`` of ``phase`` on (0: all of that phase).

        Returns from where to go on; ``(count, 0)`` at the end.
        """
        at: int = self._walk(self._block.address, phases, count, phase, claim)
        return (at, 0) if at == count else (at, int(self._words[NEXT]))

    def spend(self) -> None:
        """Count something that the caller ran itself as one claim."""
        self._words[BUDGET] -= 1

    def account(self) -> Account:
        core, most, cycles = _ACCOUNT.unpack_from(self._bytes, 8 * ACCOUNT)
        return Account(core, most, cycles)

    def close(self) -> None:
        """End the helper threads."""
        self._words[QUIT] = 1
        self._wake(self._block.address)
        for thread in self._helpers:
            thread.join()
        self._helpers = []

    def _rate(self) -> float:
        """Cycles a ns, as counted lately: a counter may pause with the machine, or change with a move to another."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._counted_ns:
            cycles: int = self._cycles()
            while (passed := now_ns - self._since[0]) < _TRUE_AFTER_NS:
                now_ns, cycles = time.monotonic_ns(), self._cycles()
            self._known_rate = (cycles - self._since[1]) / passed
            self._since, self._counted_ns = (now_ns, cycles), now_ns + 1000 * _TRUE_AFTER_NS
        return self._known_rate
