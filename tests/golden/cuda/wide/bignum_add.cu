// 256-bit sums and differences by chains of carries (inline assembly).
extern "C" __global__ void bignum_add(const unsigned *a, const unsigned *b, unsigned *sum, unsigned *difference, unsigned *carry, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x[8], y[8], s[8], d[8], c, w;
    for (int k = 0; k < 8; k++) x[k] = a[8 * i + k], y[k] = b[8 * i + k];
    asm("{\n"
        "add.cc.u32 %0, %9, %17;\n"
        "addc.cc.u32 %1, %10, %18;\n"
        "addc.cc.u32 %2, %11, %19;\n"
        "addc.cc.u32 %3, %12, %20;\n"
        "addc.cc.u32 %4, %13, %21;\n"
        "addc.cc.u32 %5, %14, %22;\n"
        "addc.cc.u32 %6, %15, %23;\n"
        "addc.cc.u32 %7, %16, %24;\n"
        "addc.u32 %8, 0, 0;\n"
        "}"
        : "=r"(s[0]), "=r"(s[1]), "=r"(s[2]), "=r"(s[3]), "=r"(s[4]), "=r"(s[5]), "=r"(s[6]), "=r"(s[7]), "=r"(c)
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]),
          "r"(y[4]), "r"(y[5]), "r"(y[6]), "r"(y[7]));
    asm("{\n"
        "sub.cc.u32 %0, %9, %17;\n"
        "subc.cc.u32 %1, %10, %18;\n"
        "subc.cc.u32 %2, %11, %19;\n"
        "subc.cc.u32 %3, %12, %20;\n"
        "subc.cc.u32 %4, %13, %21;\n"
        "subc.cc.u32 %5, %14, %22;\n"
        "subc.cc.u32 %6, %15, %23;\n"
        "subc.cc.u32 %7, %16, %24;\n"
        "subc.u32 %8, 0, 0;\n"
        "}"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7]), "=r"(w)
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]),
          "r"(y[4]), "r"(y[5]), "r"(y[6]), "r"(y[7]));
    for (int k = 0; k < 8; k++) sum[8 * i + k] = s[k], difference[8 * i + k] = d[k];
    carry[2 * i] = c;
    carry[2 * i + 1] = w;
}
