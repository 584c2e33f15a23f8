// Between floats and integers with every rounding, saturation at the ends, and whole numbers kept as floats.
extern "C" __global__ void conversions(const float *x, const double *y, int *ints, long long *longs, unsigned *words, float *floats, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    double w = y[i];
    int *o = ints + 6 * i;
    o[0] = __float2int_rn(v);
    o[1] = __float2int_rz(v);
    o[2] = __float2int_ru(v);
    o[3] = __float2int_rd(v);
    o[4] = __double2int_rn(w);
    o[5] = (int)w;
    longs[3 * i] = __float2ll_rd(v);
    longs[3 * i + 1] = __double2ll_ru(w);
    longs[3 * i + 2] = (long long)w;
    words[2 * i] = __float2uint_rn(v);
    words[2 * i + 1] = __double2uint_rz(w);
    float *f = floats + 8 * i;
    f[0] = __int2float_ru(o[5]);
    f[1] = __int2float_rd(o[5]);
    f[2] = __double2float_ru(w);
    f[3] = __double2float_rz(w);
    f[4] = __ll2float_rn(longs[3 * i + 2]);
    f[5] = truncf(v) + floorf(v) + ceilf(v);
    f[6] = rintf(v);
    f[7] = roundf(v);
}
