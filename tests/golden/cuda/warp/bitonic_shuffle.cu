// A warp sorts 32 (key, lane) pairs of 64 bits by exchanges.
extern "C" __global__ void bitonic_shuffle(const unsigned *keys, unsigned *sorted, unsigned *from, int warps) {
    int w = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (w >= warps) return;
    unsigned lane = threadIdx.x & 31;
    unsigned long long v = (unsigned long long)keys[w * 32 + lane] << 32 | lane;
#pragma unroll
    for (unsigned k = 2; k <= 32; k *= 2)
#pragma unroll
        for (unsigned j = k / 2; j > 0; j /= 2) {
            unsigned long long other = __shfl_xor_sync(~0u, v, j);
            bool lower = !(lane & j), up = !(lane & k);
            if (lower == up ? other < v : other > v) v = other;
        }
    sorted[w * 32 + lane] = v >> 32;
    from[w * 32 + lane] = (unsigned)v;
}
