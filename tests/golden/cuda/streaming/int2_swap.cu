// Orders each pair (lesser first), two integers an access, in place.
extern "C" __global__ void int2_swap(int2 *pairs, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int2 p = pairs[i];
    if (p.x > p.y) pairs[i] = make_int2(p.y, p.x);
}
