"""Lowering of shuffles, votes, barriers and fences."""

from __future__ import annotations

from typing import Final

from wis.dtypes import DType
from wis.frontends.ptx.classes import BITS, INTEGER
from wis.frontends.ptx.lowering import RoutineLowering, lowers, pair
from wis.frontends.ptx.syntax import Instruction, Number, Operand, Register
from wis.kernel.model import Atomic, RegType, Scope, Shuffle, Space, Special, Vote

__all__: list[str] = []

_I32, _I64, _F32, _PRED = RegType.I32, RegType.I64, RegType.F32, RegType.PRED
_SHUFFLES: Final = {"up": Shuffle.UP, "down": Shuffle.DOWN, "bfly": Shuffle.BFLY, "idx": Shuffle.IDX}
_VOTES: Final = {"any": Vote.ANY, "all": Vote.ALL, "uni": Vote.UNI}
_BARRIERS: Final = 16


def _members(low: RoutineLowering, ins: Instruction, at: int) -> int:
    """The mask of members; all lanes in the forms without one."""
    return low.read(ins.args[at], _I32) if "sync" in ins.mods else low.const(_I32, -1)


@lowers("shfl", "sync up down bfly idx", (4, 5), effect=True)
def _shfl(low: RoutineLowering, ins: Instruction) -> None:
    mode = next((_SHUFFLES[m] for m in ins.mods if m in _SHUFFLES), None)
    if mode is None:
        raise low.fail(f"{ins.text} does not say from where")
    target, inside = pair(ins.args[0])
    kind = _I32
    if isinstance(ins.args[1], Register) and low.type_of(ins.args[1]) is _F32:
        kind = _F32
    value, b, c = low.read(ins.args[1], kind), low.read(ins.args[2], _I32), low.read(ins.args[3], _I32)
    mask = _members(low, ins, 4)
    low.emit("shfl", [low.write(target, kind), low.write(inside, _PRED)], [value, b, c, mask], (int(mode),))


@lowers("vote", "sync any all uni ballot", (2, 3), effect=True)
def _vote(low: RoutineLowering, ins: Instruction) -> None:
    pred, mask = low.read(ins.args[1], _PRED), _members(low, ins, 2)
    if "ballot" in ins.mods:
        low.emit("ballot", [low.write(ins.args[0], _I32)], [pred, mask])
    else:
        mode = next(_VOTES[m] for m in ins.mods if m in _VOTES)
        low.emit("vote", [low.write(ins.args[0], _PRED)], [pred, mask], (int(mode),))


@lowers("match", "any all sync", 3, effect=True)
def _match(low: RoutineLowering, ins: Instruction) -> None:
    kind = INTEGER[BITS[ins.mods[-1]]]
    value, mask = low.read(ins.args[1], kind), low.read(ins.args[2], _I32)
    if "any" in ins.mods:
        low.emit("match_any", [low.write(ins.args[0], _I32)], [value, mask])
    else:
        target, same = pair(ins.args[0])
        low.emit("match_all", [low.write(target, _I32), low.write(same, _PRED)], [value, mask])


@lowers("activemask", "", 1, effect=True)
def _activemask(low: RoutineLowering, ins: Instruction) -> None:
    low.emit("activemask", [low.write(ins.args[0], _I32)], [])


_FOLDS: Final = {
    "add": Atomic.ADD, "min": Atomic.MIN, "max": Atomic.MAX, "and": Atomic.AND, "or": Atomic.OR, "xor": Atomic.XOR,
}  # fmt: skip


@lowers("redux", "sync add min max and or xor", 3, effect=True)
def _redux(low: RoutineLowering, ins: Instruction) -> None:
    function = next((_FOLDS[m] for m in ins.mods if m in _FOLDS), None)
    if function is None or ins.mods[-1] not in ("s32", "u32", "b32"):
        raise low.fail(f"{ins.text} is not supported", "fold with shuffles")
    value, mask = low.read(ins.args[1], _I32), low.read(ins.args[2], _I32)
    low.emit("redux", [low.write(ins.args[0], _I32)], [value, mask], (int(function), int(ins.mods[-1] == "s32")))


