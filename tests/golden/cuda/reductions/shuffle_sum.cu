// Sum of a block: shuffles inside of warps, then the first warp over the warps' sums.
__inline__ __device__ float warp_sum(float v) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    return v;
}
extern "C" __global__ void shuffle_sum(const float *in, float *sums, int n) {
    __shared__ float part[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = warp_sum(i < n ? in[i] : 0.0f);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = warp_sum(lane < warps ? part[lane] : 0.0f);
        if (lane == 0) sums[blockIdx.x] = v;
    }
}
