// Every integer atomic on 32 bits, none of whose results depends on order.
extern "C" __global__ void integer_all(const int *in, int *i32, unsigned *u32, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = in[i];
    atomicAdd(&i32[0], v);
    atomicSub(&i32[1], v);
    atomicMin(&i32[2], v);
    atomicMax(&i32[3], v);
    atomicAnd(&i32[4], v | 0x00ff0ff0);
    atomicOr(&i32[5], v & 0x0ff00f0f);
    atomicXor(&i32[6], v);
    atomicMin(&u32[0], (unsigned)v);
    atomicMax(&u32[1], (unsigned)v);
    atomicInc(&u32[2], 6u);
    atomicDec(&u32[3], 10u);
    if (v == in[7]) atomicExch(&u32[4], 77u);
}
