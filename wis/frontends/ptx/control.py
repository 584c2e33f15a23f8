"""Lowers comparisons and selections, branches, ends, instructions without effect here, and refuses those that are not supported."""

from __future__ import annotations

from typing import Final

from wis.dtypes import DType
from wis.frontends.ptx.classes import BITS, FIXED, INTEGER, registers_of
from wis.frontends.ptx.floats import half, widened
from wis.frontends.ptx.lowering import FLOATS, HALVES, LOWERINGS, InstructionLowering, RoutineLowering, access, lowers, pair, table_of
from wis.frontends.ptx.memory import address, space_of
from wis.frontends.ptx.syntax import Instruction, Name, Number, Operand, Register, Routine
from wis.kernel.model import RegType, Space

__all__: list[str] = []

_I32, _F32, _PRED = RegType.I32, RegType.F32, RegType.PRED
_SIGNED: Final = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_UNSIGNED: Final = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_UNORDERED: Final = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
_COMPARISONS: Final = " ".join([*_SIGNED, *_UNSIGNED, *_UNORDERED, "num", "nan"])
_COMBINE: Final = ("and", "or", "xor")


def _integers(low: RoutineLowering, how: str, a: int, b: int, signed: bool) -> int:
    if how in _UNSIGNED:
        how, signed = _UNSIGNED[how], False
    if how in ("eq", "ne"):
        return low.op(how, _PRED, a, b)
    if how in ("gt", "ge"):
        a, b, how = b, a, {"gt": "lt", "ge": "le"}[how]
    return low.op(f"{how}_{'s' if signed else 'u'}", _PRED, a, b)


def _floats(low: RoutineLowering, how: str, a: int, b: int) -> int:
    """Ordered comparisons are false and unordered ones true when an operand is NaN."""
    if how == "num" or how == "nan":
        one, other = ("eq", "and") if how == "num" else ("ne", "or")
        return low.op(other, _PRED, low.op(one, _PRED, a, a), low.op(one, _PRED, b, b))
    if how == "neu":
        return low.op("ne", _PRED, a, b)
    if how == "ne":
        return low.op("or", _PRED, low.op("lt", _PRED, a, b), low.op("lt", _PRED, b, a))
    if how in _UNORDERED:
        return low.op("not", _PRED, _floats(low, _UNORDERED[how], a, b))
    if how == "eq":
        return low.op("eq", _PRED, a, b)
    if how in ("gt", "ge"):
        a, b, how = b, a, {"gt": "lt", "ge": "le"}[how]
    if how in _UNSIGNED:
        raise low.fail(f"numbers of a float type are not compared by .{how}")
    return low.op(how, _PRED, a, b)


def _compared(low: RoutineLowering, ins: Instruction, type_: str) -> int:
    how = next((m for m in ins.mods if m in _SIGNED or m in _UNSIGNED or m in _UNORDERED or m in ("num", "nan")), "")
    if not how:
        raise low.fail(f"{ins.text} does not say how to compare")
    if type_ in FLOATS:
        work = _F32 if type_ in HALVES else FLOATS[type_]
        return _floats(low, how, *(widened(low, arg, type_, work) for arg in ins.args[1:3]))
    kind = _PRED if type_ == "pred" else INTEGER[BITS[type_]]
    a, b = (low.read(arg, kind) for arg in ins.args[1:3])
    return _integers(low, how, a, b, type_[0] == "s")


def _combined(low: RoutineLowering, ins: Instruction, value: int) -> int:
    how = next((m for m in ins.mods if m in _COMBINE), None)
    if how is None:
        return value
    if len(ins.args) != 4:
        raise low.fail(f"{ins.text} combines with a predicate, which is missing")
    return low.op(how, _PRED, value, low.read(ins.args[3], _PRED))


@lowers("setp", f"{_COMPARISONS} and or xor ftz", (3, 4))
def _setp(low: RoutineLowering, ins: Instruction) -> None:
    type_ = ins.mods[-1]
    if type_.endswith("x2"):
        _setp_packed(low, ins, type_[:-2])
        return
    first, second = pair(ins.args[0])
    value = _compared(low, ins, type_)
    result = _combined(low, ins, value)
    if not (isinstance(second, Name) and second.text == "_"):
        other = _combined(low, ins, low.op("not", _PRED, value))
        low.put(second, other)
    low.put(first, result)


