// y = A x for a sparse matrix by rows, a warp a row, in double.
extern "C" __global__ void spmv_warp(const int *row, const int *column, const double *value, const double *x, double *y, int rows) {
    int r = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (r >= rows) return;
    double sum = 0.0;
    for (int e = row[r] + lane; e < row[r + 1]; e += 32) sum += value[e] * x[column[e]];
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (lane == 0) y[r] = sum;
}
