// Lanes with the same key add once: match, then the least lane of each group.
extern "C" __global__ void aggregated(const int *keys, int *bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int key = i < n ? keys[i] : -1;
    unsigned same = __match_any_sync(0xffffffffu, key);
    if (key >= 0 && (threadIdx.x & 31) == __ffs(same) - 1) atomicAdd(&bins[key], __popc(same));
}
