// a = b + s * c with one rounding, in double.
extern "C" __global__ void triad_f64(double *a, const double *b, const double *c, double s, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    a[i] = fma(s, c[i], b[i]);
}
