// Keeps the elements above a bound, in order: one block walks the array in pieces and carries the place on.
extern "C" __global__ void compact(const float *in, float *out, int *kept, float bound, int n) {
    __shared__ int place[256];
    __shared__ int base;
    int t = threadIdx.x;
    if (t == 0) base = 0;
    for (int start = 0; start < n; start += 256) {
        bool keep = start + t < n && in[start + t] > bound;
        place[t] = keep;
        __syncthreads();
        for (int d = 1; d < 256; d *= 2) {
            int v = t >= d ? place[t - d] : 0;
            __syncthreads();
            place[t] += v;
            __syncthreads();
        }
        if (keep) out[base + place[t] - 1] = in[start + t];
        __syncthreads();
        if (t == 255) base += place[255];
        __syncthreads();
    }
    if (t == 0) *kept = base;
}
