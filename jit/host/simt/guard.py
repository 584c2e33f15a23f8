"""Guards: one check for all accesses of a block of code whose places are known before it runs.

A block with such accesses is written twice: without checks, behind the guard, and with every access in the runtime, which finds the lanes
that are outside. For that, what places are computed from is moved to the block's start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from jit.host.simt.memory import Access, access_of
from jit.host.simt.shape import Fact, Vector
from wis.kernel.model import Op, Space
from wis.kernel.ops import BY_CODE, Sig

_ACCESSES: Final = frozenset({Sig.LOAD, Sig.BYTES_LOAD, Sig.STORE, Sig.BYTES_STORE})
_IMPURE: Final = _ACCESSES | {
    Sig.ATOM, Sig.RED, Sig.FENCE, Sig.RAISE, Sig.WARPSYNC, Sig.SHFL, Sig.VOTE, Sig.BALLOT, Sig.MATCH_ANY, Sig.MATCH_ALL, Sig.ACTIVEMASK,
    Sig.REDUX, Sig.MMA, Sig.MMA_F64,
}  # fmt: skip
_COSTLY: Final = 400
"""More vector ops than this are not written twice."""
_SPREAD: Final = 1 << 20


@dataclass(slots=True)
class Guarded:
    """Accesses by one offset register to one memory: their ops' places in ``Plan.rest``."""

    access: Access
    offset: int
    low: int
    high: int
    members: list[int]


@dataclass(slots=True)
class Plan:
    """``early``: ops that come first; ``rest``: the others, of which ``rest[begin:end]`` is written twice when there are ``groups``."""

    early: list[Op]
    rest: list[Op]
    groups: list[Guarded]
    begin: int
    end: int

    @property
    def members(self) -> set[int]:
        return {at for group in self.groups for at in group.members}


def plan_block(code: Sequence[Op], facts: Sequence[Fact], guardable: Callable[[Op, Access], bool]) -> Plan:
    """``guardable``: whether an access's lanes are a constant apart, so that one check is enough."""
    early, rest = _hoisted(code, facts)
    groups: dict[tuple[object, ...], Guarded] = {}
    written: set[int] = set()
    for at, op in enumerate(rest):
        if BY_CODE[op.op].sig in _ACCESSES and op.attrs[0] != Space.ARENA:
            access = access_of(op)
            if not access.volatile and op.ins[0] not in written and guardable(op, access):
                _join(groups, at, op.ins[0], access)
        written.update(op.outs)
    found = list(groups.values())
    members = [at for group in found for at in group.members]
    if len(members) < 2:
        return Plan([], list(code), [], 0, 0)
    begin, end = min(members), max(members) + 1
    if sum(1 for op in rest[begin:end] if op.outs and isinstance(facts[op.outs[0]].shape, Vector)) > _COSTLY:
        return Plan([], list(code), [], 0, 0)
    return Plan(early, rest, found, begin, end)


def _join(groups: dict[tuple[object, ...], Guarded], at: int, offset: int, access: Access) -> None:
    """Into the group of this memory and offset, unless that would make it too wide."""
    key = (access.space, access.which, offset, access.unit, access.nbytes, access.displacement % access.nbytes)
    low, high = access.displacement, access.displacement
    group = groups.get(key)
    if group is None:
        groups[key] = Guarded(access, offset, low, high, [at])
        return
    low, high = min(low, group.low), max(high, group.high)
    if high - low <= _SPREAD:
        group.low, group.high = low, high
        group.members.append(at)


def _hoisted(code: Sequence[Op], facts: Sequence[Fact]) -> tuple[list[Op], list[Op]]:
    """Ops on lane 0 that depend on nothing that stays, and the others, both in order."""
    early: list[Op] = []
    rest: list[Op] = []
    written: set[int] = set()  # by what stays
    read: set[int] = set()
    for op in code:
        pure = BY_CODE[op.op].sig not in _IMPURE and len(op.outs) == 1 and not isinstance(facts[op.outs[0]].shape, Vector)
        free = written.isdisjoint(op.ins) and written.isdisjoint(op.outs) and read.isdisjoint(op.outs)
        if pure and free:
            early.append(op)
        else:
            rest.append(op)
            written.update(op.outs)
            read.update(op.ins)
    return early, rest
