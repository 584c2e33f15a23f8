"""Lowers atomics on 16 bits and on packed halves to a compare-and-swap loop on the word that holds them."""

from __future__ import annotations

from collections.abc import Callable

from wis.dtypes import DType
from wis.frontends.ptx.floats import half, joined, narrowed
from wis.frontends.ptx.lowering import HALVES, RoutineLowering
from wis.frontends.ptx.syntax import Operand
from wis.kernel.model import Atomic, RegType, Space

__all__ = ["small_atomic"]

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
