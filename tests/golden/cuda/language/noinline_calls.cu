// Functions that stay functions: scalars, structs and pointers as arguments, a struct as the result, calls in a loop and of one another.
struct Pair {
    int quotient;
    short remainder;
    bool exact;
};
__noinline__ __device__ Pair divided(int a, int b) { return {a / b, (short)(a % b), a % b == 0}; }
__noinline__ __device__ void accumulate(int *sums, Pair p) {
    sums[0] += p.quotient;
    sums[1] += p.remainder;
    sums[2] += p.exact;
}
__noinline__ __device__ float mean(const float *x, int n) {
    float s = 0.0f;
    for (int i = 0; i < n; i++) s += x[i];
    return s / n;
}
extern "C" __global__ void noinline_calls(const int *in, const float *x, int *out, float *means, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int sums[3] = {0, 0, 0};
    for (int d = 1; d <= 5; d++) accumulate(sums, divided(in[i], d));
    for (int k = 0; k < 3; k++) out[3 * i + k] = sums[k];
    means[i] = mean(x + i, 4);
}
