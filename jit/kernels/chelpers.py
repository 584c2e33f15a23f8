"""Conversions of half precision in C, for compilers that lack the types.

May live here: functions that generated source may need. May not: what needs them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HELPERS"]

HELPERS: Final[dict[str, str]] = {
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
