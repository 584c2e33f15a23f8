// One block sorts 256 keys by four bits at a time: ballots count digits inside of warps, a table holds the warps' counts.
extern "C" __global__ void radix_lsd(unsigned *keys, int n) {
    __shared__ unsigned key[256];
    __shared__ int count[16 * 8];
    int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    key[t] = t < n ? keys[t] : 0xffffffffu;
    for (int shift = 0; shift < 32; shift += 4) {
        __syncthreads();
        unsigned mine = key[t], digit = mine >> shift & 15, same = 0xffffffffu;
        for (int bit = 0; bit < 4; bit++) {
            unsigned set = __ballot_sync(0xffffffffu, digit >> bit & 1);
            same &= digit >> bit & 1 ? set : ~set;
        }
        if (t < 128) count[t] = 0;
        __syncthreads();
        int before = __popc(same & ((1u << lane) - 1));
        if (before == 0) count[digit * 8 + warp] = __popc(same);
        __syncthreads();
        int place = 0;
        for (int c = 0; c < digit * 8 + warp; c++) place += count[c];
        __syncthreads();
        key[place + before] = mine;
    }
    __syncthreads();
    if (t < n) keys[t] = key[t];
}
