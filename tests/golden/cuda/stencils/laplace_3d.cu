// Seven points on a three-dimensional grid of three-dimensional blocks.
extern "C" __global__ void laplace_3d(const float *u, float *out, int3 size) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= size.x || y >= size.y || z >= size.z) return;
    int i = (z * size.y + y) * size.x + x;
    float sum = -6.0f * u[i];
    if (x > 0) sum += u[i - 1];
    if (x < size.x - 1) sum += u[i + 1];
    if (y > 0) sum += u[i - size.x];
    if (y < size.y - 1) sum += u[i + size.x];
    if (z > 0) sum += u[i - size.x * size.y];
    if (z < size.z - 1) sum += u[i + size.x * size.y];
    out[i] = sum;
}
