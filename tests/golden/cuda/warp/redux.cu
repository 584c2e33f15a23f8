// Reductions by one instruction where the target has it, by shuffles elsewhere.
#if __CUDA_ARCH__ >= 800
#define FOLD(name, type, op) __device__ type name(type v) { return op(0xffffffffu, v); }
FOLD(sum, int, __reduce_add_sync)
FOLD(least, int, __reduce_min_sync)
FOLD(greatest, unsigned, __reduce_max_sync)
FOLD(common, unsigned, __reduce_and_sync)
FOLD(united, unsigned, __reduce_or_sync)
FOLD(parity, unsigned, __reduce_xor_sync)
#else
#define FOLD(name, type, join)                                       \
    __device__ type name(type v) {                                   \
        for (int d = 16; d > 0; d /= 2) {                            \
            type w = __shfl_xor_sync(0xffffffffu, v, d);             \
            v = join;                                                \
        }                                                            \
        return v;                                                    \
    }
FOLD(sum, int, v + w)
FOLD(least, int, min(v, w))
FOLD(greatest, unsigned, max(v, w))
FOLD(common, unsigned, v & w)
FOLD(united, unsigned, v | w)
FOLD(parity, unsigned, v ^ w)
#endif
extern "C" __global__ void redux(const int *in, int *out) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, v = in[t];
    int *o = out + 6 * t;
    o[0] = sum(v);
    o[1] = least(v);
    o[2] = greatest(v);
    o[3] = common(v | 0x1248);
    o[4] = united(v & 0x0f0f0f0f);
    o[5] = parity(v);
}