def _setp_packed(low: RoutineLowering, ins: Instruction, type_: str) -> None:
    words = [low.read(arg, _I32) for arg in ins.args[1:3]]
    how = next((m for m in ins.mods if m in _SIGNED or m in _UNORDERED or m in ("num", "nan")), "")
    if not how:
        raise low.fail(f"{ins.text} does not say how to compare")
    results = []
    for upper in (False, True):
        values = [half(low, word, type_, upper, _F32) for word in words]
        results.append(_combined(low, ins, _floats(low, how, *values)))
    for target, result in zip(pair(ins.args[0]), results, strict=True):
        low.put(target, result)


@lowers("set", f"{_COMPARISONS} and or xor ftz", (3, 4))
def _set(low: RoutineLowering, ins: Instruction) -> None:
    """All ones (1.0 for floats) where the comparison holds, else zero."""
    if len(ins.mods) < 3:
        raise low.fail(f"{ins.text} needs two types")
    to, type_ = ins.mods[-2:]
    if type_.endswith("x2") or to.endswith("x2"):
        _set_packed(low, ins, to, type_)
        return
    result = _combined(low, ins, _compared(low, ins, type_))
    low.put(ins.args[0], _mask(low, result, to))


def _mask(low: RoutineLowering, pred: int, to: str) -> int:
    if to in FLOATS:
        bits = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000, "f64": 0x3FF0000000000000}[to]
        kind = FLOATS[to]
        return low.op("sel", kind, pred, low.const(kind, bits), low.const(kind, 0))
    kind = INTEGER[BITS[to]]
    return low.op("sel", kind, pred, low.const(kind, -1), low.const(kind, 0))


def _set_packed(low: RoutineLowering, ins: Instruction, to: str, type_: str) -> None:
    words = [low.read(arg, _I32) for arg in ins.args[1:3]]
    how = next((m for m in ins.mods if m in _SIGNED or m in _UNORDERED or m in ("num", "nan")), "")
    if not how or not type_.endswith("x2"):
        raise low.fail(f"{ins.text} is not supported")
    one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(to, 0xFFFF)
    parts = []
    for upper in (False, True):
        values = [half(low, word, type_[:-2], upper, _F32) for word in words]
        pred = _combined(low, ins, _floats(low, how, *values))
        parts.append(low.op("sel", _I32, pred, low.const(_I32, one << (16 if upper else 0)), low.const(_I32, 0)))
    low.put(ins.args[0], low.op("or", _I32, *parts))


def _kind(low: RoutineLowering, type_: str, arg: Operand) -> RegType:
    """The register type for a value that is only moved: the target's own, when it has the width."""
    natural = FIXED[type_] if type_ in FIXED else INTEGER[BITS[type_]]
    if isinstance(arg, Register) and low.type_of(arg).bits == natural.bits:
        return low.type_of(arg)
    return natural


@lowers("selp", "", 4)
def _selp(low: RoutineLowering, ins: Instruction) -> None:
    kind = _kind(low, ins.mods[-1], ins.args[0])
    a, b = (low.read(arg, kind) for arg in ins.args[1:3])
    low.emit("sel", [low.write(ins.args[0], kind)], [low.read(ins.args[3], _PRED), a, b])


@lowers("slct", "ftz", 4)
def _slct(low: RoutineLowering, ins: Instruction) -> None:
    """The first operand where the third is not negative (nor NaN)."""
    kind = _kind(low, ins.mods[-2], ins.args[0])
    a, b = (low.read(arg, kind) for arg in ins.args[1:3])
    if ins.mods[-1] == "f32":
        pred = low.op("le", _PRED, low.f32(0.0), low.read(ins.args[3], _F32))
    else:
        pred = low.op("le_s", _PRED, low.const(_I32, 0), low.read(ins.args[3], _I32))
    low.emit("sel", [low.write(ins.args[0], kind)], [pred, a, b])


