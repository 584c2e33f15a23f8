// XTEA there and back again: encrypts, and decrypts its own result into a second buffer.
extern "C" __global__ void xtea(const uint2 *in, uint2 *secret, uint2 *again, uint4 key, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned k[4] = {key.x, key.y, key.z, key.w}, a = in[i].x, b = in[i].y, sum = 0;
    for (int r = 0; r < 32; r++) {
        a += ((b << 4 ^ b >> 5) + b) ^ (sum + k[sum & 3]);
        sum += 0x9e3779b9u;
        b += ((a << 4 ^ a >> 5) + a) ^ (sum + k[sum >> 11 & 3]);
    }
    secret[i] = make_uint2(a, b);
    for (int r = 0; r < 32; r++) {
        b -= ((a << 4 ^ a >> 5) + a) ^ (sum + k[sum >> 11 & 3]);
        sum -= 0x9e3779b9u;
        a -= ((b << 4 ^ b >> 5) + b) ^ (sum + k[sum & 3]);
    }
    again[i] = make_uint2(a, b);
}
