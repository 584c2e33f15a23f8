// Scalars of every small type as arguments; sums wrap and extend as their types say.
extern "C" __global__ void small_types(signed char a, unsigned char b, short c, unsigned short d, bool e, char f, long long g, const signed char *in,
                                       long long *out, unsigned char *narrow, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    signed char v = in[i];
    unsigned char w = v;
    short s = v * c;
    unsigned short u = w * d;
    out[i] = a + b + s + u + e + f + g;
    narrow[i] = (unsigned char)(v + a) >> 1 ^ (signed char)(w + b) >> 1;
}
