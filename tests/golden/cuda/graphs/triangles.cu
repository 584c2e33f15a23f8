// Triangles at each edge by merging sorted lists of neighbours; their number by 64-bit atomics.
extern "C" __global__ void triangles(const int *row, const int *column, const int2 *edges, unsigned long long *total, int *each, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    int a = row[edges[i].x], ae = row[edges[i].x + 1], b = row[edges[i].y], be = row[edges[i].y + 1], found = 0;
    while (a < ae && b < be) {
        int d = column[a] - column[b];
        found += d == 0;
        a += d <= 0;
        b += d >= 0;
    }
    each[i] = found;
    atomicAdd(total, (unsigned long long)found);
}
