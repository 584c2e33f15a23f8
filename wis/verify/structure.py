"""First pass: every reference exists and every count fits, so that later passes cannot fail on a look-up. Needs no dims."""

from __future__ import annotations

from typing import Final

from wis.dtypes import DType
from wis.limits import Limits
from wis.ops import BY_CODE, Kind, Op
from wis.program import KERNELS_VERSION, VERSION, BufferKind, Imm, Instr, Program, Ref
from wis.verify.report import Report

_DTYPES: Final = frozenset(int(d) for d in DType)
_KINDS: Final = frozenset(int(k) for k in BufferKind)
_ATTR_MAX: Final = (1 << 31) - 1

_MUST_BE_IMMEDIATE: Final[dict[str, frozenset[int]]] = {
    "iota": frozenset({0, 1}),
    "random": frozenset({0, 1}),
    "layer_norm": frozenset({3}),
    "sdpa": frozenset({3}),
    "sdpa_dx": frozenset({6}),
    "adamw": frozenset(range(1, 8)),
}
_MAY_BE_IMMEDIATE: Final[dict[str, frozenset[int]]] = {
    "scatter": frozenset({0}),
    "layer_norm": frozenset({1, 2}),
    "layer_norm_dx": frozenset({4}),
}
_NONE: Final[frozenset[int]] = frozenset()


def check_structure(program: Program, limits: Limits, report: Report) -> None:
    """Report what is wrong with the structure alone."""
    version = KERNELS_VERSION if program.kernels else VERSION
    if program.version != version:
        report.program("version", f"version {program.version} is not {version}")
    for what, count, most in (
        ("instructions", len(program.code), limits.instructions_max),
        ("buffers", len(program.buffers), limits.buffers_max),
        ("scalars", program.n_scalars, limits.scalars_max),
        ("kernels", len(program.kernels), limits.kernels_max),
    ):
        if not 0 <= count <= most:
            report.program("limit", f"{count} {what}, at most {most} are accepted")
            return
    for number, kind in enumerate(program.buffers):
        if kind not in _KINDS:
            report.buffer(number, "buffer kind", f"{kind} is not a kind of buffer")
    for place, instr in enumerate(program.code):
        if report.full:
            return
        report.at(place)
        _check_instr(program, instr, limits, report)


def _check_instr(program: Program, instr: Instr, limits: Limits, report: Report) -> None:
    op = BY_CODE.get(instr.op)
    if op is None:
        report.instr("op", f"there is no op with code {instr.op}")
        return
    if op.kind is Kind.LAUNCH:
        _check_launch(program, instr, limits, report)
        return
    if len(instr.outs) != op.n_outs:
        report.instr("arity", f"{op.name} has {op.n_outs} outputs, not {len(instr.outs)}")
    least, most = op.n_ins
    most = limits.ins_max if most < 0 else most
    if not least <= len(instr.ins) <= most:
        report.instr("arity", f"{op.name} has {least if least == most else f'{least} to {most}'} inputs, not {len(instr.ins)}")
    for number, out in enumerate(instr.outs):
        _check_operand(program, out, limits, report, number, is_out=True)
    must, may = _MUST_BE_IMMEDIATE.get(op.name, _NONE), _MAY_BE_IMMEDIATE.get(op.name, _NONE)
    for number, operand in enumerate(instr.ins):
        _check_operand(program, operand, limits, report, number, is_out=False)
        immediate = isinstance(operand, Imm)
        if number in must and not immediate:
            report.ins(number, "immediate", f"{op.name} takes an immediate here")
        if immediate and number not in must and number not in may and op.kind is not Kind.MAP:
            report.ins(number, "immediate", f"{op.name} takes a buffer here")
    _check_attrs(op, instr.attrs, report)


def _check_launch(program: Program, instr: Instr, limits: Limits, report: Report) -> None:
    """What holds for every launch; what its kernel asks for is checked by ``launches``."""
    for number, out in enumerate(instr.outs):
        _check_operand(program, out, limits, report, number, is_out=True)
    for number, operand in enumerate(instr.ins):
        _check_operand(program, operand, limits, report, number, is_out=False)
    if len(instr.ins) < 3 or not all(isinstance(x, Imm) and x.dtype == DType.I64 for x in instr.ins[:3]):
        report.instr("immediate", "a launch starts with three immediates of type i64, its grid")
    _check_attrs(BY_CODE[instr.op], instr.attrs, report)


def _check_operand(program: Program, operand: Ref | Imm, limits: Limits, report: Report, number: int, *, is_out: bool) -> None:
    say = report.out if is_out else report.ins
    if operand.dtype not in _DTYPES:
        say(number, "dtype", f"{operand.dtype} is not an element type")
    if isinstance(operand, Imm):
        if not 0 <= operand.scalar < program.n_scalars:
            say(number, "scalar slot", f"slot {operand.scalar} of {program.n_scalars}")
        return
    if not 0 <= operand.buffer < len(program.buffers):
        say(number, "buffer", f"buffer {operand.buffer} of {len(program.buffers)}")
    if not 0 <= operand.rank <= limits.rank_max:
        say(number, "rank", f"rank {operand.rank}, at most {limits.rank_max} is accepted")


def spatial_rank(op: Op, n_attrs: int) -> int | None:
    """How many spatial dimensions ``n_attrs`` attributes describe (0 for ops without starred ones); None when no number fits."""
    starred = sum(name.startswith("*") for name in op.attrs)
    fixed = len(op.attrs) - starred
    if not starred:
        return 0 if n_attrs == fixed else None
    rank, rest = divmod(n_attrs - fixed, starred)
    return rank if rest == 0 and 1 <= rank <= 3 else None


def _check_attrs(op: Op, attrs: tuple[int, ...], report: Report) -> None:
    if spatial_rank(op, len(attrs)) is None:
        report.instr("attrs", f"{op.name} has attributes ({', '.join(op.attrs)}), to which values {attrs} do not fit")
    for value in attrs:
        if not -_ATTR_MAX <= value <= _ATTR_MAX:
            report.instr("attrs", f"attribute value {value} does not fit 32 bits")
