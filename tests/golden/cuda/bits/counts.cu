// Population, leading and trailing zeros, reversal, of 32 and 64 bits.
extern "C" __global__ void counts(const unsigned long long *in, int *out, unsigned long long *turned, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long v = in[i];
    int *o = out + 8 * i;
    o[0] = __popc((unsigned)v);
    o[1] = __popcll(v);
    o[2] = __clz((int)v);
    o[3] = __clzll((long long)v);
    o[4] = __ffs((int)v);
    o[5] = __ffsll((long long)v);
    o[6] = (int)__brev((unsigned)v);
    o[7] = (int)(__brevll(v) >> 32);
    turned[i] = __brevll(v);
}
