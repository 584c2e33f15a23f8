// Place of each needle in a sorted array (first not less), with 64-bit indices.
extern "C" __global__ void binary_search(const double *sorted, long n, const double *needles, long *places, long m) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < m; i += (long)gridDim.x * blockDim.x) {
        long lo = 0, hi = n;
        while (lo < hi) {
            long mid = lo + (hi - lo) / 2;
            if (sorted[mid] < needles[i]) lo = mid + 1;
            else hi = mid;
        }
        places[i] = lo;
    }
}
