// Softmax of each row by one block: greatest, sum of exponentials, quotient.
extern "C" __global__ void row_softmax(const float *in, float *out, int columns) {
    __shared__ float part[128];
    const float *x = in + blockIdx.x * columns;
    float *y = out + blockIdx.x * columns;
    int t = threadIdx.x;
    float m = -3.0e38f;
    for (int c = t; c < columns; c += 128) m = fmaxf(m, x[c]);
    part[t] = m;
    __syncthreads();
    for (int s = 64; s > 0; s >>= 1) {
        if (t < s) part[t] = fmaxf(part[t], part[t + s]);
        __syncthreads();
    }
    m = part[0];
    __syncthreads();
    float sum = 0.0f;
    for (int c = t; c < columns; c += 128) sum += expf(x[c] - m);
    part[t] = sum;
    __syncthreads();
    for (int s = 64; s > 0; s >>= 1) {
        if (t < s) part[t] += part[t + s];
        __syncthreads();
    }
    sum = part[0];
    for (int c = t; c < columns; c += 128) y[c] = expf(x[c] - m) / sum;
}
