// any, all, uni and ballot over a whole warp and over the half that takes a branch.
extern "C" __global__ void votes(const int *in, unsigned *out) {
    int t = threadIdx.x, lane = t & 31, v = in[t];
    unsigned r = 0;
    if (__any_sync(~0u, v > 90)) r |= 1;
    if (__all_sync(~0u, v > 10)) r |= 2;
    if (__uni_sync(~0u, v & 1)) r |= 4;
    unsigned b = __ballot_sync(~0u, v > 50);
    if (lane < 16) {
        if (__any_sync(0x0000ffffu, v > 95)) r |= 8;
        b ^= __ballot_sync(0x0000ffffu, v % 3 == 0);
    } else {
        if (__all_sync(0xffff0000u, v < 99)) r |= 16;
        b ^= __ballot_sync(0xffff0000u, v % 5 == 0);
    }
    out[2 * t] = r;
    out[2 * t + 1] = b;
}
