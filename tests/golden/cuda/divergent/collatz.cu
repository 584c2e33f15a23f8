// Length of each number's path to 1 and its peak.
extern "C" __global__ void collatz(unsigned first, unsigned *length, unsigned long long *peak, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long v = first + i, top = v;
    unsigned steps = 0;
    while (v != 1) {
        v = v & 1 ? 3 * v + 1 : v >> 1;
        if (v > top) top = v;
        steps++;
    }
    length[i] = steps;
    peak[i] = top;
}
