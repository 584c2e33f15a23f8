"""Lowering of ``ldmatrix``, ``mma`` and ``wmma``: matrices whose elements the lanes of a warp share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from wis.dtypes import DType
from wis.frontends.ptx.classes import BITS
from wis.frontends.ptx.floats import half, joined
from wis.frontends.ptx.lowering import RoutineLowering, access, lowers
from wis.frontends.ptx.memory import address, space_of
from wis.frontends.ptx.syntax import Instruction, Operand, Vector
from wis.kernel.matrix import ELEMENTS, INTEGERS
from wis.kernel.model import Matrix, RegType, Shuffle, Space, Special

__all__: list[str] = []

_I16, _I32, _I64, _PRED = RegType.I16, RegType.I32, RegType.I64, RegType.PRED
_F16, _F32, _F64 = RegType.F16, RegType.F32, RegType.F64


@lowers("ldmatrix", "sync aligned m8n8 x1 x2 x4 trans shared", 2, effect=True)
def _ldmatrix(low: RoutineLowering, ins: Instruction) -> None:
    """Matrix j's row r starts where lane 8 j + r says; lane l takes two elements of row l / 4 (of column l / 4 when transposed)."""
    if ins.mods[-1] != "b16":
        raise low.fail(f"{ins.text} is not supported")
    targets = list(ins.args[0].items) if isinstance(ins.args[0], Vector) else [ins.args[0]]
    base, offset = address(low, ins.args[1])
    wide = low.code.types[base] is _I64
    if wide:
        base = low.op("narrow", _I32, base)
    lane = low.op("special", _I32, attrs=(int(Special.LANE),))
    group, within = low.op("shr_u", _I32, lane, low.const(_I32, 2)), low.op("and", _I32, lane, low.const(_I32, 3))
    results = []
    for j in range(len(targets)):
        row = _lane_value(low, base, low.op("add", _I32, group, low.const(_I32, 8 * j)))
        place = low.op("add", _I32, row, low.op("shl", _I32, within, low.const(_I32, 2)))
        result = low.code.temp(_I32)
        low.emit("load", [result], [place], (int(Space.SHARED), 0, int(DType.U32), 1, offset, 0))
        results.append(_transposed(low, result, group, within) if "trans" in ins.mods else result)
    for target, result in zip(targets, results, strict=True):
        low.put(target, result)


def _lane_value(low: RoutineLowering, value: int, lane: int) -> int:
    result = low.code.temp(_I32)
    ins = [value, lane, low.const(_I32, 31), low.const(_I32, -1)]
    low.emit("shfl", [result, low.code.temp(_PRED)], ins, (int(Shuffle.IDX),))
    return result


def _transposed(low: RoutineLowering, words: int, group: int, within: int) -> int:
    """Of a matrix whose row g has its elements 2 t and 2 t + 1 in lane 4 g + t: column g's elements of the rows 2 t and 2 t + 1."""
    first = low.op("add", _I32, low.op("shl", _I32, within, low.const(_I32, 3)), low.op("shr_u", _I32, group, low.const(_I32, 1)))
    upper, lower = _lane_value(low, words, low.op("add", _I32, first, low.const(_I32, 4))), _lane_value(low, words, first)
    odd = low.op("shl", _I32, low.op("and", _I32, group, low.const(_I32, 1)), low.const(_I32, 4))  # bits to the element in its word
    low_half = low.op("and", _I32, low.op("shr_u", _I32, lower, odd), low.const(_I32, 0xFFFF))
    return low.op("or", _I32, low_half, low.op("shl", _I32, low.op("shr_u", _I32, upper, odd), low.const(_I32, 16)))


# -- products --------------------------------------------------------------------------------------------------------------------------

_FORMS: Final = {
    ("f16", "f16"): Matrix.F16, ("bf16", "bf16"): Matrix.BF16, ("tf32", "tf32"): Matrix.TF32, ("s8", "s8"): Matrix.S8,
    ("u8", "u8"): Matrix.U8, ("s8", "u8"): Matrix.S8_U8, ("u8", "s8"): Matrix.U8_S8,
}  # fmt: skip
_DEPTHS: Final = {
    ("f16", "m16n8k8"): 1, ("f16", "m16n8k16"): 2, ("bf16", "m16n8k8"): 1, ("bf16", "m16n8k16"): 2, ("tf32", "m16n8k4"): 1,
    ("tf32", "m16n8k8"): 2, ("s8", "m16n8k16"): 1, ("s8", "m16n8k32"): 2, ("u8", "m16n8k16"): 1, ("u8", "m16n8k32"): 2,
}  # fmt: skip
"""By elements and shape: how many ops of the smallest K, which an instruction is, one after the other."""
_SHAPES: Final = "m16n8k4 m16n8k8 m16n8k16 m16n8k32 m8n8k4 m8n8k16"
_HINT: Final = "compute the product with ordinary arithmetic, or call torch.matmul"


