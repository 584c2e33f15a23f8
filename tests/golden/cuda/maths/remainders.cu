// fmod, remainder, modf, frexp, ldexp and copysign, float and double: loops and bit work inside of the library.
extern "C" __global__ void remainders(const float *x, const float *y, const double *u, float *out, double *dout, int *exponents, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float *o = out + 6 * i, whole;
    o[0] = fmodf(x[i], y[i]);
    o[1] = remainderf(x[i], y[i]);
    o[2] = modff(x[i], &whole);
    o[3] = whole;
    o[4] = ldexpf(y[i], i % 9 - 4);
    o[5] = copysignf(x[i], y[i]);
    dout[2 * i] = fmod(u[i], 0.7);
    dout[2 * i + 1] = frexp(u[i], &exponents[i]);
}
