// Both funnel shifts, wrapping and clamping; shifts of 64 bits by amounts that come from data.
extern "C" __global__ void funnel_shifts(const unsigned *lo, const unsigned *hi, const unsigned *by, unsigned *out, unsigned long long *wide, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned a = lo[i], b = hi[i], s = by[i], *o = out + 4 * i;
    o[0] = __funnelshift_l(a, b, s);
    o[1] = __funnelshift_r(a, b, s);
    o[2] = __funnelshift_lc(a, b, s);
    o[3] = __funnelshift_rc(a, b, s);
    unsigned long long v = (unsigned long long)b << 32 | a;
    wide[3 * i] = v << (s & 63);
    wide[3 * i + 1] = v >> (s & 63);
    wide[3 * i + 2] = (long long)v >> (s & 63);
}
