// Gradient size of a picture of bytes, clamped to 255.
extern "C" __global__ void sobel(const unsigned char *in, unsigned char *out, int width, int height) {
    __shared__ int s[10][18];
    int x0 = blockIdx.x * 16 - 1, y0 = blockIdx.y * 8 - 1;
    for (int i = threadIdx.y * 16 + threadIdx.x; i < 180; i += 128) {
        int u = x0 + i % 18, v = y0 + i / 18;
        s[i / 18][i % 18] = u >= 0 && u < width && v >= 0 && v < height ? in[v * width + u] : 0;
    }
    __syncthreads();
    int x = x0 + 1 + threadIdx.x, y = y0 + 1 + threadIdx.y, i = threadIdx.x + 1, j = threadIdx.y + 1;
    if (x >= width || y >= height) return;
    int gx = s[j - 1][i + 1] + 2 * s[j][i + 1] + s[j + 1][i + 1] - s[j - 1][i - 1] - 2 * s[j][i - 1] - s[j + 1][i - 1];
    int gy = s[j + 1][i - 1] + 2 * s[j + 1][i] + s[j + 1][i + 1] - s[j - 1][i - 1] - 2 * s[j - 1][i] - s[j - 1][i + 1];
    out[y * width + x] = min(255, abs(gx) + abs(gy));
}
