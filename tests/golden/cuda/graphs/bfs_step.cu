// One level of breadth-first search: the frontier's neighbours that have no level yet get the next one.
extern "C" __global__ void bfs_step(const int *row, const int *column, int *level, int now, int *changed, int n) {
    int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= n || level[v] != now) return;
    for (int e = row[v]; e < row[v + 1]; e++)
        if (atomicCAS(&level[column[e]], -1, now + 1) == -1) atomicAdd(changed, 1);
}
