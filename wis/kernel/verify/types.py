"""Rules 3 and 9: ops and terminators have the registers and attributes that the op table names; strict functions have a form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wis.kernel.matrix import INTEGERS
from wis.kernel.model import (
    Atomic,
    Call,
    Cbr,
    Kernel,
    Math,
    Matrix,
    Op,
    RegType,
    Rounding,
    ScalarParam,
    Scope,
    Shuffle,
    Special,
    Switch,
    Sync,
    Terminator,
    Vote,
)
from wis.kernel.ops import BY_CODE, KERNEL_OPS, KernelOp, Sig
from wis.kernel.strict import STRICT_FORMS
from wis.kernel.verify import memory
from wis.kernel.verify.memory import Types
from wis.kernel.verify.report import Report, bodies

__all__ = ["check_types"]

Rule = Callable[[Kernel, Op, Types, Types], str]

_INTS: Final = frozenset({RegType.I16, RegType.I32, RegType.I64})
_WORDS: Final = frozenset({RegType.I32, RegType.I64})
_FLOATS: Final = frozenset({RegType.F32, RegType.F64})
_ANY_FLOAT: Final = _FLOATS | {RegType.F16, RegType.BF16}
_TYPES: Final = tuple(RegType)
_PRED, _I32 = RegType.PRED, RegType.I32


def check_types(kernel: Kernel, report: Report) -> None:
    """Rules 3, 4 and 9, for code whose references exist."""
    for body in bodies(kernel):
        regs = [_TYPES[t] for t in body.regs]
        for b, block in enumerate(body.blocks):
            for i, op in enumerate(block.code):
                complaint = _op(kernel, op, regs)
                if complaint:
                    report(complaint[0], f"{body.place}block {b} op {i}", complaint[1])
            complaint = _end(kernel, block.end, regs)
            if complaint:
                report(complaint[0], f"{body.place}block {b} end", complaint[1])


def _op(kernel: Kernel, op: Op, regs: Types) -> tuple[str, str] | None:
    row = BY_CODE[op.op]
    n_ins, n_outs = row.n_ins, row.n_outs
    if (n_ins < 0 or n_outs < 0) and len(op.attrs) == len(row.attrs):
        n_ins, n_outs = _counts(row, op)
    if (len(op.ins), len(op.outs), len(op.attrs)) != (n_ins, n_outs, len(row.attrs)):
        outs_text, ins_text = ("some" if n < 0 else str(n) for n in (n_outs, n_ins))
        return "arity", f"{row.name} has {outs_text} outputs, {ins_text} inputs and {len(row.attrs)} attributes"
    complaint = _BY_CODE[op.op](kernel, op, [regs[r] for r in op.outs], [regs[r] for r in op.ins])
    if not complaint:
        if row.named and kernel.math == Math.STRICT and (row.name, regs[op.outs[0]]) not in STRICT_FORMS:
            return "math", f"no strict {regs[op.outs[0]].text} form of {row.name}; use native"
        return None
    return "access" if complaint.startswith("buffer") else "type", f"{row.name}: {complaint}"


def _counts(row: KernelOp, op: Op) -> tuple[int, int]:
    """Inputs and outputs of an op whose attributes say how many there are."""
    match row.sig:
        case Sig.BYTES_LOAD:
            return 1, op.attrs[3]
        case Sig.BYTES_STORE:
            return 1 + op.attrs[3], 0
    return 3 if op.attrs[3] == Atomic.CAS else 2, row.n_outs


def _end(kernel: Kernel, end: Terminator, regs: Types) -> tuple[str, str] | None:
    match end:
        case Cbr(pred, _, _) if regs[pred] is not _PRED:
            return "type", f"cbr takes a pred, not {regs[pred].text}"
        case Switch(index, _, _) if regs[index] is not _I32:
            return "type", f"switch takes an i32, not {regs[index].text}"
        case Sync(_, _, count, _) if count >= 0 and regs[count] is not _I32:
            return "type", f"sync takes a count of i32, not {regs[count].text}"
        case Call(number, ins, outs, _):
            function = kernel.functions[number]
            for what, given, want in (("arguments", ins, function.ins), ("results", outs, function.outs)):
                if len(given) != len(want):
                    return "arity", f"{function.name} has {len(want)} {what}, not {len(given)}"
                have, expected = [regs[r] for r in given], [_TYPES[function.regs[r]] for r in want]
                if have != expected:
                    return "type", f"{what} of {function.name} are {_names(expected)}, not {_names(have)}"
            if len(set(outs)) < len(outs):
                return "type", "two results go into one register"
    return None


def _names(types: Types) -> str:
    return ", ".join(t.text for t in types) or "nothing"


def _wanted(types: tuple[RegType | None, ...]) -> str:
    return ", ".join("T" if t is None else t.text for t in types) or "nothing"


def _no_such(op: Op, i: int) -> str:
    return f"there is no {BY_CODE[op.op].attrs[i]} {op.attrs[i]}"


def _same(allowed: frozenset[RegType], attribute: Callable[[int], bool] | None = None) -> Rule:
    """All operands and results have one type."""

    def check(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
        out = outs[0]
        for t in ins:
            if t is not out:
                return f"{_names(outs)} from {_names(ins)}, expected one type"
        if out not in allowed:
            return f"not for {out.text}"
        return "" if attribute is None or attribute(op.attrs[0]) else _no_such(op, 0)

    return check


def _compare(allowed: frozenset[RegType]) -> Rule:
    def check(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
        if outs[0] is not _PRED or ins[0] is not ins[1]:
            return f"{_names(outs)} from {_names(ins)}, expected a pred from one type"
        return "" if ins[0] in allowed else f"not for {ins[0].text}"

    return check


def _convert(source: frozenset[RegType], target: frozenset[RegType], fits: Callable[[RegType, RegType], bool]) -> Rule:
    def check(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
        if ins[0] not in source or outs[0] not in target or not fits(ins[0], outs[0]):
            return f"{outs[0].text} from {ins[0].text} is no such conversion"
        return "" if not op.attrs or _is(Rounding)(op.attrs[0]) else _no_such(op, 0)

    return check


def _shape(outs: str, ins: str, t: frozenset[RegType] = frozenset(), *attributes: Callable[[int], bool]) -> Rule:
    """Operands and results of fixed types, given as names; ``T`` stands for one of ``t``."""
    want_outs, want_ins = (tuple(None if n == "T" else RegType[n] for n in names.split()) for names in (outs, ins))

    def check(kernel: Kernel, op: Op, outs_: Types, ins_: Types) -> str:
        have, want = (*outs_, *ins_), (*want_outs, *want_ins)
        variable = {h for h, w in zip(have, want, strict=True) if w is None}
        if len(variable) > 1 or any(w is not None and h is not w for h, w in zip(have, want, strict=True)):
            return f"{_names(outs_)} from {_names(ins_)}, expected {_wanted(want_outs)} from {_wanted(want_ins)}"
        if not variable <= t:
            return f"not for {_names(list(variable))}"
        wrong = (i for i, good in enumerate(attributes) if not good(op.attrs[i]))
        return next((_no_such(op, i) for i in wrong), "")

    return check


def _is(kind: type[Shuffle | Vote | Scope | Rounding | Special]) -> Callable[[int], bool]:
    return kind._value2member_map_.__contains__


def _below(n: int) -> Callable[[int], bool]:
    return lambda value: 0 <= value < n


def _const(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    bits = outs[0].bits
    if outs[0] is _PRED:
        return "" if op.attrs[0] in (0, 1) else f"{op.attrs[0]} is not 0 or 1"
    return "" if -(1 << bits - 1) <= op.attrs[0] < 1 << bits - 1 else f"{op.attrs[0]} does not fit {bits} bits, sign-extended"


def _special(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    if op.attrs[0] not in Special._value2member_map_:
        return f"{op.attrs[0]} is not a special value"
    return "" if outs[0] is _I32 else f"gives i32, not {outs[0].text}"


def _param(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    number = op.attrs[0]
    param = kernel.params[number] if 0 <= number < len(kernel.params) else None
    if not isinstance(param, ScalarParam):
        return f"there is no scalar parameter {number}"
    return "" if outs[0] == param.reg_type else f"parameter {number} is {RegType(param.reg_type).text}, not {outs[0].text}"


def _select(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    good = ins[0] is _PRED and ins[1] is ins[2] is outs[0]
    return "" if good else f"{_names(outs)} from {_names(ins)}, expected T from pred, T, T"


def _word3(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    return _WORD3[BY_CODE[op.op].attrs[0]](kernel, op, outs, ins)


_WORD3: Final = {what: _shape("I32", "I32 I32 I32", frozenset(), _below(n)) for what, n in (("table", 256), ("mode", 7), ("wrap", 2))}


def _mma(kernel: Kernel, op: Op, outs: Types, ins: Types) -> str:
    if op.attrs[0] not in Matrix._value2member_map_:
        return _no_such(op, 0)
    sums = _I32 if op.attrs[0] in INTEGERS else RegType.F32
    good = all(t is _I32 for t in ins[:3]) and all(t is sums for t in (*ins[3:], *outs))
    return "" if good else f"{_names(outs)} from {_names(ins)}, expected 4 x {sums.text} from 3 x i32, 4 x {sums.text}"


_MEMBERS: Final = (_below(Atomic.XOR + 1), _below(2))
_RULES: Final[dict[Sig, Rule]] = {
    Sig.CONST: _const,
    Sig.MOV: _same(frozenset(RegType)),
    Sig.SPECIAL: _special,
    Sig.PARAM: _param,
    Sig.NUMBER: _same(_INTS | _FLOATS),
    Sig.FLOAT: _same(_FLOATS),
    Sig.INT: _same(_INTS),
    Sig.BITS: _same(_INTS | {_PRED}),
    Sig.EQUAL: _compare(_INTS | _FLOATS),
    Sig.ORDER_FLOAT: _compare(_FLOATS),
    Sig.ORDER_INT: _compare(_INTS),
    Sig.SELECT: _select,
    Sig.WIDEN: _convert(_INTS, _INTS, lambda a, b: a.bits < b.bits),
    Sig.NARROW: _convert(_INTS, _INTS, lambda a, b: a.bits > b.bits),
    Sig.FLOAT_FLOAT: _convert(_ANY_FLOAT, _ANY_FLOAT, lambda a, b: a is not b),
    Sig.INT_FLOAT: _convert(_INTS, _FLOATS, lambda a, b: True),
    Sig.FLOAT_INT: _convert(_FLOATS, _INTS, lambda a, b: True),
    Sig.REINTERPRET: _convert(_INTS | _ANY_FLOAT, _INTS | _ANY_FLOAT, lambda a, b: a is not b and a.bits == b.bits),
    Sig.COUNT: _shape("I32", "T", _INTS),
    Sig.FIELD: _shape("T", "T I32 I32", _WORDS),
    Sig.INSERT: _shape("T", "T T I32 I32", _WORDS),
    Sig.WORD3: _word3,
    Sig.ROUNDED: _same(_FLOATS, _is(Rounding)),
    Sig.CVT_ROUNDED: _convert(_ANY_FLOAT, _ANY_FLOAT, lambda a, b: a is not b),
    Sig.INT_FLOAT_ROUNDED: _convert(_INTS, _FLOATS, lambda a, b: True),
    Sig.FENCE: _shape("", "", frozenset(), _is(Scope)),
    Sig.RAISE: _shape("", ""),
    Sig.WARPSYNC: _shape("", "I32"),
    Sig.SHFL: _shape("T PRED", "T I32 I32 I32", frozenset({_I32, RegType.F32}), _is(Shuffle)),
    Sig.VOTE: _shape("PRED", "PRED I32", frozenset(), _is(Vote)),
    Sig.BALLOT: _shape("I32", "PRED I32"),
    Sig.MATCH_ANY: _shape("I32", "T I32", _WORDS),
    Sig.MATCH_ALL: _shape("I32 PRED", "T I32", _WORDS),
    Sig.ACTIVEMASK: _shape("I32", ""),
    Sig.MMA: _mma,
    Sig.MMA_F64: _shape("F64 F64", "F64 F64 F64 F64"),
    Sig.REDUX: _shape("I32", "I32 I32", frozenset(), *_MEMBERS),
    **memory.RULES,
}
_BY_CODE: Final = {row.code: _RULES[row.sig] for row in KERNEL_OPS}
