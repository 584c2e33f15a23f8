// Least and greatest of all: first in registers, then in the block, then atomically over the grid.
extern "C" __global__ void minmax_atomic(const int *in, int *least, int *greatest, int n) {
    __shared__ int lo, hi;
    if (threadIdx.x == 0) lo = 2147483647, hi = -2147483647 - 1;
    __syncthreads();
    int a = 2147483647, b = -2147483647 - 1;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) a = min(a, in[i]), b = max(b, in[i]);
    atomicMin(&lo, a);
    atomicMax(&hi, b);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicMin(least, lo);
        atomicMax(greatest, hi);
    }
}
