// Greatest float by compare-and-swap on its bits.
__device__ float atomic_max(float *place, float v) {
    int *bits = (int *)place, old = *bits, seen;
    do {
        seen = old;
        if (__int_as_float(seen) >= v) break;
        old = atomicCAS(bits, seen, __float_as_int(v));
    } while (old != seen);
    return __int_as_float(old);
}
extern "C" __global__ void float_max_cas(const float *in, float *greatest, int groups, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomic_max(&greatest[i % groups], in[i]);
}
