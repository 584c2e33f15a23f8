"""Control flow of a block of threads that one work-item runs.

As long as all threads are at one block of code, control flow is *uniform*: a loop over threads runs the block and a branch is a goto. From
a branch that threads take differently to the reconvergence point, each thread has its own program counter: these blocks are *divergent*.
There one *unit* is run at a time, for the threads that are at its first block; a unit is as many blocks as a thread can execute without
waiting for another.

Which threads execute a warp op together is prescribed (those at the least block of code go first), so in kernels with warp ops units end
before a thread could reach a block with a lower number than that of others; and all threads reconverge only behind every divergent block.
"""

from __future__ import annotations

from typing import Final

from jit.kernels.cfamily.warp import WARP_SIGS
from wis.kernel.flow import Flow
from wis.kernel.model import Bar, Kernel, Op, Space, Special, Sync, branch_register
from wis.kernel.ops import BY_CODE, Sig

VARYING_SPECIALS: Final = frozenset({Special.TID_X, Special.TID_Y, Special.TID_Z, Special.LANE, Special.WARP})
_SPREADING: Final = frozenset({Sig.LOAD, Sig.BYTES_LOAD, Sig.ATOM}) | WARP_SIGS

_TRIES: Final = 8


class Regions:
    """``varying``: registers that may differ between threads; ``divergent``: blocks of code that only some threads may be in; ``fair``:
    threads may wait for what others store, so all warps must get on."""

    def __init__(self, kernel: Kernel, flow: Flow) -> None:
        self.kernel, self.flow = kernel, flow
        sigs = [{BY_CODE[op.op].sig for op in block.code} for block in kernel.blocks]
        self.asking = frozenset(b for b, found in enumerate(sigs) if found & WARP_SIGS)
        self.waiting = frozenset(b for b, block in enumerate(kernel.blocks) if isinstance(block.end, Bar | Sync))
        self.fair = any(_communicates(op) for block in kernel.blocks for op in block.code)
        self._loops = {loop.head: loop.blocks for loop in flow.loops}
        self._units: dict[int, frozenset[int]] = {}
        self.varying: set[int] = set()
        self.divergent: set[int] = set()
        self.split: set[int] = set()
        while self._spread():
            pass

    def meeting(self, b: int) -> int | None:
        """The reconvergence point of threads that are all at the divergent block ``b``; None: the end."""
        m = self.flow.ipdom[b]
        while m is not None and m in self.divergent:
            m = self.flow.ipdom[m]
        return m

    def unit(self, start: int) -> frozenset[int]:
        """The blocks of the unit that starts at ``start``, with it; threads enter it there only."""
        if start not in self._units:
            self._units[start] = self._unit(start)
        return self._units[start]

    def _unit(self, start: int) -> frozenset[int]:
        banned: set[int] = set()
        for _ in range(_TRIES):
            found = self._grown(start, banned)
            bad = self._ahead(found) if self.asking else set()
            if not bad:
                return found
            if bad == {start}:
                break
            banned |= bad
        return frozenset({start})

    def stops(self, b: int) -> bool:
        """Whether threads wait for others in or behind block ``b``."""
        return b in self.asking or b in self.waiting

    # --- parting
    def _spread(self) -> bool:
        before = len(self.varying), len(self.split)
        for b in self.flow.order:
            block = self.kernel.blocks[b]
            for op in block.code:
                if b in self.divergent or _spreads(op) or not self.varying.isdisjoint(op.ins):
                    self.varying.update(op.outs)
            decides = branch_register(block.end)
            if b not in self.split and (decides in self.varying or (isinstance(block.end, Sync) and block.end.count >= 0)):
                self.split.add(b)
                self.divergent |= self._meet(b)[1]
        return (len(self.varying), len(self.split)) != before

    def _meet(self, b: int) -> tuple[int | None, set[int]]:
        """The first block behind the branch of ``b`` where threads can be gathered (None: the end), and the blocks before it."""
        between: set[int] = set()
        todo = list(self.flow.succ[b])
        m = self.flow.ipdom[b] if b not in self.waiting else None
        while True:
            kept = []
            while todo:
                c = todo.pop()
                if c == m:
                    kept.append(c)
                elif c not in between:
                    between.add(c)
                    todo += self.flow.succ[c]
            if m is None or (not between & self.waiting and (not self.asking or max(between, default=-1) < m)):
                return m, between
            m, todo = self.flow.ipdom[m], kept

    # --- units
    def _grown(self, start: int, banned: set[int]) -> frozenset[int]:
        found = {start}
        if self.fair or start in self.waiting:
            return frozenset(found)
        todo = [start]
        while todo:
            for c in self.flow.succ[todo.pop()]:
                if c not in found and c not in banned and self._follows(c, found):
                    found.add(c)
                    todo.append(c)
        return frozenset(found)

    def _follows(self, b: int, found: set[int]) -> bool:
        """Whether threads come to ``b`` out of ``found`` only, and go through it (and round its loop) without waiting."""
        loop = self._loops.get(b, frozenset({b}))
        if not loop <= self.divergent or any(self.stops(x) for x in loop):
            return False
        return all(p in found or (p in loop and b in self._loops) for p in self.flow.pred[b])

    def _ahead(self, found: frozenset[int]) -> set[int]:
        """Blocks that lead out to a lesser number than another block has."""
        most = max(found)
        return {b for b in found if any(c not in found and c < most for c in self.flow.succ[b])}


def _spreads(op: Op) -> bool:
    """Whether an op gives different threads different values out of equal operands. Constants alone are loaded alike: what else memory
    holds, another thread may change."""
    sig = BY_CODE[op.op].sig
    if sig is Sig.SPECIAL:
        return op.attrs[0] in VARYING_SPECIALS
    return sig in _SPREADING and not (sig is Sig.BYTES_LOAD and op.attrs[0] == Space.CONST)


def _communicates(op: Op) -> bool:
    sig = BY_CODE[op.op].sig
    return sig is Sig.ATOM or (sig is Sig.BYTES_LOAD and bool(op.attrs[5] & 1))
