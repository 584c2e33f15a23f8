"""Gangs and shapes: how the threads of a block become vectors, and what is known, before any code runs, about how a register's value
differs between the lanes of a gang.

A value that is the same in all lanes, or differs by amounts that are constants, needs no vector: its lane 0 is kept. The difficult case is
an index computed in 32 bits and widened: where the 32-bit number wraps in some lane the wide one does not, so the wide value is kept as
``scale * widen(root + offsets) + rest``, which is exact always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from jit.kernels.launch import Dim3
from wis.kernel.model import WARP, Op, RegType, Shuffle, Space, Special
from wis.kernel.ops import BY_CODE, Sig

__all__ = ["SAME", "VECTOR", "Fact", "Gang", "Same", "Shape", "Steps", "Vector", "Wide", "gang_of", "join", "shape_of", "trailing_zeros"]

_NARROW: Final = 16


@dataclass(frozen=True)
class Gang:
    """``lanes`` threads of a block of shape ``block`` that run as one; thread t is lane ``t % lanes`` of gang ``t // lanes``."""

    block: Dim3
    lanes: int

    @property
    def threads(self) -> int:
        return prod(self.block)

    @property
    def n_gangs(self) -> int:
        return -(-self.threads // self.lanes)

    @property
    def ragged(self) -> bool:
        """Whether the last gang has lanes without a thread."""
        return self.threads % self.lanes != 0

    def pattern(self, special: Special) -> tuple[int, ...] | None:
        """By how much the number of each lane's thread exceeds that of lane 0, where that is the same in every gang (lanes without a thread
        may be given any number); else None."""
        numbers = self.numbers(special)
        rows = [numbers[at : at + self.lanes] for at in range(0, len(numbers), self.lanes)]
        first = tuple(v - rows[0][0] for v in rows[0])
        alive = self.threads - (len(rows) - 1) * self.lanes
        good = all(tuple(v - row[0] for v in row) == first for row in rows[:-1])
        return first if good and tuple(v - rows[-1][0] for v in rows[-1][:alive]) == first[:alive] else None

    def numbers(self, special: Special) -> list[int]:
        """This number for every thread, lanes without a thread included."""
        x, y, _ = self.block
        numbers = range(self.n_gangs * self.lanes)
        if special in (Special.LANE, Special.WARP):
            return [t % WARP if special is Special.LANE else t // WARP for t in numbers]
        below, size = {Special.TID_X: (1, x), Special.TID_Y: (x, y), Special.TID_Z: (x * y, self.block[2])}[special]
        return [t // below % size for t in numbers]


def gang_of(block: Dim3, warp: bool, judged: bool = False) -> Gang:
    """Warps where lanes see each other (``warp``); else rows of threads, so that most numbers are the same or consecutive in a gang. A
    block of one thread is a gang of one lane, which is scalar code, unless its barriers are ``judged`` (analysis), which takes vectors."""
    if not warp and not judged and prod(block) == 1:
        return Gang(block, 1)
    if not warp and ((block[0] % WARP and block[0] % _NARROW == 0) or prod(block) <= _NARROW):
        return Gang(block, _NARROW)
    return Gang(block, WARP)


_WORD: Final = 64


@dataclass(frozen=True, slots=True)
class Same:
    """One value in all lanes."""


@dataclass(frozen=True, slots=True)
class Steps:
    """An integer: lane l's value is lane 0's plus ``offsets[l]`` (offsets[0] is 0; not all are), wrapping."""

    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wide:
    """An i64: ``scale * widen(root + offsets[l]) + rest`` with an i32 ``root`` and an i64 ``rest``, all wrapping; ``signed``: how the
    32-bit sum is widened; ``plain``: the rest is 0."""

    offsets: tuple[int, ...]
    scale: int
    signed: bool
    plain: bool


@dataclass(frozen=True, slots=True)
class Vector:
    """Any values."""


Shape = Same | Steps | Wide | Vector
SAME: Final = Same()
VECTOR: Final = Vector()


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of a register: its shape, how many low bits are zero in lane 0 (in all lanes, but for Steps), its value if constant,
    lane 0's value if known."""

    shape: Shape
    zeros: int
    value: int | None = None
    first: int | None = None

    def lane_values(self) -> tuple[int, ...] | None:
        """The value in every lane of a warp, where that is known."""
        if self.first is None or not isinstance(self.shape, Steps | Same):
            return None
        offsets = self.shape.offsets if isinstance(self.shape, Steps) else (0,) * WARP
        return tuple(self.first + offset for offset in offsets)


def trailing_zeros(x: int) -> int:
    return (x & -x).bit_length() - 1 if x else _WORD


def steps(offsets: Sequence[int], bits: int) -> Shape:
    """The shape of these differences from lane 0 at a width of ``bits``."""
    half = 1 << bits - 1
    first = offsets[0]
    wrapped = tuple((x - first + half) % (2 * half) - half for x in offsets)
    return Steps(wrapped) if any(wrapped) else SAME


def join(a: Fact | None, b: Fact) -> Fact:
    """What holds of a register that was either."""
    if a is None:
        return b
    shape = a.shape if a.shape == b.shape else VECTOR
    if isinstance(a.shape, Wide) and _shifted(a.shape) == _shifted(b.shape):
        shape = _shifted(a.shape) if a.shape != b.shape else a.shape
    zeros = min(a.zeros, b.zeros)
    if shape is VECTOR:
        zeros = min(lane_zeros(a), lane_zeros(b))
    return Fact(shape, zeros, a.value if a.value == b.value else None, a.first if a.first == b.first else None)


def _shifted(shape: Shape) -> Shape:
    """The shape with any rest."""
    return replace(shape, plain=False) if isinstance(shape, Wide) else shape


def lane_zeros(fact: Fact) -> int:
    """How many low bits are zero in every lane."""
    if isinstance(fact.shape, Steps):
        return min(fact.zeros, *(trailing_zeros(x) for x in fact.shape.offsets))
    return fact.zeros


def shape_of(op: Op, gang: Gang, kinds: Sequence[int], facts: Sequence[Fact], together: bool) -> Fact:
    """What is known of the results of ``op``, whose operands are in ``facts``. ``kinds``: register types; ``together``: all lanes
    run it."""
    row = BY_CODE[op.op]
    out = RegType(kinds[op.outs[0]])
    ins = [facts[r] for r in op.ins]
    if row.sig is Sig.CONST:
        return Fact(SAME, trailing_zeros(op.attrs[0]), op.attrs[0], op.attrs[0])
    if row.sig is Sig.SPECIAL:
        return _special(Special(op.attrs[0]), gang)
    if row.sig is Sig.SHFL and together and op.attrs[0] == Shuffle.IDX and ins[1].value is not None and ins[2].value == WARP - 1:
        return Fact(SAME, 0)
    if row.sig in _MIXING:
        return Fact(VECTOR if gang.lanes > 1 else SAME, 0)
    if row.sig in (Sig.LOAD, Sig.BYTES_LOAD):
        same = isinstance(ins[0].shape, Same) and op.attrs[0] not in (Space.LOCAL, Space.ARENA)
        return Fact(SAME if same or gang.lanes == 1 else VECTOR, 0)
    if row.sig in _COLLECTIVE:
        return Fact(SAME if isinstance(ins[-1].shape, Same) else VECTOR, 0)
    rule = _RULES.get(row.name)
    if rule is not None and out in (RegType.I32, RegType.I64):
        return replace(rule(out.bits, *ins), first=_first(row.name, out.bits, ins))
    if all(isinstance(x.shape, Same) for x in ins):
        return Fact(SAME, 0)
    return Fact(VECTOR, 0)


_MIXING: Final = frozenset({Sig.SHFL, Sig.MATCH_ANY, Sig.ATOM, Sig.MMA, Sig.MMA_F64})
_COLLECTIVE: Final = frozenset({Sig.VOTE, Sig.BALLOT, Sig.MATCH_ALL, Sig.REDUX})
"""Ops whose result is one for all lanes of a mask; the mask is the last operand. (What match_all compares may differ.)"""


def _special(which: Special, gang: Gang) -> Fact:
    if which not in (Special.TID_X, Special.TID_Y, Special.TID_Z, Special.LANE, Special.WARP):
        return Fact(SAME, 0)
    offsets = gang.pattern(which)
    if offsets is None:
        return Fact(VECTOR, 0)
    bases = set(gang.numbers(which)[:: gang.lanes])
    return Fact(steps(offsets, 32), min(trailing_zeros(b) for b in bases), first=bases.pop() if len(bases) == 1 else None)


_CALCULATED: Final[dict[str, Callable[..., int | None]]] = {
    "add": int.__add__, "sub": int.__sub__, "mul": int.__mul__, "and": int.__and__, "or": int.__or__, "mov": int.__pos__,
    "shl": lambda a, b: a << b if 0 <= b < _WORD else 0, "shr_u": lambda a, b: a >> b if a >= 0 and 0 <= b < _WORD else None,
}  # fmt: skip


def _first(name: str, bits: int, ins: Sequence[Fact]) -> int | None:
    """Lane 0's result where its operands are known; none for what the table leaves out."""
    known = [x.first for x in ins]
    if name not in _CALCULATED or None in known:
        return None
    result = _CALCULATED[name](*known)
    half = 1 << bits - 1
    return None if result is None else (result + half) % (2 * half) - half


# --- integer arithmetic, one rule an op: (width, operands) -> what is known
def _add(bits: int, a: Fact, b: Fact, sign: int = 1) -> Fact:
    zeros = min(a.zeros, b.zeros)
    match a.shape, b.shape:
        case Same(), Same():
            return Fact(SAME, zeros)
        case (Steps(k), Same()):
            return Fact(Steps(k), zeros)
        case (Same(), Steps(k)):
            return Fact(steps([sign * x for x in k], bits), zeros)
        case (Steps(j), Steps(k)):
            return Fact(steps([x + sign * y for x, y in zip(j, k, strict=True)], bits), zeros)
        case (Wide(), Same()):
            return Fact(_shifted(a.shape), zeros)
        case (Same(), Wide(k, scale, signed)):
            return Fact(Wide(k, sign * scale, signed, False), zeros)
    return Fact(VECTOR, min(lane_zeros(a), lane_zeros(b)))


def _sub(bits: int, a: Fact, b: Fact) -> Fact:
    return _add(bits, a, b, -1)


def _times(bits: int, a: Fact, by: int) -> Fact:
    zeros = min(_WORD, a.zeros + trailing_zeros(by))
    match a.shape:
        case Steps(k):
            return Fact(steps([x * by for x in k], bits), zeros)
        case Wide(k, scale, signed, plain):
            return Fact(Wide(k, scale * by, signed, plain), zeros) if by and abs(scale * by) < 1 << 31 else Fact(VECTOR, zeros)
    return Fact(a.shape, zeros)


def _mul(bits: int, a: Fact, b: Fact) -> Fact:
    if b.value is not None:
        return _times(bits, a, b.value)
    if a.value is not None:
        return _times(bits, b, a.value)
    both = isinstance(a.shape, Same) and isinstance(b.shape, Same)
    return Fact(SAME if both else VECTOR, min(_WORD, lane_zeros(a) + lane_zeros(b)))


def _shl(bits: int, a: Fact, b: Fact) -> Fact:
    if b.value is not None and 0 <= b.value < bits:
        return _times(bits, a, 1 << b.value)
    both = isinstance(a.shape, Same) and isinstance(b.shape, Same)
    return Fact(SAME if both else VECTOR, lane_zeros(a))


def _shr(bits: int, a: Fact, b: Fact) -> Fact:
    """Lanes keep their distance when lane 0 has only zeros where it is shifted."""
    by = b.value
    if isinstance(a.shape, Same) and isinstance(b.shape, Same):
        return Fact(SAME, max(0, a.zeros - by) if by is not None and by >= 0 else 0)
    if isinstance(a.shape, Steps) and by is not None and 0 < by < bits and a.zeros >= by and _inside(a):
        return Fact(steps([x >> by for x in a.shape.offsets], bits), min(a.zeros - by, _WORD))
    return Fact(VECTOR, 0)


def _inside(a: Fact) -> bool:
    """Whether the lanes' offsets only fill bits that are zero in lane 0."""
    return isinstance(a.shape, Steps) and all(0 <= x < 1 << a.zeros for x in a.shape.offsets)


def _and(bits: int, a: Fact, b: Fact) -> Fact:
    if a.value is not None:
        a, b = b, a
    if isinstance(a.shape, Same) and isinstance(b.shape, Same):
        return Fact(SAME, max(a.zeros, b.zeros))
    if isinstance(a.shape, Steps) and b.value is not None and _inside(a):
        offsets = [x & b.value for x in a.shape.offsets]
        base_zeros = max(a.zeros, trailing_zeros(b.value))
        return Fact(steps(offsets, bits), _WORD if 0 <= b.value < 1 << a.zeros else base_zeros)
    return Fact(VECTOR, max(lane_zeros(a), lane_zeros(b)))


def _or(bits: int, a: Fact, b: Fact) -> Fact:
    if a.value is not None:
        a, b = b, a
    zeros = min(lane_zeros(a), lane_zeros(b))
    if isinstance(a.shape, Same) and isinstance(b.shape, Same):
        return Fact(SAME, min(a.zeros, b.zeros))
    if isinstance(a.shape, Steps) and b.value is not None and _inside(a):
        disjoint = all(x & b.value == 0 for x in a.shape.offsets) and b.value >= 0
        return Fact(a.shape, min(a.zeros, b.zeros)) if disjoint else Fact(VECTOR, zeros)
    return Fact(VECTOR, zeros)


def _widen(signed: bool) -> Callable[[int, Fact], Fact]:
    def rule(bits: int, a: Fact) -> Fact:
        if isinstance(a.shape, Steps) and bits == 64:
            return Fact(Wide(a.shape.offsets, 1, signed, True), min(lane_zeros(a), 31))
        return Fact(SAME if isinstance(a.shape, Same) else VECTOR, min(lane_zeros(a), 15))

    return rule


def _narrow(bits: int, a: Fact) -> Fact:
    match a.shape:
        case Steps(k):
            return Fact(steps(k, bits), a.zeros)
        case Wide(k, scale) if bits == 32:
            return Fact(steps([scale * x for x in k], bits), a.zeros)
        case Same():
            return Fact(SAME, a.zeros)
    return Fact(VECTOR, lane_zeros(a))


def _mov(bits: int, a: Fact) -> Fact:
    return a


def _sel(bits: int, p: Fact, a: Fact, b: Fact) -> Fact:
    either = join(a, b)
    if isinstance(p.shape, Same) and not isinstance(either.shape, Vector):
        return Fact(either.shape, either.zeros)
    return Fact(VECTOR, min(lane_zeros(a), lane_zeros(b)))


_RULES: Final[dict[str, Callable[..., Fact]]] = {
    "add": _add, "sub": _sub, "mul": _mul, "shl": _shl, "shr_u": _shr, "shr_s": _shr, "and": _and, "or": _or, "sext": _widen(True),
    "zext": _widen(False), "narrow": _narrow, "mov": _mov, "sel": _sel,
}  # fmt: skip
