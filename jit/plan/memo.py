"""Remembering how steps were lowered, under names that do not depend on which buffers and scalars they use.

The layers of a model are the same steps on other buffers, and a step whose dims come back is the same step again; so most of a plan is
found here instead of being worked out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from jit.plan.access import Access
from jit.plan.calls import ArgBlock, Call, WholeInstr
from wis.program import BoundInstr, BufferKind, Operand

__all__ = ["Lru", "Memo", "Names"]

K = TypeVar("K")
V = TypeVar("V")


class Lru(Generic[K, V]):
    """At most ``entries_max`` entries; both ``get`` and ``put`` make an entry the most recently used one. Not thread-safe."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The entry, or None."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> V:
        """Add or replace an entry, and drop one when there are too many. Returns ``value``."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
        return value

    def values(self) -> list[V]:
        """All entries, the least recently used first."""
        return list(self._entries.values())

    def clear(self) -> None:
        self._entries.clear()


ENTRIES_MAX = 8192
C = TypeVar("C", bound=Call)


class Names:
    """Buffers and scalars of a step, numbered by first use. ``key`` identifies the step but for what they are."""

    __slots__ = ("buffers", "key", "scalars")

    def __init__(self, code: Sequence[BoundInstr], kinds: Sequence[int], kept: frozenset[int] | None) -> None:
        buffers: dict[int, int] = {}
        scalars: dict[int, int] = {}
        parts: list[Any] = []
        for instr in code:
            parts.append((instr.op.code, instr.attrs))
            for x in (*instr.outs, *instr.ins):
                if isinstance(x, Operand):
                    parts.append((buffers.setdefault(x.buffer, len(buffers)), x.dtype, x.shape, x.strides, x.offset))
                else:
                    parts.append((scalars.setdefault(x.slot, len(scalars)), x.dtype))
        temps = tuple(kinds[b] == BufferKind.TEMP for b in buffers)
        stored = None if kept is None else tuple(b in kept for b in buffers)
        self.key = (tuple(parts), temps, stored)
        self.buffers = list(buffers)
        self.scalars = list(scalars)


class Memo(Generic[C]):
    """Calls by the key of their step. The least recently used go first."""

    def __init__(self) -> None:
        self._known: Lru[Any, tuple[list[C | type[WholeInstr]], list[int]]] = Lru(ENTRIES_MAX)

    def find(self, names: Names, new_temp: Callable[[int], int], instr: BoundInstr) -> list[C | WholeInstr] | None:
        """The calls of a step of this key, on its own buffers and with temporaries from ``new_temp``; None when it was never lowered."""
        found = self._known.get(names.key)
        if found is None:
            return None
        templates, temps = found
        buffers = names.buffers + [new_temp(nbytes) for nbytes in temps]
        return [t.of(instr) if isinstance(t, type) else _renamed(t, buffers, names.scalars) for t in templates]

    def put(self, names: Names, calls: Sequence[C | WholeInstr], temps: Sequence[int], temp_nbytes: Sequence[int]) -> None:
        """Remember the calls of a step; ``temps`` are the temporaries made for it."""
        numbers = {b: at for at, b in enumerate((*names.buffers, *temps))}
        slots = {s: at for at, s in enumerate(names.scalars)}
        templates = [type(call) if isinstance(call, WholeInstr) else _renamed(call, numbers, slots) for call in calls]
        self._known.put(names.key, (templates, list(temp_nbytes)))


def _renamed(call: C, buffers: Any, scalars: Any) -> C:
    """The call with every buffer and scalar looked up in the given tables (lists or dicts)."""
    block = call.block
    pointers = block.pointers.copy()
    pointers[:, 1] = [buffers[b] for b in pointers[:, 1].tolist()]
    numbers = tuple((dtype, slot, scalars[n]) for dtype, slot, n in block.scalars)

    def touched(accesses: tuple[Access, ...]) -> tuple[Access, ...]:
        return tuple(Access(buffers[x.buffer], x.dtype, x.offset, x.dims, x.low, x.high) for x in accesses)

    renamed = ArgBlock(block.words, np.ascontiguousarray(pointers), block.traps, numbers, block.sites)
    return replace(call, block=renamed, reads=touched(call.reads), writes=touched(call.writes))
