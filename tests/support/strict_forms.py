"""Strict forms run outside of any kernel: by NumPy, op by op, and as a loop that LLVM makes machine code of (for billions of values)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from jit.cache import ObjectCache
from jit.host.toolchain import Toolchain, c_function
from wis.kernel.model import Function, Op, RegType
from wis.kernel.ops import BY_CODE
from wis.reference.elementwise import MAP

Array = npt.NDArray[Any]

_NUMPY = {RegType.PRED: np.bool_, RegType.I32: np.int32, RegType.I64: np.int64, RegType.F32: np.float32, RegType.F64: np.float64}
_LLVM = {RegType.PRED: "i1", RegType.I32: "i32", RegType.I64: "i64", RegType.F32: "float", RegType.F64: "double"}


def evaluate(form: Function, *arguments: Array) -> Array:
    """The form's value for arrays of one shape, by the definition's NumPy functions."""
    registers: dict[int, Array] = dict(zip(form.ins, arguments, strict=True))
    with np.errstate(all="ignore"):
        for op in form.blocks[0].code:
            registers[op.outs[0]] = _value(op, RegType(form.regs[op.outs[0]]), [registers[r] for r in op.ins])
    return np.array(np.broadcast_to(registers[form.outs[0]], arguments[0].shape))


def _value(op: Op, type_: RegType, ins: list[Array]) -> Array:
    name, target = BY_CODE[op.op].name, _NUMPY[type_]
    if name == "const":
        return np.array(op.attrs[0], f"i{type_.bits // 8}").view(target)
    if name == "sel":
        return np.asarray(np.where(*ins))
    if name == "reinterpret":
        return ins[0].view(target)
    if name in ("cvt", "s2f", "sext", "narrow"):
        return ins[0].astype(target)
    if name in ("zext", "u2f"):
        return ins[0].view(f"u{ins[0].dtype.itemsize}").astype(target)
    if name == "shl":
        return np.asarray(MAP["shl"](*ins))
    if name == "shr_s":
        return np.asarray(MAP["shr"](*ins))
    if name in ("shr_u", "lt_u"):
        unsigned = [x.view(f"u{x.dtype.itemsize}") for x in ins]
        return np.asarray(MAP["shr"](*unsigned).view(target) if name == "shr_u" else unsigned[0] < unsigned[1])
    return np.asarray(MAP[{"rint": "round", "lt_s": "lt", "le_s": "le"}.get(name, name)](*ins))


def native(form: Function) -> Callable[..., Array]:
    """The form as a function of contiguous arrays of its argument types."""
    return _native(form)


@cache
def _toolchain() -> Toolchain:
    return Toolchain(ObjectCache(None))


@cache
def _native(form: Function) -> Callable[..., Array]:
    name = f"strict_{form.name}_{RegType(form.regs[form.outs[0]]).text}_{abs(hash(form))}"
    address = _toolchain().function(name, name, lambda: _module(form, name), optimise=True)
    call = c_function(address, None, *[ctypes.c_void_p] * (len(form.ins) + 1), ctypes.c_int64)
    kind = _NUMPY[RegType(form.regs[form.outs[0]])]

    def f(*arguments: Array) -> Array:
        assert all(a.flags.c_contiguous and a.dtype == kind for a in arguments)
        result = np.empty(arguments[0].shape, kind)
        call(result.ctypes.data, *(a.ctypes.data for a in arguments), result.size)
        return result

    return f


_BINARY = {
    "add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "lt": "fcmp olt", "le": "fcmp ole", "eq": "fcmp oeq", "ne": "fcmp une",
}  # fmt: skip
_BINARY_INT = {
    "add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "eq": "icmp eq", "ne": "icmp ne", "lt_s": "icmp slt",
    "le_s": "icmp sle", "lt_u": "icmp ult", "le_u": "icmp ule",
}  # fmt: skip
_CONVERT = {"zext": "zext", "sext": "sext", "narrow": "trunc", "s2f": "sitofp", "u2f": "uitofp", "reinterpret": "bitcast"}
_INTRINSIC = {"fma": "fma", "sqrt": "sqrt", "rint": "rint", "floor": "floor", "abs": "fabs", "copysign": "copysign"}
_SHIFT = {"shl": "shl", "shr_s": "ashr", "shr_u": "lshr"}


def _module(form: Function, name: str) -> str:
    """One loop over all elements."""
    kind = _LLVM[RegType(form.regs[form.outs[0]])]
    body, declared = _body(form)
    arguments = "".join(f", ptr noalias %in{i}" for i in range(len(form.ins)))
    loads = [f"%p{i} = getelementptr {kind}, ptr %in{i}, i64 %i\n%v{i} = load {kind}, ptr %p{i}" for i in range(len(form.ins))]
    lines = [
        *declared,
        f"define void @{name}(ptr noalias %out{arguments}, i64 %n) {{",
        "start:\n%empty = icmp eq i64 %n, 0\nbr i1 %empty, label %end, label %loop",
        "loop:\n%i = phi i64 [ 0, %start ], [ %next, %loop ]",
        *loads,
        *body,
        f"%q = getelementptr {kind}, ptr %out, i64 %i\nstore {kind} %result, ptr %q",
        "%next = add nuw i64 %i, 1\n%more = icmp ult i64 %next, %n\nbr i1 %more, label %loop, label %end",
        "end:\nret void\n}",
    ]
    return "\n".join(lines)


def _body(form: Function) -> tuple[list[str], list[str]]:
    place = {register: f"%v{i}" for i, register in enumerate(form.ins)}
    lines: list[str] = []
    declared: dict[str, None] = {}
    for number, op in enumerate(form.blocks[0].code):
        name, out = BY_CODE[op.op].name, RegType(form.regs[op.outs[0]])
        text = _LLVM[out]
        if name == "const":
            lines += [f"%c{number} = bitcast i{out.bits} {op.attrs[0]} to {text}"]
            place[op.outs[0]] = f"%c{number}"
            continue
        ins = [place[r] for r in op.ins]
        source = RegType(form.regs[op.ins[0]])
        target = f"%t{number}"
        floats = source in (RegType.F32, RegType.F64)
        if name == "sel":
            code = f"select i1 {ins[0]}, {text} {ins[1]}, {text} {ins[2]}"
        elif name == "cvt":
            code = f"{'fptrunc' if out is RegType.F32 else 'fpext'} {_LLVM[source]} {ins[0]} to {text}"
        elif name in _CONVERT:
            code = f"{_CONVERT[name]} {_LLVM[source]} {ins[0]} to {text}"
        elif name in _INTRINSIC:
            function = f"@llvm.{_INTRINSIC[name]}.f{out.bits}"
            declared[f"declare {text} {function}({', '.join([text] * len(ins))})"] = None
            code = f"call {text} {function}({', '.join(f'{text} {x}' for x in ins)})"
        elif name in _SHIFT:
            most = out.bits - 1
            lines += [f"{target}.in = icmp ule {text} {ins[1]}, {most}", f"{target}.by = and {text} {ins[1]}, {most}"]
            lines += [f"{target}.raw = {_SHIFT[name]} {text} {ins[0]}, {target}.by"]
            if name == "shr_s":
                lines += [f"{target}.past = ashr {text} {ins[0]}, {most}"]
            code = f"select i1 {target}.in, {text} {target}.raw, {text} {f'{target}.past' if name == 'shr_s' else '0'}"
        elif name == "neg":
            code = f"fneg {text} {ins[0]}" if floats else f"sub {text} 0, {ins[0]}"
        elif name == "not":
            code = f"xor {text} {ins[0]}, -1"
        else:
            code = f"{(_BINARY if floats else _BINARY_INT)[name]} {_LLVM[source]} {ins[0]}, {ins[1]}"
        lines.append(f"{target} = {code}")
        place[op.outs[0]] = target
    return [
        *lines,
        f"%result = bitcast {_LLVM[RegType(form.regs[form.outs[0]])]} {place[form.outs[0]]} to {_LLVM[RegType(form.regs[form.outs[0]])]}",
    ], list(declared)
