// One sequence of a 64-bit congruential generator dealt to threads: each jumps to its place in logarithmic time.
extern "C" __global__ void lcg_jump(unsigned long long seed, unsigned *out, int each, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long steps = (unsigned long long)i * each;
    unsigned long long a = 6364136223846793005ull, c = 1442695040888963407ull, am = 1, cm = 0;
    for (; steps; steps >>= 1) {
        if (steps & 1) {
            am *= a;
            cm = cm * a + c;
        }
        c *= a + 1;
        a *= a;
    }
    unsigned long long x = seed * am + cm;
    for (int k = 0; k < each && i * each + k < n; k++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        out[i * each + k] = x >> 32;
    }
}
