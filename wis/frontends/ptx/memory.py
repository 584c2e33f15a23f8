"""Lowers loads, stores, atomics, moves and addresses; atomics on 16 bits and on packed halves become a compare-and-swap loop on the word
that holds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wis.dtypes import DType
from wis.frontends.ptx.calls import argument_store, result_load
from wis.frontends.ptx.classes import BITS, INTEGER
from wis.frontends.ptx.code import GENERIC
from wis.frontends.ptx.floats import half, joined, narrowed
from wis.frontends.ptx.lowering import EXACT, HALVES, SIGNED, UNSIGNED, RoutineLowering, access, element, lowers
from wis.frontends.ptx.syntax import Address, Instruction, Name, Number, Operand, Register, Vector
from wis.kernel.model import LOCAL_BASE, SHARED_BASE, Atomic, RegType, Scope, Space

__all__ = ["address", "space_of"]

_SPACES: Final = {"global": Space.GLOBAL, "shared": Space.SHARED, "local": Space.LOCAL, "const": Space.CONST}
_WIDTHS: Final = {"v2": 2, "v4": 4, "v8": 8}
_ORDER: Final = "weak volatile relaxed acquire release acq_rel mmio cta cluster gpu sys gl"
_CACHE: Final = "ca cg cs lu cv nc wb wt unified v2 v4 v8 global shared local const param noftz"
VOLATILE: Final = 1


def space_of(mods: tuple[str, ...]) -> Space:
    """The space that modifiers name; GENERIC when none does."""
    for modifier in mods:
        space = _SPACES.get(modifier.partition("::")[0])
        if space is not None:
            return space
    return GENERIC


def address(low: RoutineLowering, arg: Operand) -> tuple[int, int]:
    """The register with an address (i32 or i64), and what is added to it."""
    if not isinstance(arg, Address):
        raise low.fail("expected an address in brackets")
    base = arg.base
    if isinstance(base, Register):
        bits = BITS[base.type]
        if bits not in (32, 64):
            raise low.fail(f"{base.name} cannot hold an address")
        return low.read(base, INTEGER[bits]), arg.offset
    if base is None:
        return low.const(RegType.I64, 0), arg.offset
    return low.read(Name(base.text), RegType.I64), arg.offset + base.offset


def _flags(mods: tuple[str, ...]) -> int:
    return VOLATILE if {"volatile", "relaxed", "acquire", "release", "mmio"} & set(mods) else 0


def _fence(low: RoutineLowering, mods: tuple[str, ...]) -> None:
    scope = Scope.BLOCK if "cta" in mods else Scope.SYSTEM if "sys" in mods else Scope.DEVICE
    low.emit("fence", [], [], (int(scope),))


def _items(low: RoutineLowering, arg: Operand, mods: tuple[str, ...]) -> list[Operand]:
    width = next((_WIDTHS[m] for m in mods if m in _WIDTHS), 1)
    items: list[Operand] = list(arg.items) if isinstance(arg, Vector) else [arg]
    if len(items) != width:
        raise low.fail(f"{width} registers expected, {len(items)} given")
    return items


@lowers("ld ldu", f"{_ORDER} {_CACHE}", (2, 3), effect=True)
def _load(low: RoutineLowering, ins: Instruction) -> None:
    mods = ins.mods
    if any(m.partition("::")[0] == "param" for m in mods) and _load_param(low, ins):
        return
    type_ = mods[-1]
    items = _items(low, ins.args[0], mods)
    where = address(low, ins.args[1])
    kinds = _alike([element(low, type_, item) for item in items if not _dropped(item)], type_)
    one = kinds[0] if kinds else element(low, type_, items[0])
    held = [low.write(item, kinds.pop(0)[0] if not _dropped(item) else one[0]) for item in items]
    if where[0] in held and len(held) > 1:  # a load in several pieces must not lose its address to the first of them
        where = low.op("mov", low.code.types[where[0]], where[0]), where[1]
    space = Space.LOCAL if "param" in mods else space_of(mods)
    _load_used(low, space, where, held, one[1], _flags(mods), ins.used)
    if "acquire" in mods:
        low.settle()
        _fence(low, mods)


def _load_used(low: RoutineLowering, space: Space, where: tuple[int, int], held: list[int], dtype: DType, flags: int, used: int) -> None:
    """Load the elements of which bytes are used: compilers widen loads to where no memory need be. The others become zero."""
    size = dtype.itemsize
    wanted = [used < 0 or used >> k * size & (1 << size) - 1 != 0 for k in range(len(held))]
    if not any(wanted):
        wanted = [True] * len(held)
    first = 0
    while first < len(held):
        if not wanted[first]:
            low.emit("mov", [held[first]], [low.const(low.code.types[held[first]], 0)])
            first += 1
            continue
        width = next(n for n in (8, 4, 2, 1) if first % n == 0 and first + n <= len(held) and all(wanted[first : first + n]))
        access(low, "load", space, (where[0], where[1] + first * size), held[first : first + width], dtype, flags)
        first += width


def _dropped(item: Operand) -> bool:
    return isinstance(item, Name) and item.text == "_"


def _alike(kinds: list[tuple[RegType, DType]], type_: str) -> list[tuple[RegType, DType]]:
    """One element type for all registers of a vector: bits where they differ."""
    if len({dtype for _, dtype in kinds}) <= 1:
        return kinds
    whole = INTEGER[BITS[type_]], UNSIGNED[BITS[type_]]
    return [whole if register in EXACT else (register, whole[1]) for register, _ in kinds]


def _load_param(low: RoutineLowering, ins: Instruction) -> bool:
    """A load of a parameter by its name, or by a register that holds nothing but its address; False when the address is computed."""
    arg = ins.args[1]
    base = low.param_addresses.get(arg.base) if isinstance(arg, Address) and isinstance(arg.base, Register) else getattr(arg, "base", None)
    if not isinstance(arg, Address) or not isinstance(base, Name):
        return False
    name, offset = base.text, base.offset + arg.offset
    type_ = ins.mods[-1]
    size = BITS[type_] // 8
    if any(param.name == name for param in low.routine.params) and low.routine.kernel:
        number, param = next((i, param) for i, param in enumerate(low.routine.params) if param.name == name)
        whole = param.nbytes if param.nbytes >= 0 else BITS[param.type] // 8
        if offset < 0 or offset + size * len(_items(low, ins.args[0], ins.mods)) > whole:
            raise low.fail(f"{name} has {whole} bytes, which a load exceeds")
        for k, item in enumerate(_items(low, ins.args[0], ins.mods)):
            register, dtype = element(low, type_, item)
            value = low.op("argument", _held(dtype), attrs=(number, offset + k * size, int(dtype)))
            if _held(dtype).bits < register.bits:
                value = low.extend(value, register, signed=type_[0] == "s")
            low.put(item, value)
        return True
    return result_load(low, ins, name, offset, _items(low, ins.args[0], ins.mods))


def _held(dtype: DType) -> RegType:
    """The register of a scalar parameter with this element type."""
    for register, exact in EXACT.items():
        if dtype is exact:
            return register
    return INTEGER[dtype.itemsize * 8]


@lowers("st", f"{_ORDER} {_CACHE}", (2, 3), effect=True)
def _store(low: RoutineLowering, ins: Instruction) -> None:
    mods = ins.mods
    items = _items(low, ins.args[1], mods)
    if any(m.partition("::")[0] == "param" for m in mods) and argument_store(low, ins, items):
        return
    if space_of(mods) is Space.CONST:
        raise low.fail("constants cannot be written", "declare the variable __device__")
    if "release" in mods:
        _fence(low, mods)
    type_ = mods[-1]
    kinds = [element(low, type_, item) for item in items]
    exact = {dtype for item, (_, dtype) in zip(items, kinds, strict=True) if isinstance(item, Register)}
    if len(exact) > 1:  # a vector of floats and integers: store the bits
        kinds = [(INTEGER[BITS[type_]], UNSIGNED[BITS[type_]])] * len(kinds)
    elif exact:
        one = next(iter(exact))
        kinds = [kind if isinstance(item, Register) else (_register_for(one, type_), one) for item, kind in zip(items, kinds, strict=True)]
    values = [low.read(item, register) for item, (register, _) in zip(items, kinds, strict=True)]
    access(low, "store", space_of(mods), address(low, ins.args[0]), values, kinds[0][1], _flags(mods))


def _register_for(dtype: DType, type_: str) -> RegType:
    return next((register for register, exact in EXACT.items() if exact is dtype), INTEGER[BITS[type_]])


# -- moves and addresses ---------------------------------------------------------------------------------------------------------------


@lowers("mov", "", 2)
def _mov(low: RoutineLowering, ins: Instruction) -> None:
    target, source = ins.args
    if isinstance(target, Vector):
        _unpack(low, target, source, ins.mods[-1])
    elif isinstance(source, Vector):
        low.put(target, _pack(low, source, ins.mods[-1]))
    else:
        if not isinstance(target, Register):
            raise low.fail("a result needs a register")
        low.put(target, low.read(source, low.type_of(target)))


def _pack(low: RoutineLowering, source: Vector, type_: str) -> int:
    whole = INTEGER[BITS[type_]]
    each = BITS[type_] // max(1, len(source.items))
    if each not in (8, 16, 32):
        raise low.fail(f"{len(source.items)} parts do not make a .{type_}")
    result = -1
    for k, item in enumerate(source.items):
        part = low.read_int(item, each) if not isinstance(item, Number) else low.literal(item, INTEGER[each])
        if each == 8:
            part = low.op("and", RegType.I16, part, low.const(RegType.I16, 255))
        part = low.extend(part, whole, signed=False)
        if k:
            part = low.op("shl", whole, part, low.const(whole, k * each))
            part = low.op("or", whole, result, part)
        result = part
    return result


def _unpack(low: RoutineLowering, target: Vector, source: Operand, type_: str) -> None:
    whole = INTEGER[BITS[type_]]
    each = BITS[type_] // max(1, len(target.items))
    if each not in (8, 16, 32):
        raise low.fail(f"a .{type_} does not make {len(target.items)} parts")
    value = low.read(source, whole)
    for k, item in enumerate(target.items):
        if isinstance(item, Name) and item.text == "_":
            continue
        part = low.op("shr_u", whole, value, low.const(whole, k * each)) if k else value
        narrow = INTEGER[each]
        if narrow is not whole:
            part = low.op("narrow", narrow, part)
        if each == 8:
            part = low.op("and", narrow, part, low.const(narrow, 255))
        low.put(item, part)


@lowers("cvta", "to global shared local const param", 2)
def _cvta(low: RoutineLowering, ins: Instruction) -> None:
    target, source = ins.args
    type_ = INTEGER[BITS[ins.mods[-1]]]
    if isinstance(source, Name):
        value = low.read(source, type_)
    else:
        value = low.read(source, type_)
    space = Space.LOCAL if any(m.startswith("param") for m in ins.mods) else space_of(ins.mods)
    name = "from_generic" if "to" in ins.mods else "to_generic"
    low.emit(name, [low.write(target, type_)], [value], (int(space),))


@lowers("isspacep", "global shared local const param", 2, typed=False)
def _isspacep(low: RoutineLowering, ins: Instruction) -> None:
    """By the ranges of addresses; params and constants are no space that an address can be found in."""
    i64, pred = RegType.I64, RegType.PRED
    space = space_of(ins.mods)
    value = low.read(ins.args[1], i64)
    if space is Space.GLOBAL:
        result = low.op("lt_u", pred, value, low.const(i64, SHARED_BASE))
    elif space is Space.SHARED:
        shared = low.op("le_u", pred, low.const(i64, SHARED_BASE), value)
        result = low.op("and", pred, shared, low.op("lt_u", pred, value, low.const(i64, LOCAL_BASE)))
    elif space is Space.LOCAL:
        result = low.op("le_u", pred, low.const(i64, LOCAL_BASE), value)
    else:
        result = low.const(pred, 0)
    low.put(ins.args[0], result)


# -- atomics ---------------------------------------------------------------------------------------------------------------------------

_ATOMICS: Final = {
    "add": Atomic.ADD, "min": Atomic.MIN, "max": Atomic.MAX, "and": Atomic.AND, "or": Atomic.OR, "xor": Atomic.XOR, "exch": Atomic.EXCH,
    "cas": Atomic.CAS, "inc": Atomic.INC, "dec": Atomic.DEC,
}  # fmt: skip
_ATOMIC_TYPES: Final = {
    **{f"{kind}{bits}": table[bits] for kind, table in (("b", UNSIGNED), ("u", UNSIGNED), ("s", SIGNED)) for bits in (32, 64)},
    "f32": DType.F32,
    "f64": DType.F64,
}
_ATOMIC_MODS: Final = f"{' '.join(_ATOMICS)} {_ORDER} {_CACHE}"


@lowers("atom", _ATOMIC_MODS, (3, 5), effect=True)
def _atom(low: RoutineLowering, ins: Instruction) -> None:
    _atomic(low, ins, ins.args[0], ins.args[1], ins.args[2:])


@lowers("red", _ATOMIC_MODS + " async", (2, 4), effect=True)
def _red(low: RoutineLowering, ins: Instruction) -> None:
    if {"exch", "cas"} & set(ins.mods):
        raise low.fail(f"{ins.text} is not supported: it is atom that has these")
    _atomic(low, ins, None, ins.args[0], ins.args[1:])


def _atomic(low: RoutineLowering, ins: Instruction, target: Operand | None, where: Operand, given: list[Operand]) -> None:
    mods = ins.mods
    function = next((_ATOMICS[m] for m in mods if m in _ATOMICS), None)
    if function is None or "async" in mods or space_of(mods) is Space.CONST:
        raise low.fail(f"{ins.text} is not supported")
    wanted = 2 if function is Atomic.CAS else 1
    if not wanted <= len(given) <= wanted + 1:  # one more may be a cache policy, which changes no result
        raise low.fail(f"{ins.text} takes {wanted} values, not {len(given)}")
    ordered = bool({"acquire", "release", "acq_rel"} & set(mods))
    if ordered and "acquire" not in mods:
        _fence(low, mods)
    base, offset = address(low, where)
    targets = _items(low, target, mods) if target is not None else None
    values = [_items(low, arg, mods) for arg in given[:wanted]]
    type_ = mods[-1]
    for k in range(len(values[0])):
        operands = [value[k] for value in values]
        one = None if targets is None else targets[k]
        _one_atomic(low, function, type_, one, (base, offset + k * BITS[type_] // 8), operands, space_of(mods))
    low.settle()
    if ordered and "release" not in mods:
        _fence(low, mods)


def _one_atomic(
    low: RoutineLowering, function: Atomic, type_: str, target: Operand | None, where: tuple[int, int], given: list[Operand], space: Space
) -> None:
    dtype = _ATOMIC_TYPES.get(type_)
    if dtype is None:
        small_atomic(low, function, type_, target, where, given, space)
        return
    if dtype in (DType.F32, DType.F64) and function is not Atomic.ADD:
        raise low.fail(f"atomic {function.name.lower()} of .{type_} is not supported")
    register = _register_for(dtype, type_)
    values = [low.read(value, register) for value in given]
    attrs = (int(space), 0, int(dtype), int(function), where[1])
    if target is None:
        low.emit("red", [], [where[0], *values], attrs)
    else:
        low.emit("atom", [low.write(target, register)], [where[0], *values], attrs)


_I16, _I32, _F32, _PRED = RegType.I16, RegType.I32, RegType.F32, RegType.PRED


def small_atomic(
    low: RoutineLowering, function: Atomic, type_: str, target: Operand | None, where: tuple[int, int], given: list[Operand], space: Space
) -> None:
    """``add`` of f16, bf16 and pairs of them; ``cas`` and ``exch`` of b16."""
    if type_ in ("f16x2", "bf16x2") and function is Atomic.ADD:
        value = low.read(given[0], _I32)
        result = _loop(low, space, where, lambda old: _add_both(low, old, value, type_[:-2]))
        if target is not None:
            low.put(target, result)
        return
    known = (type_ in HALVES and function is Atomic.ADD) or (type_ == "b16" and function in (Atomic.CAS, Atomic.EXCH))
    if not known:
        raise low.fail(f"atomic {function.name.lower()} of .{type_} is not supported")
    values = [low.read_int(arg, 16) for arg in given]
    base, shift, place = _word(low, where)

    def changed(word: int) -> int:
        old = low.op("narrow", _I16, low.op("shr_u", _I32, word, shift))
        if function is Atomic.ADD:
            new = low.convert(narrowed(low, low.op("add", _F32, _wide(low, old, type_), _wide(low, values[0], type_)), type_), _I16)
        elif function is Atomic.EXCH:
            new = values[0]
        else:
            new = low.op("sel", _I16, low.op("eq", _PRED, old, values[0]), values[1], old)
        hole = low.op("not", _I32, low.op("shl", _I32, low.const(_I32, 0xFFFF), shift))
        return low.op("or", _I32, low.op("and", _I32, word, hole), low.op("shl", _I32, low.op("zext", _I32, new), shift))

    word = _loop(low, space, (base, place), changed)
    if target is not None:
        low.put(target, low.op("narrow", _I16, low.op("shr_u", _I32, word, shift)))


def _wide(low: RoutineLowering, bits: int, type_: str) -> int:
    return low.op("cvt", _F32, low.op("reinterpret", RegType.F16 if type_ == "f16" else RegType.BF16, bits))


def _word(low: RoutineLowering, where: tuple[int, int]) -> tuple[int, int, int]:
    """The address of the word around 16 bits, how far up in it they are, and a displacement."""
    low.scene.whole_words = True
    base, offset = where
    kind = low.code.types[base]
    place = low.op("add", kind, base, low.const(kind, offset)) if offset else base
    odd = low.op("low_bits", kind, place, attrs=(2,))
    shift = low.op("shl", kind, odd, low.const(kind, 3))
    if kind is not _I32:
        shift = low.op("narrow", _I32, shift)
    return low.op("sub", kind, place, odd), shift, 0


def _add_both(low: RoutineLowering, old: int, value: int, type_: str) -> int:
    halves = [
        narrowed(low, low.op("add", _F32, half(low, old, type_, upper, _F32), half(low, value, type_, upper, _F32)), type_)
        for upper in (False, True)
    ]
    return joined(low, *halves)


def _loop(low: RoutineLowering, space: Space, where: tuple[int, int], changed: Callable[[int], int]) -> int:
    """The word before it was changed as one step."""
    base, offset = where
    old = low.code.temp(_I32)
    low.emit("load", [old], [base], (int(space), 0, int(DType.U32), 1, offset, 1))
    body, again, after = low.new_block(), low.new_block(), low.new_block()
    low.start(body)
    seen = low.code.temp(_I32)
    low.emit("atom", [seen], [base, old, changed(old)], (int(space), 0, int(DType.U32), int(Atomic.CAS), offset))
    low.end("cbr", [after, again], ins=[low.op("eq", _PRED, seen, old)])
    low.current = low.code.parts[again]
    low.emit("mov", [old], [seen])
    low.end("br", [body])
    low.current = low.code.parts[after]
    return old
