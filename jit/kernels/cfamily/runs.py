"""Plan of a kernel in the block form: which ops run once for all threads, which in which loop over threads, and where a register lives so
that each loop finds it.

A register is *fixed* when one op that asks no thread sets it, once and for all; *cheap* when every loop can work it out anew from a
thread's number; *uniform* when all threads have one value; else a variable of the one loop that uses it, or an array of one value a thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from jit.kernels.cfamily.regions import VARYING_SPECIALS, Regions
from jit.kernels.cfamily.warp import WARP_SIGS
from wis.kernel.model import Kernel, Op, RegType, terminator_reads
from wis.kernel.ops import BY_CODE, Sig

Place = tuple[int, int]
"""An op: its block of code and its number there."""

_CHEAP: Final = frozenset({"sext", "zext", "narrow", "add", "sub", "mul", "shl", "shr_u", "shr_s", "and", "or", "mov"})
_CHEAP_OPS_MAX: Final = 6
_EFFECTS: Final = frozenset({
    Sig.LOAD, Sig.STORE, Sig.BYTES_LOAD, Sig.BYTES_STORE, Sig.ATOM, Sig.RED, Sig.FENCE, Sig.RAISE,
}) | WARP_SIGS  # fmt: skip


@dataclass(slots=True)
class Run:
    """A loop over threads: ops of block ``start``, and then, where ``ends``, its branch and the other blocks of ``unit``."""

    number: int
    start: int
    ops: list[int]
    unit: frozenset[int] = frozenset()
    ends: bool = False
    first: bool = False  # whether no other step of the block comes before


@dataclass(frozen=True, slots=True)
class Once:
    """An op that is done once for all threads."""

    place: Place


@dataclass(frozen=True, slots=True)
class Ask:
    """A warp op."""

    place: Place


Steps = list[Run | Once | Ask]


@dataclass(slots=True)
class Homes:
    """Where registers live. ``fixed``, ``cheap``: the op that sets a register, in an order in which each finds its operands."""

    kernel: Kernel
    regions: Regions
    fixed: dict[int, Place] = field(default_factory=dict)
    cheap: dict[int, Place] = field(default_factory=dict)
    arrays: set[int] = field(default_factory=set)
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._find_fixed()

    # --- registers that need no home
    def _find_fixed(self) -> None:
        kernel = self.kernel
        writes = Counter(r for block in kernel.blocks for op in block.code for r in op.outs)
        asked = {r for block in kernel.blocks for op in block.code if BY_CODE[op.op].sig in WARP_SIGS for r in op.ins}
        weight: dict[int, int] = {}
        for b in self.regions.flow.order:
            for i, op in enumerate(kernel.blocks[b].code):
                if len(op.outs) != 1 or writes[op.outs[0]] != 1 or BY_CODE[op.op].sig in _EFFECTS:
                    continue
                out = op.outs[0]
                if all(r in self.fixed for r in op.ins) and not (BY_CODE[op.op].sig is Sig.SPECIAL and op.attrs[0] in VARYING_SPECIALS):
                    self.fixed[out] = b, i
                elif out not in asked and self._is_cheap(op) and all(r in self.fixed or r in weight for r in op.ins):
                    weight[out] = 1 + sum(weight.get(r, 0) for r in op.ins)
                    if weight[out] <= _CHEAP_OPS_MAX:
                        self.cheap[out] = b, i
                    else:
                        del weight[out]

    def _is_cheap(self, op: Op) -> bool:
        row = BY_CODE[op.op]
        whole = RegType(self.kernel.regs[op.outs[0]]) in (RegType.I16, RegType.I32, RegType.I64)
        return row.sig is Sig.SPECIAL or (whole and row.name in _CHEAP)

    def uniform(self, register: int) -> bool:
        """Whether all threads have one value of it."""
        return register in self.fixed or register not in self.regions.varying

    def _needless(self, op: Op) -> bool:
        return len(op.outs) == 1 and (op.outs[0] in self.fixed or op.outs[0] in self.cheap)

    # --- steps
    def uniform_steps(self, b: int, unit: frozenset[int]) -> Steps:
        """Of a block that all threads are in; its last run ends the block when ``unit`` is not empty."""
        steps: Steps = []
        pending: list[int] = []
        reads: set[int] = set()
        code = self.kernel.blocks[b].code
        for i, op in enumerate(code):
            if self._needless(op):
                continue
            sig = BY_CODE[op.op].sig
            if sig in WARP_SIGS or sig is Sig.FENCE:
                pending, reads = self._flush(steps, b, pending), set()
                steps.append(Ask((b, i)) if sig in WARP_SIGS else Once((b, i)))
            elif op.outs and not self.regions.varying.intersection(op.outs):
                if not reads.isdisjoint(op.outs):
                    pending, reads = self._flush(steps, b, pending), set()
                steps.append(Once((b, i)))
            else:
                pending.append(i)
                reads.update(op.ins)
        if pending or unit:
            self._add(steps, b, pending, unit)
        return steps

    def parted_steps(self, b: int, unit: frozenset[int]) -> Steps:
        """Of a unit that some threads are in."""
        steps: Steps = []
        pending: list[int] = []
        for i, op in enumerate(self.kernel.blocks[b].code):
            if self._needless(op):
                continue
            if BY_CODE[op.op].sig in WARP_SIGS:
                pending = self._flush(steps, b, pending)
                steps.append(Ask((b, i)))
            else:
                pending.append(i)
        self._add(steps, b, pending, unit)
        return steps

    def _flush(self, steps: Steps, b: int, pending: list[int]) -> list[int]:
        if pending:
            self._add(steps, b, pending, frozenset())
        return []

    def _add(self, steps: Steps, b: int, ops: list[int], unit: frozenset[int]) -> None:
        run = Run(len(self.runs), b, ops, unit, bool(unit), not steps)
        self.runs.append(run)
        steps.append(run)

    # --- arrays
    def settle(self, asks: Iterator[Ask]) -> None:
        """Decide about arrays, when all runs are known."""
        homes: dict[int, int] = {}
        for run in self.runs:
            for r in self.used(run):
                if r not in self.cheap and not self.uniform(r) and homes.setdefault(r, run.number) != run.number:
                    self.arrays.add(r)
        for ask in asks:
            op = self.kernel.blocks[ask.place[0]].code[ask.place[1]]
            self.arrays.update(r for r in (*op.ins, *op.outs) if r not in self.cheap and not self.uniform(r))

    def used(self, run: Run) -> list[int]:
        """Registers that a run reads or writes, in order."""
        found: dict[int, None] = {}
        for b, i in self.places(run):
            op = self.kernel.blocks[b].code[i]
            found.update(dict.fromkeys((*op.ins, *op.outs)))
        if run.ends:
            for b in run.unit:
                found.update(dict.fromkeys(terminator_reads(self.kernel.blocks[b].end)))
        return list(found)

    def places(self, run: Run) -> list[Place]:
        """The ops of a run."""
        rest = [(b, i) for b in sorted(run.unit - {run.start}) for i in self.kept(b)]
        return [(run.start, i) for i in run.ops] + rest

    def kept(self, b: int) -> list[int]:
        """Ops of a block that some step must do."""
        return [i for i, op in enumerate(self.kernel.blocks[b].code) if not self._needless(op)]

    def worked_out(self, registers: list[int]) -> list[Place]:
        """Ops that set the cheap ones of ``registers``, after those that they need."""
        needed: set[int] = set()
        todo = [r for r in registers if r in self.cheap]
        while todo:
            r = todo.pop()
            if r not in needed:
                needed.add(r)
                b, i = self.cheap[r]
                todo += [x for x in self.kernel.blocks[b].code[i].ins if x in self.cheap]
        return [place for r, place in self.cheap.items() if r in needed]