@lowers("mma", f"sync aligned row col satfinite tf32 {_SHAPES}", 4, effect=True)
def _mma(low: RoutineLowering, ins: Instruction) -> None:
    """The fragments are those of wis.kernel.matrix; of 16-bit sums, computed in f32 and rounded once an instruction."""
    shape = next((m for m in ins.mods if m in _SHAPES.split()), "")
    types = [m for m in ins.mods if m in BITS]
    if ins.mods.count("tf32") == 2 and len(types) == 2:
        types[1:1] = ["tf32", "tf32"]  # no type of registers, so it stands before all types
    if len(types) != 4 or not {"row", "col"} <= set(ins.mods):
        raise low.fail(f"{ins.text} is not portable", _HINT)
    d_type, a_type, b_type, c_type = types
    d, a, b, c = (_registers(arg) for arg in ins.args)
    if (shape, d_type, a_type, b_type, c_type) == ("m8n8k4", "f64", "f64", "f64", "f64"):
        _check(low, ins, (d, a, b, c), (2, 1, 1, 2))
        operands = [low.read(x, _F64) for x in (*a, *b, *c)]
        results = [low.code.temp(_F64) for _ in d]
        low.emit("mma_f64", results, operands)
    else:
        form, depth = _FORMS.get((a_type, b_type)), _DEPTHS.get((a_type, shape), 0)
        sums = {"f32": _F32, "f16": _F32, "s32": _I32}.get(d_type)
        whole = a_type in ("s8", "u8")
        if form is None or not depth or d_type != c_type or sums is None or whole != (sums is _I32) or (d_type == "f16" != a_type):
            raise low.fail(f"{ins.text} is not portable", _HINT)
        packed = d_type == "f16"
        _check(low, ins, (d, a, b, c), (2 if packed else 4, 2 * depth, depth, 2 if packed else 4))
        start = _halves(low, c) if packed else [low.read(x, sums) for x in c]
        results = _summed(low, ins, form, start, [(a[2 * step], a[2 * step + 1], b[step]) for step in range(depth)])
        results = _joined_halves(low, results) if packed else results
    for target, result in zip(d, results, strict=True):
        low.put(target, result)


def _registers(arg: Operand) -> list[Operand]:
    return list(arg.items) if isinstance(arg, Vector) else [arg]


def _check(low: RoutineLowering, ins: Instruction, given: tuple[list[Operand], ...], wanted: tuple[int, ...]) -> None:
    counts = tuple(len(x) for x in given)
    if counts != wanted:
        raise low.fail(f"{ins.text} takes {wanted} registers for its matrices, not {counts}")


def _summed(
    low: RoutineLowering, ins: Instruction, form: Matrix, start: list[int], steps: Sequence[tuple[Operand, Operand, Operand]]
) -> list[int]:
    """``start`` and the products of all steps: registers of A (two) and B."""
    saturates = "satfinite" in ins.mods
    if saturates and form not in INTEGERS:
        raise low.fail(f"{ins.text} is not portable: sums of floats are not kept inside of their range", _HINT)
    results = [low.const(_I32, 0)] * 4 if saturates else start
    for operands in [[low.read(x, _I32) for x in step] for step in steps]:  # products side by side are faster on some devices
        following = [low.code.temp(low.code.types[start[0]]) for _ in range(4)]
        low.emit("mma", following, [*operands, *results], (int(form),))
        results = following
    return [_saturated(low, x, y) for x, y in zip(start, results, strict=True)] if saturates else results


def _halves(low: RoutineLowering, words: Sequence[Operand]) -> list[int]:
    """The two f16 of every word, as f32."""
    return [half(low, word, "f16", upper, _F32) for word in (low.read(x, _I32) for x in words) for upper in (False, True)]


def _joined_halves(low: RoutineLowering, values: Sequence[int]) -> list[int]:
    """Pairs of f32 as words of two f16."""
    rounded = [low.op("cvt", _F16, value) for value in values]
    return [joined(low, rounded[i], rounded[i + 1]) for i in range(0, len(rounded), 2)]


