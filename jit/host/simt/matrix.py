"""Products of matrices: a function for each type of element, which keeps a lane of every operand in a lane of a vector.

Elements that other lanes hold come by constant permutations; each result is a chain of fused multiply-adds in the order of the definition
(wis.kernel.matrix).
"""

from __future__ import annotations

from typing import Final

from jit.host.emit.code import Code, Lanes
from jit.host.simt.registers import Registers, vector_constant
from wis.kernel.matrix import ELEMENTS, INTEGERS, SIGNED, a_lanes, b_lanes
from wis.kernel.model import WARP, Matrix, Op
from wis.kernel.ops import BY_NAME

__all__ = ["helper_text", "product"]

_PREFIX: Final = "matrix."
_ROOM: Final = f"[{4 * WARP} x i64]"
"""Operands, results in the places of the sums: seven of 32 bits a lane, or four of 64."""
_F64: Final = BY_NAME["mma_f64"].code


def product(code: Code, registers: Registers, op: Op, there: str) -> str:
    """Emits the op; returns the name of the helper it needs. ``there``: the lanes that run, as an i32."""
    v = registers.v
    size = 8 if op.op == _F64 else 4
    room = registers.variable("%matrix", _ROOM)
    mask = "" if there == "-1" else code.value(f"bitcast i32 {there} to {v.type('i1')}")
    for place, r in enumerate(op.ins):
        kind, value = registers.llvm(r), registers.vector(r)
        if mask:
            value = code.value(f"select {v.type('i1')} {mask}, {v.type(kind)} {value}, {v.type(kind)} zeroinitializer")
        code.do(f"store {v.type(kind)} {value}, ptr {code.gep('i8', room, str(place * size * WARP))}, align 8")
    name = _PREFIX + ("f64" if op.op == _F64 else Matrix(op.attrs[0]).name.lower())
    code.call("void", name, ("ptr", room))
    code.declared.pop(name)  # it is defined beside the kernel
    kind = registers.llvm(op.outs[0])
    if kind != "i32":  # the helper calls it
        function = f"llvm.fma.{v.suffix(kind)}"
        code.declared[function] = f"declare {v.type(kind)} @{function}({', '.join([v.type(kind)] * 3)})"
    first = len(op.ins) - len(op.outs)
    places = [code.gep("i8", room, str((first + place) * size * WARP)) for place in range(len(op.outs))]
    results = [code.value(f"load {v.type(kind)}, ptr {place}, align 8") for place in places]
    for r, result in zip(op.outs, results, strict=True):
        registers.put_vector(r, result)
    return name


def helper_text(name: str) -> str:
    """The helper's definition."""
    text = name.removeprefix(_PREFIX)
    writer = _Writer(None if text == "f64" else Matrix[text.upper()])
    writer.write()
    body = "\n".join(writer.code.lines)
    return f"define internal void @{name}(ptr %room) noinline {{\nentry:\n{body}\n  ret void\n}}\n"


class _Writer:
    """The text of one product. ``form`` None: f64."""

    def __init__(self, form: Matrix | None) -> None:
        self.form = form
        self.code = Code()
        self.v = Lanes(self.code, WARP)
        self.kind = "double" if form is None else "i32" if form in INTEGERS else "float"
        self.size = 8 if form is None else 4

    def write(self) -> None:
        code, v = self.code, self.v
        rows = 1 if self.form is None else 2
        a_signed, b_signed = (False, False) if self.form is None else SIGNED.get(self.form, (False, False))
        lefts = [self._elements(place, a_signed) for place in range(rows)]
        right = self._elements(rows, b_signed)
        sums = [self._load(rows + 1 + place, self.kind) for place in range(2 * rows)]
        for t in range(4):
            for at in range(len(right)):
                xs = [self._moved(left[at], a_lanes(t)) for left in lefts]
                ys = [self._moved(right[at], b_lanes(t, column)) for column in range(2)]
                for place, (x, y) in enumerate((x, y) for x in xs for y in ys):
                    if self.kind == "i32":
                        sums[place] = v.op("add", "i32", sums[place], v.op("mul", "i32", x, y))
                    else:
                        sums[place] = v.fma(self.kind, x, y, sums[place])
        for place, value in enumerate(sums):
            code.do(f"store {v.type(self.kind)} {value}, ptr {self._place(rows + 1 + place)}, align 8")

    def _place(self, place: int) -> str:
        return self.code.gep("i8", "%room", str(place * self.size * WARP))

    def _load(self, place: int, kind: str) -> str:
        return self.code.value(f"load {self.v.type(kind)}, ptr {self._place(place)}, align 8")

    def _moved(self, value: str, lanes: list[int]) -> str:
        kind = self.v.type(self.kind)
        return self.code.value(f"shufflevector {kind} {value}, {kind} poison, <{WARP} x i32> {vector_constant('i32', lanes)}")

    def _elements(self, place: int, signed: bool) -> list[str]:
        v, form = self.v, self.form
        if form is None:
            return [self._load(place, "double")]
        word = self._load(place, "i32")
        if form in INTEGERS:
            shift = "ashr" if signed else "lshr"
            tops = [v.op("shl", "i32", word, v.const("i32", 24 - 8 * at)) for at in range(ELEMENTS[form])]
            return [v.op(shift, "i32", top, v.const("i32", 24)) for top in tops]
        if form is Matrix.TF32:
            return [v.convert("bitcast", "i32", v.op("and", "i32", word, v.const("i32", -0x2000)), "float")]
        if form is Matrix.BF16:
            bits = v.op("shl", "i32", word, v.const("i32", 16)), v.op("and", "i32", word, v.const("i32", -0x10000))
            return [v.convert("bitcast", "i32", x, "float") for x in bits]
        words = word, v.op("lshr", "i32", word, v.const("i32", 16))
        halves = [v.convert("bitcast", "i16", v.convert("trunc", "i32", x, "i16"), "half") for x in words]
        return [v.convert("fpext", "half", x, "float") for x in halves]
