// Every thread sorts 12 numbers of its own in a local array that is indexed by data.
extern "C" __global__ void insertion_local(const long long *in, long long *out, int rows) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    long long s[12];
    for (int i = 0; i < 12; i++) {
        long long v = in[r * 12 + i];
        int j = i;
        while (j > 0 && s[j - 1] > v) {
            s[j] = s[j - 1];
            j--;
        }
        s[j] = v;
    }
    for (int i = 0; i < 12; i++) out[r * 12 + i] = s[i];
}