@lowers("bra", "uni", (1, 2), effect=True, typed=False)
def _bra(low: RoutineLowering, ins: Instruction) -> None:
    target = low.target(ins.args[-1])
    if ins.guard is None:
        low.end("br", [target])
        return
    pred = low.read(ins.guard, _PRED)
    following = low.new_block()
    low.end("cbr", [following, target] if ins.negated else [target, following], ins=[pred])
    low.current = low.code.parts[following]


@lowers("brx", "idx uni", 2, effect=True, typed=False)
def _brx(low: RoutineLowering, ins: Instruction) -> None:
    """An index past the list means nothing in PTX; here the last label is taken."""
    targets = [low.target(label) for label in table_of(low, ins.args[1])]
    if not targets:
        raise low.fail("the list of targets is empty")
    low.end("switch", targets, ins=[low.read(ins.args[0], _I32)])


@lowers("ret", "uni", 0, effect=True, typed=False)
def _ret(low: RoutineLowering, ins: Instruction) -> None:
    low.end("ret", [])


@lowers("exit", "", 0, effect=True, typed=False)
def _exit(low: RoutineLowering, ins: Instruction) -> None:
    if not low.routine.kernel:
        raise low.fail("exit inside of a function is not supported", "return to the kernel, and leave it there")
    low.end("ret", [])


@lowers("trap brkpt", "", 0, effect=True, typed=False)
def _trap(low: RoutineLowering, ins: Instruction) -> None:
    low.emit("raise", [], [])
    low.end("ret", [])


@lowers(
    "nanosleep prefetch prefetchu pmevent discard applypriority setmaxnreg griddepcontrol",
    "mask global local shared L1 L2 param tensormap wait launch_dependents inc dec sync aligned",
    (0, 9),
    effect=True,
    typed=False,
)
def _nothing(low: RoutineLowering, ins: Instruction) -> None:
    """Hints. A launch starts when those before it have ended, so there is nothing to wait for either."""


@lowers("createpolicy", "fractional range cvt global", (1, 9))
def _createpolicy(low: RoutineLowering, ins: Instruction) -> None:
    low.put(ins.args[0], low.const(RegType.I64, 0))


_HINTS: Final = {
    "wgmma": "compute the product with ordinary arithmetic, or call torch.matmul",
    "tcgen05": "compute the product with ordinary arithmetic, or call torch.matmul",
    "tex": "read from a pointer instead", "tld4": "read from a pointer instead", "txq": "pass sizes as arguments",
    "suld": "read from a pointer instead", "sust": "write through a pointer instead", "sured": "use atomics on a pointer",
    "suq": "pass sizes as arguments", "istypep": "pass pointers", "mapa": "clusters have no portable form",
    "getctarank": "clusters have no portable form", "mbarrier": "use __syncthreads() and ordinary copies",
    "multimem": "use ordinary loads and stores", "tensormap": "compute addresses in the kernel", "stmatrix": "store from each thread",
    "movmatrix": "exchange values through shared memory", "alloca": "use an array of fixed size",
    "stacksave": "use an array of fixed size", "stackrestore": "use an array of fixed size",
    "clusterlaunchcontrol": "clusters have no portable form",
}  # fmt: skip


def _refuse(low: RoutineLowering, ins: Instruction) -> None:
    raise low.fail(f"{ins.text} is not portable", _HINTS[ins.op])


class _Anything(frozenset[str]):
    def __contains__(self, _: object) -> bool:
        return True


LOWERINGS.update({name: InstructionLowering(_refuse, _Anything(), True, (0, 99), False) for name in _HINTS})

_ASYNC: Final = frozenset({"async", "ca", "cg", "shared", "global", "commit_group", "wait_group", "wait_all"})


