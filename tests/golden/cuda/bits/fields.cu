// Bit fields taken out and put in at places that come from data, by inline assembly.
extern "C" __global__ void fields(const unsigned *in, const unsigned *position, const unsigned *length, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = in[i], p = position[i], l = length[i], a, b, c, d, e;
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(a) : "r"(v), "r"(p), "r"(l));
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(b) : "r"(v), "r"(p), "r"(l));
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(c) : "r"(v), "r"(0xaaaaaaaau), "r"(p), "r"(l));
    asm("bfind.u32 %0, %1;" : "=r"(d) : "r"(v >> (p & 31)));
    asm("bfind.s32 %0, %1;" : "=r"(e) : "r"((int)v >> (p & 31)));
    unsigned *o = out + 5 * i;
    o[0] = a, o[1] = b, o[2] = c, o[3] = d, o[4] = e;
}
