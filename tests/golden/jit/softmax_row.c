#undef TRAP
#define TRAP(code) { const u32 code_ = code; mine = code_ < mine ? code_ : mine; }
void k_softmax_row_f45584a90ab1(GLOBAL u8 *b0, GLOBAL u8 *b1, GLOBAL const u64 *w, u64 at, GLOBAL u64 *state, GLOBAL u8 *scratch) {
w += at;
GLOBAL u8 *const p0 = b0 + w[0]; const u64 n0 = w[1], a0 = w[2];
GLOBAL u8 *const p1 = b1 + w[3]; const u64 n1 = w[4], a1 = w[5];
const u64 v2 = (u64)w[6];
const u64 v3 = (u64)w[7];
const u64 v4 = (u64)w[8];
const u64 v5 = (u64)w[9];
const u64 v6 = (u64)w[10];
const u64 v7 = (u64)w[11];
const u32 gx = (u32)w[12], gy = (u32)w[13], gz = (u32)w[14]; const u64 first = w[15];
const u64 count = w[16];
for (u64 cta = first; cta < first + count; cta++) {
const u32 cx = (u32)cta % gx, cy = (u32)cta / gx % gy, cz = (u32)cta / gx / gy;
const u32 t = 0, tx = 0, ty = 0, tz = 0;
u64 n = 0;
const u64 fuel = state[2]; u64 next = 65536u;
u32 tr = ~0u, mine = ~0u;
 ALIGN16 u8 sh[256];
ALIGN16 f32 r17[32];
ALIGN16 u64 r18[32];
ALIGN16 f32 r35[32];
ALIGN16 f32 r37[32];
ALIGN16 u64 r38[32];
ALIGN16 f32 r57[32];
ALIGN16 u64 r58[32];
u64 r25, r47;
u8 r27, r49;
const u64 r0 = v2;
const u64 r1 = v3;
const u64 r2 = v4;
const u64 r3 = v5;
const u64 r4 = v6;
const u64 r5 = v7;
const u32 r8 = cx;
const u64 r9 = (u64)(s64)(s32)r8;
const u64 r10 = (u64)((u64)r9 * r4);
const u64 r11 = (u64)((u64)r2 + r10);
const u64 r12 = (u64)((u64)r9 * r5);
const u64 r13 = (u64)((u64)r3 + r12);
const u64 r14 = 1ull;
const u64 r15 = (u64)((u64)r14 * r1);
const f32 r16 = AS_F32(0xff800000u);
const u64 r24 = 16ull;
const u64 r26 = 0ull;
const u64 r34 = 0ull;
const f32 r36 = (0x0.0p+0f);
const u64 r46 = 16ull;
const u64 r48 = 0ull;
const u64 r56 = 0ull;
const u64 r66 = 32ull;
const u64 r55 = 1ull;
const u64 r45 = 32ull;
const u64 r33 = 1ull;
const u64 r23 = 32ull;
for (u32 i = 0; i < 64u; i++) ((SHARED u32_m *)sh)[i] = 0;
if (state[1] > state[2] || state[3] << 16 > state[2]) goto DONE;
B0:;
n += 640u;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
{
const u32 r6 = tx;
const u64 r7 = (u64)(s64)(s32)r6;
r17[t] = r16;
r18[t] = r7;
}
N0:;
}
goto E1;
E1:;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
u64 spent = 0;
{
u8 r19;
u64 r20;
f32 r21, r22;
T1_1:;
spent += 2u;
r19 = (s64)r18[t] < (s64)r15;
if (r19) { goto T1_2; } else { goto N1; }
T1_2:;
spent += 7u;
r20 = (u64)((u64)r11 + r18[t]);
if (r20 < n0 / 4) { r21 = (f32)((GLOBAL const f32_m *)(p0))[r20]; } else { r21 = 0; TRAP(0u) }
r22 = wis_max_f32(r17[t], r21);
r17[t] = r22;
r18[t] = (u64)((u64)r18[t] + r23);
if (n + spent >= next && wis_spent(state, fuel, n + spent, &next)) { n = n + spent; goto DONE; } goto T1_1;
}
N1:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
n += spent;
}
goto B3;
B3:;
n += 128u;
r25 = r24;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
{
const u32 r6 = tx;
const u64 r7 = (u64)(s64)(s32)r6;
if (r7 < 32u) { ((SHARED f32_m *)(sh))[r7] = (f32)r17[t]; } else {  TRAP(4u) }
}
N2:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
}
goto B4;
B4:;
n += 96u;
r27 = (s64)r26 < (s64)r25;
if (r27) { goto B5; } else { goto B6; }
B5:;
n += 64u;
{ u32 all = 0;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
u32 spent = 0;
{
const u32 r6 = tx;
const u64 r7 = (u64)(s64)(s32)r6;
u8 r28;
u64 r29;
f32 r30, r31, r32;
T3_5:;
r28 = (s64)r7 < (s64)r25;
if (r28) { goto T3_7; } else { goto N3; }
T3_7:;
spent += 6u;
r29 = (u64)((u64)r7 + r25);
if (r7 < 32u) { r30 = (f32)((SHARED const f32_m *)(sh))[r7]; } else { r30 = 0; TRAP(12u) }
if (r29 < 32u) { r31 = (f32)((SHARED const f32_m *)(sh))[r29]; } else { r31 = 0; TRAP(16u) }
r32 = wis_max_f32(r30, r31);
if (r7 < 32u) { ((SHARED f32_m *)(sh))[r7] = (f32)r32; } else {  TRAP(20u) }
goto N3;
}
N3:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
all += spent;
}
n += all; }
goto B8;
B6:;
n += 192u;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
{
const u32 r6 = tx;
const u64 r7 = (u64)(s64)(s32)r6;
if (r34 < 32u) { r35[t] = (f32)((SHARED const f32_m *)(sh))[r34]; } else { r35[t] = 0; TRAP(8u) }
r37[t] = r36;
r38[t] = r7;
}
N4:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
}
goto E9;
B8:;
n += 96u;
r25 = r33 < 64 ? (u64)(r25 >> r33) : 0;
if (n >= next && wis_spent(state, fuel, n, &next)) goto DONE; goto B4;
E9:;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
u64 spent = 0;
{
u8 r39;
u64 r40;
f32 r41, r42, r43, r44;
T5_9:;
spent += 2u;
r39 = (s64)r38[t] < (s64)r15;
if (r39) { goto T5_10; } else { goto N5; }
T5_10:;
spent += 9u;
r40 = (u64)((u64)r11 + r38[t]);
if (r40 < n0 / 4) { r41 = (f32)((GLOBAL const f32_m *)(p0))[r40]; } else { r41 = 0; TRAP(24u) }
r42 = r41 - r35[t];
r43 = (f32)(exp((f64)r42));
r44 = r37[t] + r43;
r37[t] = r44;
r38[t] = (u64)((u64)r38[t] + r45);
if (n + spent >= next && wis_spent(state, fuel, n + spent, &next)) { n = n + spent; goto DONE; } goto T5_9;
}
N5:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
n += spent;
}
goto B11;
B11:;
n += 128u;
r47 = r46;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
{
const u32 r6 = tx;
const u64 r7 = (u64)(s64)(s32)r6;
if (r7 < 32u) { ((SHARED f32_m *)(sh + 128))[r7] = (f32)r37[t]; } else {  TRAP(28u) }
}
N6:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
}
goto B12;
B12:;
n += 96u;
r49 = (s64)r48 < (s64)r47;
if (r49) { goto B13; } else { goto B14; }
B13:;
n += 64u;
{ u32 all = 0;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
u32 spent = 0;
{
const u32 r6 = tx;
const u64 r7 = (u64)(s64)(s32)r6;
u8 r50;
u64 r51;
f32 r52, r53, r54;
T7_13:;
r50 = (s64)r7 < (s64)r47;
if (r50) { goto T7_15; } else { goto N7; }
T7_15:;
spent += 6u;
r51 = (u64)((u64)r7 + r47);
if (r7 < 32u) { r52 = (f32)((SHARED const f32_m *)(sh + 128))[r7]; } else { r52 = 0; TRAP(36u) }
if (r51 < 32u) { r53 = (f32)((SHARED const f32_m *)(sh + 128))[r51]; } else { r53 = 0; TRAP(40u) }
r54 = r52 + r53;
if (r7 < 32u) { ((SHARED f32_m *)(sh + 128))[r7] = (f32)r54; } else {  TRAP(44u) }
goto N7;
}
N7:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
all += spent;
}
n += all; }
goto B16;
B14:;
n += 128u;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
{
const u32 r6 = tx;
const u64 r7 = (u64)(s64)(s32)r6;
if (r56 < 32u) { r57[t] = (f32)((SHARED const f32_m *)(sh + 128))[r56]; } else { r57[t] = 0; TRAP(32u) }
r58[t] = r7;
}
N8:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
}
goto E17;
B16:;
n += 96u;
r47 = r55 < 64 ? (u64)(r47 >> r55) : 0;
if (n >= next && wis_spent(state, fuel, n, &next)) goto DONE; goto B12;
E17:;
for (u32 t = 0; t < 32u; t++) { const u32 tx = t, ty = 0, tz = 0; (void)tx; (void)ty; (void)tz;
u32 mine = ~0u;
u64 spent = 0;
{
u8 r59;
u64 r60, r65;
f32 r61, r62, r63, r64;
T9_17:;
spent += 2u;
r59 = (s64)r58[t] < (s64)r15;
if (r59) { goto T9_18; } else { goto N9; }
T9_18:;
spent += 10u;
r60 = (u64)((u64)r11 + r58[t]);
if (r60 < n0 / 4) { r61 = (f32)((GLOBAL const f32_m *)(p0))[r60]; } else { r61 = 0; TRAP(48u) }
r62 = r61 - r35[t];
r63 = (f32)(exp((f64)r62));
r64 = DIV32(r63, r57[t]);
r65 = (u64)((u64)r13 + r58[t]);
if (r65 < n1 / 4) { ((GLOBAL f32_m *)(p1))[r65] = (f32)r64; } else {  TRAP(52u) }
r58[t] = (u64)((u64)r58[t] + r66);
if (n + spent >= next && wis_spent(state, fuel, n + spent, &next)) { n = n + spent; goto DONE; } goto T9_17;
}
N9:;
{ const u32 x = mine != ~0u ? t << 19 | mine : ~0u; tr = x < tr ? x : tr; }
n += spent;
}
goto B19;
B19:;
n += 32u;
goto DONE;
DONE:;
if (mine < tr) tr = mine;
if (tr != ~0u) ATOM_MIN64((volatile GLOBAL u64 *)state, cta << 29 | tr);
ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), n);
}
}
