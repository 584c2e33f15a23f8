// Groups of equal values (32 and 64 bits) and whether all agree.
extern "C" __global__ void match(const int *a, const long long *b, unsigned *out) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    int all;
    out[4 * t] = __match_any_sync(~0u, a[t]);
    out[4 * t + 1] = __match_any_sync(~0u, b[t]);
    out[4 * t + 2] = __match_all_sync(~0u, a[t], &all);
    out[4 * t + 3] = all;
}
