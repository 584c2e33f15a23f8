// Interleaved bytes to one channel: (77 r + 150 g + 29 b + 128) >> 8.
extern "C" __global__ void rgb_to_gray(const unsigned char *rgb, unsigned char *gray, int pixels) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pixels) return;
    const unsigned char *p = rgb + 3 * i;
    gray[i] = (77 * p[0] + 150 * p[1] + 29 * p[2] + 128) >> 8;
}
