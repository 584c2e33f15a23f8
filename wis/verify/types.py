"""Third pass, element types: the rule that each op's table entry names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wis.dtypes import ACCUMULATE, COMPLEX, FLOATS, INTEGERS, DType
from wis.ops import Dist, Types
from wis.program import BoundInstr, Operand, Scalar
from wis.verify.report import Report

ORDERED_ONLY: Final = frozenset({
    "abs", "sign", "floor_div", "trunc_div", "mod", "fmod", "min", "max", "fmin", "fmax", "reduce_max", "reduce_min",
    "lt", "le", "gt", "ge",
})  # fmt: skip
_PARTS: Final = {DType.C64: DType.F32, DType.C128: DType.F64}


def check_types(instr: BoundInstr, report: Report) -> None:
    """Report operands of ``instr`` whose element type its op does not take."""
    _RULES[instr.op.types](instr, report)


def _fits(x: Operand | Scalar, want: DType) -> bool:
    """An immediate beside f16 or bf16 operands may also be f32, the type that all of them compute in."""
    return x.dtype is want or (isinstance(x, Scalar) and ACCUMULATE.get(want) is x.dtype)


def _want_out(instr: BoundInstr, report: Report, want: DType, number: int = 0) -> None:
    if instr.outs[number].dtype is not want:
        report.out(number, "type", f"{instr.outs[number].dtype.text}, {instr.op.name} gives {want.text} here")


def _want_in(instr: BoundInstr, report: Report, want: DType, number: int) -> None:
    x = instr.ins[number]
    if not _fits(x, want):
        report.ins(number, "type", f"{x.dtype.text}, {instr.op.name} takes {want.text} here")


def _common(instr: BoundInstr) -> DType:
    """The type that a same-type instruction is about: its first buffer input's, else its output's."""
    for x in instr.ins:
        if isinstance(x, Operand):
            return x.dtype
    return instr.outs[0].dtype


def _ordered(instr: BoundInstr, report: Report, dtype: DType) -> None:
    if dtype in COMPLEX:
        report.instr("type", f"{instr.op.name} is not defined for {dtype.text}, which has no order")


def _same(allowed: frozenset[DType], what: str) -> Callable[[BoundInstr, Report], None]:
    def check(instr: BoundInstr, report: Report) -> None:
        dtype = _common(instr)
        if dtype not in allowed:
            report.instr("type", f"{instr.op.name} takes {what}, not {dtype.text}")
        elif instr.op.name in ORDERED_ONLY:
            _ordered(instr, report, dtype)
        for number in range(len(instr.outs)):
            _want_out(instr, report, dtype, number)
        for number in range(len(instr.ins)):
            _want_in(instr, report, dtype, number)

    return check


def _bits(instr: BoundInstr, report: Report) -> None:
    _same(INTEGERS | {DType.BOOL}, "integer types or bool")(instr, report)


def _compare(instr: BoundInstr, report: Report) -> None:
    _want_out(instr, report, DType.BOOL)
    dtype = next((x.dtype for x in instr.ins if isinstance(x, Operand)), instr.ins[0].dtype)
    for number in range(len(instr.ins)):
        _want_in(instr, report, dtype, number)
    if instr.op.name in ORDERED_ONLY:
        _ordered(instr, report, dtype)


def _test(instr: BoundInstr, report: Report) -> None:
    _want_out(instr, report, DType.BOOL)
    if instr.ins[0].dtype not in FLOATS | COMPLEX:
        report.ins(0, "type", f"{instr.op.name} takes a float or complex type, not {instr.ins[0].dtype.text}")


def _where(instr: BoundInstr, report: Report) -> None:
    _want_in(instr, report, DType.BOOL, 0)
    for number in (1, 2):
        _want_in(instr, report, instr.outs[0].dtype, number)


def _cast(instr: BoundInstr, report: Report) -> None:
    """Anything goes."""


def _parts(instr: BoundInstr, report: Report) -> None:
    part = _PARTS.get(instr.ins[0].dtype)
    if part is None:
        report.ins(0, "type", f"{instr.op.name} takes a complex type, not {instr.ins[0].dtype.text}")
    else:
        _want_out(instr, report, part)


def _join(instr: BoundInstr, report: Report) -> None:
    part = _PARTS.get(instr.outs[0].dtype)
    if part is None:
        report.out(0, "type", f"{instr.op.name} gives a complex type, not {instr.outs[0].dtype.text}")
    else:
        for number in (0, 1):
            _want_in(instr, report, part, number)


def _arg(instr: BoundInstr, report: Report) -> None:
    _ordered(instr, report, instr.ins[0].dtype)
    _want_out(instr, report, DType.I64)


def _with_arg(instr: BoundInstr, report: Report) -> None:
    _ordered(instr, report, instr.ins[0].dtype)
    _want_out(instr, report, instr.ins[0].dtype, 0)
    _want_out(instr, report, DType.I64, 1)


def _indexed(instr: BoundInstr, report: Report) -> None:
    if instr.ins[0].dtype is not instr.outs[0].dtype:
        report.ins(0, "type", f"{instr.ins[0].dtype.text}, the output has {instr.outs[0].dtype.text}")
    for number, x in enumerate(instr.ins[1:], 1):
        if x.dtype not in (DType.I64, DType.U64):
            report.ins(number, "type", f"{x.dtype.text}, {instr.op.name} takes i64 or u64 here")


def _iota(instr: BoundInstr, report: Report) -> None:
    dtype = instr.outs[0].dtype
    family = INTEGERS if dtype in INTEGERS else FLOATS
    if dtype not in INTEGERS | FLOATS:
        report.out(0, "type", f"iota gives an integer or float type, not {dtype.text}")
    for number, x in enumerate(instr.ins):
        if x.dtype not in family:
            report.ins(number, "type", f"{x.dtype.text} immediate beside a {dtype.text} output")


def _random(instr: BoundInstr, report: Report) -> None:
    allowed = {DType.I32, DType.I64} if instr.attrs[0] == Dist.BITS else FLOATS
    if instr.outs[0].dtype not in allowed:
        report.out(0, "type", f"random with dist {instr.attrs[0]} does not give {instr.outs[0].dtype.text}")
    for number in (0, 1):
        _want_in(instr, report, DType.I64, number)


def _sign_bit(instr: BoundInstr, report: Report) -> None:
    if instr.ins[0].dtype not in FLOATS | INTEGERS:
        report.ins(0, "type", f"sign_bit takes a float or integer type, not {instr.ins[0].dtype.text}")
    _want_out(instr, report, DType.BOOL)


def _search_sorted(instr: BoundInstr, report: Report) -> None:
    _ordered(instr, report, instr.ins[0].dtype)
    _want_in(instr, report, instr.ins[0].dtype, 1)
    _want_out(instr, report, DType.I64)


def _nonzero(instr: BoundInstr, report: Report) -> None:
    _want_out(instr, report, DType.I64, 0)
    _want_out(instr, report, DType.I64, 1)


def _real(instr: BoundInstr, report: Report, number: int) -> DType:
    dtype = instr.ins[number].dtype
    if dtype not in FLOATS:
        report.ins(number, "type", f"{instr.op.name} takes a float type, not {dtype.text}")
    return dtype


def _weight(instr: BoundInstr, report: Report, number: int, dtype: DType) -> None:
    """Weights may have the data's type or the one it accumulates in."""
    x = instr.ins[number]
    if x.dtype is not dtype and x.dtype is not ACCUMULATE.get(dtype, dtype):
        report.ins(number, "type", f"{x.dtype.text} beside {dtype.text} data")


