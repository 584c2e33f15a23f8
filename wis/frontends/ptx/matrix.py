"""Lowering of ``ldmatrix`` and ``mma``: matrices whose elements the lanes of a warp share."""

from __future__ import annotations

from typing import Final

from wis.dtypes import DType
from wis.frontends.ptx.classes import BITS
from wis.frontends.ptx.floats import half, joined
from wis.frontends.ptx.lowering import RoutineLowering, lowers
from wis.frontends.ptx.memory import address
from wis.frontends.ptx.syntax import Instruction, Operand, Vector
from wis.kernel.model import Matrix, RegType, Shuffle, Space, Special

__all__: list[str] = []

_I32, _I64, _PRED = RegType.I32, RegType.I64, RegType.PRED
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
        words = [low.read(x, _I32) for x in c] if packed else []
        start = (
            [half(low, word, "f16", upper, _F32) for word in words for upper in (False, True)] if packed else [low.read(x, sums) for x in c]
        )
        saturates = "satfinite" in ins.mods and whole
        results = [low.const(_I32, 0)] * 4 if saturates else start
        for step in range(depth):
            operands = [low.read(x, _I32) for x in (a[2 * step], a[2 * step + 1], b[step])]
            following = [low.code.temp(sums) for _ in range(4)]
            low.emit("mma", following, [*operands, *results], (int(form),))
            results = following
        if saturates:
            results = [_saturated(low, x, y) for x, y in zip(start, results, strict=True)]
        elif packed:
            rounded = [low.op("cvt", _F16, value) for value in results]
            results = [joined(low, rounded[0], rounded[1]), joined(low, rounded[2], rounded[3])]
    for target, result in zip(d, results, strict=True):
        low.put(target, result)


def _registers(arg: Operand) -> list[Operand]:
    return list(arg.items) if isinstance(arg, Vector) else [arg]


def _check(low: RoutineLowering, ins: Instruction, given: tuple[list[Operand], ...], wanted: tuple[int, ...]) -> None:
    counts = tuple(len(x) for x in given)
    if counts != wanted:
        raise low.fail(f"{ins.text} takes {wanted} registers for its matrices, not {counts}")


def _saturated(low: RoutineLowering, x: int, y: int) -> int:
    """The sum of two i32, kept inside of their range."""
    total = low.op("add", _I64, low.op("sext", _I64, x), low.op("sext", _I64, y))
    top, bottom = low.const(_I64, (1 << 31) - 1), low.const(_I64, -(1 << 31))
    return low.op("narrow", _I32, low.op("max_s", _I64, low.op("min_s", _I64, total, top), bottom))
