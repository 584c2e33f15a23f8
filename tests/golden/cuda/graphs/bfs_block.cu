// Whole breadth-first search of a small graph by one block; the frontier is a flag in shared memory.
extern "C" __global__ void bfs_block(const int *row, const int *column, int *level, int source, int n) {
    __shared__ int more;
    for (int v = threadIdx.x; v < n; v += blockDim.x) level[v] = v == source ? 0 : -1;
    for (int depth = 0;; depth++) {
        __syncthreads();
        if (threadIdx.x == 0) more = 0;
        __syncthreads();
        for (int v = threadIdx.x; v < n; v += blockDim.x)
            if (level[v] == depth)
                for (int e = row[v]; e < row[v + 1]; e++)
                    if (level[column[e]] < 0) {
                        level[column[e]] = depth + 1;
                        more = 1;
                    }
        __syncthreads();
        if (!more) break;
    }
}
