"""Lowers calls: arguments and results in ``.param`` variables, functions of the file, symbolic math functions, and refusals."""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from wis.dtypes import DType
from wis.frontends.ptx.classes import BITS, INTEGER
from wis.frontends.ptx.lowering import FLOATS, RoutineLowering, access, element, lowers
from wis.frontends.ptx.scene import Slot
from wis.frontends.ptx.syntax import Address, Instruction, Name, Operand, Register
from wis.kernel.model import RegType, Space

MATH: Final = {
    f"__wis_{name}f": name
    for name in (
        "exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
        "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "pow", "atan2", "hypot", "rsqrt", "digamma", "sigmoid",
    )
}  # fmt: skip
"""Functions of the header that keeps math symbolic, and the named op of each."""
_RAISING: Final = frozenset({"__assertfail", "__assert_fail"})
_REFUSED: Final = {
    "vprintf": "printf has nowhere to print to: store values into a buffer",
    "malloc": "memory is given to a kernel by its caller: pass a buffer",
    "free": "memory is given to a kernel by its caller: pass a buffer",
    "cudaCGGetIntrinsicHandle": "grid-wide synchronisation is not portable: split the kernel into launches",
    "cudaCGSynchronize": "grid-wide synchronisation is not portable: split the kernel into launches",
    "cudaLaunchDeviceV2": "kernels cannot launch kernels: launch from the host",
    "cudaGetParameterBufferV2": "kernels cannot launch kernels: launch from the host",
}


def argument_store(low: RoutineLowering, ins: Instruction, items: list[Operand]) -> bool:
    """``st.param``: to an argument of the next call, or to a result of this function. False when the address is computed."""
    arg = ins.args[0]
    if not isinstance(arg, Address) or not isinstance(arg.base, Name):
        return False
    name, offset = arg.base.text, arg.base.offset + arg.offset
    type_ = ins.mods[-1]
    size = BITS[type_] // 8
    values = [_value(low, item, type_) for item in items]
    if name in low.routine.locals:
        for k, value in enumerate(values):
            low.call_inputs.setdefault(name, {})[offset + k * size] = (value, size)
        return True
    for number, (slot, register) in _results(low):
        if slot.name != name:
            continue
        if slot.type is None:
            for k, value in enumerate(values):
                _store_local(low, slot.symbol, offset + k * size, value, size)
        else:
            assert register is not None, number
            _check_whole(low, name, offset, values, size, slot)
            low.emit("mov", [register], [_as(low, values[0], slot.type)])
        return True
    raise low.fail(f"{name} is not declared")


def _check_whole(low: RoutineLowering, name: str, offset: int, parts: Sized, size: int, slot: Slot) -> None:
    """Raises PtxError when a number is passed in pieces."""
    if offset or len(parts) != 1 or size > slot.nbytes:
        raise low.fail(f"{name} is a number of {slot.nbytes} bytes, which is passed as a whole", "declare an array of bytes")


def _value(low: RoutineLowering, item: Operand, type_: str) -> int:
    """A copy of an argument's value as it is now."""
    natural = FLOATS.get(type_, INTEGER[BITS[type_]])
    if isinstance(item, Register) and low.type_of(item).bits == natural.bits:
        natural = low.type_of(item)
    value = low.read_low(item, natural)
    return value if value in low.code.constants else low.op("mov", natural, value)


def _results(low: RoutineLowering) -> list[tuple[int, tuple[Slot, int | None]]]:
    if low.routine.kernel:
        return []
    slots = low.scene.signature(low.routine.name).outs
    registers = iter(low.code.outs)
    return list(enumerate((slot, next(registers) if slot.type is not None else None) for slot in slots))


def result_load(low: RoutineLowering, ins: Instruction, name: str, offset: int, items: list[Operand]) -> bool:
    """``ld.param``: of an argument of this function, or of a result of the last call. False when it is neither."""
    type_ = ins.mods[-1]
    size = BITS[type_] // 8
    if name in low.routine.locals:
        results = low.call_results.get(name)
        if results is None:
            raise low.fail(f"{name.partition('@')[0]} is read before a call has filled it")
        if -1 in results:
            _load_local(low, ins, results[-1], offset, items)
            return True
        _deliver(low, items, [results.get(offset + k * size) for k in range(len(items))], type_)
        return True
    if low.routine.kernel:
        raise low.fail(f"{name} is not a parameter")
    registers = iter(low.code.ins)
    for slot in low.scene.signature(low.routine.name).ins:
        register = next(registers) if slot.type is not None else None
        if slot.name == name:
            if register is None:
                _load_local(low, ins, slot.symbol, offset, items)
            else:
                _check_whole(low, name, offset, items, size, slot)
                _deliver(low, items, [register], type_)
            return True
    raise low.fail(f"{name} is not a parameter")


def _deliver(low: RoutineLowering, items: list[Operand], values: list[int | None], type_: str) -> None:
    for item, value in zip(items, values, strict=True):
        if value is None:
            raise low.fail("a part of a result that the call did not give")
        have = low.code.types[value]
        bits = BITS[type_]
        if have.bits > bits:
            value = low.op("narrow", INTEGER[bits], low.convert(value, INTEGER[have.bits]))
        if isinstance(item, Register) and low.type_of(item).bits > low.code.types[value].bits:
            whole = low.convert(value, INTEGER[low.code.types[value].bits])
            value = low.extend(whole, INTEGER[low.type_of(item).bits], signed=type_[0] == "s")
        low.put(item, value)


