// Darts at a quarter circle: xorshift32 in every thread, hits counted by warp and block, integers only.
extern "C" __global__ void monte_carlo_pi(unsigned *hits, unsigned seed, int darts) {
    unsigned x = seed ^ (blockIdx.x * blockDim.x + threadIdx.x) * 0x9E3779B9u, mine = 0;
    if (x == 0) x = 1;
    for (int k = 0; k < darts; k++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        unsigned a = x & 0xffff, b = x >> 16;
        mine += (unsigned long long)a * a + (unsigned long long)b * b < 0x100000000ull;
    }
    for (int d = 16; d > 0; d >>= 1) mine += __shfl_down_sync(0xffffffffu, mine, d);
    if ((threadIdx.x & 31) == 0) atomicAdd(hits, mine);
}
