// sinh, cosh, tanh, pow, erf, rsqrt, cbrt, hypot.
extern "C" __global__ void hyperbolic_pow(const float *x, const float *y, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], w = y[i], *o = out + 8 * i;
    o[0] = sinhf(v);
    o[1] = coshf(v);
    o[2] = tanhf(v);
    o[3] = powf(fabsf(v) + 0.1f, w);
    o[4] = erff(v);
    o[5] = rsqrtf(fabsf(v) + 0.01f);
    o[6] = hypotf(v, w);
    o[7] = 1.0f / (1.0f + expf(-v));
}