def _load_local(low: RoutineLowering, ins: Instruction, symbol: int, offset: int, items: list[Operand]) -> None:
    type_ = ins.mods[-1]
    size = BITS[type_] // 8
    for k, item in enumerate(items):
        register, dtype = element(low, type_, item)
        base = low.op("symbol", RegType.I64, attrs=(symbol,))
        access(low, "load", Space.LOCAL, (base, offset + k * size), [low.write(item, register)], dtype)


def _store_local(low: RoutineLowering, symbol: int, offset: int, value: int, size: int) -> None:
    have = low.code.types[value]
    exact = {RegType.F16: DType.F16, RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64}.get(have)
    dtype = exact or {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}[size]
    base = low.op("symbol", RegType.I64, attrs=(symbol,))
    low.emit("store", [], [base, value], (int(Space.LOCAL), 0, int(dtype), 1, offset, 0))


@lowers("call", "uni", (1, 2), effect=True, typed=False)
def _call(low: RoutineLowering, ins: Instruction) -> None:
    target = ins.args[0]
    assert ins.lists is not None, "a call has lists"
    if not isinstance(target, Name):
        raise low.fail("calls through function pointers are not portable", "call functions by name, or switch over a number")
    name = target.text
    results, given = ins.lists
    if name in MATH:
        _math(low, MATH[name], results, given)
        return
    if name in _RAISING:
        low.emit("raise", [], [])
        low.end("ret", [])
        return
    if name == "vprintf" and low.scene.drops_prints:
        for result in results:
            _result(low, result, low.const(RegType.I32, 0))
        return
    if name in _REFUSED:
        raise low.fail(f"{name} is not portable", _REFUSED[name])
    routine = low.scene.source.routines.get(name)
    if routine is None or not routine.defined:
        hint = "the device runtime is not portable" if name.startswith("cuda") else "put the function into the same source"
        raise low.fail(f"{name} is called but not defined in this file", hint)
    _function(low, name, results, given)


def _function(low: RoutineLowering, name: str, results: list[Operand], given: list[Operand]) -> None:
    signature = low.scene.signature(name)
    if len(given) != len(signature.ins) or len(results) != len(signature.outs):
        raise low.fail(f"{name} takes {len(signature.ins)} arguments and gives {len(signature.outs)} results")
    ins: list[int] = []
    for slot, arg in zip(signature.ins, given, strict=True):
        values = _given(low, arg, slot)
        if slot.type is None:
            for offset, (value, size) in sorted(values.items()):
                _store_local(low, slot.symbol, offset, value, size)
        else:
            if 0 not in values:
                raise low.fail(f"{name} gets no value for {slot.name}")
            _check_whole(low, slot.name, 0, values, values[0][1], slot)
            ins.append(_as(low, values[0][0], slot.type))
    outs = [low.code.temp(slot.type) for slot in signature.outs if slot.type is not None]
    following = low.new_block()
    low.end("call", [following], ins=ins, outs=outs, extra=(signature.number,))
    low.current = low.code.parts[following]
    registers = iter(outs)
    for slot, arg in zip(signature.outs, results, strict=True):
        if slot.type is None:
            if isinstance(arg, Name):
                low.call_results[arg.text] = {-1: slot.symbol}
        else:
            _result(low, arg, next(registers))


def _given(low: RoutineLowering, arg: Operand, slot: Slot) -> dict[int, tuple[int, int]]:
    """By offset, the register and size of what was stored to an argument."""
    if isinstance(arg, Name) and arg.text in low.routine.locals:
        return low.call_inputs.get(arg.text, {})
    if slot.type is None:
        raise low.fail("bytes are passed in a .param variable")
    return {0: (low.read(arg, slot.type), slot.nbytes)}


def _as(low: RoutineLowering, value: int, type_: RegType) -> int:
    have = low.code.types[value]
    if have.bits == type_.bits:
        return low.convert(value, type_)
    whole = low.convert(value, INTEGER[have.bits])
    part = low.op("narrow", INTEGER[type_.bits], whole) if have.bits > type_.bits else low.extend(whole, INTEGER[type_.bits], signed=False)
    return low.convert(part, type_)


def _result(low: RoutineLowering, arg: Operand, value: int) -> None:
    if isinstance(arg, Name) and arg.text in low.routine.locals:
        low.call_results[arg.text] = {0: value}
    else:
        low.put(arg, value)


def _math(low: RoutineLowering, name: str, results: list[Operand], given: list[Operand]) -> None:
    slot = Slot("", RegType.F32, -1, 4)
    arity = 2 if name in ("pow", "atan2", "hypot") else 1
    if len(given) != arity or len(results) != 1:
        raise low.fail(f"{name} takes {arity} numbers and gives one")
    values = [_given(low, arg, slot).get(0) for arg in given]
    ins = [_as(low, value[0], RegType.F32) for value in values if value is not None]
    if len(ins) != arity:
        raise low.fail(f"{name} gets no value")
    _result(low, results[0], low.op(name, RegType.F32, *ins))
