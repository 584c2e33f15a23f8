"""Expressions: what each op without a side effect is in C.

Arithmetic is that of the kernel tier: integers wrap (they are unsigned here), divisions by 0 give 0, shifts past the width give 0. The text
must be compiled without contraction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from jit.errors import Unspelled
from jit.kernels.cfamily.language import REGISTER, Language, signed
from wis.kernel.model import RegType
from wis.kernel.ops import NAMED, KernelOp, Sig

_INFIX: Final = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_COMPARE: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "lt_u": "<", "le_u": "<=", "lt_s": "<", "le_s": "<="}
_PLAIN: Final = {
    "abs": "fabs", "fma": "fma", "sqrt": "sqrt", "rint": "rint", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "copysign": "copysign",
    "rem": "fmod",
}  # fmt: skip
_ROUNDED: Final = frozenset({"rint", "floor", "ceil", "trunc"})
_SPELLED: Final = {"sigmoid": "{one} / ({one} + {exp}(-{0}))", "rsqrt": "{one} / {sqrt}({0})"}
_OWN: Final = {"erfinv": "wis_erfinv", "digamma": "wis_digamma"}
_IN_F64: Final = frozenset({"erf", "erfc", "lgamma", "tan", "pow", "sigmoid", "rsqrt"})
"""Functions whose f32 forms some libraries have with more than a few units in the last place of error."""
_CONVERSIONS: Final = frozenset({Sig.WIDEN, Sig.NARROW, Sig.FLOAT_FLOAT, Sig.INT_FLOAT, Sig.FLOAT_INT, Sig.REINTERPRET})


class Values:
    """Spells values in a language. ``helper`` is called with the name of every function of helpers.py that the text calls."""

    def __init__(self, language: Language, helper: Callable[[str], None]) -> None:
        self._language, self._note = language, helper

    def _helper(self, name: str) -> str:
        self._note(name)
        return name

    def constant(self, kind: RegType, bits: int) -> str:
        """The value with these bits, of which as many count as ``kind`` has."""
        if kind is RegType.PRED:
            return str(int(bits != 0))
        bits &= (1 << kind.bits) - 1
        if kind in (RegType.F32, RegType.F64):
            number = float(np.asarray(bits, f"u{kind.bits // 8}").view(f"f{kind.bits // 8}"))
            if math.isfinite(number):
                return f"({number.hex()}{'f' if kind is RegType.F32 else ''})"
            return f"AS_F{kind.bits}({bits:#x}{'u' if kind is RegType.F32 else self._language.long})"
        return f"{bits}{self._language.long if kind is RegType.I64 else 'u'}"

    def value(self, row: KernelOp, source: RegType, target: RegType, x: Sequence[str]) -> str:
        """Of an op from operands ``x``, of which the last is of type ``source``."""
        name = row.name
        if name == "mov":
            return x[0]
        if name == "sel":
            return f"{x[0]} ? {x[1]} : {x[2]}"
        if row.sig in _CONVERSIONS:
            return self._conversion(name, source, target, x[0])
        if name in _COMPARE:
            a, b = (f"({signed(source)}){v}" for v in x) if name.endswith("_s") else x
            return f"{a} {_COMPARE[name]} {b}"
        if source in (RegType.F32, RegType.F64):
            return self._real(name, source, x)
        if source is RegType.PRED:
            return f"!{x[0]}" if name == "not" else f"{x[0]} {_INFIX[name]} {x[1]}"
        if row.sig is Sig.COUNT:
            return self._count(name, source, x[0])
        return self._whole(name, source, x)

    # --- conversions
    def _conversion(self, name: str, source: RegType, target: RegType, x: str) -> str:
        to = REGISTER[target]
        match name:
            case "sext":
                return f"({to})({signed(target)})({signed(source)}){x}"
            case "s2f":
                return f"({to})({signed(source)}){x}"
            case "f2s" | "f2u":
                return self._saturated(target, x, name == "f2s")
            case "cvt":
                return self._rounded(source, target, x)
            case "reinterpret":
                return self._reinterpreted(source, target, x)
        return f"({to}){x}"  # zext, narrow, u2f

    def _saturated(self, target: RegType, x: str, is_signed: bool) -> str:
        high, low = math.ldexp(1.0, target.bits - is_signed), -math.ldexp(1.0, target.bits - 1) if is_signed else 0.0
        most = self.constant(target, (1 << target.bits - is_signed) - 1)
        least = self.constant(target, 1 << target.bits - 1 if is_signed else 0)
        # The bounds are powers of two: f32 holds them too, and a literal of it keeps the comparison in f32.
        kind = signed(target) if is_signed else REGISTER[target]
        return f"{x} != {x} ? 0 : {x} <= {low.hex()}f ? {least} : {x} >= {high.hex()}f ? {most} : ({REGISTER[target]})({kind}){x}"

    def _rounded(self, source: RegType, target: RegType, x: str) -> str:
        if source in (RegType.F16, RegType.BF16):
            x = f"{self._helper('wis_' + source.text)}({x})"
        if target in (RegType.F16, RegType.BF16):
            return f"{self._helper('wis_to_' + target.text)}((f32){x})"
        return f"({REGISTER[target]}){x}"

    @staticmethod
    def _reinterpreted(source: RegType, target: RegType, x: str) -> str:
        if target in (RegType.F32, RegType.F64):
            return f"AS_F{target.bits}({x})"
        return f"AS_U{source.bits}({x})" if source in (RegType.F32, RegType.F64) else x

    # --- floats
    def _real(self, name: str, kind: RegType, x: Sequence[str]) -> str:
        f32 = kind is RegType.F32
        if name in NAMED:
            return self._named(name, kind, x)
        if name in _INFIX:
            return f"{x[0]} {_INFIX[name]} {x[1]}"
        if name in ("min", "max", "fmin", "fmax"):
            return f"{self._helper(f'wis_{name}_{kind.text}')}({x[0]}, {x[1]})"
        if name == "neg":
            return f"-{x[0]}"
        if name == "div":
            return f"DIV32({x[0]}, {x[1]})" if f32 else f"{x[0]} / {x[1]}"
        if name == "sqrt" and f32:
            return f"SQRT32({x[0]})"
        value = f"{_PLAIN[name]}{self._language.math if f32 else ''}({', '.join(x)})"
        # PoCL rounds through integers, which of a NaN that its compiler can see makes anything.
        return f"{x[0]} != {x[0]} ? {x[0]} : {value}" if name in _ROUNDED and self._language.name == "opencl" else value

    def _named(self, name: str, kind: RegType, x: Sequence[str]) -> str:
        f32 = kind is RegType.F32
        if name in _OWN:
            value = f"{self._helper(_OWN[name])}((f64){x[0]})"
            return f"(f32){value}" if f32 else value
        wide = f32 and (self._language.wide or name in _IN_F64)
        suffix, one = (self._language.math, "1.0f") if f32 and not wide else ("", "1.0")
        given = [f"(f64){v}" for v in x] if wide else list(x)
        if name in _SPELLED:
            value = _SPELLED[name].format(*given, one=one, exp="exp" + suffix, sqrt="sqrt" + suffix)
        elif name == "exp10" and self._language.name == "c99":
            value = f"pow(10.0, {given[0]})"
        else:
            value = f"{name}{suffix}({', '.join(given)})"
        return f"(f32)({value})" if wide else value

    # --- integers
    def _count(self, name: str, kind: RegType, x: str) -> str:
        word, spare = ("64", 0) if kind is RegType.I64 else ("32", 32 - kind.bits)
        if name == "popc":
            return f"POPC{word}({x})"
        if name == "clz":
            return f"CLZ{word}({x})" + (f" - {spare}u" if spare else "")
        raise Unspelled(f"{name} is not a core op")

    def _whole(self, name: str, kind: RegType, x: Sequence[str]) -> str:
        """Unsigned operands of ``kind``; 16 bits are widened first, so that nothing overflows the int they would become."""
        to, s, bits = REGISTER[kind], signed(kind), kind.bits
        a, b = x[0], x[-1]
        if name in _INFIX:
            return f"({to})((u{max(bits, 32)}){a} {_INFIX[name]} {b})"
        match name:
            case "not":
                return f"({to})~{a}"
            case "neg":
                return f"({to})(0u - {a})"
            case "abs":
                return f"({s}){a} < 0 ? ({to})(0u - {a}) : {a}"
            case "div_u" | "rem_u":
                return f"{b} == 0 ? 0 : ({to})({a} {'/' if name == 'div_u' else '%'} {b})"
            case "div_s":
                return f"{b} == 0 ? 0 : ({s}){b} == -1 ? ({to})(0u - {a}) : ({to})(({s}){a} / ({s}){b})"
            case "rem_s":
                return f"{b} == 0 || ({s}){b} == -1 ? 0 : ({to})(({s}){a} % ({s}){b})"
            case "min_s" | "max_s":
                return f"({s}){a} {'<' if name[1] == 'i' else '>'} ({s}){b} ? {a} : {b}"
            case "min_u" | "max_u":
                return f"{a} {'<' if name[1] == 'i' else '>'} {b} ? {a} : {b}"
            case "shr_s":
                return f"({to})(({s}){a} >> ({b} < {bits} ? {b} : {bits - 1}))"
            case "shl" | "shr_u":
                return f"{b} < {bits} ? ({to})({a} {'<<' if name == 'shl' else '>>'} {b}) : 0"
            case "brev":
                return self._reversed(kind, a)
            case "mul_hi_u" | "mul_hi_s":
                return self._high(name[-1], kind, a, b)
        raise Unspelled(f"{name} is not a core op")

    def _reversed(self, kind: RegType, x: str) -> str:
        word = "64" if kind is RegType.I64 else "32"
        if self._language.name != "cuda":
            self._helper("wis_brev" + word)
        return f"(u16)(BREV32({x}) >> 16)" if kind is RegType.I16 else f"BREV{word}({x})"

    @staticmethod
    def _high(sign: str, kind: RegType, a: str, b: str) -> str:
        if kind is RegType.I64:
            return f"(u64)MULHI_{sign.upper()}64({a}, {b})"
        wide, bits = f"{sign}{2 * kind.bits}", kind.bits
        return f"({REGISTER[kind]})((u{2 * bits})(({wide})({sign}{bits}){a} * ({wide})({sign}{bits}){b}) >> {bits})"
