// Pointers that are chosen at run time: between two arguments, between shared and global memory, and out of a table.
extern "C" __global__ void chosen_buffer(const int *a, const int *b, int *out, int *other, int n) {
    __shared__ int s[64];
    int t = threadIdx.x;
    s[t] = 1000 + t;
    __syncthreads();
    const int *from = t % 2 ? a : b;
    if (t % 5 == 0) from = s;
    int *to = t % 3 ? out : other;
    const int *table[3] = {a, b, s};
    if (t < n) to[t] = from[t] + table[t % 3][(t + 1) % n];
}
