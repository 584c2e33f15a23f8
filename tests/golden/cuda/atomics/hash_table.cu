// Counts keys in an open-addressed table: slots are claimed by compare-and-swap, probing is linear and bounded.
extern "C" __global__ void hash_table(const unsigned *keys, unsigned *slots, int *counts, int size, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned key = keys[i], h = key * 2654435761u;
    for (int probe = 0; probe < size; probe++) {
        int s = (h + probe) & (size - 1);
        unsigned old = atomicCAS(&slots[s], 0u, key);
        if (old == 0 || old == key) {
            atomicAdd(&counts[s], 1);
            return;
        }
    }
}
