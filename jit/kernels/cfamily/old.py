"""C-like source of kernels of the kernel tier: one emitter; a language is its spellings.

``C99`` is for processors: a function runs some blocks of a one-dimensional grid, one thread after the other, each to its next barrier.
OpenCL C and CUDA C differ in how a kernel is declared and how a thread starts, waits, ends and learns its numbers: subclasses override
those methods.

Arithmetic is that of the kernel tier: integers wrap (they are unsigned here), divisions by 0 give 0, an index outside of its memory loads
0 or stores nothing and sets the trap. Named functions are evaluated in double. The text must be compiled without contraction.

May live here: text. May not: compiling or running it, making kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from jit.errors import Unspelled
from jit.kernels.chelpers import HELPERS
from wis.dtypes import DType
from wis.kernel.model import Bar, Br, BufferParam, Cbr, Kernel, Op, RegType, Ret, Space, Special, Terminator
from wis.kernel.ops import BY_CODE, Sig
from wis.kernel.verify import VerifiedKernel

__all__ = ["C99", "c_source"]

_ELEMENT: Final = {
    DType.BOOL: "uint8_t", DType.I8: "int8_t", DType.I16: "int16_t", DType.I32: "int32_t", DType.I64: "int64_t", DType.U8: "uint8_t",
    DType.U16: "uint16_t", DType.U32: "uint32_t", DType.U64: "uint64_t", DType.F16: "uint16_t", DType.BF16: "uint16_t",
    DType.F32: "float", DType.F64: "double",
}  # fmt: skip
_REGISTER: Final = {
    RegType.PRED: "uint8_t", RegType.I16: "uint16_t", RegType.I32: "uint32_t", RegType.I64: "uint64_t", RegType.F16: "uint16_t",
    RegType.BF16: "uint16_t", RegType.F32: "float", RegType.F64: "double",
}  # fmt: skip
_INFIX: Final = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARE: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "lt_u": "<", "le_u": "<=", "lt_s": "<", "le_s": "<="}
_EXTREME: Final = {"min": "<", "max": ">", "fmin": "<", "fmax": ">"}
_NAMED: Final = {"rsqrt": "1.0 / sqrt({0})", "sigmoid": "1.0 / (1.0 + exp(-{0}))"}
_ABSENT: Final = frozenset({"erfinv", "digamma"})
_PLAIN: Final = {"abs": "fabs", "fma": "fma", "sqrt": "sqrt", "rint": "rint", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
                 "copysign": "copysign"}  # fmt: skip


def c_source(verified: VerifiedKernel) -> str:
    """The kernel in C99. Raises Unspelled."""
    return C99(verified.kernel).source()


class C99:
    """One kernel. ``int32_t name(parameters, grid, threads, first, count)`` runs ``count`` blocks and says whether an index was outside.

    A buffer parameter pN is followed by its size in bytes nN.
    """

    prelude = "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n#pragma STDC FP_CONTRACT OFF\n"
    specials: Final = {
        Special.TID_X: "tid", Special.NTID_X: "threads", Special.CTAID_X: "cta", Special.NCTAID_X: "grid", Special.LANE: "tid % 32",
        Special.TID_Y: "0", Special.TID_Z: "0", Special.NTID_Y: "1", Special.NTID_Z: "1", Special.CTAID_Y: "0", Special.CTAID_Z: "0",
        Special.NCTAID_Y: "1", Special.NCTAID_Z: "1",
    }  # fmt: skip

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.helpers: dict[str, str] = {}
        self.resumed = sorted({block.end.target for block in kernel.blocks if isinstance(block.end, Bar)})

    def source(self) -> str:
        body = [line for b in range(len(self.kernel.blocks)) for line in self._block(b)]
        return "\n".join([self.prelude, *self.helpers.values(), *self.opening(), *body, *self.closing(), ""])

    # --- what languages differ in
    def parameters(self) -> str:
        found = []
        for i, param in enumerate(self.kernel.params):
            if isinstance(param, BufferParam):
                found.append(f"uint8_t *p{i}, uint64_t n{i}")
            else:
                found.append(f"{_REGISTER[RegType(param.reg_type)]} p{i}")
        return ", ".join(found)

    def opening(self) -> list[str]:
        k = self.kernel
        comma = ", " if k.params else ""
        lines = [
            f"int32_t {k.name}({self.parameters()}{comma}int64_t grid, int64_t threads, int64_t first, int64_t count) {{",
            "int32_t trap = 0;",
            "for (int64_t cta = first; cta < first + count; cta++) {",
            *(f"{_ELEMENT[DType(s.dtype)]} s{i}[{s.n}]; memset(s{i}, 0, sizeof s{i});" for i, s in enumerate(k.shared)),
        ]
        registers = [f"{_REGISTER[RegType(kind)]} r{i};" for i, kind in enumerate(k.regs)]
        if not self.resumed:
            return [*lines, "for (int64_t tid = 0; tid < threads; tid++) {", *registers]
        cases = " ".join(f"case {b}: goto b{b};" for b in self.resumed if b)
        return [
            *lines,
            f"struct {{ {' '.join(registers)} }} all[{k.threads_max}], *t;",
            f"int32_t at[{k.threads_max}] = {{0}};",
            "for (int live = 1; live;) {",
            "live = 0;",
            "for (int64_t tid = 0; tid < threads; tid++) {",
            "t = &all[tid];",
            f"switch (at[tid]) {{ case 0: break; {cases} default: continue; }}",
        ]

    def closing(self) -> list[str]:
        return [*(["}"] if self.resumed else []), "}", "}", "return trap;", "}"]

    def barrier(self, target: int) -> str:
        return f"at[tid] = {target}; live = 1; continue;"

    def ending(self) -> str:
        return "at[tid] = -1; continue;" if self.resumed else "continue;"

    def register(self, number: int) -> str:
        return f"t->r{number}" if self.resumed else f"r{number}"

    # --- what they share
    def _kind(self, register: int) -> RegType:
        return RegType(self.kernel.regs[register])

    def _helper(self, name: str) -> str:
        self.helpers[name] = HELPERS[name]
        return name

    def _block(self, b: int) -> Iterator[str]:
        block = self.kernel.blocks[b]
        yield f"b{b}:;"
        for op in block.code:
            yield "  " + self._statement(op)
        yield "  " + self._end(block.end)

    def _end(self, end: Terminator) -> str:
        match end:
            case Br(target):
                return f"goto b{target};"
            case Cbr(pred, yes, no):
                return f"if ({self.register(pred)}) goto b{yes}; else goto b{no};"
            case Ret():
                return self.ending()
            case Bar(target):
                return self.barrier(target)

    def _statement(self, op: Op) -> str:
        row = BY_CODE[op.op]
        x = [self.register(r) for r in op.ins]
        if row.sig is Sig.STORE:
            return self._store(op, x[0], x[1])
        out = self.register(op.outs[0])
        if row.sig is Sig.LOAD:
            return self._load(op, x[0], out)
        if row.sig is Sig.REINTERPRET:
            return f"memcpy(&{out}, &{x[0]}, sizeof {out});"
        return f"{out} = {self._value(op, row.name, row.sig, x)};"

    # --- memory
    def _memory(self, op: Op, index: str) -> tuple[str, str, str]:
        """Element type, condition that the index is inside, address."""
        space, which, dtype = op.attrs
        kind, size = _ELEMENT[DType(dtype)], DType(dtype).itemsize
        base, length = (f"(uint8_t *)s{which}", f"sizeof s{which}") if space == Space.SHARED else (f"p{which}", f"n{which}")
        return kind, f"{index} < {length} / {size}", f"{base} + {size} * {index}"

    def _load(self, op: Op, index: str, out: str) -> str:
        kind, inside, address = self._memory(op, index)
        value = "e != 0" if op.attrs[2] == DType.BOOL else f"({_REGISTER[self._kind(op.outs[0])]})e"
        return f"{{ {kind} e = 0; if ({inside}) memcpy(&e, {address}, sizeof e); else trap = 1; {out} = {value}; }}"

    def _store(self, op: Op, index: str, value: str) -> str:
        kind, inside, address = self._memory(op, index)
        return f"{{ {kind} e = ({kind}){value}; if ({inside}) memcpy({address}, &e, sizeof e); else trap = 1; }}"

    # --- values
    def _value(self, op: Op, name: str, sig: Sig, x: Sequence[str]) -> str:
        target = self._kind(op.outs[0])
        if sig is Sig.CONST:
            return _constant(target, op.attrs[0])
        if sig is Sig.SPECIAL:
            return f"(uint32_t)({self.specials[Special(op.attrs[0])]})"
        if sig is Sig.PARAM:
            return f"p{op.attrs[0]}" if target is not RegType.PRED else f"p{op.attrs[0]} != 0"
        if name == "mov":
            return x[0]
        if name == "sel":
            return f"{x[0]} ? {x[1]} : {x[2]}"
        source = self._kind(op.ins[0])
        if sig in (Sig.WIDEN, Sig.NARROW, Sig.FLOAT_FLOAT, Sig.INT_FLOAT, Sig.FLOAT_INT):
            return self._conversion(name, source, target, x[0])
        if name in _COMPARE:
            a, b = (f"({_signed(source)}){v}" for v in x) if name.endswith("_s") else x
            return f"{a} {_COMPARE[name]} {b}"
        if source in (RegType.F32, RegType.F64):
            return _real(name, source, x)
        return _pred(name, x) if source is RegType.PRED else _whole(name, source, x)

    def _conversion(self, name: str, source: RegType, target: RegType, x: str) -> str:
        to = _REGISTER[target]
        if name == "sext":
            return f"({to})({_signed(target)})({_signed(source)}){x}"
        if name == "s2f":
            return f"({to})({_signed(source)}){x}"
        if name in ("f2s", "f2u"):
            signed = name == "f2s"
            high, low = math.ldexp(1.0, target.bits - signed), -math.ldexp(1.0, target.bits - 1) if signed else 0.0
            most = (1 << target.bits - signed) - 1
            least = 1 << target.bits - 1 if signed else 0
            kind = _signed(target) if signed else to
            return f"{x} != {x} ? 0 : {x} <= {low.hex()} ? {least}u : {x} >= {high.hex()} ? {most}u : ({to})({kind}){x}"
        if name == "cvt":
            return self._rounded(source, target, x)
        return f"({to}){x}"  # zext, narrow, u2f

    def _rounded(self, source: RegType, target: RegType, x: str) -> str:
        if source in (RegType.F16, RegType.BF16):
            x = f"{self._helper('wis_' + source.text)}({x})"
        if target in (RegType.F16, RegType.BF16):
            return f"{self._helper('wis_to_' + target.text)}((float){x})"
        return f"({_REGISTER[target]}){x}"


def _signed(kind: RegType) -> str:
    return f"int{kind.bits}_t"


def _constant(kind: RegType, bits: int) -> str:
    if kind not in (RegType.F32, RegType.F64):
        return str(int(bits != 0)) if kind is RegType.PRED else f"{bits & (1 << kind.bits) - 1}u"
    number = float(np.asarray(bits, f"i{kind.bits // 8}").view(f"f{kind.bits // 8}"))
    if math.isfinite(number):
        return number.hex() + ("f" if kind is RegType.F32 else "")
    return "NAN" if math.isnan(number) else ("INFINITY" if number > 0 else "-INFINITY")


def _real(name: str, kind: RegType, x: Sequence[str]) -> str:
    suffix = "f" if kind is RegType.F32 else ""
    if name in _INFIX:
        return f"{x[0]} {_INFIX[name]} {x[1]}"
    if name in _EXTREME:
        wins = x[1] if name.startswith("f") else x[0]  # min: a NaN on the left stays; fmin: one on the right loses
        return f"{wins} != {wins} || {x[0]} {_EXTREME[name]} {x[1]} ? {x[0]} : {x[1]}"
    if name == "neg":
        return f"-{x[0]}"
    if name in _PLAIN:
        return f"{_PLAIN[name]}{suffix}({', '.join(x)})"
    if name in _ABSENT:
        raise Unspelled(f"{name}: the C library has no such function")
    wide = [f"(double){v}" for v in x]
    return f"({_REGISTER[kind]})({_NAMED.get(name, name + '(' + ', '.join(wide) + ')').format(*wide)})"


def _pred(name: str, x: Sequence[str]) -> str:
    return f"!{x[0]}" if name == "not" else f"{x[0]} {_INFIX[name]} {x[1]}"


def _whole(name: str, kind: RegType, x: Sequence[str]) -> str:
    """Unsigned operands of ``kind``; 16 bits are widened first, so that nothing overflows the int they would become."""
    to, signed, bits = _REGISTER[kind], _signed(kind), kind.bits
    a, b = x[0], x[-1]
    if name in _INFIX:
        return f"({to})((uint{max(bits, 32)}_t){a} {_INFIX[name]} {b})"
    if name == "not":
        return f"({to})~{a}"
    if name == "neg":
        return f"({to})(0u - {a})"
    if name == "abs":
        return f"({signed}){a} < 0 ? ({to})(0u - {a}) : {a}"
    if name in ("div_u", "rem_u"):
        return f"{b} == 0 ? 0 : ({to})({a} {'/' if name == 'div_u' else '%'} {b})"
    if name == "div_s":
        return f"{b} == 0 ? 0 : ({signed}){b} == -1 ? ({to})(0u - {a}) : ({to})(({signed}){a} / ({signed}){b})"
    if name == "rem_s":
        return f"{b} == 0 || ({signed}){b} == -1 ? 0 : ({to})(({signed}){a} % ({signed}){b})"
    if name[:3] in ("min", "max"):
        cast = f"({signed})" if name.endswith("_s") else ""
        return f"{cast}{a} {_EXTREME[name[:3]]} {cast}{b} ? {a} : {b}"
    if name == "shr_s":
        return f"({to})(({signed}){a} >> ({b} < {bits} ? {b} : {bits - 1}))"
    return f"{b} < {bits} ? ({to})({a} {'<<' if name == 'shl' else '>>'} {b}) : 0"
