// All the numbers that a thread of a three-dimensional launch has, and its place in the whole.
extern "C" __global__ void grid_3d(unsigned *out) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned lane, warp;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    warp = thread / 32;
    unsigned i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    unsigned v = blockIdx.x | blockIdx.y << 3 | blockIdx.z << 6 | threadIdx.x << 9 | threadIdx.y << 13 | threadIdx.z << 17;
    out[2 * i] = v;
    out[2 * i + 1] = lane | warp << 8 | gridDim.z << 16 | blockDim.z << 24;
}