def _cp(low: RoutineLowering, ins: Instruction) -> None:
    """An asynchronous copy is a load and a store; what waits for it has nothing to wait for."""
    mods = ins.mods
    if not mods or mods[0] != "async" or any(m not in _ASYNC and "::" not in m for m in mods):
        raise low.fail(f"{ins.text} is not portable", "copy with loads and stores")
    if {"commit_group", "wait_group", "wait_all"} & set(mods):
        return
    size = ins.args[2] if len(ins.args) > 2 else None
    if not isinstance(size, Number) or size.value not in (4, 8, 16):
        raise low.fail("cp.async copies 4, 8 or 16 bytes")
    where, source = address(low, ins.args[0]), address(low, ins.args[1])
    space = space_of(tuple(m for m in mods[1:] if m.startswith("global")))
    values = [low.code.temp(_I32) for _ in range(size.value // 4)]
    limit = ins.args[3] if len(ins.args) > 3 and not any("cache_hint" in m for m in mods) else None
    if low.copy_sizes is None:
        low.copy_sizes = _copy_sizes(low.routine)
    after = None
    if isinstance(limit, Register) and low.copy_sizes.get(limit) == size.value:
        none, whole, after = low.new_block(), low.new_block(), low.new_block()
        low.end("cbr", [none, whole], ins=[low.op("eq", _PRED, low.read(limit, _I32), low.const(_I32, 0))])
        low.current = low.code.parts[none]
        access(low, "store", Space.SHARED, where, [low.const(_I32, 0)] * len(values), DType.U32)
        low.end("br", [after])
        low.current = low.code.parts[whole]
    if limit is None or after is not None:
        access(low, "load", space, source, values, DType.U32)
    else:
        _partial(low, space, source, values, low.read(limit, _I32))
    access(low, "store", Space.SHARED, where, values, DType.U32)
    if after is not None:
        low.end("br", [after])
        low.current = low.code.parts[after]


def _copy_sizes(routine: Routine) -> dict[Register, int]:
    """Registers that only say how much asynchronous copies take, and have their value from one ``selp`` of a size and 0."""
    found: dict[Register, int] = {}
    other: set[Register] = set()
    for ins in routine.code:
        made = None
        if ins.op == "selp" and ins.guard is None and isinstance(ins.args[0], Register) and ins.args[0] not in found:
            sizes = [arg.value for arg in ins.args[1:3] if isinstance(arg, Number)]
            if len(sizes) == 2 and 0 in sizes:
                made = ins.args[0]
                found[made] = max(sizes)
        given = [*ins.args, *(arg for args in ins.lists or () for arg in args)]
        for at, arg in enumerate(given):
            if not (at == 0 and made is not None) and not (at == 3 and ins.op == "cp"):
                other.update(registers_of(arg))
    return {register: size for register, size in found.items() if register not in other}


LOWERINGS["cp"] = InstructionLowering(_cp, _Anything(), True, (0, 9), False)


def _partial(low: RoutineLowering, space: Space, source: tuple[int, int], values: list[int], limit: int) -> None:
    """The first ``limit`` bytes, zeros behind them, which are not read. All or none is the usual case; a part comes byte by byte."""
    some, whole, part, loop, after = (low.new_block() for _ in range(5))
    for value in values:
        low.emit("mov", [value], [low.const(_I32, 0)])
    low.end("cbr", [after, some], ins=[low.op("eq", _PRED, limit, low.const(_I32, 0))])
    low.current = low.code.parts[some]
    low.end("cbr", [part, whole], ins=[low.op("lt_u", _PRED, limit, low.const(_I32, 4 * len(values)))])
    low.current = low.code.parts[whole]
    access(low, "load", space, source, values, DType.U32)
    low.end("br", [after])
    low.current = low.code.parts[part]
    at = low.op("mov", _I32, low.const(_I32, 0))
    low.start(loop)
    base, offset = source
    wide = low.code.types[base]
    byte = low.code.temp(RegType.I16)
    access(low, "load", space, (low.op("add", wide, base, low.extend(at, wide, signed=False)), offset), [byte], DType.U8)
    shift = low.op("shl", _I32, low.op("and", _I32, at, low.const(_I32, 3)), low.const(_I32, 3))
    bits, word = low.op("shl", _I32, low.op("zext", _I32, byte), shift), low.op("shr_u", _I32, at, low.const(_I32, 2))
    for k, value in enumerate(values):
        here = low.op("eq", _PRED, word, low.const(_I32, k))
        low.emit("or", [value], [value, low.op("sel", _I32, here, bits, low.const(_I32, 0))])
    low.emit("add", [at], [at, low.const(_I32, 1)])
    low.end("cbr", [loop, after], ins=[low.op("lt_u", _PRED, at, limit)])
    low.start(after)
