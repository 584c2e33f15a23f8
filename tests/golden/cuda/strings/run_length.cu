// Runs of equal bytes as (byte, length): heads by comparison, places by a scan of ballots, lengths by the next head. One block.
extern "C" __global__ void run_length(const unsigned char *in, int n, unsigned char *bytes, int *lengths, int *runs) {
    __shared__ int warps[32], start[1025];
    int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    bool head = t < n && (t == 0 || in[t] != in[t - 1]);
    unsigned ballot = __ballot_sync(~0u, head);
    if (lane == 0) warps[warp] = __popc(ballot);
    __syncthreads();
    int before = __popc(ballot & ((1u << lane) - 1)), total = 0;
    for (int w = 0; w < blockDim.x / 32; w++) {
        if (w < warp) before += warps[w];
        total += warps[w];
    }
    if (head) start[before] = t;
    if (t == 0) start[total] = n;
    __syncthreads();
    if (t < total) {
        bytes[t] = in[start[t]];
        lengths[t] = start[t + 1] - start[t];
    }
    if (t == 0) *runs = total;
}
