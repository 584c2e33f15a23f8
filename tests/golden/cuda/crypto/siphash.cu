// SipHash-2-4 of messages of any length, 64 bits each.
typedef unsigned long long u64;
struct State {
    u64 a, b, c, d;
    __device__ static u64 turned(u64 x, int n) { return x << n | x >> (64 - n); }
    __device__ void round() {
        a += b, b = turned(b, 13) ^ a, a = turned(a, 32);
        c += d, d = turned(d, 16) ^ c;
        a += d, d = turned(d, 21) ^ a;
        c += b, b = turned(b, 17) ^ c, c = turned(c, 32);
    }
};
extern "C" __global__ void siphash(const unsigned char *data, const int *begin, ulonglong2 key, u64 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned char *p = data + begin[i];
    int length = begin[i + 1] - begin[i];
    State s = {key.x ^ 0x736f6d6570736575ull, key.y ^ 0x646f72616e646f6dull, key.x ^ 0x6c7967656e657261ull, key.y ^ 0x7465646279746573ull};
    for (int w = 0; w <= length / 8; w++) {
        u64 m = w == length / 8 ? (u64)length << 56 : 0;
        for (int b = 0; b < 8 && w * 8 + b < length; b++) m |= (u64)p[w * 8 + b] << 8 * b;
        s.d ^= m;
        s.round();
        s.round();
        s.a ^= m;
    }
    s.c ^= 0xff;
    for (int r = 0; r < 4; r++) s.round();
    out[i] = s.a ^ s.b ^ s.c ^ s.d;
}
