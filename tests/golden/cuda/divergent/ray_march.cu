// Steps along a ray through spheres on a lattice; leaves by hit, by distance or by count.
__device__ float field(float x, float y, float z) {
    x -= rintf(x), y -= rintf(y), z -= rintf(z);
    return sqrtf(x * x + y * y + z * z) - 0.3f;
}
extern "C" __global__ void ray_march(const float *directions, float *distance, unsigned char *why, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float dx = directions[3 * i], dy = directions[3 * i + 1], dz = directions[3 * i + 2], t = 0.05f;
    unsigned char reason = 2;
    for (int step = 0; step < 60; step++) {
        float d = field(0.5f + t * dx, 0.5f + t * dy, t * dz);
        if (d < 0.001f) {
            reason = 0;
            break;
        }
        t += d;
        if (t > 6.0f) {
            reason = 1;
            break;
        }
    }
    distance[i] = t;
    why[i] = reason;
}
