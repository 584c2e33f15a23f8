#include <math.h>
#include <stdint.h>
#include <string.h>
#pragma STDC FP_CONTRACT OFF

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
int32_t column_sum(uint8_t *p0, uint64_t n0, uint8_t *p1, uint64_t n1, uint64_t p2, uint64_t p3, uint64_t p4, uint64_t p5, uint64_t p6, int64_t grid, int64_t threads, int64_t first, int64_t count) {
int32_t trap = 0;
for (int64_t cta = first; cta < first + count; cta++) {
float s0[32]; memset(s0, 0, sizeof s0);
struct { uint64_t r0; uint64_t r1; uint64_t r2; uint64_t r3; uint64_t r4; uint32_t r5; uint64_t r6; uint32_t r7; uint64_t r8; uint64_t r9; uint64_t r10; uint64_t r11; uint64_t r12; float r13; float r14; uint64_t r15; uint8_t r16; uint64_t r17; uint64_t r18; uint16_t r19; float r20; float r21; uint64_t r22; uint64_t r23; uint64_t r24; uint64_t r25; uint8_t r26; uint8_t r27; uint64_t r28; float r29; float r30; float r31; uint64_t r32; uint64_t r33; float r34; uint16_t r35; float r36; uint64_t r37; uint8_t r38; uint16_t r39; } all[32], *t;
int32_t at[32] = {0};
for (int live = 1; live;) {
live = 0;
for (int64_t tid = 0; tid < threads; tid++) {
t = &all[tid];
switch (at[tid]) { case 0: break; case 4: goto b4; case 9: goto b9; default: continue; }
b0:;
  t->r0 = p2;
  t->r1 = p3;
  t->r2 = p4;
  t->r3 = p5;
  t->r4 = p6;
  t->r5 = (uint32_t)(tid);
  t->r6 = (uint64_t)(int64_t)(int32_t)t->r5;
  t->r7 = (uint32_t)(cta);
  t->r8 = (uint64_t)(int64_t)(int32_t)t->r7;
  t->r9 = (uint64_t)((uint64_t)t->r2 + t->r8);
  t->r10 = (uint64_t)((uint64_t)t->r3 + t->r8);
  t->r11 = 1u;
  t->r12 = (uint64_t)((uint64_t)t->r11 * t->r0);
  t->r13 = 0x0.0p+0f;
  t->r14 = t->r13;
  t->r15 = t->r6;
  goto b1;
b1:;
  t->r16 = (int64_t)t->r15 < (int64_t)t->r12;
  if (t->r16) goto b2; else goto b3;
b2:;
  t->r17 = (uint64_t)((uint64_t)t->r15 * t->r4);
  t->r18 = (uint64_t)((uint64_t)t->r9 + t->r17);
  { uint16_t e = 0; if (t->r18 < n0 / 2) memcpy(&e, p0 + 2 * t->r18, sizeof e); else trap = 1; t->r19 = (uint16_t)e; }
  t->r20 = (float)wis_f16(t->r19);
  t->r21 = t->r14 + t->r20;
  t->r14 = t->r21;
  t->r22 = 32u;
  t->r15 = (uint64_t)((uint64_t)t->r15 + t->r22);
  goto b1;
b3:;
  { float e = (float)t->r14; if (t->r6 < sizeof s0 / 4) memcpy((uint8_t *)s0 + 4 * t->r6, &e, sizeof e); else trap = 1; }
  t->r23 = 16u;
  t->r24 = t->r23;
  at[tid] = 4; live = 1; continue;
b4:;
  t->r25 = 0u;
  t->r26 = (int64_t)t->r25 < (int64_t)t->r24;
  if (t->r26) goto b5; else goto b6;
b5:;
  t->r27 = (int64_t)t->r6 < (int64_t)t->r24;
  if (t->r27) goto b7; else goto b8;
b6:;
  t->r33 = 0u;
  { float e = 0; if (t->r33 < sizeof s0 / 4) memcpy(&e, (uint8_t *)s0 + 4 * t->r33, sizeof e); else trap = 1; t->r34 = (float)e; }
  t->r35 = wis_to_f16((float)t->r34);
  t->r36 = (float)wis_f16(t->r35);
  at[tid] = 9; live = 1; continue;
b7:;
  t->r28 = (uint64_t)((uint64_t)t->r6 + t->r24);
  { float e = 0; if (t->r6 < sizeof s0 / 4) memcpy(&e, (uint8_t *)s0 + 4 * t->r6, sizeof e); else trap = 1; t->r29 = (float)e; }
  { float e = 0; if (t->r28 < sizeof s0 / 4) memcpy(&e, (uint8_t *)s0 + 4 * t->r28, sizeof e); else trap = 1; t->r30 = (float)e; }
  t->r31 = t->r29 + t->r30;
  { float e = (float)t->r31; if (t->r6 < sizeof s0 / 4) memcpy((uint8_t *)s0 + 4 * t->r6, &e, sizeof e); else trap = 1; }
  goto b8;
b8:;
  t->r32 = 1u;
  t->r24 = t->r32 < 64 ? (uint64_t)(t->r24 >> t->r32) : 0;
  at[tid] = 4; live = 1; continue;
b9:;
  t->r37 = 0u;
  t->r38 = t->r6 == t->r37;
  if (t->r38) goto b10; else goto b11;
b10:;
  t->r39 = wis_to_f16((float)t->r36);
  { uint16_t e = (uint16_t)t->r39; if (t->r10 < n1 / 2) memcpy(p1 + 2 * t->r10, &e, sizeof e); else trap = 1; }
  goto b11;
b11:;
  at[tid] = -1; continue;
}
}
}
return trap;
}
