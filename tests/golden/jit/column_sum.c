#undef TRAP
#define TRAP(code) { const u32 code_ = code; mine = code_ < mine ? code_ : mine; }
void k_column_sum_c5543ec920b0(GLOBAL u8 *b0, GLOBAL u8 *b1, GLOBAL const u64 *w, u64 at, GLOBAL u64 *state, GLOBAL u8 *scratch) {
w += at;
GLOBAL u8 *const p0 = b0 + w[0]; const u64 n0 = w[1], a0 = w[2];
GLOBAL u8 *const p1 = b1 + w[3]; const u64 n1 = w[4], a1 = w[5];
const u64 v2 = (u64)w[6];
const u64 v3 = (u64)w[7];
const u64 v4 = (u64)w[8];
const u64 v5 = (u64)w[9];
const u64 v6 = (u64)w[10];
const u32 gx = (u32)w[11], gy = (u32)w[12], gz = (u32)w[13]; const u64 first = w[14];
const u64 count = w[15];
for (u64 cta = first; cta < first + count; cta++) {
const u32 cx = (u32)cta % gx, cy = (u32)cta / gx % gy, cz = (u32)cta / gx / gy;
const u32 t = 0, tx = 0, ty = 0, tz = 0;
u64 n = 0;
const u64 fuel = state[2]; u64 next = 65536u;
u32 tr = ~0u, mine = ~0u;
 ALIGN16 u8 sh[128];
ALIGN16 f32 r14[32];
ALIGN16 u64 r15[32];
ALIGN16 f32 r36[32];
u64 r24;
u8 r26;
const u64 r0 = v2;
const u64 r1 = v3;
const u64 r2 = v4;
const u64 r3 = v5;
const u64 r4 = v6;
const u32 r7 = cx;
const u64 r8 = (u64)(s64)(s32)r7;
const u64 r9 = (u64)((u64)r2 + r8);
const u64 r10 = (u64)((u64)r3 + r8);
const u64 r11 = 1ull;
const u64 r12 = (u64)((u64)r11 * r0);
const f32 r13 = (0x0.0p+0f);
const u64 r23 = 16ull;
const u64 r25 = 0ull;
const u64 r33 = 0ull;
const u64 r37 = 0ull;
const u64 r32 = 1ull;
const u64 r22 = 32ull;
for (u32 i = 0; i < 32u; i++) ((SHARED u32_m *)sh)[i] = 0;
if (state[1] > state[2] || state[3] << 16 > state[2]) goto DONE;
B0:;
n += 544u;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
{
const u32 r5 = tx;
const u64 r6 = (u64)(s64)(s32)r5;
r14[t] = r13;
r15[t] = r6;
}
N0:;
}
goto E1;
E1:;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
u64 spent = 0;
{
u8 r16;
u64 r17, r18;
u16 r19;
f32 r20, r21;
T1_1:;
spent += 2u;
r16 = (s64)r15[t] < (s64)r12;
if (r16) { goto T1_2; } else { goto N1; }
T1_2:;
spent += 9u;
r17 = (u64)((u64)r15[t] * r4);
r18 = (u64)((u64)r9 + r17);
if (r18 < n0 / 2) { r19 = (u16)((GLOBAL const u16_m *)(p0))[r18]; } else { r19 = 0; TRAP(0u) }
r20 = (f32)wis_f16(r19);
r21 = r14[t] + r20;
r14[t] = r21;
r15[t] = (u64)((u64)r15[t] + r22);
if (n + spent >= next && wis_spent(state, fuel, n + spent, &next)) { n = n + spent; goto DONE; } goto T1_1;
}
N1:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
n += spent;
}
goto B3;
B3:;
n += 128u;
r24 = r23;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
{
const u32 r5 = tx;
const u64 r6 = (u64)(s64)(s32)r5;
if (r6 < 32u) { ((SHARED f32_m *)(sh))[r6] = (f32)r14[t]; } else {  TRAP(4u) }
}
N2:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
}
goto B4;
B4:;
n += 96u;
r26 = (s64)r25 < (s64)r24;
if (r26) { goto B5; } else { goto B6; }
B5:;
n += 64u;
{ u32 all = 0;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
u32 spent = 0;
{
const u32 r5 = tx;
const u64 r6 = (u64)(s64)(s32)r5;
u8 r27;
u64 r28;
f32 r29, r30, r31;
T3_5:;
r27 = (s64)r6 < (s64)r24;
if (r27) { goto T3_7; } else { goto N3; }
T3_7:;
spent += 6u;
r28 = (u64)((u64)r6 + r24);
if (r6 < 32u) { r29 = (f32)((SHARED const f32_m *)(sh))[r6]; } else { r29 = 0; TRAP(12u) }
if (r28 < 32u) { r30 = (f32)((SHARED const f32_m *)(sh))[r28]; } else { r30 = 0; TRAP(16u) }
r31 = r29 + r30;
if (r6 < 32u) { ((SHARED f32_m *)(sh))[r6] = (f32)r31; } else {  TRAP(20u) }
goto N3;
}
N3:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
all += spent;
}
n += all; }
goto B8;
B6:;
n += 160u;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
{
f32 r34;
u16 r35;
if (r33 < 32u) { r34 = (f32)((SHARED const f32_m *)(sh))[r33]; } else { r34 = 0; TRAP(8u) }
r35 = wis_to_f16((f32)r34);
r36[t] = (f32)wis_f16(r35);
}
N4:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
}
goto B9;
B8:;
n += 96u;
r24 = r32 < 64 ? (u64)(r24 >> r32) : 0;
if (n >= next && wis_spent(state, fuel, n, &next)) goto DONE; goto B4;
B9:;
n += 96u;
{ u32 all = 0;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
u32 spent = 0;
{
const u32 r5 = tx;
const u64 r6 = (u64)(s64)(s32)r5;
u8 r38;
u16 r39;
T5_9:;
r38 = r6 == r37;
if (r38) { goto T5_10; } else { goto N5; }
T5_10:;
spent += 3u;
r39 = wis_to_f16((f32)r36[t]);
if (r10 < n1 / 2) { ((GLOBAL u16_m *)(p1))[r10] = (u16)r39; } else {  TRAP(24u) }
goto N5;
}
N5:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
all += spent;
}
n += all; }
goto B11;
B11:;
n += 32u;
goto DONE;
DONE:;
if (mine < tr) tr = mine;
if (tr != ~0u) ATOM_MIN64((volatile GLOBAL u64 *)state, cta << 29 | tr);
ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), n);
}
}
