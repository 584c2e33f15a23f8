// sin, cos, tan and their inverses, both results of sincosf, arguments far and near.
extern "C" __global__ void trigonometry(const float *x, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], u = v / (1.0f + fabsf(v)), s, c, *o = out + 9 * i;
    sincosf(v, &s, &c);
    o[0] = sinf(v);
    o[1] = cosf(v);
    o[2] = tanf(u);
    o[3] = asinf(u);
    o[4] = acosf(u);
    o[5] = atanf(v);
    o[6] = atan2f(u, v);
    o[7] = s - o[0];
    o[8] = c - o[1];
}
