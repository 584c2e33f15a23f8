// Streams of xorshift128+, seeded by a mixer of 64 bits.
__device__ unsigned long long mix(unsigned long long &state) {
    unsigned long long z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
extern "C" __global__ void xorshift128(unsigned long long seed, unsigned long long *out, int draws, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long state = seed + i, a = mix(state), b = mix(state);
    for (int k = 0; k < draws; k++) {
        unsigned long long t = a, s = b;
        a = s;
        t ^= t << 23;
        t ^= t >> 17;
        t ^= s ^ (s >> 26);
        b = t;
        out[k * n + i] = t + s;
    }
}
