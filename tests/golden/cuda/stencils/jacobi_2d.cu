// Four neighbours of each inner point.
extern "C" __global__ void jacobi_2d(const double *in, double *out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= width - 1 || y >= height - 1) return;
    const double *p = in + y * width + x;
    out[y * width + x] = 0.25 * (p[-1] + p[1] + p[-width] + p[width]);
}
