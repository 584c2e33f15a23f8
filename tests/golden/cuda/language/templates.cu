// A template over the type, a size and a functor; the launch names the instance.
struct Plus {
    template <typename T> __device__ static T apply(T a, T b) { return a + b; }
};
struct Larger {
    template <typename T> __device__ static T apply(T a, T b) { return a > b ? a : b; }
};
template <typename T, int SIZE, typename Op> __global__ void fold(const T *in, T *out) {
    __shared__ T part[SIZE];
    part[threadIdx.x] = in[blockIdx.x * SIZE + threadIdx.x];
#pragma unroll
    for (int s = SIZE / 2; s > 0; s /= 2) {
        __syncthreads();
        if (threadIdx.x < s) part[threadIdx.x] = Op::apply(part[threadIdx.x], part[threadIdx.x + s]);
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
