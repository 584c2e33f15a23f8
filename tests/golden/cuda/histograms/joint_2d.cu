// Joint histogram of two channels of 16-bit values, 12 x 10 cells, 64-bit counts.
extern "C" __global__ void joint_2d(const ushort2 *in, unsigned long long *cells, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        ushort2 p = in[i];
        atomicAdd(&cells[p.y * 10u / 65536u * 12u + p.x * 12u / 65536u], 1ull);
    }
}
