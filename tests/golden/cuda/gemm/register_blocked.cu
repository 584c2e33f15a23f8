// Each of 64 threads holds 4 x 4 of a 32 x 32 tile of C; tiles of A and B of depth 8 in shared memory, read four at a time.
extern "C" __global__ void register_blocked(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int n, int k) {
    __shared__ __align__(16) float as[8][32], bs[8][32];
    int t = threadIdx.x, tx = t % 8, ty = t / 8, row = blockIdx.y * 32, column = blockIdx.x * 32;
    float acc[4][4] = {};
    for (int k0 = 0; k0 < k; k0 += 8) {
        for (int i = t; i < 256; i += 64) {
            as[i % 8][i / 8] = a[(row + i / 8) * k + k0 + i % 8];
            bs[i / 32][i % 32] = b[(k0 + i / 32) * n + column + i % 32];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float4 u = *(const float4 *)&as[i][ty * 4], v = *(const float4 *)&bs[i][tx * 4];
            float x[4] = {u.x, u.y, u.z, u.w}, y[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int s = 0; s < 4; s++) acc[r][s] += x[r] * y[s];
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
        *(float4 *)&c[(row + ty * 4 + r) * n + column + tx * 4] = make_float4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}
