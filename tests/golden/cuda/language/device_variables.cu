// Variables of the module: one that is read, one that is written, one that counts, one without a value.
__device__ int offsets[4] = {10, 20, 30, 40};
__device__ float results[64];
__device__ unsigned visits = 100;
__constant__ short limit = 25;
extern "C" __global__ void device_variables(const int *in, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = in[i] + offsets[i & 3];
    if (v > limit) atomicAdd(&visits, 1u);
    results[i] = v * 0.5f;
    out[i] = v;
}