def _saturated(low: RoutineLowering, x: int, y: int) -> int:
    """The sum of two i32, kept inside of their range."""
    total = low.op("add", _I64, low.op("sext", _I64, x), low.op("sext", _I64, y))
    top, bottom = low.const(_I64, (1 << 31) - 1), low.const(_I64, -(1 << 31))
    return low.op("narrow", _I32, low.op("max_s", _I64, low.op("min_s", _I64, total, top), bottom))


# -- wmma: fragments whose places are ours to choose -------------------------------------------------------------------------------------

_WMMA_FORMS: Final = {
    "f16": (Matrix.F16, 16), "bf16": (Matrix.BF16, 16), "tf32": (Matrix.TF32, 8), "s8": (Matrix.S8, 16), "u8": (Matrix.U8, 16),
}  # fmt: skip
"""By the type of A and B: the elements, and the depth of the one shape that is accepted (m16n16k8 for tf32, m16n16k16)."""
_WORDS: Final = {Matrix.F16: DType.U16, Matrix.BF16: DType.U16, Matrix.TF32: DType.U32, Matrix.S8: DType.U8, Matrix.U8: DType.U8}
_WMMA_MODS: Final = "load store mma a b c d sync aligned row col satfinite tf32 m16n16k16 m16n16k8 m32n8k16 m8n32k16 global shared"


class _Places(NamedTuple):
    """Where a lane's elements of a matrix are in memory. ``wide``: the type of addresses; ``stride``: elements from one row (of a column
    layout: column) to the next, in that type; ``size``: bytes of an element."""

    space: Space
    base: int
    offset: int
    wide: RegType
    stride: int
    by_rows: bool
    size: int

    def of(self, low: RoutineLowering, row: int, column: int) -> tuple[int, int]:
        """The place of an element, whose row and column are i32 registers."""
        major, minor = (row, column) if self.by_rows else (column, row)
        wider = [low.extend(x, self.wide, signed=False) for x in (major, minor)]
        element = low.op("add", self.wide, low.op("mul", self.wide, wider[0], self.stride), wider[1])
        return low.op("add", self.wide, self.base, low.op("mul", self.wide, element, low.const(self.wide, self.size))), self.offset


def _places(low: RoutineLowering, ins: Instruction, where: Operand, stride: Operand | None, default: int, size: int) -> _Places:
    base, offset = address(low, where)
    wide = low.code.types[base]
    step = low.const(wide, default) if stride is None else low.extend(low.read(stride, _I32), wide, signed=False)
    return _Places(space_of(tuple(m for m in ins.mods if m != "aligned")), base, offset, wide, step, "row" in ins.mods, size)


@lowers("wmma", _WMMA_MODS, (2, 4), effect=True, typed=False)
def _wmma(low: RoutineLowering, ins: Instruction) -> None:
    """A fragment holds what ``mma`` takes: of A the words of all steps, of B and C those of the left 8 columns, then of the right ones."""
    types = [m for m in ins.mods if m in BITS or m == "tf32"]
    # The shape says how deep A and B are, which is 8 for tf32; C and D have one form for both shapes.
    sums_only = not {"a", "b", "mma"} & set(ins.mods)
    accepted = {"m16n16k16", "m16n16k8"} if sums_only else {"m16n16k8" if "tf32" in types else "m16n16k16"}
    if not accepted & set(ins.mods) or not types or not {"row", "col"} & set(ins.mods):
        raise low.fail(f"{ins.text} is not portable", _HINT)
    lane = low.op("special", _I32, attrs=(int(Special.LANE),))
    group, within = low.op("shr_u", _I32, lane, low.const(_I32, 2)), low.op("and", _I32, lane, low.const(_I32, 3))
    if "mma" in ins.mods:
        _wmma_product(low, ins, types)
    elif "store" in ins.mods:
        _wmma_sums(low, ins, types[-1], ins.args[0], _registers(ins.args[1]), ins.args[2:], group, within)
    elif "c" in ins.mods:
        _wmma_sums(low, ins, types[-1], ins.args[1], _registers(ins.args[0]), ins.args[2:], group, within)
    else:
        _wmma_factor(low, ins, types[-1], group, within)


def _sum_places(low: RoutineLowering, places: _Places, group: int, within: int) -> list[tuple[int, int]]:
    found = []
    for column in (0, 8):
        for i in range(4):
            row = low.op("add", _I32, group, low.const(_I32, 8 * (i >> 1)))
            twice = low.op("shl", _I32, within, low.const(_I32, 1))
            found.append(places.of(low, row, low.op("add", _I32, twice, low.const(_I32, column + (i & 1)))))
    return found


