#undef TRAP
#define TRAP(code) { const u32 code_ = code; mine = code_ < mine ? code_ : mine; }
void k_bias_gelu_633375d7baca(GLOBAL u8 *b0, GLOBAL u8 *b1, GLOBAL u8 *b2, GLOBAL const u64 *w, u64 at, GLOBAL u64 *state, GLOBAL u8 *scratch) {
w += at;
GLOBAL u8 *const p0 = b0 + w[0]; const u64 n0 = w[1], a0 = w[2];
GLOBAL u8 *const p1 = b1 + w[3]; const u64 n1 = w[4], a1 = w[5];
GLOBAL u8 *const p2 = b2 + w[6]; const u64 n2 = w[7], a2 = w[8];
const u64 v3 = (u64)w[9];
const u64 v4 = (u64)w[10];
const u64 v5 = (u64)w[11];
const u64 v6 = (u64)w[12];
const u64 v7 = (u64)w[13];
const u64 v8 = (u64)w[14];
const u64 v9 = (u64)w[15];
const u64 v10 = (u64)w[16];
const f32 v11 = (f32)AS_F32((u32)w[17]);
const f32 v12 = (f32)AS_F32((u32)w[18]);
const f32 v13 = (f32)AS_F32((u32)w[19]);
const u32 gx = (u32)w[20], gy = (u32)w[21], gz = (u32)w[22]; const u64 first = w[23];
const u64 count = w[24];
for (u64 cta = first; cta < first + count; cta++) {
const u32 cx = (u32)cta % gx, cy = (u32)cta / gx % gy, cz = (u32)cta / gx / gy;
const u32 t = 0, tx = 0, ty = 0, tz = 0;
u64 n = 0;
u32 tr = ~0u, mine = ~0u;
const u64 r0 = v3;
const u64 r1 = v4;
const u64 r2 = v5;
const u64 r3 = v6;
const u64 r4 = v7;
const u64 r5 = v8;
const u64 r6 = v9;
const u64 r7 = v10;
const f32 r8 = v11;
const f32 r9 = v12;
const f32 r10 = v13;
const u32 r11 = cx;
const u64 r12 = (u64)(s64)(s32)r11;
const u32 r13 = 256u;
const u64 r14 = (u64)(s64)(s32)r13;
const u64 r15 = (u64)((u64)r12 * r14);
const u64 r19 = 1ull;
const u64 r20 = (u64)((u64)r19 * r0);
const u64 r21 = (u64)((u64)r20 * r1);
if (state[1] > state[2] || state[3] << 16 > state[2]) goto DONE;
B0:;
n += 6144u;
{ u32 all = 0;
for (u32 t = 0; t < 256u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
u32 spent = 0;
{
const u32 r16 = tx;
const u64 r17 = (u64)(s64)(s32)r16;
const u64 r18 = (u64)((u64)r15 + r17);
u8 r22;
u64 r23, r24, r25, r26, r27, r28, r29, r30, r31, r32, r33;
f32 r34, r35, r36, r37, r38, r39, r40, r41;
T0_0:;
r22 = (s64)r18 < (s64)r21;
if (r22) { goto T0_1; } else { goto T0_2; }
T0_1:;
spent += 21u;
r23 = r1 == 0 ? 0 : (u64)(r18 % r1);
r24 = r1 == 0 ? 0 : (u64)(r18 / r1);
r25 = (u64)((u64)r2 + r23);
r26 = (u64)((u64)r24 * r5);
r27 = (u64)((u64)r25 + r26);
r28 = (u64)((u64)r3 + r23);
r29 = (u64)((u64)r24 * r6);
r30 = (u64)((u64)r28 + r29);
r31 = (u64)((u64)r4 + r23);
r32 = (u64)((u64)r24 * r7);
r33 = (u64)((u64)r31 + r32);
if (r27 < n0 / 4) { r34 = (f32)((GLOBAL const f32_m *)(p0))[r27]; } else { r34 = 0; TRAP(0u) }
if (r30 < n1 / 4) { r35 = (f32)((GLOBAL const f32_m *)(p1))[r30]; } else { r35 = 0; TRAP(4u) }
r36 = r34 + r35;
r37 = r36 * r8;
r38 = (f32)(erf((f64)r37));
r39 = r38 + r9;
r40 = r39 * r10;
r41 = r36 * r40;
if (r33 < n2 / 4) { ((GLOBAL f32_m *)(p2))[r33] = (f32)r41; } else {  TRAP(8u) }
goto N0;
T0_2:;
spent += 1u;
goto N0;
}
N0:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
all += spent;
}
n += all; }
goto DONE;
DONE:;
if (mine < tr) tr = mine;
if (tr != ~0u) ATOM_MIN64((volatile GLOBAL u64 *)state, cta << 29 | tr);
ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), n);
}
}
