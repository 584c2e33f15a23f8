// Static and dynamic shared memory together; the dynamic part is cut into arrays of three types.
extern "C" __global__ void dynamic_shared(const float *in, double *out, int n) {
    extern __shared__ __align__(16) unsigned char raw[];
    __shared__ float shift[4];
    double *sums = (double *)raw;
    float *values = (float *)(sums + n);
    unsigned char *flags = (unsigned char *)(values + n);
    int t = threadIdx.x;
    if (t < 4) shift[t] = t * 0.25f;
    __syncthreads();
    values[t] = in[blockIdx.x * n + t] + shift[t & 3];
    flags[t] = values[t] > 0.0f;
    __syncthreads();
    sums[t] = (double)values[(t + 1) % n] + (flags[(t + 2) % n] ? 1.0 : -1.0);
    __syncthreads();
    out[blockIdx.x * n + t] = sums[n - 1 - t];
}
