// A warp transposes a 32 x 32 matrix of bits: log steps of exchanging halves.
extern "C" __global__ void transpose_shuffle(const unsigned *rows, unsigned *columns) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    unsigned v = rows[t], mask = 0x0000ffffu;
    for (int j = 16; j > 0; j >>= 1, mask ^= mask << j) {
        unsigned other = __shfl_xor_sync(~0u, v, j);
        v = lane & j ? (v & ~mask) | (other >> j & mask) : (v & mask) | (other & mask) << j;
    }
    columns[t] = v;
}
