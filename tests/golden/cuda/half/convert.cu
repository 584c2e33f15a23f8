// Floats to half and bfloat16 and back, halves to integers, roundings named where the type knows them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void convert(const float *in, unsigned short *bits, float *back, int *whole, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = in[i];
    bits[4 * i] = __half_as_ushort(__float2half_rn(v));
    bits[4 * i + 1] = __half_as_ushort(__float2half_rz(v));
    bits[4 * i + 2] = __half_as_ushort(__float2half_ru(v));
    bits[4 * i + 3] = __bfloat16_as_ushort(__float2bfloat16_rn(v));
    back[2 * i] = __half2float(__float2half_rd(v));
    back[2 * i + 1] = __bfloat162float(__float2bfloat16_rn(v));
    whole[i] = __half2int_rn(__float2half_rn(v));
}
