"""Functions that generated source may need: conversions of half precision, least and greatest, reversed bits, atomics by exchange,
special functions that libraries lack. All are in the words of the preludes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wis.kernel.matrix import ELEMENTS, INTEGERS, SIGNED
from wis.kernel.model import Matrix, Op


def _extremes(kind: str, unsigned: str) -> dict[str, str]:
    up, into, back = unsigned.upper(), f"AS_{unsigned.upper()}", f"AS_{kind.upper()}"
    assert up
    result = {}
    for name, sign, join in (("min", "<", "|"), ("max", ">", "&")):
        # Equal operands differ at most in the sign of a zero: -0 is the lesser.
        same = f"{back}({into}(a) {join} {into}(b))"
        result[f"wis_{name}_{kind}"] = (
            f"FN {kind} wis_{name}_{kind}({kind} a, {kind} b) {{\n"
            f"  return a {sign} b || a != a ? a : b {sign} a || b != b ? b : {same};\n}}"
        )
        result[f"wis_f{name}_{kind}"] = (
            f"FN {kind} wis_f{name}_{kind}({kind} a, {kind} b) {{\n"
            f"  return a {sign} b || b != b ? a : b {sign} a || a != a ? b : {same};\n}}"
        )
    return result


HELPERS: Final[dict[str, str]] = {
    **_extremes("f32", "u32"),
    **_extremes("f64", "u64"),
    "wis_brev32": """FN u32 wis_brev32(u32 x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  x = (x >> 8 & 0x00ff00ffu) | (x & 0x00ff00ffu) << 8;
  return x >> 16 | x << 16;
}""",
    "wis_brev64": """FN u64 wis_brev64(u64 x) { return (u64)wis_brev32((u32)x) << 32 | wis_brev32((u32)(x >> 32)); }""",
    "wis_f16": """FN f32 wis_f16(u16 h) {
  u32 sign = (u32)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
  if (e == 0) return AS_F32(AS_U32((f32)m * 5.9604644775390625e-08f) | sign);
  return AS_F32(sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13);
}""",
    "wis_to_f16": """FN u16 wis_to_f16(f32 f) {
  u32 bits = AS_U32(f), sign = (bits >> 16) & 0x8000, m;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return (u16)(sign | 0x7e00);
  if (bits >= 0x477ff000) return (u16)(sign | 0x7c00);
  if (bits < 0x38800000) return (u16)(sign | (AS_U32(AS_F32(bits) * 16777216.0f + 8388608.0f) & 0x7fffff));
  m = bits + 0xfff + ((bits >> 13) & 1);
  return (u16)(sign | ((m - 0x38000000) >> 13));
}""",
    "wis_bf16": """FN f32 wis_bf16(u16 h) { return AS_F32((u32)h << 16); }""",
    "wis_to_bf16": """FN u16 wis_to_bf16(f32 f) {
  u32 bits = AS_U32(f);
  if (f != f) return (u16)(bits >> 16 | 0x40);
  return (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}""",
    "wis_spent": """FN u32 wis_spent(GLOBAL u64 *state, u64 fuel, u64 n, PRIVATE u64 *next) {
  u64 units = ((n - *next) >> 16) + 1;
  *next += units << 16;
  return ((u64)COUNT_ADD(state + 3, units) + units) << 16 > fuel;
}""",
    "wis_over": """FN u32 wis_over(GLOBAL u64 *state, u64 fuel) { return (u64)COUNT_ADD(state + 3, 0) << 16 > fuel; }""",
    "wis_digamma": """FN f64 wis_digamma(f64 x) {
  f64 y = x < 0.5 ? 1.0 - x : x, total = 0.0, v, value, part;
  if (x != x || x == AS_F64(0x7ff0000000000000LONG)) return x;
  if (x == 0.0) return copysign(AS_F64(0x7ff0000000000000LONG), -x);
  for (int i = 0; i < 10; i++) if (y < 10.0) { total -= 1.0 / y; y += 1.0; }
  v = 1.0 / (y * y);
  value = total + log(y) - 0.5 / y - v * (0.08333333333333333 + v * (-0.008333333333333333 + v * (0.003968253968253968
    + v * (-0.004166666666666667 + v * (0.007575757575757576 + v * (-0.021092796092796094 + v * 0.08333333333333333))))));
  part = x - rint(x);
  if (x < 0 && part == 0.0 || x == -AS_F64(0x7ff0000000000000LONG)) return AS_F64(0x7ff8000000000000LONG);
  return x < 0.5 ? value - 3.141592653589793 / tan(3.141592653589793 * part) : value;
}""",
    "wis_erfinv": """FN f64 wis_erfinv(f64 x) {
  f64 a = fabs(x), w, far, y, error, step;
  if (!(a < 1.0)) return a == 1.0 ? copysign(AS_F64(0x7ff0000000000000LONG), x) : AS_F64(0x7ff8000000000000LONG);
  w = -log((1.0 - a) * (1.0 + a));
  if (w < 5.0) {
    w -= 2.5;
    y = a * (1.50140941 + w * (0.246640727 + w * (-0.00417768164 + w * (-0.00125372503 + w * (0.00021858087 + w * (-4.39150654e-06
      + w * (-3.5233877e-06 + w * (3.43273939e-07 + w * 2.81022636e-08))))))));
  } else if (w < 16.0) {
    w = sqrt(w) - 3.0;
    y = a * (2.83297682 + w * (1.00167406 + w * (0.00943887047 + w * (-0.0076224613 + w * (0.00573950773 + w * (-0.00367342844
      + w * (0.00134934322 + w * (0.000100950558 + w * -0.000200214257))))))));
  } else {
    far = -log((1.0 - a) * 1.7724538509055159);
    y = sqrt(fabs(far - 0.5 * log(far > 1.0 ? far : 1.0)));
  }
  for (int i = 0; i < 3; i++) {
    error = a > 0.5 ? (1.0 - a) - erfc(y) : erf(y) - a;
    step = error / (1.1283791670955126 * exp(-y * y));
    y -= step / (1.0 + y * step);
  }
  return copysign(y, x);
}""",
}
_ELEMENT: Final = {
    Matrix.F16: "wis_f16((u16)({0} >> 16 * e))", Matrix.BF16: "AS_F32({0} >> 16 * e << 16)", Matrix.TF32: "AS_F32({0} & 0xffffe000u)",
}  # fmt: skip


def _matrix(form: Matrix) -> str:
    """A product of a warp (wis.kernel.matrix). ``x``: words of a0, a1 and b of 32 lanes each, ``s``: c0 to c3."""
    each = ELEMENTS[form]
    depth, kind = 4 * each, "u32" if form in INTEGERS else "f32"
    left, right = _elements(form)
    add = "d[j] + v * b[k * 8 + j]" if form in INTEGERS else "fma(v, b[k * 8 + j], d[j])"
    return f"""FN void {_name(form)}(PRIVATE const u32 *x, PRIVATE {kind} *s) {{
  {kind} a[{16 * depth}], b[{depth * 8}], d[8];
  for (u32 l = 0; l < 32; l++) for (u32 e = 0; e < {each}; e++) {{
    const u32 k = (l & 3) * {each} + e, g = l >> 2;
    a[g * {depth} + k] = {left.format("x[l]")};
    a[(g + 8) * {depth} + k] = {left.format("x[32 + l]")};
    b[k * 8 + g] = {right.format("x[64 + l]")};
  }}
  for (u32 i = 0; i < 16; i++) {{
    PRIVATE {kind} *c = s + (i >> 3) * 64 + (i & 7) * 4;
    for (u32 j = 0; j < 8; j++) d[j] = c[(j & 1) * 32 + (j >> 1)];
    for (u32 k = 0; k < {depth}; k++) {{
      const {kind} v = a[i * {depth} + k];
      for (u32 j = 0; j < 8; j++) d[j] = {add};
    }}
    for (u32 j = 0; j < 8; j++) c[(j & 1) * 32 + (j >> 1)] = d[j];
  }}
}}"""


def _elements(form: Matrix) -> tuple[str, str]:
    """Element ``e`` of a word of A, and of B, as a format of the word."""
    if form in INTEGERS:
        left, right = ("(u32)((s32)({0} << 24 - 8 * e) >> 24)" if signed else "({0} >> 8 * e & 255u)" for signed in SIGNED[form])
        return left, right
    return _ELEMENT[form], _ELEMENT[form]


def _matrix_of_lanes(form: Matrix) -> str:
    """The same for one lane of a warp, of which the lanes in ``wm`` are there."""
    kind = "u32" if form in INTEGERS else "f32"
    left, right = _elements(form)
    add = "s[{0}] + {1} * {2}" if form in INTEGERS else "fma({1}, {2}, s[{0}])"
    sums = " ".join(f"s[{i}] = {add.format(i, x, y)};" for i, (x, y) in enumerate((x, y) for x in "pq" for y in "vw"))
    return f"""FN void {_name(form)}_lane(u32 wm, u32 lane, u32 a0, u32 a1, u32 b, PRIVATE {kind} *s) {{
  for (u32 t = 0; t < 4; t++) {{
    const u32 i = (lane & 28u) | t, j = (lane & 3u) * 8 + t, k = j + 4;
    u32 x0 = WARP_SHFL(wm, a0, i), x1 = WARP_SHFL(wm, a1, i), y0 = WARP_SHFL(wm, b, j), y1 = WARP_SHFL(wm, b, k);
    if (!(wm >> i & 1)) x0 = x1 = 0;
    if (!(wm >> j & 1)) y0 = 0;
    if (!(wm >> k & 1)) y1 = 0;
    for (u32 e = 0; e < {ELEMENTS[form]}; e++) {{
      const {kind} p = {left.format("x0")}, q = {left.format("x1")}, v = {right.format("y0")}, w = {right.format("y1")};
      {sums}
    }}
  }}
}}"""


def _tensor(name: str, instruction: str, factors: Sequence[str], kind: str, n: int) -> str:
    """By the instruction where all lanes are there and the device has it: its order of sums is the device's own."""
    code = {"u32": "r", "f32": "f", "f64": "d"}
    sums = ", ".join(f"%{i}" for i in range(n))
    groups = (factors[:-1], factors[-1:])
    places = iter(range(n, n + len(factors)))
    operands = ", ".join("{" + ", ".join(f"%{next(places)}" for _ in group) + "}" for group in groups)
    inout = ", ".join(f'"+{code[kind]}"(s[{i}])' for i in range(n))
    ins = ", ".join(f'"{code["f64" if kind == "f64" else "u32"]}"({x})' for x in factors)
    parameters = ", ".join(f"{'f64' if kind == 'f64' else 'u32'} {x}" for x in factors)
    return f"""FN void {name}_tensor(u32 wm, u32 lane, {parameters}, PRIVATE {kind} *s) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (wm == ~0u) {{
    asm volatile("{instruction} {{{sums}}}, {operands}, {{{sums}}};" : {inout} : {ins});
    return;
  }}
#endif
  {name}_lane(wm, lane, {", ".join(factors)}, s);
}}"""


def _instruction(form: Matrix) -> str:
    sums = "s32" if form in INTEGERS else "f32"
    left, _, right = form.name.lower().partition("_")
    return f"mma.sync.aligned.m16n8k{4 * ELEMENTS[form]}.row.col.{sums}.{left}.{right or left}.{sums}"


def _name(form: Matrix) -> str:
    return f"wis_mma_{form.name.lower()}"


def matrix_helper(op: Op) -> str:
    """The function that computes a product of matrices."""
    return _name(Matrix(op.attrs[0])) if op.attrs else "wis_mma_f64"


INTEGER_HELPERS: Final = frozenset(_name(form) for form in INTEGERS)
HELPERS.update((_name(form), _matrix(form)) for form in Matrix)
HELPERS["wis_mma_f64"] = """FN void wis_mma_f64(PRIVATE const f64 *x, PRIVATE f64 *s) {
  for (u32 l = 0; l < 32; l++) for (u32 j = 0; j < 2; j++) for (u32 k = 0; k < 4; k++)
    s[j * 32 + l] = fma(x[(l & ~3u) + k], x[32 + (2 * (l & 3) + j) * 4 + k], s[j * 32 + l]);
}"""
HELPERS["wis_mma_f64_lane"] = """FN void wis_mma_f64_lane(u32 wm, u32 lane, f64 a, f64 b, PRIVATE f64 *s) {
  for (u32 t = 0; t < 4; t++) for (u32 n = 0; n < 2; n++) {
    const u32 i = (lane & 28u) | t, j = (lane & 3u) * 8 + 4 * n + t;
    const f64 x = WARP_SHFL(wm, a, i), y = WARP_SHFL(wm, b, j);
    s[n] = fma(wm >> i & 1 ? x : 0.0, wm >> j & 1 ? y : 0.0, s[n]);
  }
}"""
HELPERS.update((f"{_name(form)}_lane", _matrix_of_lanes(form)) for form in Matrix)
HELPERS.update(
    (f"{_name(form)}_tensor", _tensor(_name(form), _instruction(form), ("a0", "a1", "b"), "u32" if form in INTEGERS else "f32", 4))
    for form in Matrix
)
HELPERS["wis_mma_f64_tensor"] = _tensor("wis_mma_f64", "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", ("a", "b"), "f64", 2)
NEEDS: Final = {
    **{f"{_name(form)}_tensor": (f"{_name(form)}_lane",) for form in Matrix}, "wis_mma_f64_tensor": ("wis_mma_f64_lane",),
    "wis_mma_f16": ("wis_f16",), "wis_mma_f16_lane": ("wis_f16",), "wis_mma_f16_tensor": ("wis_f16", "wis_mma_f16_lane"),
    "wis_brev64": ("wis_brev32",),
}  # fmt: skip
"""Helpers that helpers call."""

_FUNCTIONS: Final = {
    "add": "o + v", "min": "o < v ? o : v", "max": "o > v ? o : v", "and": "o & v", "or": "o | v", "xor": "o ^ v",
    "inc": "o >= v ? 0 : o + 1", "dec": "o == 0 || o > v ? v : o - 1",
}  # fmt: skip


def atomic_helper(function: str, kind: str, space: str) -> tuple[str, str]:
    """Name and text of the function that makes ``function(old, v)`` of an element of ``kind`` (u32 s32 u64 s64 f32 f64) behind a pointer to
    ``space`` in one step, and returns the old one, all as registers."""
    bits, register = kind[1:], kind if kind[0] == "f" else f"u{kind[1:]}"
    word = f"u{bits}"
    name = f"wis_atom_{function}_{kind}_{space.lower()}"
    pointer = f"volatile {space} {word}_m *p"
    cell = f"(volatile {space} {word} *)p"
    if function == "cas":
        return name, f"FN {word} {name}({pointer}, {word} a, {word} b) {{ return ATOM_CAS{bits}({cell}, a, b); }}"
    if function == "exch":
        return name, f"FN {word} {name}({pointer}, {word} v) {{ return ATOM_XCHG{bits}({cell}, v); }}"
    if function == "add" and kind[0] != "f":
        return name, f"FN {word} {name}({pointer}, {word} v) {{ return ATOM_ADD{bits}({cell}, v); }}"
    back = {"f": f"AS_F{bits}", "s": f"(s{bits})", "u": ""}[kind[0]]
    out = {"f": f"AS_U{bits}", "s": f"(u{bits})", "u": ""}[kind[0]]
    return name, (
        f"FN {register} {name}({pointer}, {register} given) {{\n"
        f"  {kind} v = ({kind})given, o;\n"
        f"  {word} old = *p, now;\n"
        f"  for (;;) {{\n"
        f"    o = {back}(old);\n"
        f"    now = ATOM_CAS{bits}({cell}, old, {out}({_FUNCTIONS[function]}));\n"
        f"    if (now == old) return ({register})o;\n"
        f"    old = now;\n"
        f"  }}\n}}"
    )


def with_needs(names: list[str], long: str) -> dict[str, str]:
    """Helpers by name, those that others call first."""
    every: dict[str, str] = {}
    for name in names:
        every.update({n: HELPERS[n].replace("LONG", long) for n in (*NEEDS.get(name, ()), name)})
    return every
