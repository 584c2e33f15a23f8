// C = alpha A B + beta C through 16 x 16 tiles in shared memory, any shape.
extern "C" __global__ void tiled(const float *a, const float *b, float *c, int m, int n, int k, float alpha, float beta) {
    __shared__ float as[16][16], bs[16][17];
    int tx = threadIdx.x, ty = threadIdx.y, x = blockIdx.x * 16 + tx, y = blockIdx.y * 16 + ty;
    float sum = 0.0f;
    for (int k0 = 0; k0 < k; k0 += 16) {
        as[ty][tx] = y < m && k0 + tx < k ? a[y * k + k0 + tx] : 0.0f;
        bs[ty][tx] = x < n && k0 + ty < k ? b[(k0 + ty) * n + x] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++) sum = fmaf(as[ty][i], bs[i][tx], sum);
        __syncthreads();
    }
    if (x < n && y < m) c[y * n + x] = alpha * sum + beta * c[y * n + x];
}
