// Bytes chosen by selectors: the general form, and the six special modes by inline assembly.
extern "C" __global__ void permute_bytes(const unsigned *a, const unsigned *b, const unsigned *selector, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = a[i], y = b[i], s = selector[i], *o = out + 8 * i;
    o[0] = __byte_perm(x, y, s);
#define MODE(k, name) asm("prmt.b32." name " %0, %1, %2, %3;" : "=r"(o[k]) : "r"(x), "r"(y), "r"(s))
    MODE(1, "f4e");
    MODE(2, "b4e");
    MODE(3, "rc8");
    MODE(4, "ecl");
    MODE(5, "ecr");
    MODE(6, "rc16");
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(o[7]) : "r"(x), "r"(y), "r"(s));
}
