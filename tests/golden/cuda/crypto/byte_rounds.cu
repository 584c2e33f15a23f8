// Rounds of a byte cipher after the pattern of Rijndael: a substitution table built in shared memory from inverses in GF(256), shifted
// rows, mixed columns, round keys. Sixteen threads share a state through shared memory.
__device__ unsigned char times(unsigned char a, unsigned char b) {
    unsigned char p = 0;
    for (int i = 0; i < 8; i++) {
        if (b & 1) p ^= a;
        a = a << 1 ^ (a & 0x80 ? 0x1b : 0);
        b >>= 1;
    }
    return p;
}
extern "C" __global__ void byte_rounds(const unsigned char *in, const unsigned char *keys, unsigned char *out, int rounds) {
    __shared__ unsigned char box[256], state[4][16];
    int t = threadIdx.y * 16 + threadIdx.x;
    for (int v = t; v < 256; v += 64) {
        unsigned char square = times(v, v), inverse = square;
        for (int i = 0; i < 6; i++) {
            square = times(square, square);
            inverse = times(inverse, square);
        }
        unsigned char s = inverse;
        for (int i = 0; i < 4; i++) {
            inverse = inverse << 1 | inverse >> 7;
            s ^= inverse;
        }
        box[v] = s ^ 0x63;
    }
    int g = (blockIdx.x * 4 + threadIdx.y) * 16 + threadIdx.x, row = threadIdx.x & 3, column = threadIdx.x >> 2;
    unsigned char *s = state[threadIdx.y], mine = in[g] ^ keys[threadIdx.x];
    for (int round = 1; round <= rounds; round++) {
        __syncthreads();
        s[threadIdx.x] = box[mine];
        __syncthreads();
        unsigned char c[4];
        for (int i = 0; i < 4; i++) c[i] = s[((column + ((row + i) & 3)) & 3) * 4 + ((row + i) & 3)];
        mine = round < rounds ? times(c[0], 2) ^ times(c[1], 3) ^ c[2] ^ c[3] : c[0];
        mine ^= keys[round * 16 + threadIdx.x];
    }
    out[g] = mine;
}
