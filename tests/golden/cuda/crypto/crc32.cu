// CRC-32 of rows: the block builds the table in shared memory first.
extern "C" __global__ void crc32(const unsigned char *rows, int width, unsigned *out, int n) {
    __shared__ unsigned table[256];
    for (unsigned v = threadIdx.x; v < 256; v += blockDim.x) {
        unsigned c = v;
        for (int bit = 0; bit < 8; bit++) c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
        table[v] = c;
    }
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned c = ~0u;
    for (int j = 0; j < width; j++) c = table[(c ^ rows[i * width + j]) & 255] ^ c >> 8;
    out[i] = ~c;
}
