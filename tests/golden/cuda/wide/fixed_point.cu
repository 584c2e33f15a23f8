// Products and quotients of 32.32 fixed point by 64-bit halves; square roots by digits.
extern "C" __global__ void fixed_point(const long long *a, const long long *b, long long *products, unsigned *roots, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long x = a[i], y = b[i];
    products[i] = (long long)((unsigned long long)__mul64hi(x, y) << 32 | (unsigned long long)(x * y) >> 32);
    unsigned long long v = x < 0 ? -x : x, root = 0, bit = 1ull << 62;
    while (bit > v) bit >>= 2;
    while (bit) {
        if (v >= root + bit) {
            v -= root + bit;
            root = (root >> 1) + bit;
        } else root >>= 1;
        bit >>= 2;
    }
    roots[i] = (unsigned)root;
}
