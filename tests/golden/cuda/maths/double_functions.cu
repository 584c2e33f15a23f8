// Square root, reciprocal and cube of doubles, correctly rounded where IEEE says so.
extern "C" __global__ void double_functions(const double *x, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = x[i], a = fabs(v), *o = out + 5 * i;
    o[0] = sqrt(a);
    o[1] = 1.0 / v;
    o[2] = fma(v, v, -v);
    o[3] = floor(v) + ceil(v) + trunc(v) + rint(v);
    o[4] = fmin(v, 0.5) - fmax(v, -0.5);
}
