// ChaCha20: a block of 64 bytes a thread, xored onto the text.
#define TURN(x, n) ((x) << (n) | (x) >> (32 - (n)))
__device__ __forceinline__ void quarter(unsigned &a, unsigned &b, unsigned &c, unsigned &d) {
    a += b, d ^= a, d = TURN(d, 16);
    c += d, b ^= c, b = TURN(b, 12);
    a += b, d ^= a, d = TURN(d, 8);
    c += d, b ^= c, b = TURN(b, 7);
}
extern "C" __global__ void chacha20(const unsigned *text, unsigned *out, const unsigned *key, uint3 nonce, unsigned counter, int words) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t * 16 >= words) return;
    unsigned s[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, 0, 0, 0, 0, 0, 0, 0, 0, counter + t, nonce.x, nonce.y, nonce.z}, x[16];
    for (int i = 0; i < 8; i++) s[4 + i] = key[i];
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = s[i];
    for (int round = 0; round < 10; round++) {
        quarter(x[0], x[4], x[8], x[12]);
        quarter(x[1], x[5], x[9], x[13]);
        quarter(x[2], x[6], x[10], x[14]);
        quarter(x[3], x[7], x[11], x[15]);
        quarter(x[0], x[5], x[10], x[15]);
        quarter(x[1], x[6], x[11], x[12]);
        quarter(x[2], x[7], x[8], x[13]);
        quarter(x[3], x[4], x[9], x[14]);
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (t * 16 + i < words) out[t * 16 + i] = text[t * 16 + i] ^ (x[i] + s[i]);
}
