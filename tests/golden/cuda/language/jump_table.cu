// A dense switch with falling through, made a table of jumps.
extern "C" __global__ void jump_table(const unsigned char *ops, const int *a, const int *b, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i], r = 0;
    switch (ops[i]) {
        case 0: r = x + y; break;
        case 1: r = x - y; break;
        case 2: r = x * y; break;
        case 3: r = y ? x / y : -1; break;
        case 4: r = x & y; break;
        case 5: r = x | y; break;
        case 6: r = x ^ y; break;
        case 7: r = x << (y & 31); break;
        case 8: r = x >> (y & 31); break;
        case 9: x = -x;
        case 10: r = min(x, y); break;
        case 11: r = max(x, y); break;
        case 12: r = ~x; break;
        default: r = 12345;
    }
    out[i] = r;
}