def _layer_norm(instr: BoundInstr, report: Report) -> None:
    dtype = _real(instr, report, 0)
    for number in (1, 2):
        _weight(instr, report, number, dtype)
    _want_in(instr, report, DType.F64, 3)
    _want_out(instr, report, dtype, 0)
    for number in (1, 2):
        _want_out(instr, report, ACCUMULATE.get(dtype, dtype), number)


def _layer_norm_dx(instr: BoundInstr, report: Report) -> None:
    dtype = _real(instr, report, 0)
    _want_in(instr, report, dtype, 1)
    for number in (2, 3):
        _want_in(instr, report, ACCUMULATE.get(dtype, dtype), number)
    _weight(instr, report, 4, dtype)
    _want_out(instr, report, dtype)


def _layer_norm_dwb(instr: BoundInstr, report: Report) -> None:
    dtype = _real(instr, report, 0)
    _want_in(instr, report, dtype, 1)
    for number in (2, 3):
        _want_in(instr, report, ACCUMULATE.get(dtype, dtype), number)
    for number, out in enumerate(instr.outs):
        if out.dtype is not dtype and out.dtype is not ACCUMULATE.get(dtype, dtype):
            report.out(number, "type", f"{out.dtype.text} beside {dtype.text} data")


def _sdpa(instr: BoundInstr, report: Report) -> None:
    dtype = _real(instr, report, 0)
    for number in (1, 2, *range(4, len(instr.ins))):
        _want_in(instr, report, dtype, number)
    _want_in(instr, report, DType.F64, 3)
    _want_out(instr, report, dtype, 0)
    _want_out(instr, report, ACCUMULATE.get(dtype, dtype), 1)


def _sdpa_dx(instr: BoundInstr, report: Report) -> None:
    dtype = _real(instr, report, 0)
    for number in (1, 2, 3, 4, *range(7, len(instr.ins))):
        _want_in(instr, report, dtype, number)
    _want_in(instr, report, ACCUMULATE.get(dtype, dtype), 5)
    _want_in(instr, report, DType.F64, 6)
    for number in range(3):
        _want_out(instr, report, dtype, number)


def _adamw(instr: BoundInstr, report: Report) -> None:
    dtype = _real(instr, report, 0)
    for number in range(3):
        _want_out(instr, report, dtype, number)
    for number in range(1, 8):
        _want_in(instr, report, DType.F64, number)


_OWN: Final[dict[str, Callable[[BoundInstr, Report], None]]] = {
    "iota": _iota,
    "random": _random,
    "sign_bit": _sign_bit,
    "search_sorted": _search_sorted,
    "nonzero": _nonzero,
    "layer_norm": _layer_norm,
    "layer_norm_dx": _layer_norm_dx,
    "layer_norm_dwb": _layer_norm_dwb,
    "sdpa": _sdpa,
    "sdpa_dx": _sdpa_dx,
    "adamw": _adamw,
}

_RULES: Final[dict[Types, Callable[[BoundInstr, Report], None]]] = {
    Types.SAME: _same(frozenset(DType) - {DType.BOOL}, "any type but bool"),
    Types.SAME_ANY: _same(frozenset(DType), "any type"),
    Types.FLOAT: _same(FLOATS | COMPLEX, "float and complex types"),
    Types.REAL: _same(FLOATS, "float types"),
    Types.BITS: _bits,
    Types.INT: _same(INTEGERS, "integer types"),
    Types.COMPARE: _compare,
    Types.TEST: _test,
    Types.WHERE: _where,
    Types.CAST: _cast,
    Types.PARTS: _parts,
    Types.JOIN: _join,
    Types.ARG: _arg,
    Types.WITH_ARG: _with_arg,
    Types.INDEXED: _indexed,
    Types.LAUNCH: lambda instr, report: None,  # by its kernel: launches
    Types.OWN: lambda instr, report: _OWN[instr.op.name](instr, report),
}
