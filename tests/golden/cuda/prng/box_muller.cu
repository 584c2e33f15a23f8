// Normal deviates out of uniform words: logarithm, root, sine and cosine.
extern "C" __global__ void box_muller(const uint2 *words, float2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float u = ((words[i].x >> 8) + 1) * 0x1p-24f, angle = (words[i].y >> 8) * (0x1p-24f * 6.2831853f);
    float radius = sqrtf(-2.0f * logf(u));
    out[i] = make_float2(radius * cosf(angle), radius * sinf(angle));
}