def _wmma_sums(
    low: RoutineLowering, ins: Instruction, kind: str, where: Operand, registers: list[Operand], stride: Sequence[Operand], group: int,
    within: int,
) -> None:  # fmt: skip
    """Loads or stores C."""
    packed = kind == "f16"
    if kind not in ("f16", "f32", "s32") or len(registers) != (4 if packed else 8):
        raise low.fail(f"{ins.text} is not portable", _HINT)
    dtype = DType.U16 if packed else DType.F32 if kind == "f32" else DType.U32
    places = _places(low, ins, where, stride[0] if stride else None, 16, dtype.itemsize)
    held = _I16 if packed else _F32 if kind == "f32" else _I32
    at = _sum_places(low, places, group, within)
    if "store" in ins.mods:
        for i, place in enumerate(at):
            value = low.read(registers[i // 2 if packed else i], _I32 if packed else held)
            if packed:
                value = low.op("narrow", _I16, low.op("shr_u", _I32, value, low.const(_I32, 16)) if i % 2 else value)
            access(low, "store", places.space, place, [value], dtype)
        return
    values = [low.code.temp(held) for _ in at]
    for place, value in zip(at, values, strict=True):
        access(low, "load", places.space, place, [value], dtype)
    results = [joined(low, values[i], values[i + 1]) for i in range(0, 8, 2)] if packed else values
    for register, result in zip(registers, results, strict=True):
        low.put(register, result)


def _wmma_factor(low: RoutineLowering, ins: Instruction, kind: str, group: int, within: int) -> None:
    """Loads A or B."""
    form, depth = _WMMA_FORMS[kind]
    each, dtype = ELEMENTS[form], _WORDS[form]
    registers = _registers(ins.args[0])
    places = _places(low, ins, ins.args[1], ins.args[2] if len(ins.args) > 2 else None, depth if _along(ins) else 16, dtype.itemsize)
    words = []
    is_a = "a" in ins.mods
    steps = [(right, step) for step in range(depth // (4 * each)) for right in (0, 8)]
    if not is_a:
        steps.sort()
    for right, step in steps:
        across = low.op("add", _I32, group, low.const(_I32, right))
        first = low.op("mul", _I32, within, low.const(_I32, each))
        word = low.const(_I32, 0)
        for e in range(each):
            along = low.op("add", _I32, first, low.const(_I32, 4 * each * step + e))
            value = low.code.temp(_I32 if dtype is DType.U32 else _I16)
            access(low, "load", places.space, places.of(low, *((across, along) if is_a else (along, across))), [value], dtype)
            whole = value if dtype is DType.U32 else low.op("zext", _I32, value)
            word = low.op("or", _I32, word, low.op("shl", _I32, whole, low.const(_I32, e * 8 * dtype.itemsize)))
        words.append(word)
    _check_factor(low, ins, registers, len(words))
    for i, register in enumerate(registers):
        low.put(register, words[i] if i < len(words) else low.const(_I32, 0))


def _along(ins: Instruction) -> bool:
    """Whether rows of memory run along K."""
    return ("a" in ins.mods) == ("row" in ins.mods)


def _wmma_product(low: RoutineLowering, ins: Instruction, types: list[str]) -> None:
    kinds = set(types[1:3]) if len(types) == 4 else {"f16"}
    kind = kinds.pop()
    form, depth = _WMMA_FORMS[kind]
    d_type, c_type = types[0], types[-1]
    d, a, b, c = (_registers(arg) for arg in ins.args)
    steps = depth // (4 * ELEMENTS[form])
    whole = form in INTEGERS
    kept = {"s32": 8} if whole else {"f16": 4, "f32": 8}
    if kinds or d_type not in kept or c_type not in kept or (len(d), len(c)) != (kept[d_type], kept[c_type]):
        raise low.fail(f"{ins.text} is not portable", _HINT)
    _check_factor(low, ins, a, 2 * steps)
    _check_factor(low, ins, b, 2 * steps)
    start = _halves(low, c) if c_type == "f16" else [low.read(x, _I32 if whole else _F32) for x in c]
    found: list[int] = []
    for side in range(2):
        factors = [(a[2 * step], a[2 * step + 1], b[side * steps + step]) for step in range(steps)]
        found += _summed(low, ins, form, start[4 * side : 4 * side + 4], factors)
    for target, result in zip(d, _joined_halves(low, found) if d_type == "f16" else found, strict=True):
        low.put(target, result)


def _check_factor(low: RoutineLowering, ins: Instruction, registers: list[Operand], n: int) -> None:
    """A fragment of f16 has twice the registers that its elements need."""
    if len(registers) not in (n, 2 * n):
        raise low.fail(f"{ins.text} takes {n} registers for a factor, not {len(registers)}")
