"""Which registers may differ between threads, and which blocks of code only some threads may be in.

May live here: this analysis. May not: the graph's own (flow), rules, reporting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Final

from wis.kernel.flow import Flow, mask_of
from wis.kernel.model import Access, BufferParam, Cbr, Kernel, Op, Space, Special, Switch
from wis.kernel.ops import BY_CODE, Sig

__all__ = ["Registers", "Uniformity", "uniformity"]


class Registers(Set[int]):
    """A set of registers, kept as the bits of ``mask``."""

    __slots__ = ("mask",)

    def __init__(self, mask: int = 0) -> None:
        self.mask = mask

    def __contains__(self, register: object) -> bool:
        return isinstance(register, int) and register >= 0 and bool(self.mask >> register & 1)

    def __iter__(self) -> Iterator[int]:
        rest = self.mask
        while rest:
            low = rest & -rest
            yield low.bit_length() - 1
            rest ^= low

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __hash__(self) -> int:
        return hash(self.mask)

    def __eq__(self, other: object) -> bool:
        return self.mask == other.mask if isinstance(other, Registers) else Set.__eq__(self, other)

    @classmethod
    def _from_iterable(cls, registers: Iterable[int]) -> Registers:  # type: ignore[override]  # what Set's own operators make sets with
        return cls(mask_of(list(registers)))

    def __repr__(self) -> str:
        return f"Registers({sorted(self)})"


@dataclass(frozen=True, slots=True)
class Uniformity:
    """What may differ between the threads of a block.

    ``varying[b]``: registers that may differ when block b of the code starts; ``divergent``: blocks of code that only some threads may be
    in; ``split``: blocks whose branch may send threads different ways.
    """

    varying: tuple[Registers, ...]
    divergent: frozenset[int]
    split: frozenset[int]


_VARYING_SPECIALS: Final = frozenset({Special.TID_X, Special.TID_Y, Special.TID_Z, Special.LANE, Special.WARP})
_ALWAYS: Final = frozenset({Sig.ATOM, Sig.SHFL, Sig.VOTE, Sig.BALLOT, Sig.MATCH_ANY, Sig.MATCH_ALL, Sig.ACTIVEMASK, Sig.REDUX})


def uniformity(kernel: Kernel, flow: Flow) -> Uniformity:
    """A sound approximation, to a fixed point.

    Sources are thread numbers, what warps and atomics answer, and loads that another thread could have changed. A branch on a varying
    register makes everything from it to its meeting point divergent, and what is written there varying (so also what threads carry out of
    a loop they leave at different times).
    """
    entry = [0] * len(kernel.blocks)
    divergent: set[int] = set()
    split: set[int] = set()
    steps = [[(_spreads(kernel, op), mask_of(op.ins), mask_of(op.outs)) for op in block.code] for block in kernel.blocks]
    changed = True
    while changed:
        changed = False
        for b in flow.order:
            state, apart = entry[b], b in divergent
            for spreads, ins, outs in steps[b]:
                state = state | outs if apart or spreads or state & ins else state & ~outs
            end = kernel.blocks[b].end
            decides = end.pred if isinstance(end, Cbr) else end.index if isinstance(end, Switch) else None
            if decides is not None and b not in split and state >> decides & 1:
                split.add(b)
                divergent |= _until(flow, b)
                changed = True
            for c in flow.succ[b]:
                if state & ~entry[c]:
                    entry[c] |= state
                    changed = True
    return Uniformity(tuple(Registers(mask) for mask in entry), frozenset(divergent), frozenset(split))


def _spreads(kernel: Kernel, op: Op) -> bool:
    """Whether an op gives different threads different values out of equal operands."""
    sig = BY_CODE[op.op].sig
    if sig is Sig.SPECIAL:
        return op.attrs[0] in _VARYING_SPECIALS
    if sig in (Sig.LOAD, Sig.BYTES_LOAD):
        if op.attrs[0] == Space.GLOBAL:
            param = kernel.params[op.attrs[1]]
            return not (isinstance(param, BufferParam) and param.access == Access.READ)
        return op.attrs[0] != Space.CONST
    return sig in _ALWAYS


def _until(flow: Flow, branch: int) -> set[int]:
    """Blocks on paths from ``branch`` before its meeting point."""
    stop = flow.ipdom[branch]
    region: set[int] = set()
    todo = [b for b in flow.succ[branch] if b != stop]
    while todo:
        b = todo.pop()
        if b not in region:
            region.add(b)
            todo += [c for c in flow.succ[b] if c != stop]
    return region
