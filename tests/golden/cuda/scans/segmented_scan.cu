// Sums that start anew where a flag is set (block of 128, Hillis and Steele on pairs).
extern "C" __global__ void segmented_scan(const int *values, const unsigned char *heads, int *out, int n) {
    __shared__ int v[2][128];
    __shared__ unsigned char f[2][128];
    int t = threadIdx.x, now = 0, i = blockIdx.x * 128 + t;
    v[0][t] = i < n ? values[i] : 0;
    f[0][t] = i < n ? heads[i] : 1;
    __syncthreads();
    for (int d = 1; d < 128; d *= 2) {
        int next = 1 - now;
        bool join = t >= d && !f[now][t];
        v[next][t] = v[now][t] + (join ? v[now][t - d] : 0);
        f[next][t] = f[now][t] | (t >= d ? f[now][t - d] : 0);
        now = next;
        __syncthreads();
    }
    if (i < n) out[i] = v[now][t];
}
