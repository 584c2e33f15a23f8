// Sorts 512 numbers a block in shared memory.
extern "C" __global__ void bitonic(unsigned *data) {
    __shared__ unsigned s[512];
    unsigned t = threadIdx.x;
    unsigned *mine = data + blockIdx.x * 512;
    s[t] = mine[t];
    s[t + 256] = mine[t + 256];
    for (unsigned k = 2; k <= 512; k <<= 1)
        for (unsigned j = k >> 1; j > 0; j >>= 1) {
            __syncthreads();
            unsigned a = 2 * t - (t & (j - 1)), b = a + j;
            bool up = (a & k) == 0;
            if ((s[a] > s[b]) == up) {
                unsigned v = s[a];
                s[a] = s[b];
                s[b] = v;
            }
        }
    __syncthreads();
    mine[t] = s[t];
    mine[t + 256] = s[t + 256];
}
