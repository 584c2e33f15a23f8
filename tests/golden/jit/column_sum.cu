#undef TRAP
#define TRAP(code) { const u32 code_ = code; tr = code_ < tr ? code_ : tr; }
extern "C" __global__ void __launch_bounds__(32) k_column_sum_ceb6e844f5f3(GLOBAL u8 *b0, GLOBAL u8 *b1, GLOBAL const u64 *w, u64 at, GLOBAL u64 *state, GLOBAL u8 *scratch) {
w += at;
GLOBAL u8 *const p0 = b0 + w[0]; const u64 n0 = w[1], a0 = w[2];
GLOBAL u8 *const p1 = b1 + w[3]; const u64 n1 = w[4], a1 = w[5];
const u64 v2 = (u64)w[6];
const u64 v3 = (u64)w[7];
const u64 v4 = (u64)w[8];
const u64 v5 = (u64)w[9];
const u64 v6 = (u64)w[10];
const u32 gx = (u32)w[11], gy = (u32)w[12], gz = (u32)w[13]; const u64 first = w[14];
const u32 tx = LOCAL_X, ty = LOCAL_Y, tz = LOCAL_Z, t = (tz * 1u + ty) * 32u + tx;
const u64 cta = first + GROUP;
const u32 cx = (u32)cta % gx, cy = (u32)cta / gx % gy, cz = (u32)cta / gx / gy;
u64 n = 0;
const u64 fuel = state[2]; u64 next = 65536u;
u32 tr = ~0u;
__shared__ ALIGN16 u8 sh[128];
__shared__ ALIGN16 u32 fin[3];
u64 r0, r1, r2, r3, r4, r6, r8, r9, r10, r11, r12, r15, r17, r18, r22, r23, r24, r25, r28, r32, r33, r37;
u32 r5, r7;
f32 r13, r14, r20, r21, r29, r30, r31, r34, r36;
u8 r16, r26, r27, r38;
u16 r19, r35, r39;
for (u32 i = t; i < 32u; i += 32u) ((SHARED u32_m *)sh)[i] = 0;
if (t < 3) fin[t] = 0;
BARRIER;
B0:;
  n += 17u;
  r0 = v2;
  r1 = v3;
  r2 = v4;
  r3 = v5;
  r4 = v6;
  r5 = tx;
  r6 = (u64)(s64)(s32)r5;
  r7 = cx;
  r8 = (u64)(s64)(s32)r7;
  r9 = (u64)((u64)r2 + r8);
  r10 = (u64)((u64)r3 + r8);
  r11 = 1ull;
  r12 = (u64)((u64)r11 * r0);
  r13 = (0x0.0p+0f);
  r14 = r13;
  r15 = r6;
  goto B1;
B1:;
  n += 2u;
  r16 = (s64)r15 < (s64)r12;
  if (r16) { goto B2; } else { goto B3; }
B2:;
  n += 9u;
  r17 = (u64)((u64)r15 * r4);
  r18 = (u64)((u64)r9 + r17);
  if (r18 < n0 / 2) { r19 = (u16)((GLOBAL const u16_m *)(p0))[r18]; } else { r19 = 0; TRAP(0u) }
  r20 = (f32)wis_f16(r19);
  r21 = r14 + r20;
  r14 = r21;
  r22 = 32ull;
  r15 = (u64)((u64)r15 + r22);
  if (n >= next && wis_spent(state, fuel, n, &next)) { ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), (u64)n); return; } goto B1;
B3:;
  n += 4u;
  if (r6 < 32u) { ((SHARED f32_m *)(sh))[r6] = (f32)r14; } else {  TRAP(4u) }
  r23 = 16ull;
  r24 = r23;
  BARRIER; goto B4;
B4:;
  n += 3u;
  r25 = 0ull;
  r26 = (s64)r25 < (s64)r24;
  if (r26) { goto B5; } else { goto B6; }
B5:;
  n += 2u;
  r27 = (s64)r6 < (s64)r24;
  if (r27) { goto B7; } else { goto B8; }
B6:;
  n += 5u;
  r33 = 0ull;
  if (r33 < 32u) { r34 = (f32)((SHARED const f32_m *)(sh))[r33]; } else { r34 = 0; TRAP(8u) }
  r35 = wis_to_f16((f32)r34);
  r36 = (f32)wis_f16(r35);
  BARRIER; goto B9;
B7:;
  n += 6u;
  r28 = (u64)((u64)r6 + r24);
  if (r6 < 32u) { r29 = (f32)((SHARED const f32_m *)(sh))[r6]; } else { r29 = 0; TRAP(12u) }
  if (r28 < 32u) { r30 = (f32)((SHARED const f32_m *)(sh))[r28]; } else { r30 = 0; TRAP(16u) }
  r31 = r29 + r30;
  if (r6 < 32u) { ((SHARED f32_m *)(sh))[r6] = (f32)r31; } else {  TRAP(20u) }
  goto B8;
B8:;
  n += 3u;
  r32 = 1ull;
  r24 = r32 < 64 ? (u64)(r24 >> r32) : 0;
  BARRIER; if (n >= next && wis_spent(state, fuel, n, &next)) { ATOM_ADD64((volatile GLOBAL u64 *)(state + 1), (u64)n); return; } goto B4;
B9:;
  n += 3u;
  r37 = 0ull;
  r38 = r6 == r37;
  if (r38) { goto B10; } else { goto B11; }
B10:;
  n += 3u;
  r39 = wis_to_f16((f32)r36);
  if (r10 < n1 / 2) { ((GLOBAL u16_m *)(p1))[r10] = (u16)r39; } else {  TRAP(24u) }
  goto B11;
B11:;
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
