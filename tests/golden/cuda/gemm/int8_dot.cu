// 8-bit integers four at a time (dp4a), 32-bit sums.
extern "C" __global__ void int8_dot(const int *a, const int *b, int *c, const unsigned *ua, unsigned *uc, int m, int n, int words) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= m) return;
    int sum = 0;
    unsigned usum = 0;
    for (int i = 0; i < words; i++) {
        sum = __dp4a(a[y * words + i], b[x * words + i], sum);
        usum = __dp4a(ua[y * words + i], ua[x * words + i], usum);
    }
    c[y * n + x] = sum;
    uc[y * n + x] = usum;
}
