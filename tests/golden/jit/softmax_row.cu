#undef TRAP
#define TRAP(code) { const u32 code_ = code; tr = code_ < tr ? code_ : tr; }
extern "C" __global__ void __launch_bounds__(32) k_softmax_row_f92de55e787b(GLOBAL u8 *b0, GLOBAL u8 *b1, GLOBAL const u64 *w, u64 at, GLOBAL u64 *state, GLOBAL u8 *scratch) {
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
const u32 tx = LOCAL_X, ty = LOCAL_Y, tz = LOCAL_Z, t = (tz * 1u + ty) * 32u + tx;
const u64 cta = first + GROUP;
const u32 cx = (u32)cta % gx, cy = (u32)cta / gx % gy, cz = (u32)cta / gx / gy;
u64 n = 0;
const u64 fuel = state[2]; u64 next = 65536u;
u32 tr = ~0u;
__shared__ ALIGN16 u8 sh[256];
__shared__ ALIGN16 u32 fin[3];
u64 r0, r1, r2, r3, r4, r5, r7, r9, r10, r11, r12, r13, r14, r15, r18, r20, r23, r24, r25, r26, r29, r33, r34, r38;
u64 r40, r45, r46, r47, r48, r51, r55, r56, r58, r60, r65, r66;
u32 r6, r8;
f32 r16, r17, r21, r22, r30, r31, r32, r35, r36, r37, r41, r42, r43, r44, r52, r53, r54, r57, r61, r62, r63, r64;
u8 r19, r27, r28, r39, r49, r50, r59;
for (u32 i = t; i < 64u; i += 32u) ((SHARED u32_m *)sh)[i] = 0;
if (t < 3) fin[t] = 0;
BARRIER;
B0:;
  n += 20u;
  r0 = v2;
  r1 = v3;
  r2 = v4;
  r3 = v5;
  r4 = v6;
  r5 = v7;
  r6 = tx;
  r7 = (u64)(s64)(s32)r6;
  r8 = cx;
  r9 = (u64)(s64)(s32)r8;
  r10 = (u64)((u64)r9 * r4);
  r11 = (u64)((u64)r2 + r10);
  r12 = (u64)((u64)r9 * r5);
  r13 = (u64)((u64)r3 + r12);
  r14 = 1ull;
  r15 = (u64)((u64)r14 * r1);
  r16 = AS_F32(0xff800000u);
  r17 = r16;
  r18 = r7;
  goto B1;
B1:;
  n += 2u;
  r19 = (s64)r18 < (s64)r15;
  if (r19) { goto B2; } else { goto B3; }
B2:;
  n += 7u;
  r20 = (u64)((u64)r11 + r18);
  if (r20 < n0 / 4) { r21 = (f32)((GLOBAL const f32_m *)(p0))[r20]; } else { r21 = 0; TRAP(0u) }
  r22 = wis_max_f32(r17, r21);
  r17 = r22;
  r23 = 32ull;
  r18 = (u64)((u64)r18 + r23);
  if (n >= next && wis_spent(state, fuel, n, &next)) { ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), (u64)n); return; } goto B1;
B3:;
  n += 4u;
  if (r7 < 32u) { ((SHARED f32_m *)(sh))[r7] = (f32)r17; } else {  TRAP(4u) }
  r24 = 16ull;
  r25 = r24;
  BARRIER; goto B4;
B4:;
  n += 3u;
  r26 = 0ull;
  r27 = (s64)r26 < (s64)r25;
  if (r27) { goto B5; } else { goto B6; }
B5:;
  n += 2u;
  r28 = (s64)r7 < (s64)r25;
  if (r28) { goto B7; } else { goto B8; }
B6:;
  n += 6u;
  r34 = 0ull;
  if (r34 < 32u) { r35 = (f32)((SHARED const f32_m *)(sh))[r34]; } else { r35 = 0; TRAP(8u) }
  r36 = (0x0.0p+0f);
  r37 = r36;
  r38 = r7;
  goto B9;
B7:;
  n += 6u;
  r29 = (u64)((u64)r7 + r25);
  if (r7 < 32u) { r30 = (f32)((SHARED const f32_m *)(sh))[r7]; } else { r30 = 0; TRAP(12u) }
  if (r29 < 32u) { r31 = (f32)((SHARED const f32_m *)(sh))[r29]; } else { r31 = 0; TRAP(16u) }
  r32 = wis_max_f32(r30, r31);
  if (r7 < 32u) { ((SHARED f32_m *)(sh))[r7] = (f32)r32; } else {  TRAP(20u) }
  goto B8;
