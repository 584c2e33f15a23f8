"""Writing LLVM IR text: numbered values, labels, declarations, and typed operations over scalars or fixed vectors."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

__all__ = ["Code", "Lanes"]

_SUFFIX: Final = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}


class Code:
    """The text of one function under construction."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self.block = "entry"
        self._count = 0

    def value(self, text: str) -> str:
        """``%vN = text``; returns the name."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """A statement without a value."""
        self.lines.append("  " + text)

    def fresh(self, prefix: str) -> str:
        """A new label or value name (without sigil)."""
        self._count += 1
        return f"{prefix}{self._count}"

    def label(self, name: str) -> None:
        """Start a block; the previous one must have been ended with a branch."""
        self.lines.append(f"{name}:")
        self.block = name

    def branch(self, target: str) -> None:
        self.do(f"br label %{target}")

    def fork(self, condition: str, yes: str, no: str) -> None:
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    def call(self, result: str, name: str, *args: tuple[str, str]) -> str:
        """Call an intrinsic or C function ``name`` (without @), declaring it; ``args`` are (type, value)."""
        kinds = ", ".join(kind for kind, _ in args)
        self.declared[name] = f"declare {result} @{name}({kinds})"
        text = f"call {result} @{name}({', '.join(f'{kind} {value}' for kind, value in args)})"
        if result == "void":
            self.do(text)
            return ""
        return self.value(text)

    # 64-bit address arithmetic, which is always scalar
    def add(self, a: str, b: str) -> str:
        return self.value(f"add i64 {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        return self.value(f"sub i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        return self.value(f"mul i64 {a}, {b}")

    def gep(self, kind: str, base: str, index: str) -> str:
        return self.value(f"getelementptr {kind}, ptr {base}, i64 {index}")


class Lanes:
    """Typed operations on values of ``n`` lanes (1: scalars)."""

    def __init__(self, code: Code, n: int) -> None:
        self.code = code
        self.n = n

    def type(self, scalar: str) -> str:
        return scalar if self.n == 1 else f"<{self.n} x {scalar}>"

    def suffix(self, scalar: str) -> str:
        short = _SUFFIX.get(scalar, scalar)
        return short if self.n == 1 else f"v{self.n}{short}"

    def const(self, scalar: str, value: float | int) -> str:
        """A constant in every lane."""
        text = literal(scalar, value)
        return text if self.n == 1 else f"splat ({scalar} {text})"

    def op(self, name: str, scalar: str, a: str, b: str) -> str:
        return self.code.value(f"{name} {self.type(scalar)} {a}, {b}")

    def compare(self, how: str, scalar: str, a: str, b: str) -> str:
        """``how``: for example ``fcmp olt`` or ``icmp slt``."""
        return self.code.value(f"{how} {self.type(scalar)} {a}, {b}")

    def select(self, scalar: str, mask: str, a: str, b: str) -> str:
        kind = self.type(scalar)
        return self.code.value(f"select {self.type('i1')} {mask}, {kind} {a}, {kind} {b}")

    def convert(self, how: str, source: str, value: str, target: str) -> str:
        return self.code.value(f"{how} {self.type(source)} {value} to {self.type(target)}")

    def intrinsic(self, name: str, scalar: str, *args: str) -> str:
        """``llvm.<name>`` overloaded on ``scalar``, all operands and the result of that type."""
        kind = self.type(scalar)
        return self.code.call(kind, f"llvm.{name}.{self.suffix(scalar)}", *((kind, a) for a in args))

    def fma(self, scalar: str, a: str, b: str, c: str) -> str:
        return self.intrinsic("fma", scalar, a, b, c)

    def splat(self, scalar: str, value: str) -> str:
        """A scalar value in every lane."""
        if self.n == 1:
            return value
        kind = self.type(scalar)
        first = self.code.value(f"insertelement {kind} poison, {scalar} {value}, i32 0")
        return self.code.value(f"shufflevector {kind} {first}, {kind} poison, <{self.n} x i32> zeroinitializer")


def literal(scalar: str, value: float | int) -> str:
    """A constant as LLVM spells it; floats by their exact bits."""
    if scalar in ("float", "double"):
        exact = float(np.float32(value)) if scalar == "float" else float(value)
        return f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}"
    if scalar == "i1":
        return "true" if value else "false"
    return str(int(value))
