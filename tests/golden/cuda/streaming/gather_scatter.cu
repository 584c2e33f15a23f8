// out[to[i]] = in[from[i]] with 16-bit indices; negative sources give -1.
extern "C" __global__ void gather_scatter(const int *in, const short *from, const unsigned short *to, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[to[i]] = from[i] < 0 ? -1 : in[from[i]];
}
