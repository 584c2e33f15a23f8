// Threads that return before a barrier do not keep the others waiting.
extern "C" __global__ void early_return(const int *in, int *out, int n) {
    __shared__ int s[128];
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    s[t] = 0;
    __syncthreads();
    if (i >= n || in[i] < 0) return;
    s[t] = in[i];
    __syncthreads();
    int v = s[t] + s[127 - t];
    if (t % 3 == 0) return;
    __syncthreads();
    s[t] = v;
    __syncthreads();
    out[i] = s[t] + s[(t + 3) & 127];
}
