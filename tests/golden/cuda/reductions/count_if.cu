// How many elements of each block's share lie in a range; whether any does; whether all do (barriers that reduce).
extern "C" __global__ void count_if(const short *in, int lo, int hi, int *count, int *any, int *all, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool inside = i < n && in[i] >= lo && in[i] < hi;
    int c = __syncthreads_count(inside);
    int o = __syncthreads_or(inside);
    int a = __syncthreads_and(inside || i >= n);
    if (threadIdx.x == 0) count[blockIdx.x] = c, any[blockIdx.x] = o != 0, all[blockIdx.x] = a != 0;
}
