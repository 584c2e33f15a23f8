// Sums of absolute differences, averages without overflow, saturating sums, products of 24 bits.
extern "C" __global__ void saturating(const int *a, const int *b, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i], *o = out + 8 * i;
    o[0] = __sad(x, y, 5);
    o[1] = __usad(x, y, 7);
    o[2] = __hadd(x, y);
    o[3] = __rhadd(x, y);
    asm("add.sat.s32 %0, %1, %2;" : "=r"(o[4]) : "r"(x), "r"(y));
    asm("sub.sat.s32 %0, %1, %2;" : "=r"(o[5]) : "r"(x), "r"(y));
    o[6] = __mul24(x, y);
    o[7] = __umul24(x, y);
}
