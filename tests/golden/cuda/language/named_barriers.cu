// Producer warps arrive, consumer warps wait, at numbered barriers with counts (inline assembly).
extern "C" __global__ void named_barriers(const int *in, int *out, int rounds) {
    __shared__ int slot[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int r = 0; r < rounds; r++) {
        if (warp == 0) {
            slot[lane] = in[r * 32 + lane] * 3;
            asm volatile("bar.arrive 1, 64;" ::: "memory");
            asm volatile("bar.sync 2, 64;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            out[r * 32 + lane] = slot[31 - lane];
            asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    }
}
