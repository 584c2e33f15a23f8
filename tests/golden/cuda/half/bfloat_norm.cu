// Scales rows of bfloat16 to length one; squares, sum, root and quotient in float.
#include <cuda_bf16.h>
extern "C" __global__ void bfloat_norm(const __nv_bfloat16 *in, __nv_bfloat16 *out, int columns) {
    __shared__ float part[64];
    const __nv_bfloat16 *x = in + blockIdx.x * columns;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < columns; c += 64) {
        float v = __bfloat162float(x[c]);
        sum += v * v;
    }
    part[threadIdx.x] = sum;
    for (int s = 32; s > 0; s /= 2) {
        __syncthreads();
        if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
    }
    __syncthreads();
    float length = sqrtf(part[0]);
    for (int c = threadIdx.x; c < columns; c += 64) out[blockIdx.x * columns + c] = __float2bfloat16(__bfloat162float(x[c]) / length);
}
