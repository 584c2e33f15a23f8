#include <math.h>
#include <stdint.h>
#include <string.h>
#pragma STDC FP_CONTRACT OFF

int32_t softmax_row(uint8_t *p0, uint64_t n0, uint8_t *p1, uint64_t n1, uint64_t p2, uint64_t p3, uint64_t p4, uint64_t p5, uint64_t p6, uint64_t p7, int64_t grid, int64_t threads, int64_t first, int64_t count) {
int32_t trap = 0;
for (int64_t cta = first; cta < first + count; cta++) {
float s0[32]; memset(s0, 0, sizeof s0);
float s1[32]; memset(s1, 0, sizeof s1);
struct { uint64_t r0; uint64_t r1; uint64_t r2; uint64_t r3; uint64_t r4; uint64_t r5; uint32_t r6; uint64_t r7; uint32_t r8; uint64_t r9; uint64_t r10; uint64_t r11; uint64_t r12; uint64_t r13; uint64_t r14; uint64_t r15; float r16; float r17; uint64_t r18; uint8_t r19; uint64_t r20; float r21; float r22; uint64_t r23; uint64_t r24; uint64_t r25; uint64_t r26; uint8_t r27; uint8_t r28; uint64_t r29; float r30; float r31; float r32; uint64_t r33; uint64_t r34; float r35; float r36; float r37; uint64_t r38; uint8_t r39; uint64_t r40; float r41; float r42; float r43; float r44; uint64_t r45; uint64_t r46; uint64_t r47; uint64_t r48; uint8_t r49; uint8_t r50; uint64_t r51; float r52; float r53; float r54; uint64_t r55; uint64_t r56; float r57; uint64_t r58; uint8_t r59; uint64_t r60; float r61; float r62; float r63; float r64; uint64_t r65; uint64_t r66; } all[32], *t;
int32_t at[32] = {0};
for (int live = 1; live;) {
live = 0;
for (int64_t tid = 0; tid < threads; tid++) {
t = &all[tid];
switch (at[tid]) { case 0: break; case 4: goto b4; case 12: goto b12; default: continue; }
b0:;
  t->r0 = p2;
  t->r1 = p3;
  t->r2 = p4;
  t->r3 = p5;
  t->r4 = p6;
  t->r5 = p7;
  t->r6 = (uint32_t)(tid);
  t->r7 = (uint64_t)(int64_t)(int32_t)t->r6;
  t->r8 = (uint32_t)(cta);
  t->r9 = (uint64_t)(int64_t)(int32_t)t->r8;
  t->r10 = (uint64_t)((uint64_t)t->r9 * t->r4);
  t->r11 = (uint64_t)((uint64_t)t->r2 + t->r10);
  t->r12 = (uint64_t)((uint64_t)t->r9 * t->r5);
  t->r13 = (uint64_t)((uint64_t)t->r3 + t->r12);
  t->r14 = 1u;
  t->r15 = (uint64_t)((uint64_t)t->r14 * t->r1);
  t->r16 = -INFINITY;
  t->r17 = t->r16;
  t->r18 = t->r7;
  goto b1;
b1:;
  t->r19 = (int64_t)t->r18 < (int64_t)t->r15;
  if (t->r19) goto b2; else goto b3;
b2:;
  t->r20 = (uint64_t)((uint64_t)t->r11 + t->r18);
  { float e = 0; if (t->r20 < n0 / 4) memcpy(&e, p0 + 4 * t->r20, sizeof e); else trap = 1; t->r21 = (float)e; }
  t->r22 = t->r17 != t->r17 || t->r17 > t->r21 ? t->r17 : t->r21;
  t->r17 = t->r22;
  t->r23 = 32u;
  t->r18 = (uint64_t)((uint64_t)t->r18 + t->r23);
  goto b1;
b3:;
  { float e = (float)t->r17; if (t->r7 < sizeof s0 / 4) memcpy((uint8_t *)s0 + 4 * t->r7, &e, sizeof e); else trap = 1; }
  t->r24 = 16u;
  t->r25 = t->r24;
  at[tid] = 4; live = 1; continue;
b4:;
  t->r26 = 0u;
  t->r27 = (int64_t)t->r26 < (int64_t)t->r25;
  if (t->r27) goto b5; else goto b6;
b5:;
  t->r28 = (int64_t)t->r7 < (int64_t)t->r25;
  if (t->r28) goto b7; else goto b8;
b6:;
  t->r34 = 0u;
  { float e = 0; if (t->r34 < sizeof s0 / 4) memcpy(&e, (uint8_t *)s0 + 4 * t->r34, sizeof e); else trap = 1; t->r35 = (float)e; }
  t->r36 = 0x0.0p+0f;
  t->r37 = t->r36;
  t->r38 = t->r7;
  goto b9;
b7:;
  t->r29 = (uint64_t)((uint64_t)t->r7 + t->r25);
  { float e = 0; if (t->r7 < sizeof s0 / 4) memcpy(&e, (uint8_t *)s0 + 4 * t->r7, sizeof e); else trap = 1; t->r30 = (float)e; }
  { float e = 0; if (t->r29 < sizeof s0 / 4) memcpy(&e, (uint8_t *)s0 + 4 * t->r29, sizeof e); else trap = 1; t->r31 = (float)e; }
  t->r32 = t->r30 != t->r30 || t->r30 > t->r31 ? t->r30 : t->r31;
  { float e = (float)t->r32; if (t->r7 < sizeof s0 / 4) memcpy((uint8_t *)s0 + 4 * t->r7, &e, sizeof e); else trap = 1; }
  goto b8;
b8:;
  t->r33 = 1u;
  t->r25 = t->r33 < 64 ? (uint64_t)(t->r25 >> t->r33) : 0;
  at[tid] = 4; live = 1; continue;
b9:;
  t->r39 = (int64_t)t->r38 < (int64_t)t->r15;
  if (t->r39) goto b10; else goto b11;
b10:;
  t->r40 = (uint64_t)((uint64_t)t->r11 + t->r38);
  { float e = 0; if (t->r40 < n0 / 4) memcpy(&e, p0 + 4 * t->r40, sizeof e); else trap = 1; t->r41 = (float)e; }
  t->r42 = t->r41 - t->r35;
  t->r43 = (float)(exp((double)t->r42));
  t->r44 = t->r37 + t->r43;
  t->r37 = t->r44;
  t->r45 = 32u;
  t->r38 = (uint64_t)((uint64_t)t->r38 + t->r45);
  goto b9;
b11:;
  { float e = (float)t->r37; if (t->r7 < sizeof s1 / 4) memcpy((uint8_t *)s1 + 4 * t->r7, &e, sizeof e); else trap = 1; }
  t->r46 = 16u;
  t->r47 = t->r46;
  at[tid] = 12; live = 1; continue;
b12:;
  t->r48 = 0u;
  t->r49 = (int64_t)t->r48 < (int64_t)t->r47;
  if (t->r49) goto b13; else goto b14;
b13:;
  t->r50 = (int64_t)t->r7 < (int64_t)t->r47;
  if (t->r50) goto b15; else goto b16;
b14:;
  t->r56 = 0u;
  { float e = 0; if (t->r56 < sizeof s1 / 4) memcpy(&e, (uint8_t *)s1 + 4 * t->r56, sizeof e); else trap = 1; t->r57 = (float)e; }
  t->r58 = t->r7;
  goto b17;
b15:;
  t->r51 = (uint64_t)((uint64_t)t->r7 + t->r47);
  { float e = 0; if (t->r7 < sizeof s1 / 4) memcpy(&e, (uint8_t *)s1 + 4 * t->r7, sizeof e); else trap = 1; t->r52 = (float)e; }
  { float e = 0; if (t->r51 < sizeof s1 / 4) memcpy(&e, (uint8_t *)s1 + 4 * t->r51, sizeof e); else trap = 1; t->r53 = (float)e; }
  t->r54 = t->r52 + t->r53;
  { float e = (float)t->r54; if (t->r7 < sizeof s1 / 4) memcpy((uint8_t *)s1 + 4 * t->r7, &e, sizeof e); else trap = 1; }
  goto b16;
b16:;
  t->r55 = 1u;
  t->r47 = t->r55 < 64 ? (uint64_t)(t->r47 >> t->r55) : 0;
  at[tid] = 12; live = 1; continue;
b17:;
  t->r59 = (int64_t)t->r58 < (int64_t)t->r15;
  if (t->r59) goto b18; else goto b19;
b18:;
  t->r60 = (uint64_t)((uint64_t)t->r11 + t->r58);
  { float e = 0; if (t->r60 < n0 / 4) memcpy(&e, p0 + 4 * t->r60, sizeof e); else trap = 1; t->r61 = (float)e; }
  t->r62 = t->r61 - t->r35;
  t->r63 = (float)(exp((double)t->r62));
  t->r64 = t->r63 / t->r57;
  t->r65 = (uint64_t)((uint64_t)t->r13 + t->r58);
  { float e = (float)t->r64; if (t->r65 < n1 / 4) memcpy(p1 + 4 * t->r65, &e, sizeof e); else trap = 1; }
  t->r66 = 32u;
  t->r58 = (uint64_t)((uint64_t)t->r58 + t->r66);
  goto b17;
b19:;
  at[tid] = -1; continue;
}
}
}
return trap;
}
