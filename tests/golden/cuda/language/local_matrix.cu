// A determinant by elimination with pivoting in a local array; rows are exchanged by data.
extern "C" __global__ void local_matrix(const double *in, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double m[4][4], det = 1.0;
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) m[r][c] = in[i * 16 + r * 4 + c];
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
        int pivot = k;
        for (int r = k + 1; r < 4; r++)
            if (fabs(m[r][k]) > fabs(m[pivot][k])) pivot = r;
        if (m[pivot][k] == 0.0) {
            det = 0.0;
            break;
        }
        if (pivot != k) {
            det = -det;
            for (int c = 0; c < 4; c++) {
                double v = m[k][c];
                m[k][c] = m[pivot][c];
                m[pivot][c] = v;
            }
        }
        det *= m[k][k];
        for (int r = k + 1; r < 4; r++) {
            double f = m[r][k] / m[k][k];
            for (int c = k; c < 4; c++) m[r][c] -= f * m[k][c];
        }
    }
    out[i] = det;
}
