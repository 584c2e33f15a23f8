"""Branches: which block of code a gang runs next, and with which of its lanes.

The lanes at the block with the least number run. Where all lanes go the same way and none waits elsewhere, a branch is a branch; elsewhere
each block has a variable with the lanes that are pending at it, and the next block is found among those where lanes may be (analysis).
"""

from __future__ import annotations

from collections.abc import Sequence

from jit.host.emit.code import Code
from jit.host.simt.analysis import Analysis, bits_of, judged, splits, waits
from jit.host.simt.registers import Registers
from jit.host.simt.runtime import LIMIT
from wis.kernel.model import Bar, Cbr, Kernel, Ret, Switch, Sync, successors


class Control:
    """Emits masks and branches of one function. ``active``: the running lanes' bits, as an integer of as many bits as lanes."""

    def __init__(self, code: Code, kernel: Kernel, registers: Registers, analysis: Analysis, limited: bool) -> None:
        self.code, self.kernel, self.regs, self.analysis = code, kernel, registers, analysis
        self.n = len(kernel.blocks)
        self.lanes = registers.gang.lanes
        self.word = f"i{self.lanes}"
        self.entry_bits = str(-1)
        self.entry_mask: str | None = None
        self.active = "-1"
        self._limited = limited
        self._judged = judged(kernel)
        self._tracked = analysis.mixed << self.n
        for p in analysis.pending:
            self._tracked |= p
        self.exits: list[tuple[str, int]] = []

    @property
    def tracked(self) -> list[int]:
        """Blocks at which lanes may be pending, and barriers (their blocks, plus the number of blocks) at which lanes may wait for others
        of the gang."""
        return list(bits_of(self._tracked))

    def variable(self, b: int) -> str:
        """The lanes that are pending at block b; for barriers, that wait there."""
        return self.regs.variable(f"%lanes{b}", self.word)

    def reset(self) -> None:
        """At the start of a gang no lane is pending at any block."""
        for b in self.tracked:
            self.code.do(f"store {self.word} 0, ptr {self.variable(b)}")

    # --- the lanes of a block
    def enter(self, b: int) -> None:
        """Start block b: its label and its lanes."""
        code, regs = self.code, self.regs
        code.label(f"b{b}")
        regs.start_block()
        if self.analysis.entry[b]:
            self.active, regs.mask = self.entry_bits, self.entry_mask
        else:
            self.active = code.value(f"load {self.word}, ptr {self.variable(b)}")
            if self._tracked >> b & 1:
                code.do(f"store {self.word} 0, ptr {self.variable(b)}")
            regs.mask = code.value(f"bitcast {self.word} {self.active} to <{self.lanes} x i1>")
        regs.kept = self.analysis.needed_elsewhere(b, self.kernel)

    def running(self) -> str:
        """The running lanes' bits as an i64."""
        if self.active == "-1":
            return str((1 << self.lanes) - 1) if self.lanes < 64 else "-1"
        return self.active if self.lanes == 64 else self.code.value(f"zext {self.word} {self.active} to i64")

    def how_many(self) -> str:
        """How many lanes run, as an i64."""
        if self.active == "-1":
            return str(self.lanes)
        return self.code.call("i64", "llvm.ctpop.i64", ("i64", self.running()))

    # --- branches
    def leave(self, b: int) -> None:
        """The terminator of block b."""
        end = self.kernel.blocks[b].end
        targets = successors(end)
        if isinstance(end, Ret):
            self._next(b, (), None)
        elif waits(end):
            assert isinstance(end, (Bar, Sync))
            self._arrive(end)
            if self.analysis.mixed >> b & 1:
                self._keep_counts(b, end)
                self._pend(b, self.n + b, self.active)
                self._next(b, (), None)
            else:
                self._out(f"wait{b}")
        elif isinstance(end, Sync):
            self._arrive(end)
            self._go(b, end.target)
        elif isinstance(end, Cbr | Switch) and len(targets) > 1:
            (self._split if splits(end, self.analysis.facts) else self._choose)(b, end)
        else:
            self._go(b, targets[0])

    def _arrive(self, end: Bar | Sync) -> None:
        """Count who arrives at a barrier, where that matters, and keep the count that they give."""
        if not self._judged:
            return
        code, number = self.code, end.barrier if isinstance(end, Sync) else 0
        at = code.gep("i64", "%arrivals", str(number))
        code.do(f"store i64 {code.add(code.value(f'load i64, ptr {at}'), self.how_many())}, ptr {at}")

    def counts(self, b: int) -> str:
        """The variable with the counts that lanes gave which wait at the end of block b."""
        return self.regs.variable(f"%counts{b}", f"<{self.lanes} x i32>")

    def _keep_counts(self, b: int, end: Bar | Sync) -> None:
        if not isinstance(end, Sync) or end.count < 0:
            return
        code, kind, name = self.code, f"<{self.lanes} x i32>", self.counts(b)
        given = self.regs.vector(end.count)
        if self.regs.mask is not None:
            before = code.value(f"load {kind}, ptr {name}")
            given = code.value(f"select <{self.lanes} x i1> {self.regs.mask}, {kind} {given}, {kind} {before}")
        code.do(f"store {kind} {given}, ptr {name}")

    def _choose(self, b: int, end: Cbr | Switch) -> None:
        """All running lanes go one way."""
        code = self.code
        labels = {s: code.fresh("way") for s in successors(end)}
        if isinstance(end, Cbr):
            code.fork(self.regs.scalar(end.pred), labels[end.yes], labels[end.no])
        else:
            ways = " ".join(f"i32 {at}, label %{labels[s]}" for at, s in enumerate(end.targets))
            code.do(f"switch i32 {self.regs.scalar(end.index)}, label %{labels[end.default]} [ {ways} ]")
        for s, label in labels.items():
            code.label(label)
            self._go(b, s)

    def _split(self, b: int, end: Cbr | Switch) -> None:
        code, word = self.code, self.word
        taken: dict[int, str] = {}
        if isinstance(end, Cbr):
            yes = code.value(f"bitcast <{self.lanes} x i1> {self.regs.vector(end.pred)} to {word}")
            taken[end.yes] = yes if self.active == "-1" else code.value(f"and {word} {yes}, {self.active}")
            taken[end.no] = code.value(f"xor {word} {taken[end.yes]}, {self.active}")
        else:
            rest = self.active
            index = self.regs.vector(end.index)
            for at, s in enumerate(end.targets):
                here = self.regs.v.compare("icmp eq", "i32", index, f"splat (i32 {at})")
                bits = code.value(f"bitcast <{self.lanes} x i1> {here} to {word}")
                bits = code.value(f"and {word} {bits}, {self.active}")
                taken[s] = code.value(f"or {word} {taken[s]}, {bits}") if s in taken else bits
                rest = code.value(f"and {word} {rest}, {code.value(f'xor {word} {bits}, -1')}")
            s = end.default
            taken[s] = code.value(f"or {word} {taken[s]}, {rest}") if s in taken else rest
        for s, bits in taken.items():
            self._pend(b, s, bits)
        self._next(b, tuple(sorted(taken)), None, taken)

    def _go(self, b: int, target: int) -> None:
        """All running lanes go to ``target``; lanes that are pending before it run first."""
        if not self.analysis.entry[target]:
            self._pend(b, target, self.active)
        self._next(b, (), target)

    def _pend(self, b: int, where: int, bits: str) -> None:
        code, name = self.code, self.variable(where)
        if self.analysis.pending[b] >> where & 1:
            before = code.value(f"load {self.word}, ptr {name}")
            bits = code.value(f"or {self.word} {before}, {bits}")
        code.do(f"store {self.word} {bits}, ptr {name}")

    def _next(self, b: int, chosen: Sequence[int], certain: int | None, taken: dict[int, str] | None = None) -> None:
        """Go to the least block where lanes are: among those that may be pending, and ``chosen`` (lanes went to one of them at least);
        ``certain``: a block to which lanes went; lanes behind it stay pending."""
        candidates = sorted({*bits_of(self.analysis.blocks_pending(b)), *chosen})
        if certain is not None:
            candidates = [c for c in candidates if c < certain] + [certain]
        self.chain(b, candidates, bool(chosen) or certain is not None, taken or {})

    def chain(self, b: int, candidates: Sequence[int], sure: bool, known: dict[int, str]) -> None:
        """Test blocks for lanes, in order. ``sure``: one of them has some. ``known``: lanes that went there just now, and no others are."""
        code = self.code
        last = len(candidates) - 1
        for at, c in enumerate(candidates):
            if sure and at == last:
                self._enter_from(b, c)
                return
            waiting = known.get(c)
            if waiting is None or self.analysis.pending[b] >> c & 1:
                waiting = code.value(f"load {self.word}, ptr {self.variable(c)}")
            some, more = code.fresh("some"), code.fresh("more")
            code.fork(code.value(f"icmp ne {self.word} {waiting}, 0"), some, more)
            code.label(some)
            self._enter_from(b, c)
            code.label(more)
        self._out("ended" if not self.analysis.mixed else "stuck")

    def chain_released(self, targets: Sequence[int], lanes: dict[int, str]) -> None:
        """Go on behind barriers, at the least of the blocks that have lanes (bits in ``lanes``)."""
        code = self.code
        for target in targets:
            on = code.fresh("more")
            code.fork(code.value(f"icmp ne {self.word} {lanes[target]}, 0"), f"b{target}", on)
            code.label(on)
        code.branch("stuck")

    def _enter_from(self, b: int, target: int) -> None:
        """Branch; on the way back, look at the limit."""
        code = self.code
        if target <= b and self._limited:
            self.check_limit()
        code.branch(f"b{target}")

    def check_limit(self) -> None:
        code = self.code
        spent = code.value("load i64, ptr %count")
        limit = code.value(f"load volatile i64, ptr {code.gep('i64', '%state', str(LIMIT))}")
        over, on = code.value(f"icmp sgt i64 {spent}, {limit}"), code.fresh("on")
        code.do(f"br i1 {over}, label %stopped, label %{on}, !prof !1")
        code.label(on)

    def _out(self, label: str) -> None:
        self.code.branch(label)
