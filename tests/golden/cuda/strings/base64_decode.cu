// Four letters to three bytes by ranges, without a table; counts letters that are not of the alphabet.
__device__ int value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}
extern "C" __global__ void base64_decode(const char *in, unsigned char *out, int *bad, int groups) {
    int g = blockIdx.x * blockDim.x + threadIdx.x;
    if (g >= groups) return;
    int v = 0;
    for (int k = 0; k < 4; k++) {
        int d = value(in[4 * g + k]);
        if (d < 0) atomicAdd(bad, 1);
        v = v << 6 | (d & 63);
    }
    out[3 * g] = v >> 16;
    out[3 * g + 1] = v >> 8;
    out[3 * g + 2] = v;
}
