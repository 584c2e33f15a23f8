"""C-like source of loop kernels: one emitter, and a table of spellings for each language.

``C99`` is complete for kernels without reductions. OpenCL C and CUDA C differ from it in how a kernel is declared, how a work item finds
its unit, and a few names; each is another ``Dialect``, not another emitter.

One element a time: vectorising is left to the compiler of the language. Arithmetic follows WIS: integers wrap (through the unsigned type),
division by 0 gives 0, f16 and bf16 compute in float and are rounded after each operation. The text must be compiled without contraction.

May live here: text. May not: compiling or running it, choosing kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jit.kernels.loop import LEAVES, Form, Inner, LoopKernel, Node
from wis.dtypes import DType

__all__ = ["Dialect", "C99", "c_source"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a language spells a kernel. ``head`` takes {name}; ``unit_loop`` opens the loop over units r; names of types and functions."""

    prelude: str
    head: str
    unit_loop: str
    pointer: str  # takes {type} and {slot}
    types: Mapping[str, str]
    functions: Mapping[str, str]


C99: Final = Dialect(
    prelude="#include <math.h>\n#include <stdint.h>\n#include <string.h>\n",
    head="void {name}(const int64_t *args, int64_t r0, int64_t r1, char *scratch)",
    unit_loop="for (int64_t r = r0; r < r1; r++) {",
    pointer="({type} *)(intptr_t)args[{slot}]",
    types={"i1": "uint8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t", "u8": "uint8_t", "u16": "uint16_t",
           "u32": "uint32_t", "u64": "uint64_t", "f16": "uint16_t", "bf16": "uint16_t", "f32": "float", "f64": "double"},
    functions={name: name for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
        "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "floor", "ceil", "trunc", "rint", "fabs", "pow", "atan2", "hypot", "copysign",
        "fma", "fmod")},
)  # fmt: skip

_SIGNED: Final = (DType.I8, DType.I16, DType.I32, DType.I64)
_RENAMED: Final = {"abs": "fabs", "round": "rint", "fmod": "fmod"}
_INFIX: Final = {"add": "+", "sub": "-", "mul": "*"}
_COMPARE: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITS: Final = {"and": "&", "or": "|", "xor": "^"}

_HELPERS: Final = {
    "wis_f16": """static float wis_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023, bits;
  float f;
  if (e == 0) { f = (float)m * 5.9604644775390625e-08f; memcpy(&bits, &f, 4); bits |= sign; }
  else bits = sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13;
  memcpy(&f, &bits, 4);
  return f;
}""",
    "wis_to_f16": """static uint16_t wis_to_f16(float f) {
  uint32_t bits, sign, m;
  memcpy(&bits, &f, 4);
  sign = (bits >> 16) & 0x8000; bits &= 0x7fffffff;
  if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (bits < 0x38800000) { float g; memcpy(&g, &bits, 4); return (uint16_t)(sign | (uint32_t)rintf(g * 16777216.0f)); }
  m = bits + 0xfff + ((bits >> 13) & 1);
  return (uint16_t)(sign | ((m - 0x38000000) >> 13));
}""",
    "wis_bf16": """static float wis_bf16(uint16_t h) {
  uint32_t bits = (uint32_t)h << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}""",
    "wis_to_bf16": """static uint16_t wis_to_bf16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if (f != f) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}""",
}


class _Unspelled(Exception):
    """The kernel uses something that this emitter has no spelling for."""


def c_source(kernel: LoopKernel, name: str, dialect: Dialect = C99) -> str | None:
    """The source of a kernel without reductions, or None when an operation or a form has no spelling here."""
    if kernel.form is Form.COLS or kernel.n_mid or kernel.passes > 1 or any(kernel.level):
        return None
    try:
        return _Text(kernel, dialect).source(name)
    except _Unspelled:
        return None


