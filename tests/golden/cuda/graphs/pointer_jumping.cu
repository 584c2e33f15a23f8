// Root and depth of every node of a forest, by doubling the steps; one block.
extern "C" __global__ void pointer_jumping(const int *parent, int *root, int *depth, int n) {
    __shared__ int p[512], d[512];
    int v = threadIdx.x;
    p[v] = v < n ? parent[v] : v;
    d[v] = p[v] != v;
    __syncthreads();
    for (int step = 1; step < n; step *= 2) {
        int up = p[v], add = d[up], further = p[up];
        __syncthreads();
        d[v] += add;
        p[v] = further;
        __syncthreads();
    }
    if (v < n) root[v] = p[v], depth[v] = d[v];
}
