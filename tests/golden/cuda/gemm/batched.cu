// A batch of small products in double: the z of the grid moves the pointers.
extern "C" __global__ void batched(const double *a, const double *b, double *c, int m, int n, int k) {
    a += (size_t)blockIdx.z * m * k;
    b += (size_t)blockIdx.z * k * n;
    c += (size_t)blockIdx.z * m * n;
    for (int i = threadIdx.y; i < m; i += blockDim.y)
        for (int j = threadIdx.x; j < n; j += blockDim.x) {
            double sum = 0.0;
            for (int l = 0; l < k; l++) sum = fma(a[i * k + l], b[l * n + j], sum);
            c[i * n + j] = sum;
        }
}
