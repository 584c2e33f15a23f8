// Interleaves three coordinates of ten bits and takes them apart again; Gray codes on the way.
__device__ unsigned spread(unsigned v) {
    v = (v | v << 16) & 0x030000ff;
    v = (v | v << 8) & 0x0300f00f;
    v = (v | v << 4) & 0x030c30c3;
    return (v | v << 2) & 0x09249249;
}
__device__ unsigned gathered(unsigned v) {
    v &= 0x09249249;
    v = (v | v >> 2) & 0x030c30c3;
    v = (v | v >> 4) & 0x0300f00f;
    v = (v | v >> 8) & 0x030000ff;
    return (v | v >> 16) & 0x3ff;
}
extern "C" __global__ void morton(const ushort4 *points, unsigned *codes, ushort4 *back, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    ushort4 p = points[i];
    unsigned code = spread(p.x) | spread(p.y) << 1 | spread(p.z) << 2;
    codes[i] = code ^ code >> 1;
    back[i] = make_ushort4(gathered(code), gathered(code >> 1), gathered(code >> 2), __popc(code));
}
