// Greatest common divisors by shifts and subtractions.
extern "C" __global__ void binary_gcd(const unsigned long long *a, const unsigned long long *b, unsigned long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long u = a[i], v = b[i];
    if (u == 0 || v == 0) {
        out[i] = u | v;
        return;
    }
    int shift = __ffsll(u | v) - 1;
    u >>= __ffsll(u) - 1;
    do {
        v >>= __ffsll(v) - 1;
        if (u > v) {
            unsigned long long t = v;
            v = u;
            u = t;
        }
        v -= u;
    } while (v);
    out[i] = u << shift;
}
