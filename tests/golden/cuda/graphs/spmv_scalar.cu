// y = A x for a sparse matrix by rows, a thread a row.
extern "C" __global__ void spmv_scalar(const int *row, const int *column, const float *value, const float *x, float *y, int rows) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float sum = 0.0f;
    for (int e = row[r]; e < row[r + 1]; e++) sum += value[e] * x[column[e]];
    y[r] = sum;
}