B8:;
  n += 3u;
  r33 = 1ull;
  r25 = r33 < 64 ? (u64)(r25 >> r33) : 0;
  BARRIER; if (n >= next && wis_spent(state, fuel, n, &next)) { ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), (u64)n); return; } goto B4;
B9:;
  n += 2u;
  r39 = (s64)r38 < (s64)r15;
  if (r39) { goto B10; } else { goto B11; }
B10:;
  n += 9u;
  r40 = (u64)((u64)r11 + r38);
  if (r40 < n0 / 4) { r41 = (f32)((GLOBAL const f32_m *)(p0))[r40]; } else { r41 = 0; TRAP(24u) }
  r42 = r41 - r35;
  r43 = expf(r42);
  r44 = r37 + r43;
  r37 = r44;
  r45 = 32ull;
  r38 = (u64)((u64)r38 + r45);
  if (n >= next && wis_spent(state, fuel, n, &next)) { ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), (u64)n); return; } goto B9;
B11:;
  n += 4u;
  if (r7 < 32u) { ((SHARED f32_m *)(sh + 128))[r7] = (f32)r37; } else {  TRAP(28u) }
  r46 = 16ull;
  r47 = r46;
  BARRIER; goto B12;
B12:;
  n += 3u;
  r48 = 0ull;
  r49 = (s64)r48 < (s64)r47;
  if (r49) { goto B13; } else { goto B14; }
B13:;
  n += 2u;
  r50 = (s64)r7 < (s64)r47;
  if (r50) { goto B15; } else { goto B16; }
B14:;
  n += 4u;
  r56 = 0ull;
  if (r56 < 32u) { r57 = (f32)((SHARED const f32_m *)(sh + 128))[r56]; } else { r57 = 0; TRAP(32u) }
  r58 = r7;
  goto B17;
B15:;
  n += 6u;
  r51 = (u64)((u64)r7 + r47);
  if (r7 < 32u) { r52 = (f32)((SHARED const f32_m *)(sh + 128))[r7]; } else { r52 = 0; TRAP(36u) }
  if (r51 < 32u) { r53 = (f32)((SHARED const f32_m *)(sh + 128))[r51]; } else { r53 = 0; TRAP(40u) }
  r54 = r52 + r53;
  if (r7 < 32u) { ((SHARED f32_m *)(sh + 128))[r7] = (f32)r54; } else {  TRAP(44u) }
  goto B16;
B16:;
  n += 3u;
  r55 = 1ull;
  r47 = r55 < 64 ? (u64)(r47 >> r55) : 0;
  BARRIER; if (n >= next && wis_spent(state, fuel, n, &next)) { ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), (u64)n); return; } goto B12;
B17:;
  n += 2u;
  r59 = (s64)r58 < (s64)r15;
  if (r59) { goto B18; } else { goto B19; }
B18:;
  n += 10u;
  r60 = (u64)((u64)r11 + r58);
  if (r60 < n0 / 4) { r61 = (f32)((GLOBAL const f32_m *)(p0))[r60]; } else { r61 = 0; TRAP(48u) }
  r62 = r61 - r35;
  r63 = expf(r62);
  r64 = DIV32(r63, r57);
  r65 = (u64)((u64)r13 + r58);
  if (r65 < n1 / 4) { ((GLOBAL f32_m *)(p1))[r65] = (f32)r64; } else {  TRAP(52u) }
  r66 = 32ull;
  r58 = (u64)((u64)r58 + r66);
  if (n >= next && wis_spent(state, fuel, n, &next)) { ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), (u64)n); return; } goto B17;
B19:;
  n += 1u;
  goto END;
END:;
if (tr != ~0u) ATOM_MIN64((volatile GLOBAL u64 *)state, cta << 29 | (u64)t << 19 | tr);
ATOM_ADD32((volatile SHARED u32 *)(fin + 0), (u32)(n >> 0 & 0xffff));
ATOM_ADD32((volatile SHARED u32 *)(fin + 1), (u32)(n >> 16 & 0xffff));
ATOM_ADD32((volatile SHARED u32 *)(fin + 2), (u32)(n >> 32));
BARRIER;
if (t == 0) ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), fin[0] + ((u64)fin[1] << 16) + ((u64)fin[2] << 32));
}
