// Inclusive products modulo 2^32 of a block: shuffles up in each warp, the warps' products scanned by the first.
__device__ unsigned warp_scan(unsigned v, int lane) {
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        unsigned other = __shfl_up_sync(0xffffffffu, v, d);
        if (lane >= d) v *= other;
    }
    return v;
}
extern "C" __global__ void warp_block_scan(const unsigned *in, unsigned *out, int n) {
    __shared__ unsigned whole[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = warp_scan(i < n ? in[i] : 1u, lane);
    if (lane == 31) whole[warp] = v;
    __syncthreads();
    if (warp == 0) whole[lane] = warp_scan(lane < blockDim.x / 32 ? whole[lane] : 1u, lane);
    __syncthreads();
    if (warp > 0) v *= whole[warp - 1];
    if (i < n) out[i] = v;
}
