"""Types and values of a kernel under construction.

Integers are signed unless their type says otherwise; integer division truncates. There are no fast-math flags: the order of float
operations is the order written down.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jit.host.library.emit import Fn


@dataclass(frozen=True, slots=True)
class Type:
    """An LLVM type. ``kind``: "i" signed integer, "u" unsigned integer, "f" float, "b" truth value, "p" pointer."""

    kind: str
    bits: int
    scalar: str
    lanes: int = 1

    @property
    def text(self) -> str:
        return self.scalar if self.lanes == 1 else f"<{self.lanes} x {self.scalar}>"

    @property
    def nbytes(self) -> int:
        """Size in memory of one lane."""
        return max(1, self.bits // 8)

    @property
    def element(self) -> Type:
        return self.vec(1)

    @property
    def suffix(self) -> str:
        """The overload suffix of intrinsics, for example ``v16f32``."""
        letter = "f" if self.kind == "f" else "i"
        return (f"v{self.lanes}" if self.lanes > 1 else "") + f"{letter}{self.bits}"

    def vec(self, lanes: int) -> Type:
        return Type(self.kind, self.bits, self.scalar, lanes)


BOOL: Final = Type("b", 1, "i1")
I8, I16, I32, I64, I128 = (Type("i", bits, f"i{bits}") for bits in (8, 16, 32, 64, 128))
U8, U16, U32, U64 = (Type("u", bits, f"i{bits}") for bits in (8, 16, 32, 64))
F16: Final = Type("f", 16, "half")
F32: Final = Type("f", 32, "float")
F64: Final = Type("f", 64, "double")
PTR: Final = Type("p", 64, "ptr")


def literal(type: Type, value: int | float | bool) -> str:
    if type.kind == "f":
        number = struct.unpack("<f", struct.pack("<f", value))[0] if type.bits == 32 else float(value)
        text = "0x{:016X}".format(struct.unpack("<Q", struct.pack("<d", number))[0])
    elif type.kind == "b":
        text = "true" if value else "false"
    else:
        text = str(int(value))
    return text if type.lanes == 1 else f"splat ({type.scalar} {text})"


class Value:
    """An SSA value; operators append instructions to the function it belongs to."""

    __slots__ = ("fn", "text", "type")

    def __init__(self, fn: Fn, type: Type, text: str) -> None:
        self.fn, self.type, self.text = fn, type, text

    def _other(self, other: Value | int | float) -> Value:
        if not isinstance(other, Value):
            return self.fn.const(self.type, other)
        assert other.type.text == self.type.text, (self.type, other.type)
        return other

    def _binary(self, integer: str, floating: str, other: Value | int | float) -> Value:
        right = self._other(other)
        name = floating if self.type.kind == "f" else integer
        assert name, (self.type, integer, floating)
        return self.fn.op(self.type, f"{name} {self.type.text} {self.text}, {right.text}")

    def _signed(self, name: str) -> str:
        return ("u" if self.type.kind == "u" else "s") + name

    def _compare(self, name: str, other: Value | int | float) -> Value:
        right, kind = self._other(other), self.type.kind
        if kind == "f":
            predicate = "fcmp " + ("une" if name == "ne" else "o" + name)
        else:
            prefix = "" if name in ("eq", "ne") else ("u" if kind in "ubp" else "s")
            predicate = f"icmp {prefix}{name}"
        return self.fn.op(BOOL.vec(self.type.lanes), f"{predicate} {self.type.text} {self.text}, {right.text}")

    def __add__(self, other: Value | int | float) -> Value:
        return self._binary("add", "fadd", other)

    def __radd__(self, other: int | float) -> Value:
        return self + other

    def __sub__(self, other: Value | int | float) -> Value:
        return self._binary("sub", "fsub", other)

    def __rsub__(self, other: int | float) -> Value:
        return self.fn.const(self.type, other) - self

    def __mul__(self, other: Value | int | float) -> Value:
        return self._binary("mul", "fmul", other)

    def __rmul__(self, other: int | float) -> Value:
        return self * other

    def __truediv__(self, other: Value | int | float) -> Value:
        return self._binary("", "fdiv", other)

    def __floordiv__(self, other: Value | int) -> Value:
        return self._binary(self._signed("div").replace("ss", "s"), "", other)

    def __mod__(self, other: Value | int) -> Value:
        return self._binary(self._signed("rem"), "", other)

    def __neg__(self) -> Value:
        if self.type.kind == "f":
            return self.fn.op(self.type, f"fneg {self.type.text} {self.text}")
        return self.fn.const(self.type, 0) - self

    def __and__(self, other: Value | int) -> Value:
        return self._binary("and", "", other)

    def __or__(self, other: Value | int) -> Value:
        return self._binary("or", "", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._binary("xor", "", other)

    def __invert__(self) -> Value:
        return self ^ (1 if self.type.kind == "b" else -1)

    def __lshift__(self, other: Value | int) -> Value:
        return self._binary("shl", "", other)

    def __rshift__(self, other: Value | int) -> Value:
        return self._binary("lshr" if self.type.kind == "u" else "ashr", "", other)

    def __lt__(self, other: Value | int | float) -> Value:
        return self._compare("lt", other)

    def __le__(self, other: Value | int | float) -> Value:
        return self._compare("le", other)

    def __gt__(self, other: Value | int | float) -> Value:
        return self._compare("gt", other)

    def __ge__(self, other: Value | int | float) -> Value:
        return self._compare("ge", other)

    def eq(self, other: Value | int | float) -> Value:
        return self._compare("eq", other)

    def ne(self, other: Value | int | float) -> Value:
        return self._compare("ne", other)

    def is_nan(self) -> Value:
        return self.fn.op(BOOL.vec(self.type.lanes), f"fcmp uno {self.type.text} {self.text}, {self.text}")

    def select(self, yes: Value, no: Value | int | float) -> Value:
        """``yes`` where this truth value holds, else ``no``."""
        other = yes._other(no)
        return self.fn.op(yes.type, f"select {self.type.text} {self.text}, {yes.type.text} {yes.text}, {other.type.text} {other.text}")

    def min(self, other: Value | int | float) -> Value:
        right = self._other(other)
        return (self < right).select(self, right)

    def max(self, other: Value | int | float) -> Value:
        right = self._other(other)
        return (self > right).select(self, right)

    def to(self, type: Type) -> Value:
        """Convert the number (floats to integers truncate; the caller keeps them in range)."""
        source, target = self.type, type.vec(self.type.lanes)
        if source.text == target.text:
            return Value(self.fn, target, self.text)
        if target.kind == "f":
            if source.kind == "f":
                name = "fpext" if target.bits > source.bits else "fptrunc"
            else:
                name = "sitofp" if source.kind == "i" else "uitofp"
        elif source.kind == "f":
            name = "fptosi" if target.kind == "i" else "fptoui"
        elif target.bits < source.bits:
            name = "trunc"
        else:
            name = "sext" if source.kind == "i" else "zext"
        return self.fn.op(target, f"{name} {source.text} {self.text} to {target.text}")

    def bits(self, type: Type) -> Value:
        """The same bits as another type of the same size."""
        target = type.vec(self.type.lanes)
        if self.type.text == target.text:
            return Value(self.fn, target, self.text)
        return self.fn.op(target, f"bitcast {self.type.text} {self.text} to {target.text}")

    def splat(self, lanes: int) -> Value:
        """A vector whose lanes all hold this scalar."""
        type = self.type.vec(lanes)
        first = self.fn.op(type, f"insertelement {type.text} poison, {self.type.text} {self.text}, i64 0")
        return self.fn.op(type, f"shufflevector {type.text} {first.text}, {type.text} poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, lanes: list[int], other: Value | None = None) -> Value:
        """A vector of the given lanes of this one (and, counting on, of ``other``)."""
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        right = other.text if other is not None else "poison"
        type = self.type.vec(len(lanes))
        text = f"shufflevector {self.type.text} {self.text}, {self.type.text} {right}, <{len(lanes)} x i32> <{mask}>"
        return self.fn.op(type, text)

    def lane(self, index: int) -> Value:
        return self.fn.op(self.type.element, f"extractelement {self.type.text} {self.text}, i64 {index}")

    def tree(self, combine: Callable[[Value, Value], Value]) -> Value:
        """Join all lanes by halves: lane i with lane i + lanes/2, and so on down to one."""
        value = self
        while value.type.lanes > 2:
            half = value.type.lanes // 2
            value = combine(value.shuffle(list(range(half))), value.shuffle(list(range(half, 2 * half))))
        return combine(value.lane(0), value.lane(1))

    # --- memory, on pointers
    def at(self, index: Value | int, type: Type) -> Value:
        """The address ``index`` elements of ``type`` further on."""
        place = index if isinstance(index, Value) else self.fn.const(I64, index)
        return self.fn.op(PTR, f"getelementptr {type.scalar}, ptr {self.text}, i64 {place.text}")

    def load(self, type: Type) -> Value:
        """Read a scalar or a vector (aligned to its element only)."""
        return self.fn.op(type, f"load {type.text}, ptr {self.text}, align {type.nbytes}")

    def store(self, value: Value) -> None:
        """Write a scalar or a vector (aligned to its element only)."""
        self.fn.line(f"store {value.type.text} {value.text}, ptr {self.text}, align {value.type.nbytes}")


class Var:
    """A mutable variable of one type."""

    __slots__ = ("_place", "type")

    def __init__(self, place: Value, type: Type) -> None:
        self._place, self.type = place, type

    def get(self) -> Value:
        return self._place.load(self.type)

    def set(self, value: Value | int | float) -> None:
        self._place.store(value if isinstance(value, Value) else self._place.fn.const(self.type, value))
