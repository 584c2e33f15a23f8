// PCG with an output of rotated bits, made uniform in [0, 1) by multiplication.
struct Pcg {
    unsigned long long state, increment;
    __device__ unsigned next() {
        unsigned long long old = state;
        state = old * 6364136223846793005ull + increment;
        unsigned shifted = ((old >> 18) ^ old) >> 27, turn = old >> 59;
        return shifted >> turn | shifted << (-turn & 31);
    }
};
extern "C" __global__ void pcg32(float *out, unsigned long long seed, int draws, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Pcg g = {0, 2ull * i + 1};
    g.next();
    g.state += seed;
    g.next();
    for (int k = 0; k < draws; k++) out[i * draws + k] = (g.next() >> 8) * 0x1p-24f;
}
