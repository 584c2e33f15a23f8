// Dot products of rows of halves, summed in float.
#include <cuda_fp16.h>
extern "C" __global__ void dot_f32(const __half2 *a, const __half2 *b, float *out, int rows, int pairs) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float sum = 0.0f;
    for (int i = 0; i < pairs; i++) {
        float2 x = __half22float2(a[r * pairs + i]), y = __half22float2(b[r * pairs + i]);
        sum += x.x * y.x;
        sum += x.y * y.y;
    }
    out[r] = sum;
}