class _Text:
    def __init__(self, kernel: LoopKernel, dialect: Dialect) -> None:
        self._k = kernel
        self._d = dialect
        self._helpers: dict[str, str] = {}

    def source(self, name: str) -> str:
        body = [f"  {line}" for line in self._loops()]
        helpers = list(self._helpers.values())
        return "\n".join([self._d.prelude, *helpers, self._d.head.format(name=name) + " {", *body, "}", ""])

    def _loops(self) -> list[str]:
        """Units, coordinates of the outer loops, and the inner loop around the element code."""
        k, at = self._k, self._k.layout
        lines = [self._scalar(i, node) for i, node in enumerate(k.nodes) if node.op == "scalar"]
        lines.append(self._d.unit_loop)
        if k.form is Form.FLAT:
            end = f"(r + 1) * args[{at.inner_size}] < args[{at.total}] ? (r + 1) * args[{at.inner_size}] : args[{at.total}]"
            lines.append(f"  const int64_t first = r * args[{at.inner_size}], last = {end};")
        else:
            lines.append(f"  const int64_t first = 0, last = args[{at.inner_size}];")
            lines += ["  int64_t rest = r;"] if k.n_outer else []
            for d in reversed(range(k.n_outer)):
                lines.append(f"  const int64_t c{d} = rest % args[{at.outer_sizes + d}]; rest /= args[{at.outer_sizes + d}];")
        lines += [f"  {self._base(i)}" for i in range(len(k.places))]
        lines.append("  for (int64_t j = first; j < last; j++) {")
        lines += [f"    {line}" for line in self._element()]
        return [*lines, "  }", "}"]

    def _base(self, i: int) -> str:
        """Where operand ``i`` starts in this unit."""
        k = self._k
        place, slot = k.places[i], k.layout.places + i * k.layout.place_slots
        offset = " + ".join(f"c{d} * args[{slot + 1 + d}]" for d in range(k.n_outer)) or "0"
        if place.virtual:
            return f"const int64_t p{i} = args[{slot}] + {offset};"
        kind = self._memory(place.dtype)
        return f"{kind} *const p{i} = {self._d.pointer.format(type=kind, slot=slot)} + {offset};"

    def _index(self, i: int) -> str:
        """How far the element is from there."""
        k = self._k
        if k.places[i].inner is Inner.ZERO:
            return "0"
        last = k.layout.places + i * k.layout.place_slots + k.layout.place_slots - 1
        return "j" if k.places[i].inner is Inner.UNIT else f"j * args[{last}]"

    def _memory(self, dtype: DType) -> str:
        return self._d.types["i1" if dtype is DType.BOOL else dtype.text]

    def _register(self, dtype: DType) -> str:
        return self._d.types["f32"] if dtype in (DType.F16, DType.BF16) else self._memory(dtype)

    def _helper(self, name: str) -> str:
        self._helpers[name] = _HELPERS[name]
        return name

    def _scalar(self, i: int, node: Node) -> str:
        """A scalar argument, from the low bytes of its slot."""
        kind, slot = self._register(node.dtype), self._k.layout.scalars + node.args[0]
        whole = f" v{i} = v{i} != 0;" if node.dtype is DType.BOOL else ""
        return f"{kind} v{i}; memcpy(&v{i}, &args[{slot}], sizeof v{i});{whole}"

    def _element(self) -> list[str]:
        k = self._k
        lines = []
        for i, node in enumerate(k.nodes):
            if node.op != "scalar":
                lines.append(f"const {self._register(node.dtype)} v{i} = {self._value(node)};")
        for place, i in k.stores:
            lines.append(f"p{place}[{self._index(place)}] = {self._stored(k.places[place].dtype, f'v{i}')};")
        return lines

    def _stored(self, dtype: DType, value: str) -> str:
        if dtype in (DType.F16, DType.BF16):
            return f"{self._helper('wis_to_' + dtype.text)}({value})"
        return value

    def _value(self, node: Node) -> str:
        if node.op == "index":
            return f"p{node.args[0]} + {self._index(node.args[0])}"
        if node.op == "load":
            raw = f"p{node.args[0]}[{self._index(node.args[0])}]"
            if node.dtype is DType.BOOL:
                return f"{raw} != 0"
            return f"{self._helper('wis_' + node.dtype.text)}({raw})" if node.dtype in (DType.F16, DType.BF16) else raw
        assert node.op not in LEAVES
        args = [f"v{a}" for a in node.args]
        operand = self._k.nodes[node.args[-1]].dtype
        return self._rounded(node.dtype, self._operation(node.op, node.dtype, operand, args))

    def _rounded(self, dtype: DType, value: str) -> str:
        if dtype in (DType.F16, DType.BF16):
            return f"{self._helper('wis_' + dtype.text)}({self._helper('wis_to_' + dtype.text)}({value}))"
        return value

    def _operation(self, op: str, out: DType, operand: DType, a: Sequence[str]) -> str:
        if op == "where":
            return f"{a[0]} ? {a[1]} : {a[2]}"
        if op in _COMPARE:
            return f"{a[0]} {_COMPARE[op]} {a[1]}"
        if op == "cast":
            return self._cast(operand, out, a[0])
        if operand.is_float:
            return self._real(op, operand, a)
        return self._whole(op, operand, a)

    def _cast(self, source: DType, target: DType, x: str) -> str:
        if target is DType.BOOL:
            return f"{x} != 0"
        if source.is_float and target.is_integer:
            raise _Unspelled  # saturation needs a helper a pair of types
        return x if source is target else f"({self._register(target)}){x}"

    def _real(self, op: str, dtype: DType, a: Sequence[str]) -> str:
        suffix = "" if dtype is DType.F64 else "f"
        if op in _INFIX:
            return f"{a[0]} {_INFIX[op]} {a[1]}"
        match op:
            case "neg":
                return f"-{a[0]}"
            case "div":
                return f"{a[0]} / {a[1]}"
            case "recip":
                return f"1.0{suffix} / {a[0]}"
            case "conj":
                return a[0]
            case "is_nan":
                return f"{a[0]} != {a[0]}"
            case "max" | "min":
                sign = ">" if op == "max" else "<"
                return f"{a[0]} != {a[0]} ? {a[0]} : {a[0]} {sign} {a[1]} ? {a[0]} : {a[1]}"
            case "sign":
                return f"({self._register(dtype)})({a[0]} > 0) - ({self._register(dtype)})({a[0]} < 0)"
            case "sigmoid":
                return f"1.0{suffix} / (1.0{suffix} + {self._d.functions['exp']}{suffix}(-{a[0]}))"
        name = self._d.functions.get(_RENAMED.get(op, op))
        if name is None:
            raise _Unspelled
        return f"{name}{suffix}({', '.join(a)})"

    def _whole(self, op: str, dtype: DType, a: Sequence[str]) -> str:
        kind = self._memory(dtype)
        wrap = self._d.types[f"u{max(32, 8 * dtype.itemsize)}"]
        if op in _INFIX and dtype is not DType.BOOL:
            return f"({kind})(({wrap}){a[0]} {_INFIX[op]} ({wrap}){a[1]})"
        if op in _BITS:
            return f"({kind})({a[0]} {_BITS[op]} {a[1]})"
        match op:
            case "neg":
                return f"({kind})(0 - ({wrap}){a[0]})"
            case "not":
                return f"!{a[0]}" if dtype is DType.BOOL else f"({kind})~{a[0]}"
            case "abs":
                return f"{a[0]} < 0 ? ({kind})(0 - ({wrap}){a[0]}) : {a[0]}" if dtype in _SIGNED else a[0]
            case "max" | "fmax":
                return f"{a[0]} > {a[1]} ? {a[0]} : {a[1]}"
            case "min" | "fmin":
                return f"{a[0]} < {a[1]} ? {a[0]} : {a[1]}"
        raise _Unspelled
