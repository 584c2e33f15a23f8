// Marks where a needle occurs, and the first place by atomic minimum.
extern "C" __global__ void find_all(const char *text, int n, const char *needle, int m, unsigned char *marks, unsigned *first) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + m > n) return;
    int k = 0;
    while (k < m && text[i + k] == needle[k]) k++;
    marks[i] = k == m;
    if (k == m) atomicMin(first, i);
}
