// Sums of doubles by compare-and-swap, and by the instruction; whole numbers, so every order gives one sum.
extern "C" __global__ void double_add_cas(const double *in, double *sums, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long *bits = (unsigned long long *)&sums[0], old = *bits, seen;
    do {
        seen = old;
        old = atomicCAS(bits, seen, __double_as_longlong(__longlong_as_double(seen) + in[i]));
    } while (old != seen);
    atomicAdd(&sums[1], in[i]);
}
