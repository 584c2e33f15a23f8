// A step of page rank by incoming edges; pages without links give to all.
extern "C" __global__ void pagerank(const int *row, const int *from, const int *links, const float *rank, float *out, float lost, int n) {
    int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= n) return;
    float sum = 0.0f;
    for (int e = row[v]; e < row[v + 1]; e++) sum += rank[from[e]] / links[from[e]];
    out[v] = 0.15f / n + 0.85f * (sum + lost / n);
}
