// Functions of three words that become one instruction, and a table given by hand.
extern "C" __global__ void logic3(const unsigned *a, const unsigned *b, const unsigned *c, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = a[i], y = b[i], z = c[i], *o = out + 5 * i;
    o[0] = (x & y) | (~x & z);
    o[1] = (x & y) ^ (x & z) ^ (y & z);
    o[2] = x ^ y ^ z;
    asm("lop3.b32 %0, %1, %2, %3, 0x1b;" : "=r"(o[3]) : "r"(x), "r"(y), "r"(z));
    o[4] = ~(x | y) & ~z;
}
