// The four kinds of shuffle, at widths below a warp, and where no lane answers.
extern "C" __global__ void reduce_modes(const int *in, int *out) {
    int t = threadIdx.x, v = in[t];
    int *o = out + t * 6;
    o[0] = __shfl_sync(~0u, v, (t * 5 + 3) % 32);
    o[1] = __shfl_up_sync(~0u, v, 3);
    o[2] = __shfl_down_sync(~0u, v, 2, 8);
    o[3] = __shfl_xor_sync(~0u, v, 5, 16);
    o[4] = __shfl_sync(~0u, v, t + 40, 4);
    o[5] = __shfl_up_sync(~0u, v, 7, 16);
}
