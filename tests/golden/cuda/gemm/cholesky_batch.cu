// Cholesky of a 6 x 6 matrix a thread, in a local array; square root and quotient are correctly rounded.
extern "C" __global__ void cholesky_batch(const float *in, float *out, int count) {
    int m = blockIdx.x * blockDim.x + threadIdx.x;
    if (m >= count) return;
    float l[6][6];
    for (int i = 0; i < 6; i++)
        for (int j = 0; j <= i; j++) {
            float sum = in[m * 36 + i * 6 + j];
            for (int k = 0; k < j; k++) sum -= l[i][k] * l[j][k];
            l[i][j] = i == j ? sqrtf(sum) : sum / l[j][j];
        }
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) out[m * 36 + i * 6 + j] = j <= i ? l[i][j] : 0.0f;
}
