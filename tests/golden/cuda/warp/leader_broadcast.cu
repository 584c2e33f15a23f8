// Lanes that are still busy elect the least of them again and again; its value goes to all of them.
extern "C" __global__ void leader_broadcast(const int *work, int *order, int *sum, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, rounds = 0, total = 0;
    bool busy = work[t] >= 0;
    unsigned open = __ballot_sync(~0u, busy);
    while (open) {
        int leader = __ffs(open) - 1;
        int value = __shfl_sync(~0u, work[t], leader);
        if (lane == leader) order[t] = rounds;
        total += value;
        rounds++;
        open = __ballot_sync(~0u, busy && lane > leader);
    }
    sum[t] = total;
}
