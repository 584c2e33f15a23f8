// Mean and variance of a row by Welford's update, merged across a warp by Chan's rule; then (x - mean) rsqrt(var + eps) gamma + beta.
struct Moments {
    float mean, m2, count;
};
__device__ Moments merged(Moments a, Moments b) {
    float count = a.count + b.count;
    if (count == 0.0f) return a;
    float delta = b.mean - a.mean, share = b.count / count;
    return {a.mean + delta * share, a.m2 + b.m2 + delta * delta * a.count * share, count};
}
extern "C" __global__ void layer_norm(const float *in, const float *gamma, const float *beta, float *out, int columns, float eps) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    const float *x = in + row * columns;
    Moments m = {0.0f, 0.0f, 0.0f};
    for (int c = threadIdx.x; c < columns; c += 32) {
        m.count += 1.0f;
        float delta = x[c] - m.mean;
        m.mean += delta / m.count;
        m.m2 += delta * (x[c] - m.mean);
    }
    for (int d = 16; d > 0; d >>= 1) {
        Moments other = {__shfl_xor_sync(~0u, m.mean, d), __shfl_xor_sync(~0u, m.m2, d), __shfl_xor_sync(~0u, m.count, d)};
        m = merged(m, other);
    }
    float scale = rsqrtf(m.m2 / m.count + eps);
    for (int c = threadIdx.x; c < columns; c += 32) out[row * columns + c] = (x[c] - m.mean) * scale * gamma[c] + beta[c];
}
