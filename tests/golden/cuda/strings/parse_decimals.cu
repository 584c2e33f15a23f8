// Signed decimal numbers out of fixed-width fields, saturating at 64 bits; fields that are no numbers are flagged.
extern "C" __global__ void parse_decimals(const char *fields, int width, long long *values, bool *ok, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const char *p = fields + i * width, *end = p + width;
    while (p < end && *p == ' ') p++;
    bool negative = p < end && *p == '-', any = false, good = true;
    if (negative) p++;
    unsigned long long v = 0, most = 0x7fffffffffffffffull + negative;
    for (; p < end && *p != ' '; p++) {
        unsigned d = *p - '0';
        if (d > 9) {
            good = false;
            break;
        }
        any = true;
        v = v > (most - d) / 10 ? most : v * 10 + d;
    }
    ok[i] = good && any;
    values[i] = good && any ? (negative ? -v : v) : 0;
}
