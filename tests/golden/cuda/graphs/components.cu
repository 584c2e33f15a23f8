// Connected components: labels fall by atomic minimum over edges until nothing changes; one block.
extern "C" __global__ void components(const int2 *edges, int count, int *label, int n) {
    __shared__ int changed;
    for (int v = threadIdx.x; v < n; v += blockDim.x) label[v] = v;
    do {
        __syncthreads();
        changed = 0;
        __syncthreads();
        for (int e = threadIdx.x; e < count; e += blockDim.x) {
            int a = edges[e].x, b = edges[e].y, la = label[a], lb = label[b];
            if (la < lb) {
                atomicMin(&label[b], la);
                changed = 1;
            } else if (lb < la) {
                atomicMin(&label[a], lb);
                changed = 1;
            }
        }
        __syncthreads();
    } while (changed);
}
