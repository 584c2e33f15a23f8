// Warps of which some lanes ended or never were: the rest still agree among themselves.
extern "C" __global__ void partial_warps(const int *in, int *out, unsigned *active, int n) {
    int t = threadIdx.x;
    if (t >= n) return;
    unsigned mask = __activemask();
    active[t] = mask;
    int v = in[t];
    for (int d = 16; d > 0; d /= 2) {
        int w = __shfl_xor_sync(mask, v, d);
        if (mask >> ((t & 31) ^ d) & 1) v = max(v, w);
    }
    out[t] = v;
}
