// Every operation in every direction of rounding, float and double.
extern "C" __global__ void rounded_arithmetic(const float *x, const float *y, float *out, const double *u, const double *v, double *dout, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i], b = y[i], *o = out + 12 * i;
    o[0] = __fadd_ru(a, b);
    o[1] = __fadd_rd(a, b);
    o[2] = __fadd_rz(a, b);
    o[3] = __fmul_ru(a, b);
    o[4] = __fmul_rd(a, b);
    o[5] = __fmul_rz(a, b);
    o[6] = __fdiv_ru(a, b);
    o[7] = __fdiv_rd(a, b);
    o[8] = __fmaf_rz(a, b, 1.0f);
    o[9] = __fsqrt_ru(fabsf(a));
    o[10] = __fsqrt_rd(fabsf(a));
    o[11] = __fmaf_ru(a, b, -1.0f);
    double c = u[i], d = v[i], *p = dout + 6 * i;
    p[0] = __dadd_ru(c, d);
    p[1] = __dadd_rd(c, d);
    p[2] = __dmul_rz(c, d);
    p[3] = __dmul_ru(c, d);
    p[4] = __ddiv_rd(c, d);
    p[5] = __dsqrt_ru(fabs(c));
}