@lowers("elect", "sync", 2, effect=True, typed=False)
def _elect(low: RoutineLowering, ins: Instruction) -> None:
    """The lowest lane of the mask is the leader."""
    target, chosen = pair(ins.args[0])
    mask = low.read(ins.args[1], _I32)
    one = low.const(_I32, 1)
    below = low.op("and", _I32, low.op("sub", _I32, mask, one), low.op("not", _I32, mask))
    leader = low.op("popc", _I32, below)
    low.put(target, leader)
    low.put(chosen, low.op("eq", _PRED, low.op("special", _I32, attrs=(int(Special.LANE),)), leader))


# -- barriers and fences ---------------------------------------------------------------------------------------------------------------


@lowers(
    "bar barrier", "sync arrive red cta warp aligned and or popc cluster wait relaxed release acquire", (0, 4), effect=True, typed=False
)
def _bar(low: RoutineLowering, ins: Instruction) -> None:
    mods, args = ins.mods, ins.args
    if "cluster" in mods or (ins.op == "barrier" and "wait" in mods):
        raise low.fail("clusters of thread blocks are not portable", "use blocks of threads and their barriers")
    if "warp" in mods:
        low.emit("warpsync", [], [low.read(args[0], _I32)])
    elif "red" in mods:
        _bar_red(low, ins)
    elif args:
        count = [low.read(args[1], _I32)] if len(args) > 1 else []
        _sync(low, _barrier(low, args[0]), count, "arrive" in mods)
    else:
        raise low.fail(f"{ins.text} names no barrier")


def _sync(low: RoutineLowering, barrier: int, count: list[int], arrive: bool) -> None:
    following = low.new_block()
    low.end("sync", [following], ins=count, extra=(barrier, int(arrive)))
    low.current = low.code.parts[following]


def _barrier(low: RoutineLowering, arg: Operand) -> int:
    """The number of a barrier: a literal, or a register that is set to one and nowhere else."""
    value = arg.value if isinstance(arg, Number) else None
    if isinstance(arg, Register):
        sets = [ins for ins in low.routine.code if ins.args and ins.args[0] is arg]
        if len(sets) == 1 and sets[0].op == "mov" and isinstance(sets[0].args[1], Number):
            value = sets[0].args[1].value
    if value is None or not 0 <= value < _BARRIERS:
        raise low.fail(f"the number of a barrier must be a constant from 0 to {_BARRIERS - 1}")
    return value


def _bar_red(low: RoutineLowering, ins: Instruction) -> None:
    """All threads add to a cell, meet, read it, meet, and take back what they added, so that it is zero for the next time."""
    args = ins.args
    barrier = _barrier(low, args[1])
    count = [low.read(args[2], _I32)] if len(args) == 4 else []
    pred = low.read(args[-1], _PRED)
    one, zero = low.const(_I32, 1), low.const(_I32, 0)
    holds = "and" not in ins.mods  # all hold when none does not
    mine = low.op("sel", _I32, pred, one, zero) if holds else low.op("sel", _I32, pred, zero, one)
    cell = low.scene.scratch("bar.red", "shared", 64)
    place = low.op("symbol", _I32, attrs=(cell,))
    attrs = (int(Space.SHARED), 0, int(DType.U32), int(Atomic.ADD), 4 * barrier)
    low.emit("red", [], [place, mine], attrs)
    _sync(low, barrier, count, False)
    total = low.code.temp(_I32)
    low.emit("load", [total], [place], (int(Space.SHARED), 0, int(DType.U32), 1, 4 * barrier, 1))
    _sync(low, barrier, count, False)
    low.emit("red", [], [place, low.op("neg", _I32, mine)], attrs)
    if "popc" in ins.mods:
        low.put(args[0], total)
    else:
        low.put(args[0], low.op("eq" if "and" in ins.mods else "ne", _PRED, total, zero))


@lowers(
    "membar fence", "cta gl sys sc acq_rel acquire release cluster gpu proxy alias async sync_restrict", (0, 2), effect=True, typed=False
)
def _fence(low: RoutineLowering, ins: Instruction) -> None:
    if "proxy" in ins.mods and "alias" not in ins.mods:
        raise low.fail(f"{ins.text} is not portable", "asynchronous copies have no portable form")
    scope = Scope.BLOCK if "cta" in ins.mods else Scope.SYSTEM if "sys" in ins.mods else Scope.DEVICE
    low.emit("fence", [], [], (int(scope),))
