#include <math.h>
#include <stdint.h>
#include <string.h>

static float wis_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023, bits;
  float f;
  if (e == 0) { f = (float)m * 5.9604644775390625e-08f; memcpy(&bits, &f, 4); bits |= sign; }
  else bits = sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13;
  memcpy(&f, &bits, 4);
  return f;
}
static uint16_t wis_to_f16(float f) {
  uint32_t bits, sign, m;
  memcpy(&bits, &f, 4);
  sign = (bits >> 16) & 0x8000; bits &= 0x7fffffff;
  if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (bits < 0x38800000) { float g; memcpy(&g, &bits, 4); return (uint16_t)(sign | (uint32_t)rintf(g * 16777216.0f)); }
  m = bits + 0xfff + ((bits >> 13) & 1);
  return (uint16_t)(sign | ((m - 0x38000000) >> 13));
}
void half_bias(const int64_t *args, int64_t r0, int64_t r1, char *scratch) {
  float v3; memcpy(&v3, &args[12], sizeof v3);
  for (int64_t r = r0; r < r1; r++) {
    const int64_t first = 0, last = args[0];
    int64_t rest = r;
    const int64_t c0 = rest % args[2]; rest /= args[2];
    uint16_t *const p0 = (uint16_t *)(intptr_t)args[3] + c0 * args[4];
    uint16_t *const p1 = (uint16_t *)(intptr_t)args[6] + c0 * args[7];
    uint16_t *const p2 = (uint16_t *)(intptr_t)args[9] + c0 * args[10];
    for (int64_t j = first; j < last; j++) {
      const float v0 = wis_f16(p0[j]);
      const float v1 = wis_f16(p1[j]);
      const float v2 = wis_f16(wis_to_f16(v0 + v1));
      const float v4 = wis_f16(wis_to_f16(v2 != v2 ? v2 : v2 > v3 ? v2 : v3));
      p2[j] = wis_to_f16(v4);
    }
  }
}
