// Sums, products, shifts and comparisons of the compiler's 128-bit integers.
extern "C" __global__ void int128(const ulonglong2 *a, const ulonglong2 *b, ulonglong2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __int128 x = (__int128)a[i].y << 64 | a[i].x, y = (__int128)b[i].y << 64 | b[i].x;
    __int128 r[4] = {x + y, x * y, x >> (int)(b[i].x & 127), x < y ? x - y : y - x};
    for (int k = 0; k < 4; k++) out[4 * i + k] = make_ulonglong2((unsigned long long)r[k], (unsigned long long)(r[k] >> 64));
}
