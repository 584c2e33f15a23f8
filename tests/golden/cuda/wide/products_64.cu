// High and low halves of products, quotients and remainders of 64 bits, signed and unsigned.
extern "C" __global__ void products_64(const long long *a, const long long *b, long long *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long x = a[i], y = b[i], *o = out + 8 * i;
    o[0] = __mul64hi(x, y);
    o[1] = (long long)__umul64hi(x, y);
    o[2] = x * y;
    o[3] = (long long)__mulhi((int)x, (int)y) << 32 | __umulhi((unsigned)x, (unsigned)y);
    o[4] = x / y;
    o[5] = x % y;
    o[6] = (unsigned long long)x / (unsigned long long)y;
    o[7] = (unsigned long long)x % (unsigned long long)y;
}
