// 64-bit atomics, in shared memory and on to the output.
extern "C" __global__ void integer_64(const long long *in, long long *out, unsigned long long *uout, int n) {
    __shared__ unsigned long long sum, most;
    __shared__ long long least;
    if (threadIdx.x == 0) sum = 0, most = 0, least = 0x7fffffffffffffffll;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&sum, (unsigned long long)in[i]);
        atomicMax(&most, (unsigned long long)in[i]);
        atomicMin(&least, in[i]);
        atomicXor(&uout[2], (unsigned long long)in[i]);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(&uout[0], sum);
        atomicMax(&uout[1], most);
        atomicMin(&out[0], least);
    }
}
