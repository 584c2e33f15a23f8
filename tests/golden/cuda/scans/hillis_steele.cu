// Inclusive sums of a block in two halves of dynamic shared memory that take turns.
extern "C" __global__ void hillis_steele(const int *in, int *out, int n) {
    extern __shared__ int buffer[];
    int t = threadIdx.x, size = blockDim.x, i = blockIdx.x * size + t, from = 0;
    buffer[t] = i < n ? in[i] : 0;
    __syncthreads();
    for (int d = 1; d < size; d <<= 1) {
        int to = size - from;
        int v = buffer[from + t];
        if (t >= d) v += buffer[from + t - d];
        buffer[to + t] = v;
        from = to;
        __syncthreads();
    }
    if (i < n) out[i] = buffer[from + t];
}
