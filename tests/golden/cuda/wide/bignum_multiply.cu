// 256-bit products of 128-bit numbers, word by word.
extern "C" __global__ void bignum_multiply(const uint4 *a, const uint4 *b, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x[4] = {a[i].x, a[i].y, a[i].z, a[i].w}, y[4] = {b[i].x, b[i].y, b[i].z, b[i].w}, p[8] = {};
    for (int j = 0; j < 4; j++) {
        unsigned carry = 0;
        for (int k = 0; k < 4; k++) {
            unsigned long long v = (unsigned long long)x[j] * y[k] + p[j + k] + carry;
            p[j + k] = (unsigned)v;
            carry = v >> 32;
        }
        p[j + 4] = carry;
    }
    for (int k = 0; k < 8; k++) out[8 * i + k] = p[k];
}
