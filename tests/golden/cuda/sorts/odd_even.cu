// Odd-even transposition of one row a block, on halves of signed bytes.
extern "C" __global__ void odd_even(signed char *rows, int n) {
    __shared__ signed char s[64];
    int t = threadIdx.x;
    for (int i = t; i < n; i += blockDim.x) s[i] = rows[blockIdx.x * n + i];
    __syncthreads();
    for (int phase = 0; phase < n; phase++) {
        int i = 2 * t + (phase & 1);
        if (i + 1 < n && s[i] > s[i + 1]) {
            signed char v = s[i];
            s[i] = s[i + 1];
            s[i + 1] = v;
        }
        __syncthreads();
    }
    for (int i = t; i < n; i += blockDim.x) rows[blockIdx.x * n + i] = s[i];
}
