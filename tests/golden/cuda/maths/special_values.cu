// Infinities, NaNs, zeros and denormals through arithmetic, comparisons and extremes.
extern "C" __global__ void special_values(const float *x, const float *y, float *out, int *flags, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i], b = y[i], *o = out + 6 * i;
    o[0] = a + b;
    o[1] = a * b;
    o[2] = a / b;
    o[3] = fminf(a, b);
    o[4] = fmaxf(a, b);
    o[5] = sqrtf(a);
    flags[i] = (a < b) | (a <= b) << 1 | (a == b) << 2 | (a != b) << 3 | isnan(a) << 4 | (isinf(a) != 0) << 5 | (signbit(a) != 0) << 6;
}
