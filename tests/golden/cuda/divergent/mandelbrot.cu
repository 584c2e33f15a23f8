// Steps until escape; neighbours leave the loop at different times.
extern "C" __global__ void mandelbrot(int *steps, int width, int height, int most) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float cx = -2.0f + 3.0f * x / width, cy = -1.5f + 3.0f * y / height, zx = 0.0f, zy = 0.0f;
    int k = 0;
    while (k < most && zx * zx + zy * zy <= 4.0f) {
        float t = zx * zx - zy * zy + cx;
        zy = 2.0f * zx * zy + cy;
        zx = t;
        k++;
    }
    steps[y * width + x] = k;
}
