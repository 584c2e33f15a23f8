// exp, exp2, exp10, expm1 and the logarithms.
extern "C" __global__ void exponentials(const float *x, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], a = fabsf(v) + 1e-3f, *o = out + 8 * i;
    o[0] = expf(v);
    o[1] = exp2f(v);
    o[2] = exp10f(v);
    o[3] = expm1f(v);
    o[4] = logf(a);
    o[5] = log2f(a);
    o[6] = log10f(a);
    o[7] = log1pf(a);
}
