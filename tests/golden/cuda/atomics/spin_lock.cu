// A lock a bucket guards two words that must stay equal; taking and giving back happens inside of one turn of the loop.
extern "C" __global__ void spin_lock(int *locks, volatile int *pairs, int buckets, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int b = i * 7 % buckets;
    bool done = false;
    while (!done) {
        if (atomicCAS(&locks[b], 0, 1) == 0) {
            __threadfence();
            int v = pairs[2 * b];
            pairs[2 * b] = v + i;
            pairs[2 * b + 1] = v + i;
            __threadfence();
            atomicExch(&locks[b], 0);
            done = true;
        }
    }
}
