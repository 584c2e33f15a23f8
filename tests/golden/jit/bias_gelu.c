#include <math.h>
#include <stdint.h>
#include <string.h>
#pragma STDC FP_CONTRACT OFF

int32_t bias_gelu(uint8_t *p0, uint64_t n0, uint8_t *p1, uint64_t n1, uint8_t *p2, uint64_t n2, uint64_t p3, uint64_t p4, uint64_t p5, uint64_t p6, uint64_t p7, uint64_t p8, uint64_t p9, uint64_t p10, float p11, float p12, float p13, int64_t grid, int64_t threads, int64_t first, int64_t count) {
int32_t trap = 0;
for (int64_t cta = first; cta < first + count; cta++) {
for (int64_t tid = 0; tid < threads; tid++) {
uint64_t r0;
uint64_t r1;
uint64_t r2;
uint64_t r3;
uint64_t r4;
uint64_t r5;
uint64_t r6;
uint64_t r7;
float r8;
float r9;
float r10;
uint32_t r11;
uint64_t r12;
uint32_t r13;
uint64_t r14;
uint64_t r15;
uint32_t r16;
uint64_t r17;
uint64_t r18;
uint64_t r19;
uint64_t r20;
uint64_t r21;
uint8_t r22;
uint64_t r23;
uint64_t r24;
uint64_t r25;
uint64_t r26;
uint64_t r27;
uint64_t r28;
uint64_t r29;
uint64_t r30;
uint64_t r31;
uint64_t r32;
uint64_t r33;
float r34;
float r35;
float r36;
float r37;
float r38;
float r39;
float r40;
float r41;
b0:;
  r0 = p3;
  r1 = p4;
  r2 = p5;
  r3 = p6;
  r4 = p7;
  r5 = p8;
  r6 = p9;
  r7 = p10;
  r8 = p11;
  r9 = p12;
  r10 = p13;
  r11 = (uint32_t)(cta);
  r12 = (uint64_t)(int64_t)(int32_t)r11;
  r13 = (uint32_t)(threads);
  r14 = (uint64_t)(int64_t)(int32_t)r13;
  r15 = (uint64_t)((uint64_t)r12 * r14);
  r16 = (uint32_t)(tid);
  r17 = (uint64_t)(int64_t)(int32_t)r16;
  r18 = (uint64_t)((uint64_t)r15 + r17);
  r19 = 1u;
  r20 = (uint64_t)((uint64_t)r19 * r0);
  r21 = (uint64_t)((uint64_t)r20 * r1);
  r22 = (int64_t)r18 < (int64_t)r21;
  if (r22) goto b1; else goto b2;
b1:;
  r23 = r1 == 0 ? 0 : (uint64_t)(r18 % r1);
  r24 = r1 == 0 ? 0 : (uint64_t)(r18 / r1);
  r25 = (uint64_t)((uint64_t)r2 + r23);
  r26 = (uint64_t)((uint64_t)r24 * r5);
  r27 = (uint64_t)((uint64_t)r25 + r26);
  r28 = (uint64_t)((uint64_t)r3 + r23);
  r29 = (uint64_t)((uint64_t)r24 * r6);
  r30 = (uint64_t)((uint64_t)r28 + r29);
  r31 = (uint64_t)((uint64_t)r4 + r23);
  r32 = (uint64_t)((uint64_t)r24 * r7);
  r33 = (uint64_t)((uint64_t)r31 + r32);
  { float e = 0; if (r27 < n0 / 4) memcpy(&e, p0 + 4 * r27, sizeof e); else trap = 1; r34 = (float)e; }
  { float e = 0; if (r30 < n1 / 4) memcpy(&e, p1 + 4 * r30, sizeof e); else trap = 1; r35 = (float)e; }
  r36 = r34 + r35;
  r37 = r36 * r8;
  r38 = (float)(erf((double)r37));
  r39 = r38 + r9;
  r40 = r39 * r10;
  r41 = r36 * r40;
  { float e = (float)r41; if (r33 < n2 / 4) memcpy(p2 + 4 * r33, &e, sizeof e); else trap = 1; }
  continue;
b2:;
  continue;
}
}
return trap;
}
