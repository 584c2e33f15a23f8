// Median of nine by exchanges in registers.
__device__ void order(int &a, int &b) {
    int lo = min(a, b);
    b = max(a, b);
    a = lo;
}
extern "C" __global__ void median_3x3(const short *in, short *out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= width - 1 || y >= height - 1) return;
    int v[9];
#pragma unroll
    for (int i = 0; i < 9; i++) v[i] = in[(y + i / 3 - 1) * width + x + i % 3 - 1];
#pragma unroll
    for (int end = 8; end >= 4; end--)
#pragma unroll
        for (int i = 0; i < end; i++) order(v[i], v[i + 1]);
    out[y * width + x] = v[4];
}
