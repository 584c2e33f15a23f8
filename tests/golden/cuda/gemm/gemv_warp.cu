// y = A x, a warp a row, partial sums joined by shuffles.
extern "C" __global__ void gemv_warp(const float *a, const float *x, float *y, int rows, int columns) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = lane; c < columns; c += 32) sum += a[row * columns + c] * x[c];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (lane == 0) y[row] = sum;
}
