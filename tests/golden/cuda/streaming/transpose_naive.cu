// out[x][y] = in[y][x] on a two-dimensional grid with ragged edges.
extern "C" __global__ void transpose_naive(const int *in, int *out, int rows, int columns) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < columns && y < rows) out[x * rows + y] = in[y * columns + x];
}
