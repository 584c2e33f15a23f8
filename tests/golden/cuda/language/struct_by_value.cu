// A nested struct as a kernel argument, with padding, an array inside that is indexed by data, and a pointer beside it.
struct Range {
    short first, last;
};
struct Settings {
    char kind;
    double scale;
    Range ranges[3];
    float weights[5];
    unsigned char last;
};
extern "C" __global__ void struct_by_value(Settings s, const int *in, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = in[i], hits = 0;
    for (int r = 0; r < 3; r++) hits += v >= s.ranges[r].first && v <= s.ranges[r].last;
    out[i] = s.scale * s.weights[((unsigned)v) % 5] + hits * 100 + s.kind * 1000 + s.last;
}
