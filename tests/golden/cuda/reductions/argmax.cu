// The greatest value of each row and the first place where it stands.
struct Best {
    float value;
    int index;
};
__device__ Best better(Best a, Best b) { return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a; }
extern "C" __global__ void argmax(const float *in, float *values, int *indices, int columns) {
    __shared__ Best best[128];
    const float *row = in + (size_t)blockIdx.x * columns;
    Best mine = {-__int_as_float(0x7f800000), columns};
    for (int c = threadIdx.x; c < columns; c += 128) mine = better(mine, Best{row[c], c});
    best[threadIdx.x] = mine;
    for (int s = 64; s > 0; s >>= 1) {
        __syncthreads();
        if (threadIdx.x < s) best[threadIdx.x] = better(best[threadIdx.x], best[threadIdx.x + s]);
    }
    if (threadIdx.x == 0) {
        values[blockIdx.x] = best[0].value;
        indices[blockIdx.x] = best[0].index;
    }
}
